"""Pruning of heads and channels: importances by their definition, what is kept, and masking as the reference."""

import json
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    PreTrainedModel,
)

from distill.__main__ import main as distill
from distill.training.students import planned, some_layers
from search_spaces import FFN, PUBLISHED, Attention, Base, Layer, cost
from supernet.build import base_of_teacher, from_teacher
from supernet.order.importance import mask_importance
from supernet.prune import main
from supernet.pruning import Kept, PruningError, choose, encoder_params, prune
from tests.commands import Refused
from tests.supernet.files import write_rows
from tests.tiny import CLASSES, SIZES, batch, bert, inputs, saved, shaken

# One layer loses two of its four heads, one all of them, and one nothing.
KEPT = Kept(heads=((0, 3), (), (0, 1, 2, 3)), channels=((1, 4, 40), (0,), tuple(range(48))))


def layer_params(base: Base, heads: int, channels: int) -> int:
    return cost.layer_params(base, Layer(Attention(heads), FFN(expansion=Fraction(channels, base.inner))))


def masked(model: PreTrainedModel, of_heads: list[Tensor], of_channels: list[Tensor]) -> PreTrainedModel:
    """A BERT of transformers in which the outputs of heads and channels are multiplied by these masks."""
    size = model.config.hidden_size // model.config.num_attention_heads
    for layer, heads, channels in zip(model.base_model.encoder.layer, of_heads, of_channels, strict=True):
        for linear, mask in (
            (layer.attention.output.dense, heads.repeat_interleave(size)),
            (layer.output.dense, channels),
        ):
            linear.register_forward_pre_hook(lambda _module, given, mask=mask: (given[0] * mask,))
    return model


def as_masks(kept: Kept) -> tuple[list[Tensor], list[Tensor]]:
    def mask(indices: tuple[int, ...], count: int) -> Tensor:
        return torch.zeros(count).index_fill(0, torch.tensor(indices, dtype=torch.long), 1)

    return [mask(heads, 4) for heads in kept.heads], [mask(channels, 48) for channels in kept.channels]


def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**inputs(given)).logits, given["labels"], reduction="sum")


def test_importance_is_the_gradient_of_a_mask() -> None:
    """Of every sample alone, through masks that are really there."""
    batches = [batch(4, 9, seed=1), batch(3, 6, seed=2)]
    of_heads = [torch.ones(4).double().requires_grad_() for _ in range(2)]
    of_channels = [torch.ones(48).double().requires_grad_() for _ in range(2)]
    reference = masked(bert().double(), of_heads, of_channels)
    expected = [torch.zeros_like(mask) for mask in (*of_heads, *of_channels)]
    for one in batches:
        for row in range(len(one["labels"])):
            sample = {name: tensor[row : row + 1] for name, tensor in one.items()}
            gradients = torch.autograd.grad(loss(reference, sample), [*of_heads, *of_channels])
            expected = [total + gradient.abs() for total, gradient in zip(expected, gradients, strict=True)]
    model = from_teacher(bert(), stack=1).double().train()
    heads, channels = mask_importance(model, batches, loss)
    torch.testing.assert_close([*heads, *channels], expected, rtol=1e-9, atol=1e-12)
    assert model.training and not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", [BertForSequenceClassification, BertForMaskedLM])
@torch.no_grad()
def test_pruned_is_masked(kind: type[PreTrainedModel], tmp_path: Path) -> None:
    """The reference is transformers' BERT with masks. The pruned model is as small as that, and stays so when saved."""
    model = shaken(kind(BertConfig(**SIZES | {"num_hidden_layers": 3, "num_labels": 3}))).eval()
    given = inputs(batch())
    whole = model(**given).logits
    everything = Kept(((0, 1, 2, 3),) * 3, (tuple(range(48)),) * 3)
    same = prune(model, everything)
    torch.testing.assert_close(same(**given).logits, whole)
    assert (same.config.attention_heads, same.config.kept_heads) == (None, None)
    assert encoder_params(same) == encoder_params(model)

    pruned = prune(model, KEPT)
    base, _ = base_of_teacher(model.config)
    assert encoder_params(pruned) == sum(layer_params(base, *sizes) for sizes in ((2, 3), (0, 1), (4, 48)))
    expected = masked(model, *as_masks(KEPT))(**given).logits
    assert not torch.allclose(expected, whole)
    torch.testing.assert_close(pruned(**given).logits, expected)
    pruned.save_pretrained(tmp_path)
    assert (tmp_path / "attention.py").exists()
    loaded = type(pruned).from_pretrained(tmp_path).eval()
    for attention in ("eager", "sdpa"):
        loaded.set_attn_implementation(attention)
        torch.testing.assert_close(loaded(**given).logits, expected)
    # Layers of it, as `first:N` and `uniform:N` take them.
    alone = some_layers(pruned, [2, 0])
    assert alone.config.attention_heads == [4, 2] and alone.config.kept_heads == [[0, 1, 2, 3], [0, 3]]


@pytest.mark.parametrize("percent", [8, 15, 30, 50, 80, 100])
def test_what_is_kept_is_most_important(percent: int) -> None:
    """Of all layers, relative to the layer's norm; layers on other scales get no more and no less."""
    base, _ = base_of_teacher(bert().config)
    generator = torch.Generator().manual_seed(percent)
    of_heads, of_channels = ([torch.rand(n, generator=generator) * 10**layer for layer in range(2)] for n in (4, 48))
    kept = choose(of_heads, of_channels, base, Fraction(percent, 100))
    assert sum(map(len, kept.heads)) == 8 * percent // 100
    spent = sum(layer_params(base, len(h), len(c)) for h, c in zip(kept.heads, kept.channels, strict=True))
    budget = 2 * layer_params(base, 4, 48) * percent // 100
    assert 0 <= budget - spent < 2 * 24 + 1  # another channel would not fit
    for scores, of_kind, least in ((of_heads, kept.heads, 0), (of_channels, kept.channels, 1)):
        values = [[score / sum(s * s for s in of.tolist()) ** 0.5 for score in of.tolist()] for of in scores]
        assert all(list(indices) == sorted(set(indices)) and len(indices) >= least for indices in of_kind)
        inside = [
            values[layer][index]
            for layer in range(2)
            for index in of_kind[layer]
            if values[layer][index] < max(values[layer]) or not least
        ]
        outside = [
            value for layer in range(2) for index, value in enumerate(values[layer]) if index not in of_kind[layer]
        ]
        assert not inside or not outside or min(inside) >= max(outside)


def test_the_smallest_share() -> None:
    base, _ = base_of_teacher(bert().config)
    scores = [torch.ones(4)] * 2, [torch.ones(48)] * 2
    least = Fraction(layer_params(base, 0, 1), layer_params(base, 4, 48))
    assert choose(*scores, base, least) == Kept(((), ()), ((0,), (0,)))
    message = r"3\.\d+%: too few parameters for 0 heads and one neuron in every layer; .* works is (\d\.\d\d)%$"
    with pytest.raises(PruningError, match=message) as caught:
        choose(*scores, base, least - Fraction(1, 10**6))
    enough = Fraction(str(caught.value).split()[-1].removesuffix("%")) / 100
    assert 0 < enough - least <= Fraction(1, 10_000)
    assert choose(*scores, base, enough) == Kept(((), ()), ((0,), (0,)))


def test_a_share_that_is_enough_for_a_head_is_named() -> None:
    """In an encoder with many heads and few channels a larger share may be too small, because a head is kept by it."""
    base = replace(base_of_teacher(bert().config)[0], inner=24)
    scores = [torch.ones(4)] * 2, [torch.ones(24)] * 2
    share = Fraction(1, 8)
    with pytest.raises(PruningError, match=r"^12\.5%: too few parameters for 1 head and one neuron") as caught:
        choose(*scores, base, share)
    enough = Fraction(str(caught.value).split()[-1].removesuffix("%")) / 100
    assert enough > share and sum(map(len, choose(*scores, base, enough).heads)) == 1
    with pytest.raises(PruningError):
        choose(*scores, base, enough - Fraction(1, 10_000))


def test_parameters_of_minimoe_s_table_5() -> None:
    """28.7 million of BERT-base, with its pooler, if 5 % of the encoder's layers are kept."""
    architecture = PUBLISHED["bert-base"]
    base = architecture.base
    generator = torch.Generator().manual_seed(0)
    of_heads, of_channels = torch.rand(12, 12, generator=generator), torch.rand(12, 3072, generator=generator)
    kept = choose(list(of_heads), list(of_channels), base, Fraction(1, 20))
    layers = sum(layer_params(base, len(h), len(c)) for h, c in zip(kept.heads, kept.channels, strict=True))
    assert cost.params_encoder(architecture) - 12 * layer_params(base, 12, 3072) == 23_837_184  # the embeddings
    assert f"{(23_837_184 + 768 * 769 + layers) / 1e6:.1f}" == "28.7"


def test_the_command_and_distillation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, rows = saved(bert(labels=2, **CLASSES), tmp_path / "bert"), write_rows(tmp_path)
    small = ["--max-length", "16", "--batch-size", "8", "--device", "cpu"]
    pruned, student = tmp_path / "pruned", tmp_path / "student"
    command = [str(checkpoint), *rows, *small, "--importance-batches", "2"]
    assert main([*command, "--keep-params", "15%", "--out", str(pruned)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^ +dense +0\.\d{4} ± .*\n +pruned +0\.\d{4} ± ", printed, re.M)
    report = json.loads((pruned / "metrics.json").read_text())
    model = AutoModelForSequenceClassification.from_pretrained(pruned, trust_remote_code=True)
    assert report["heads"] == model.config.attention_heads and sum(report["heads"]) < 8
    share = report["models"]["pruned"]["encoder_share"]
    assert share == encoder_params(model) / encoder_params(bert(labels=2)) and 0.14 < share <= 0.15
    assert f"{share:.2%} of the parameters of the encoder's layers" in printed
    options = ["--teacher", str(checkpoint), "--student", str(pruned), "--objective", "kd", "--steps", "2"]
    assert distill([*options, *rows, *small, "--out", str(student), "--quiet"]) == 0
    trained = AutoModelForSequenceClassification.from_pretrained(student, trust_remote_code=True)
    assert trained.config.attention_heads == report["heads"]
    assert trained.config.kept_heads == model.config.kept_heads

    assert main([*command, "--keep-params", "1/1000", "--out", str(tmp_path / "small")]) == 2
    assert (
        "supernet.prune: --keep-params 0.1%: too few parameters for 0 heads and one neuron in every layer; the next "
        "larger fraction that works is 3." in capsys.readouterr().err
    )
    assert not list(tmp_path.glob(".unfinished-*"))


@pytest.mark.parametrize(
    ("rows", "out", "message"),
    [
        (["--train", "x.tsv", "--dev", "y.tsv"], "full", "--out {out} exists and is not empty: choose another folder"),
        (["--train", "x.tsv", "--dev", "y.tsv"], "file", "--out {out} is not a folder"),
        ([], "new", "name the rows by --task NAME, or by --train FILE and --dev FILE"),
        (["--task", "sst2", "--train", "x.tsv"], "new", "--train cannot be combined with --task sst2: leave one of"),
        (["--task", "sst2", "--label", "kind"], "new", "--label describes the rows of --train FILE; add --train, or"),
    ],
)  # fmt: skip
def test_mistakes(rows: list[str], out: str, message: str, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "full").mkdir()
    for name in ("full/one", "file"):
        (tmp_path / name).write_text("")
    said = refused(main, "x", "--keep-params", "5%", *rows, "--out", tmp_path / out)
    assert message.format(out=tmp_path / out) in said


@pytest.mark.parametrize("share", ["0", "101%", "half", "1/0"])
def test_invalid_shares(share: str, refused: Refused) -> None:
    said = refused(main, "x", "--keep-params", share, "--out", "y")
    assert f"--keep-params: must be a fraction above 0 and at most 1, such as 99% or 0.99, not '{share}'" in said


NUMBERS = "different whole numbers from 0 to 3"
HEADS = [3, True, [4], [4, 5], [4, -1], [4, True], [4, 2.0], ["4", "4"]]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            ("attention_heads", heads, f" must be a list of 2 whole numbers from 0 to 4, not {heads!r}")
            for heads in HEADS
        ),
        ("kept_heads", 3, " must be a list of 2 lists, one for each layer, not 3"),
        ("kept_heads", [[0, 3]], " must be a list of 2 lists, one for each layer, not [[0, 3]]"),
        ("kept_heads", [[0, 3], [1]], f"[1] must be a list of 0 {NUMBERS}, not [1]"),
        *(
            ("kept_heads", [kept, []], f"[0] must be a list of 2 {NUMBERS}, not {kept!r}")
            for kept in ([0], [0, 0], [0, 4], [-1, 0], [0, True], 3)
        ),
    ],
)
def test_heads_that_no_pruning_leaves(name: str, value: object, message: str) -> None:
    pruned = prune(bert(), Kept(((0, 3), ()), ((0,), (1,))))
    setattr(pruned.config, name, value)
    with pytest.raises(ValueError, match=re.escape(f"config.{name}{message}") + "$"):
        type(pruned)(pruned.config)


def test_an_old_checkpoint_does_not_say_which_heads_it_has(tmp_path: Path) -> None:
    pruned, given = prune(bert(), Kept(((0, 3), ()), ((0,), (1,)))), inputs(batch())
    pruned.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("kept_heads") == [[0, 3], []]
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert loaded.config.kept_heads is None
    torch.testing.assert_close(loaded(**given).logits, pruned(**given).logits)


def test_the_command_and_a_last_layer_without_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MiniLM refuses it before anything is trained, also in layers of a pruned teacher, whose configuration is planned
    from its own; TinyBERT learns from the other layer.
    """
    whole = bert(labels=2, **CLASSES)
    teacher = saved(whole, tmp_path / "teacher")
    pruned = saved(prune(whole, Kept(((3,), ()), ((0,), (1,)))), tmp_path / "pruned")
    out = str(tmp_path / "student")
    common = [*write_rows(tmp_path), "--max-length", "16", "--device", "cpu", "--steps", "2", "--out", out]
    for options in (
        ["--teacher", str(teacher), "--student", str(pruned)],
        ["--teacher", str(pruned), "--student", "uniform:1"],
    ):
        assert distill([*options, "--objective", "minilm", *common]) == 2
        assert re.search(
            r"--objective minilm: minilm: layer \d of the student has no attention head: keep one there, or choose an "
            r"objective that compares none, such as kd\n$",
            capsys.readouterr().err,
        )
    options = ["--teacher", str(teacher), "--student", str(pruned), "--objective", "tinybert", "--quiet"]
    assert distill([*options, *common]) == 0
    trained = AutoConfig.from_pretrained(out)
    assert (trained.attention_heads, trained.kept_heads) == ([1, 0], [[3], []])
    first = planned("first:1", pruned_config := AutoConfig.from_pretrained(pruned), None)
    assert (first.attention_heads, first.kept_heads, pruned_config.attention_heads) == ([1], [[3]], [1, 0])

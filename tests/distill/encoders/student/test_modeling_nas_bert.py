"""The Hugging Face model: heads, padding, files that stand on their own."""

import json
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import BertModel, RobertaConfig

from distill.encoders import student as model_package
from distill.encoders.student.modeling_nas_bert import NasBertConfig, NasBertModel
from distill.tasks.types import TASK_TYPES
from search_spaces import FFN, Architecture, Attention, Embedding, Experts, FFNGraph, Layer, cost
from supernet.build import base_of_teacher, build
from tests.commands import output_elsewhere
from tests.renamed import of_every_kind
from tests.tiny import BASE, architectures, batch, bert, inputs, shaken

LABELS = 3
# The modules that travel in a checkpoint beside that of its family.
FILES = {path.stem for path in Path(model_package.__file__).parent.glob("*.py")}
SHARED = {name for name in FILES if not name.startswith(("__", "modeling_"))}

# Reads checkpoints as a stranger would: this project cannot be imported. Prints the largest difference of an output.
STRANGER = """
import json
import torch, transformers
from safetensors.torch import load_file

features, errors = load_file("features.safetensors"), {}
for name, auto in json.load(open("models.json")).items():
    model = getattr(transformers, auto).from_pretrained(name, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    with torch.no_grad():
        outputs = model(**features)
    expected = load_file(f"{name}/expected.safetensors")
    errors[name] = max(float((outputs[key] - tensor).abs().max()) for key, tensor in expected.items())
print(json.dumps(errors))
"""


def make(head: str = "classification", embedding: int | None = None, seed: int = 0) -> torch.nn.Module:
    base = replace(BASE, embedding=embedding, mismatch="wide" if seed % 2 else "narrow")
    architecture = next(architectures(1, base, seed))
    torch.manual_seed(seed)
    labels = 2 if head == "question_answering" else LABELS
    return shaken(build(architecture, TASK_TYPES.get(head), labels), seed).eval()


@torch.no_grad()
def results(model: torch.nn.Module, features: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model(**inputs(features)).items() if isinstance(tensor, Tensor)}


@pytest.mark.parametrize("embedding", [None, 7])
@pytest.mark.parametrize("head", ["none", *TASK_TYPES])
def test_padding_changes_nothing(head: str, embedding: int | None) -> None:
    model = make(head, embedding)
    features = batch(5, 9)
    padded = results(model, features)
    for row, length in enumerate(features["attention_mask"].sum(dim=1).tolist()):
        alone = results(model, {name: tensor[row : row + 1, :length] for name, tensor in inputs(features).items()})
        for name, tensor in alone.items():
            together = padded[name][row : row + 1]
            if tensor.ndim > 1 and tensor.shape[1] == length and tensor.shape != together.shape:
                together = together[:, :length]
            torch.testing.assert_close(together, tensor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("attention_experts", [1, 2])
def test_without_an_ffn_a_layer_ends_with_its_attention(attention_experts: int) -> None:
    ffns = (FFN(), FFN(stack=0), FFN(stack=0))
    model = shaken(build(Architecture.of_ffns(BASE, ffns, attention_experts), None)).eval()
    attended = []
    for layer in model.encoder.layer:
        layer.attention.register_forward_hook(lambda module, given, output: attended.append(output[0]))
    states = model(**inputs(batch()), output_hidden_states=True).hidden_states
    assert not torch.equal(states[1], attended[0])
    assert torch.equal(states[2], attended[1]) and torch.equal(states[3], attended[2])
    assert [len(layer.ffn) for layer in model.encoder.layer] == [1, 0, 0]
    assert model.config.ffn[1] | {"program": []} == {
        "formula": "no FFN",
        "program": [],
        "widths": [24, 0, 0, 24],
        "stack": 0,
        "inner": 0,
    }


def test_factorized_embedding() -> None:
    """Next, this and previous word, zero beyond the ends of the sentence, as MobileBERT orders them."""
    embeddings = make("none", 7).embeddings
    ids = torch.tensor([[5, 9, 3, 2]])
    words = F.pad(embeddings.word_embeddings(ids), (0, 0, 1, 1))
    trigrams = torch.cat([words[:, 2:], words[:, 1:-1], words[:, :-2]], dim=-1)
    mapped = embeddings.embedding_transformation(trigrams)
    mapped = mapped + embeddings.position_embeddings.weight[:4] + embeddings.token_type_embeddings.weight[0]
    torch.testing.assert_close(embeddings(ids), embeddings.LayerNorm(mapped))
    assert embeddings.position_ids.tolist() == [list(range(BASE.positions))]


@pytest.mark.parametrize("embedding", [None, 7])
def test_masked_lm_head_is_tied(embedding: int | None) -> None:
    model = make("masked_lm", embedding)
    decoder = model.cls.predictions.decoder
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert decoder.bias is model.cls.predictions.bias


@pytest.mark.parametrize("template", [None, RobertaConfig(pad_token_id=0)])
@torch.no_grad()
def test_a_word_embedding_of_lower_rank(template: Any, tmp_path: Path) -> None:
    """A table and a map in place of its words; the head that predicts words is tied to both, also after other words
    have been added.
    """
    architecture = replace(next(architectures(1)), embedding=Embedding(6))
    model = shaken(build(architecture, TASK_TYPES["masked_lm"], template=template)).eval()
    assert sum(p.numel() for p in model.parameters()) == cost.params(architecture, head=TASK_TYPES["masked_lm"].head)
    features = inputs(batch())
    logits = model(**features).logits
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**features).logits, logits)
    words, decoder = again.get_input_embeddings(), again.get_output_embeddings()
    torch.testing.assert_close(words(features["input_ids"]), words.weight[features["input_ids"]] @ words.map.weight.t())
    again.resize_token_embeddings(BASE.vocabulary + 3)
    assert decoder is again.get_output_embeddings() and words is again.get_input_embeddings()
    assert decoder.weight is words.weight and decoder.map.weight is words.map.weight
    assert words.weight.shape == (BASE.vocabulary + 3, 6)
    assert torch.equal(again(**features).logits[..., : BASE.vocabulary], logits)


def test_words_of_lower_rank_begin_as_large_as_others() -> None:
    architecture = Architecture.uniform(replace(BASE, vocabulary=500, width=64))
    models = (build(one, None) for one in (architecture, replace(architecture, embedding=Embedding(16))))
    deviations = [float(model.get_input_embeddings()(torch.arange(1, 500)).detach().std()) for model in models]
    assert deviations[1] == pytest.approx(deviations[0], rel=0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embedding_rank": 24}, "config.embedding_rank must be a whole number from 1 to 23, not 24"),
        ({"embedding_rank": "6"}, "config.embedding_rank must be a whole number from 1 to 23, not '6'"),
        ({"embedding_rank": 6, "embedding_size": 7}, "config.embedding_rank must be None, not 6, as embedding_size"),
    ],
)
def test_ranks_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    config = build(Architecture.uniform(BASE), None).config
    with pytest.raises(ValueError, match=f"^{message}"):
        NasBertModel(NasBertConfig(**config.to_dict() | changes))


def test_a_configuration_without_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config.ffn describes 0 layers but num_hidden_layers is 12"):
        NasBertModel(NasBertConfig())


def test_checkpoints_load_where_the_project_is_not_installed(tmp_path: Path) -> None:
    models: dict[str, Any] = {
        f"{head}-{embedding}": make(head, embedding, seed=number)
        for number, head in enumerate(["none", *TASK_TYPES])
        for embedding in (None, 7)
    }
    mids = ("mul(gelu(expand(x)),gate(x))", "gelu(expand(x))", "mul(swish(expand(x)),gate(x))")
    graphs = [FFNGraph.parse(f"project({mid})") for mid in mids]
    half = Fraction(1, 2)
    kinds: dict[str, tuple[list[Experts], int, int]] = {
        "gated": ([Experts()] * 3, 1, 1),
        "hash": ([Experts(2), Experts(4, half, "balanced_hash", 2), Experts(4, half, capacity=Fraction(1))], 1, 1),
        "gates": (
            [Experts(4, half, "token_gate", 2, Fraction(5, 4)), Experts(2, half, "sentence_gate"), Experts()],
            1,
            1,
        ),
        "attention": ([Experts(), Experts(4, half, "token_gate"), Experts(2)], 3, 1),
        "head": ([Experts()] * 3, 1, 3),
    }
    architectures = {}
    for name, (experts, attentions, heads) in kinds.items():
        layers = tuple(FFN(graph, 2, half / 2, some) for graph, some in zip(graphs, experts, strict=False))
        architectures[name] = Architecture.of_ffns(BASE, layers, attentions, heads)
    few = Architecture.of_ffns(BASE, (FFN(), FFN(stack=0), FFN(experts=Experts(2, half * 2))), attention_experts=2)
    # Of the attentions one has experts, one a single head, and one none.
    mixed = replace(few, layers=(few.layers[0], Layer(Attention(1), FFN()), Layer(Attention(0), FFN())))
    out = replace(mixed, layers=(Layer(Attention(0), FFN(stack=0)), *mixed.layers[1:]))
    low = replace(mixed, embedding=Embedding(6))
    architectures |= {
        "low": low,
        "few": few,
        "mixed": mixed,
        "left out": out,
        "no FFNs": Architecture.uniform(BASE, stack=0),
    }
    models |= {name: shaken(build(own, num_labels=LABELS)).eval() for name, own in architectures.items()}
    teachers = of_every_kind(bert(labels=2))
    roberta = teachers["roberta"].config
    layers = (FFN(expansion=half, experts=Experts(2, half, "token_gate")), FFN(stack=2))
    own = Architecture.of_ffns(base_of_teacher(roberta)[0], layers)
    without = replace(own, layers=(own.layers[0], Layer(Attention(0), FFN(stack=0))))
    models["roberta, left out"] = shaken(build(without, template=roberta)).eval()
    for name in ("small electra", "distilbert"):
        template = teachers[name].config
        different = replace(without, base=base_of_teacher(template)[0])
        models[name] = shaken(build(different, template=template)).eval()
    lower = replace(own, embedding=Embedding(6))
    for name, template in (("low words", None), ("roberta-low words", roberta)):
        models[name] = shaken(build(lower, TASK_TYPES["masked_lm"], template=template)).eval()
    for head in ("none", *TASK_TYPES):
        models[f"roberta-{head}"] = shaken(build(own, TASK_TYPES.get(head), template=roberta)).eval()
    save_file(inputs(batch()), tmp_path / "features.safetensors")
    (tmp_path / "models.json").write_text(json.dumps({name: model._auto_class for name, model in models.items()}))
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        save_file(results(model, batch()), tmp_path / name / "expected.safetensors")
        modules = {"modeling_nas"} | ({"modeling_nas_bert"} if model.config.model_type == "nas_bert" else set())
        assert {path.stem for path in (tmp_path / name).glob("*.py")} == SHARED | modules
    assert json.loads(output_elsewhere(STRANGER, folder=tmp_path)) == dict.fromkeys(models, 0)


def test_arguments_by_place_are_those_of_bert() -> None:
    """Tools look for the names, and BERT's users give the third argument by its place."""
    ours = list(signature(NasBertModel.forward).parameters)
    theirs = list(signature(BertModel.forward).parameters)
    assert ours[:-1] == theirs[: len(ours) - 1] and len(ours) > 5
    model, features = make("none"), inputs(batch(4, 9))
    named = model(**features).last_hidden_state
    ids, mask, types = (features[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert torch.equal(model(ids, mask, types).last_hidden_state, named)
    places = torch.arange(9).expand(4, -1)
    embedded = model.embeddings.word_embeddings(ids)
    assert torch.equal(model(None, mask, types, places, embedded).last_hidden_state, named)


@pytest.mark.parametrize("embedding", [None, 7])
def test_layers_stay_on_one_device(embedding: int | None) -> None:
    """A device map and FSDP cut a model between these modules, never inside them."""
    model = make("classification", embedding)
    whole = set(model._no_split_modules)
    kinds = {type(module).__name__ for module in model.modules()}
    assert whole == {"NasBertLayer", "BertEmbeddings" if embedding is None else "NasBertEmbeddings"} and whole <= kinds

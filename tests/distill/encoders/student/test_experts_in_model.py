"""Models with experts: what else is in the batch makes no difference, and what is saved is what is loaded."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification

from distill.encoders.student.ffn import FFNBlock
from distill.encoders.student.routing import Router
from distill.objectives.outputs import ROUTINGS, run
from distill.tasks.types import TASK_TYPES
from search_spaces import FFN, GELU, Architecture, Experts, FFNGraph
from supernet.build import build
from tests.supernet.reference import by_token, dense_blocks
from tests.tiny import BASE, GEGLU, batch, inputs, shaken

QUARTER = Fraction(1, 4)
MIXING = FFNGraph.parse("max(project(mul(gelu(expand(x)),x)),tanh(x))")
# The experts of each of the three layers, and how many attentions there are.
KINDS: dict[str, tuple[tuple[Experts, Experts, Experts], int]] = {
    "hash": ((Experts(4), Experts(4, top_k=2), Experts(2)), 1),
    "balanced_hash": ((Experts(4, QUARTER, "balanced_hash"),) * 3, 1),
    "hash with capacity": ((Experts(4, capacity=Fraction(1)), Experts(3, top_k=2, capacity=Fraction(1, 2))) * 2, 1),
    "token_gate": ((Experts(4, QUARTER, "token_gate"), Experts(3, QUARTER, "token_gate", 2), Experts()), 1),
    "token_gate with capacity": ((Experts(4, QUARTER, "token_gate", 2, Fraction(3, 4)),) * 3, 1),
    "sentence_gate": ((Experts(4, QUARTER, "sentence_gate"), Experts(3, QUARTER, "sentence_gate", 2)) * 2, 1),
    "attention": ((Experts(),) * 3, 3),
    "attention with capacity": ((Experts(),) * 3, 3),
    # Gates that multiply by their probability alone.
    "probability": (
        (Experts(4, QUARTER, "token_gate"), Experts(4, QUARTER, "token_gate", 2), Experts(2, routing="sentence_gate")),
        2,
    ),
    "everything": ((Experts(4), Experts(4, QUARTER, "token_gate"), Experts(2, routing="sentence_gate")), 2),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
GATED = [kind for kind in KINDS if "hash" not in kind]


def architecture(kind: str) -> Architecture:
    experts, attention_experts = KINDS[kind]
    shapes = zip((GELU, GEGLU, MIXING), (1, 2, 2), experts, strict=False)
    layers = tuple(FFN(graph, stack, QUARTER, own) for graph, stack, own in shapes)
    gate_scale = "probability" if kind == "probability" else "relative"
    capacity = Fraction(2, 3) if kind == "attention with capacity" else None
    return Architecture.of_ffns(
        replace(BASE, gate_scale=gate_scale, attention_capacity=capacity), layers, attention_experts
    )


def make(kind: str, head: str = "classification", seed: int = 0) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build(architecture(kind), TASK_TYPES.get(head), 2 if head == "question_answering" else 3)
    return shaken(model, seed).eval()


def padded(features: dict[str, Tensor], more: int) -> dict[str, Tensor]:
    return {name: nn.functional.pad(tensor, (0, more)) for name, tensor in inputs(features).items()}


def rows(features: dict[str, Tensor]) -> Iterator[tuple[int, int, dict[str, Tensor]]]:
    """Every sentence on its own, without padding, after its number and length."""
    for row, length in enumerate(features["attention_mask"].sum(dim=1).tolist()):
        yield row, length, {name: tensor[row : row + 1, :length] for name, tensor in inputs(features).items()}


def with_empty_row(features: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: torch.cat((tensor[:1], torch.zeros_like(tensor[:1]), tensor[1:])) for name, tensor in features.items()
    }


@torch.no_grad()
def last_states(model: Any, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Logits, and the last hidden states."""
    outputs = model(**features, output_hidden_states=True)
    return outputs.logits, outputs.hidden_states[-1]


@torch.no_grad()
def routings(model: Any, features: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(run(model, features, frozenset({ROUTINGS})).routings)


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@each_kind
def test_neither_padding_nor_other_sentences_matter(kind: str) -> None:
    """MoEBERT's gate for sentences computed a batch of one in another way than a batch of several."""
    model, features = make(kind), batch(5, 9)
    logits, states = last_states(model, inputs(features))
    further, _ = last_states(model, padded(features, 6))
    close(further, logits)
    for row, length, alone in rows(features):
        for whole in (alone, {name: tensor for name, tensor in alone.items() if name != "attention_mask"}):
            own, own_states = last_states(model, whole)
            close(own, logits[row : row + 1])
            close(own_states, states[row : row + 1, :length])


@each_kind
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_sentences_of_padding_alone(implementation: str, kind: str) -> None:
    model, features = make(kind), inputs(batch(4, 9))
    model.set_attn_implementation(implementation)
    logits, _ = last_states(model, features)
    more, _ = last_states(model, with_empty_row(features))
    assert torch.isfinite(more).all()
    close(torch.cat((more[:1], more[2:])), logits)
    nothing, states = last_states(model, {**features, "attention_mask": torch.zeros(4, 9, dtype=torch.long)})
    assert torch.isfinite(nothing).all()
    assert torch.isfinite(states).all()


@each_kind
def test_forms_of_the_mask(kind: str) -> None:
    model, features = make(kind), inputs(batch(4, 9))
    logits, _ = last_states(model, features)
    for dtype in (torch.bool, torch.float32):
        again, _ = last_states(model, {**features, "attention_mask": features["attention_mask"].to(dtype)})
        assert torch.equal(again, logits)
    whole = {**features, "attention_mask": torch.ones(4, 9, dtype=torch.long)}
    everything, _ = last_states(model, whole)
    del whole["attention_mask"]
    unmasked, _ = last_states(model, whole)
    close(unmasked, everything)


def chooser(router: Router) -> Tensor:
    return router.table if hasattr(router, "table") else router.weight


@each_kind
def test_every_block_of_every_layer_token_by_token(kind: str) -> None:
    model, features = make(kind).double(), inputs(batch(4, 7))
    recorded: list[Tensor] = []
    for layer in model.bert.encoder.layer:
        layer.attention.register_forward_hook(lambda _module, _inputs, output: recorded.append(output[0]))
    states = model(**features, output_hidden_states=True).hidden_states
    narrow = SimpleNamespace(
        model_type="nas_bert",
        hidden_size=BASE.width,
        layer_norm_eps=1e-12,
        hidden_dropout_prob=0.0,
        gelu="tanh",
        mismatch="narrow",
    )
    layers = zip(model.bert.encoder.layer, model.config.ffn, recorded, states[1:], strict=True)
    for layer, entry, state_BTD, after_BTD in layers:
        assert len(layer.ffn) == entry["stack"]
        for block in layer.ffn:
            if "experts" not in entry:
                state_BTD = block(state_BTD)
                continue
            router = block.router if layer.router is None else layer.router
            blank = partial(FFNBlock, entry["program"], entry["widths"], entry["inner"], narrow)
            dense = [one.double().eval() for one in dense_blocks(block, blank, entry["experts"]["count"])]
            mask_BT, ids_BT = features["attention_mask"], features["input_ids"]
            relative = kind != "probability"
            state_BTD = by_token(dense, entry["experts"], chooser(router), state_BTD, ids_BT, mask_BT, relative)
        torch.testing.assert_close(after_BTD, state_BTD, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", ["attention", "attention with capacity", "everything", "probability"])
def test_attention_experts_token_by_token(kind: str) -> None:
    """A token beyond the capacity of its expert has no query, key and value, and no output."""
    model, features = make(kind).double(), inputs(batch(4, 7))
    attention, recorded = model.bert.encoder.layer[1].attention, []
    attention.register_forward_hook(lambda _module, features, output: recorded.append((features[0], output[0])))
    model(**features)
    (before_BTD, after_BTD), size = recorded[0], BASE.width // BASE.heads
    dropped = 0
    for row, length in enumerate(features["attention_mask"].sum(dim=1).tolist()):
        tokens = before_BTD[row, :length]
        odds = [(attention.router.weight @ token).exp() for token in tokens]
        experts = [int(odd.argmax()) for odd in odds]
        limit = math.ceil(2 / 3 * length / 3) if kind == "attention with capacity" else length
        kept = [float(experts[:place].count(expert) < limit) for place, expert in enumerate(experts)]
        dropped += kept.count(0)

        def mapped(linear: Any, states: Any, experts: list[int] = experts, kept: list[float] = kept) -> Tensor:
            each = zip(experts, states, kept, strict=True)
            return torch.stack([here * (linear.weight[at] @ state + linear.bias[at]) for at, state, here in each])

        query, key, value = (mapped(getattr(attention.self, name), tokens) for name in ("query", "key", "value"))
        heads = []
        for head in range(BASE.heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[:, part] @ key[:, part].T / size**0.5
            heads.append(scores.softmax(dim=-1) @ value[:, part])
        scale = 1 if kind == "probability" else KINDS[kind][1]
        shares = torch.stack([scale * odd.max() / odd.sum() for odd in odds])[:, None]
        change = shares * mapped(attention.output.dense, torch.cat(heads, dim=1))
        expected = attention.output.LayerNorm(tokens + change)
        torch.testing.assert_close(after_BTD[row, :length], expected, rtol=1e-9, atol=1e-9)
        padding = attention.output.LayerNorm(before_BTD[row, length:])
        torch.testing.assert_close(after_BTD[row, length:], padding, rtol=1e-9, atol=1e-9)
    assert bool(dropped) == (kind == "attention with capacity")


@each_kind
def test_routings_are_of_tokens_and_not_of_padding(kind: str) -> None:
    model, features = make(kind), with_empty_row(inputs(batch(5, 9)))
    tokens, sentences = int(features["attention_mask"].sum()), 5
    found = routings(model, features)
    expected = []
    for ffn in architecture(kind).ffns:
        expected += [(tokens, KINDS[kind][1])] * (KINDS[kind][1] > 1)
        of = sentences if ffn.experts.routing == "sentence_gate" else tokens
        expected += [(of, ffn.experts.count)] * (ffn.stack if ffn.experts.gated else 0)
    assert [tuple(probabilities.shape) for probabilities, _ in found] == expected
    assert bool(found) == (kind in GATED)
    again = routings(model, padded(features, 4))
    for (probabilities, best), (others, same) in zip(found, again, strict=True):
        close(probabilities.sum(dim=-1), torch.ones(len(probabilities)))
        assert torch.equal(best, probabilities.argmax(dim=-1))
        assert best.dtype == torch.int64
        close(others, probabilities)
        assert torch.equal(same, best)


@each_kind
def test_attentions_and_hidden_states(kind: str) -> None:
    model, features = make(kind), inputs(batch(4, 9))
    logits, _ = last_states(model, features)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        outputs = model(**features, output_attentions=True, output_hidden_states=True)
    close(outputs.logits, logits)
    assert [tuple(state.shape) for state in outputs.hidden_states] == [(4, 9, BASE.width)] * 4
    assert [tuple(weights.shape) for weights in outputs.attentions] == [(4, BASE.heads, 9, 9)] * 3
    padding_BT = features["attention_mask"] == 0
    for weights_BHTS in outputs.attentions:
        close(weights_BHTS.sum(dim=-1), torch.ones(4, BASE.heads, 9))
        assert weights_BHTS.transpose(1, 3)[padding_BT].abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["hash", "balanced_hash"])
def test_what_a_hash_cannot_route(kind: str) -> None:
    model = make(kind)
    with pytest.raises(
        ValueError, match=f"^{kind} routing goes by token ids: give the model input_ids, not inputs_embeds"
    ):
        model(inputs_embeds=torch.zeros(1, 3, BASE.width))
    # A larger embedding that somebody put there: its additional tokens have no expert.
    model.set_input_embeddings(nn.Embedding(60, BASE.width))
    with pytest.raises(ValueError, match="token id 57 is not in the routing table of 50 ids"):
        model(input_ids=torch.tensor([[3, 57, 50]]))


@pytest.mark.parametrize("kind", ["token_gate", "probability"])
def test_the_configuration_says_what_gates_multiply_by(kind: str, tmp_path: Path) -> None:
    """Checkpoints without the setting are from before it existed."""
    model, features = make(kind), inputs(batch(4, 9))
    logits, _ = last_states(model, features)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config.pop("gate_scale") == ("probability" if kind == "probability" else "relative")
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True).eval()
    assert torch.equal(last_states(loaded, features)[0], logits) == (kind != "probability")


@pytest.mark.parametrize("kind", GATED[:-1])  # without "everything", where one layer has a hash
def test_gates_need_no_token_ids(kind: str) -> None:
    model, features = make(kind), inputs(batch(4, 9))
    logits, _ = last_states(model, features)
    words = model.get_input_embeddings()(features.pop("input_ids"))
    again, _ = last_states(model, {**features, "inputs_embeds": words})
    assert torch.equal(again, logits)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", ["hash with capacity", "everything"])
def test_gradient_checkpointing(kind: str, reentrant: bool) -> None:
    """With dropout and jitter: what is computed a second time is the same."""
    gradients = []
    for checkpointing in (False, True):
        model = make(kind).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        calls: list[None] = []
        model.bert.encoder.layer[1].ffn[0].register_forward_hook(lambda *_, calls=calls: calls.append(None))
        torch.manual_seed(1)
        model(**batch(4, 9)).loss.backward()
        assert len(calls) == 1 + checkpointing
        gradients.append([parameter.grad for parameter in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("head", ["none", *TASK_TYPES])
def test_every_head_trains(head: str) -> None:
    model = make("everything", head).train()
    outputs = model(**inputs(batch(4, 9)))
    sum(tensor.square().sum() for tensor in outputs.values()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert "router" not in name or parameter.grad.any(), name


@each_kind
def test_what_is_saved_is_what_is_loaded(kind: str, tmp_path: Path) -> None:
    model, features = make(kind), inputs(batch(4, 9))
    model.save_pretrained(tmp_path)
    logits, _ = last_states(model, features)
    tables = {name: table for name, table in model.named_buffers() if name.endswith("table")}
    assert ("hash" in kind or kind == "everything") == bool(tables)
    for seed in (1, 2):
        torch.manual_seed(seed)
        again = type(model).from_pretrained(tmp_path).eval()
        assert torch.equal(last_states(again, features)[0], logits)
        weights = again.state_dict()
        assert weights.keys() == model.state_dict().keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in model.state_dict().items())
    half = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    assert half.dtype == torch.bfloat16
    for name, table in tables.items():
        assert table.dtype == torch.uint8
        assert torch.equal(half.get_buffer(name), table)
    low, _ = last_states(half, features)
    assert torch.isfinite(low).all()


def test_fresh_tables_are_random_and_differ() -> None:
    model = make("hash")
    tables = [layer.router.table for layer in model.bert.encoder.layer]
    for table, count in zip(tables, (4, 4, 2), strict=True):
        assert set(table.tolist()) == set(range(count))
    assert not torch.equal(tables[0], tables[1])


def test_tables_follow_the_vocabulary(tmp_path: Path) -> None:
    """Ids that are added are dealt out to the experts; the others keep theirs, also after saving and loading."""
    model, features = make("hash"), inputs(batch(4, 9))
    logits, _ = last_states(model, features)
    before = {name: table.clone() for name, table in model.named_buffers() if name.endswith("table")}
    model.resize_token_embeddings(BASE.vocabulary + 7)
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    for name, table in before.items():
        found = again.get_buffer(name)
        count = again.get_submodule(name.rpartition(".")[0]).count
        assert found.dtype == torch.uint8
        assert found.tolist() == [*table.tolist(), *(number % count for number in range(len(table), len(table) + 7))]
    assert torch.equal(last_states(again, features)[0], logits)
    features["input_ids"][0, 1] = BASE.vocabulary + 6
    assert torch.isfinite(last_states(again, features)[0]).all()
    again.resize_token_embeddings(BASE.vocabulary)
    assert all(torch.equal(again.get_buffer(name), table) for name, table in before.items())


def test_a_table_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """With `ignore_mismatched_sizes` the library would replace it by a random one."""
    make("hash").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": BASE.vocabulary + 3}))
    kind = type(make("hash"))
    with pytest.raises(ValueError, match=r"router\.table is of another vocabulary"):
        kind.from_pretrained(tmp_path, ignore_mismatched_sizes=True)
    # Other mismatches are the library's business, and so is what it reports of them.
    (tmp_path / "config.json").write_text(json.dumps(config | {"id2label": {str(n): str(n) for n in range(5)}}))
    model, info = kind.from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    assert {name for name, *_ in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
    assert model.num_labels == 5


def test_experts_cannot_process_parts_of_sentences() -> None:
    model = make("token_gate")
    model.config.chunk_size_feed_forward = 4
    with pytest.raises(ValueError, match="chunk_size_feed_forward is 4: layers of experts process whole sentences"):
        type(model)(model.config)

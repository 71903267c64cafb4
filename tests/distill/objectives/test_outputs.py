"""What a forward pass hands over, against the library's own attention and hidden states."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from distill.cpu.attention import PLAIN, SCORED
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS, of_layers, run
from supernet.build import build
from tests.tiny import BASE, architectures, batch, bert, inputs, shaken


class Router(nn.Module):
    def __init__(self, width: int, experts: int, gated: bool) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.gated = gated

    def forward(self, tokens_ND: Tensor) -> SimpleNamespace:
        probabilities = self.gate(tokens_ND).softmax(dim=-1)
        return SimpleNamespace(
            probabilities=probabilities if self.gated else None, experts=probabilities.topk(2, dim=-1).indices
        )


class Routed(nn.Module):
    """A layer's first map, each token of it times the probability of its first expert."""

    def __init__(self, dense: nn.Module, experts: int, gated: bool) -> None:
        super().__init__()
        self.dense = dense
        self.router = Router(24, experts, gated)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        routing = self.router(hidden_BTD.flatten(0, 1))
        inner = self.dense(hidden_BTD)
        if routing.probabilities is None:
            return inner
        return inner * routing.probabilities.amax(dim=-1).view(*inner.shape[:2], 1)


def routed(experts: dict[int, int], hashed: tuple[int, ...] = (), **changes: object) -> nn.Module:
    """A BERT with gated routers of this many experts in these layers, and routers without probabilities in others."""
    model = bert(**changes)
    for index in (*experts, *hashed):
        layer = model.base_model.encoder.layer[index]
        layer.intermediate = Routed(layer.intermediate, experts.get(index, 3), index in experts)
    return shaken(model).eval()


@torch.no_grad()
@pytest.mark.parametrize("searched", [False, True])
def test_hidden_states_and_logits(searched: bool) -> None:
    model = shaken(build(next(architectures(1)), num_labels=3)).eval() if searched else bert()
    found = run(model, batch(), frozenset({HIDDEN_STATES, LOGITS}))
    expected = model(**inputs(batch()), output_hidden_states=True)
    assert torch.equal(found.logits, expected.logits)
    assert len(found.hidden_states) == model.config.num_hidden_layers + 1
    for a, b in zip(found.hidden_states, expected.hidden_states, strict=True):
        assert torch.equal(a, b)
    embedded = model.base_model.embeddings(batch()["input_ids"], batch()["token_type_ids"])
    torch.testing.assert_close(found.hidden_states[0], embedded)
    if searched:
        assert found.hidden_states[-1].shape[-1] == BASE.width


@pytest.mark.parametrize(
    ("needs", "hidden", "scores"),
    [
        ({LOGITS}, 0, 0),
        ({HIDDEN_STATES}, 3, 0),
        ({ATTENTION_SCORES}, 0, 2),
        ({HIDDEN_STATES, ATTENTION_SCORES}, 3, 2),
        ({RELATIONS, ROUTINGS}, 0, 0),
        ({RELATIONS, ATTENTION_SCORES}, 0, 2),
    ],
)
def test_only_what_is_needed(needs: set[str], hidden: int, scores: int) -> None:
    found = run(bert(), batch(), frozenset(needs))
    assert (len(found.hidden_states), len(found.attention_scores)) == (hidden, scores)
    assert len(found.relations) == (3 if RELATIONS in needs else 0)
    assert found.routings == ()


def test_no_hook_stays_after_an_error() -> None:
    model = routed({0: 2})
    needs = frozenset({ATTENTION_SCORES, RELATIONS, ROUTINGS})
    with pytest.raises(IndexError):
        run(model, {**batch(), "input_ids": torch.full((4, 9), 1000)}, needs)
    assert not any(module._forward_hooks for module in model.modules())
    assert len(run(model, batch(), frozenset({ATTENTION_SCORES})).attention_scores) == 2


@torch.no_grad()
@pytest.mark.parametrize("searched", [False, True])
def test_relations_are_the_last_layers(searched: bool) -> None:
    model = shaken(build(next(architectures(1)), num_labels=3)).eval() if searched else bert(num_hidden_layers=3)
    found = run(model, batch(), frozenset({RELATIONS, HIDDEN_STATES, ATTENTION_SCORES}))
    attention = model.base_model.encoder.layer[-1].attention.self
    before = found.hidden_states[-2]
    for kept, linear in zip(found.relations, (attention.query, attention.key, attention.value), strict=True):
        assert kept.shape == before.shape
        torch.testing.assert_close(kept, linear(before))
    query, key, _ = (tensor.unflatten(-1, (4, -1)).transpose(1, 2) for tensor in found.relations)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    torch.testing.assert_close(scores, found.attention_scores[-1])


def test_routings_of_the_gated_routers() -> None:
    model = routed({0: 5, 2: 4}, hashed=(1,), num_hidden_layers=3)
    found = run(model, batch(), frozenset({ROUTINGS}))
    assert [tuple(probabilities.shape) for probabilities, _ in found.routings] == [(36, 5), (36, 4)]
    for probabilities, chosen in found.routings:
        assert (chosen.dtype, chosen.shape) == (torch.int64, (36,))
        assert torch.equal(chosen, probabilities.argmax(dim=-1))
    found.routings[1][0][:, 0].sum().backward()
    layers = model.base_model.encoder.layer
    assert layers[2].intermediate.router.gate.weight.grad.abs().sum() > 0
    assert layers[0].intermediate.router.gate.weight.grad.abs().sum() > 0  # through the states
    assert not any(module._forward_hooks for module in model.modules())
    assert run(model, batch(), frozenset({LOGITS})).routings == ()


@torch.no_grad()
def test_some_layers() -> None:
    model = bert(num_hidden_layers=3)
    given, everything = batch(), frozenset({HIDDEN_STATES, ATTENTION_SCORES})
    some = run(model, given, of_layers(HIDDEN_STATES, [0, 3]) | of_layers(ATTENTION_SCORES, [2]))
    whole = run(model, given, everything)
    assert [state.numel() > 0 for state in some.hidden_states] == [True, False, False, True]
    assert [scores.numel() > 0 for scores in some.attention_scores] == [False, True, False]
    for mine, theirs in ((some.hidden_states[n], whole.hidden_states[n]) for n in (0, 3)):
        torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(some.attention_scores[1], whole.attention_scores[1])
    both = run(model, given, everything | of_layers(HIDDEN_STATES, [1]))
    assert all(state.numel() for state in both.hidden_states)


@pytest.mark.parametrize("layers", [(), (1, 2)])
def test_scores_that_the_attention_keeps(layers: tuple[int, ...]) -> None:
    """The same outputs and gradients as with the scores computed apart, and nothing is left behind."""
    needs = of_layers(ATTENTION_SCORES, layers) or frozenset({ATTENTION_SCORES})
    found = []
    for implementation in ("eager", "sdpa", SCORED, PLAIN):
        model = bert(num_hidden_layers=3)
        model.set_attn_implementation(implementation)
        outputs = run(model, batch(), needs)
        loss = outputs.logits.square().sum() + sum(scores.square().sum() for scores in outputs.attention_scores)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        found.append([outputs.logits, *outputs.attention_scores, *gradients])
        assert [scores.numel() > 0 for scores in outputs.attention_scores] == [
            layer in (layers or (1, 2, 3)) for layer in (1, 2, 3)
        ]
        run(model, batch(), frozenset({LOGITS}))
        assert not any("_attention_scores" in vars(module) for module in model.modules())
    for mine, *others in zip(*found, strict=True):
        for other in others:
            torch.testing.assert_close(mine, other, atol=1e-4, rtol=1e-4)


def test_relations_of_two_layers() -> None:
    with pytest.raises(ValueError, match="only one layer's relations can be collected, not those of layers 1 and 2"):
        run(bert(), batch(), of_layers(RELATIONS, [1]) | {RELATIONS})

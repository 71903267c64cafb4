"""Objectives of students whose attention heads are not all of their teacher's, in its order."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.cpu.attention import PLAIN, SCORED
from distill.encoders.heads import counterparts, heads_of, select_heads
from distill.encoders.parts import encoder_layers
from distill.objectives import OBJECTIVES, Objective, ObjectiveSpec, Term, losses
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, RELATIONS, Outputs, run
from distill.objectives.theseus import Replacement, replacing
from distill.training.students import some_layers
from search_spaces import FFN, Attention, Layer
from search_spaces.architecture import Architecture
from supernet.build import base_of_teacher, from_teacher
from supernet.one_shot import OneShotSupernet
from supernet.pruning import Kept, prune
from tests.distill.objectives import references
from tests.distill.objectives.cases import array, exactly
from tests.tiny import batch, bert, inputs

LENGTHS, SIZE = (9, 6, 3, 1), 6  # of the sentences of `batch()`; of a head
ORDERS = [[2, 0, 3, 1], [3, 2, 1, 0], [1, 3, 0, 2]]
HEADS = ((3, 0), (), (1, 2, 3))  # in the middle there is none
EVERYTHING = frozenset({HIDDEN_STATES, ATTENTION_SCORES, RELATIONS})
OWN: dict[str, dict[str, Any]] = {
    "minimoe": {"relation_heads": 4},
    "minilmv2": {"relation_heads": 4},
    "codir": {"negatives": 2},
}


def teacher(seed: int = 0) -> PreTrainedModel:
    return bert(seed, num_hidden_layers=3)


def pruned(model: PreTrainedModel, heads: Sequence[Sequence[int]] = HEADS) -> PreTrainedModel:
    return prune(model, Kept(tuple(map(tuple, heads)), (tuple(range(48)),) * len(heads)))


@torch.no_grad()
def permuted(model: PreTrainedModel, orders: Sequence[Sequence[int]]) -> PreTrainedModel:
    """The same function as a student whose heads are in another order."""
    student = from_teacher(model, stack=1).eval()
    for layer, order in zip(encoder_layers(student), orders, strict=True):
        rows = [head * SIZE + channel for head in order for channel in range(SIZE)]
        attention = layer.attention.self
        for linear in (attention.query, attention.key, attention.value):
            linear.weight.copy_(linear.weight[rows]), linear.bias.copy_(linear.bias[rows])
        output = layer.attention.output.dense.weight
        output.copy_(output[:, rows])
    student.config.kept_heads = [list(order) for order in orders]
    torch.testing.assert_close(student(**inputs(batch())).logits, model(**inputs(batch())).logits)
    return student


def loss(name: str, student: PreTrainedModel, taught_by: PreTrainedModel, **settings: Any) -> Tensor:
    settings = {**OWN.get(name, {}), **settings}
    objective = OBJECTIVES[name].make(settings, student.config, taught_by.config)
    given = {**batch(), "rows": torch.arange(4) % 2}  # of the two with which objectives are checked
    target = run(taught_by, given, objective.teacher_needs) if objective.needs_teacher else None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return objective(run(student, given, objective.needs), target, given)


ONLY_ATTENTION = {"hidden": 0.0, "embedding": 0.0, "prediction": 0.0}
BY_HEADS = [
    ("minilm", {}),
    *(("minilmv2", {"relation_heads": number}) for number in (1, 2, 3, 4, 6, 8, 12, 24)),
    ("efficientbert", ONLY_ATTENTION),
    ("efficientbert", ONLY_ATTENTION | {"paper_compatible": True}),
    ("tinybert", ONLY_ATTENTION),
]


@torch.no_grad()
@pytest.mark.parametrize("orders", [ORDERS, [range(4)] * 3])
@pytest.mark.parametrize(("name", "settings"), BY_HEADS)
def test_the_order_of_the_heads_does_not_matter(name: str, settings: dict[str, Any], orders: Any) -> None:
    """Nothing is left to learn from a teacher whose function the student has; from another one it is the same."""
    own, other = teacher(), teacher(1)
    student = permuted(own, orders)
    assert loss(name, student, own, **settings).item() == pytest.approx(0, abs=1e-5)
    expected = loss(name, from_teacher(own, stack=1).eval(), other, **settings)
    assert expected > 1e-3
    torch.testing.assert_close(loss(name, student, other, **settings), expected, rtol=1e-4, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa", SCORED, PLAIN])
def test_attention_scores_of_the_heads_that_are_left(implementation: str) -> None:
    """The mean over them in each layer, the sum over layers that have any."""
    student, other = pruned(teacher()), teacher(1)
    student.set_attn_implementation(implementation)
    own, taught = (run(model, batch(), EVERYTHING) for model in (student, other))
    assert own.heads == HEADS and taught.heads == ((0, 1, 2, 3),) * 3
    expected = sum(
        references.attention(array(a), array(b)[:, list(heads)], LENGTHS)
        for a, b, heads in zip(own.attention_scores, taught.attention_scores, HEADS, strict=True)
        if heads
    )
    for name in ("efficientbert", "tinybert"):
        assert loss(name, student, other, **ONLY_ATTENTION).item() == exactly(expected)
    released = sum(
        references.attention_as_released(array(a), array(b)[:, list(heads)], LENGTHS)
        for a, b, heads in zip(own.attention_scores, taught.attention_scores, HEADS, strict=True)
        if heads
    )
    assert loss("efficientbert", student, other, **ONLY_ATTENTION, paper_compatible=True).item() == exactly(released)


def of_heads(states: Tensor, heads: Sequence[int]) -> np.ndarray:
    return np.concatenate([array(states)[..., head * SIZE : (head + 1) * SIZE] for head in heads], axis=-1)


@torch.no_grad()
@pytest.mark.parametrize("heads", [(1,), (3, 0), (2, 0, 3)])
def test_relations_of_the_heads_that_are_left(heads: tuple[int, ...]) -> None:
    """MiniLM's by head; MiniLMv2's in relation heads of the size that they have with all heads, or by head."""
    student, other = pruned(teacher(), [(0,), (0,), heads]), teacher(1)
    own, taught = (run(model, batch(), EVERYTHING).relations for model in (student, other))
    count = len(heads)
    targets = [of_heads(states, heads) for states in taught]
    sides = [array(states) for states in own]
    expected = references.relations(sides[:2], targets[:2], LENGTHS, count)
    expected += references.relations(sides[2:], targets[2:], LENGTHS, count)
    assert loss("minilm", student, other, labels=0.0).item() == exactly(expected)
    ascending = sorted(range(count), key=heads.__getitem__)
    sides = [of_heads(states, ascending) for states in own]
    targets = [of_heads(states, sorted(heads)) for states in taught]
    for number in (1, 2, 3, 4, 6, 8, 12, 24):
        parts = number * count // 4 if number * count % 4 == 0 else count
        expected = sum(references.relations([a], [b], LENGTHS, parts) for a, b in zip(sides, targets, strict=True))
        assert loss("minilmv2", student, other, relation_heads=number, labels=0.0).item() == exactly(expected)


@torch.no_grad()
def test_minilmv2_of_unknown_heads() -> None:
    """All channels that are there are regrouped, as those of another width."""
    student, other = pruned(teacher()), teacher(1)
    student.config.kept_heads = None
    own, taught = (run(model, batch(), EVERYTHING).relations for model in (student, other))
    for number in (1, 2, 3, 6):
        pairs = zip(own, taught, strict=True)
        expected = sum(references.relations([array(a)], [array(b)], LENGTHS, number) for a, b in pairs)
        assert loss("minilmv2", student, other, relation_heads=number, labels=0.0).item() == exactly(expected)
    message = "relation_heads=4 must divide the student's 18 channels and the teacher's 24: choose one of 1, 2, 3, 6"
    with pytest.raises(ValueError, match=f"^{message}$"):
        loss("minilmv2", student, other)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_trains_a_student_with_fewer_heads(name: str) -> None:
    """And its attentions learn."""
    student, other = pruned(teacher()), teacher(1)
    value = loss(name, student, other)
    assert torch.isfinite(value) and value > 0
    value.backward()
    for layer, heads in zip(encoder_layers(student), HEADS, strict=True):
        if heads:
            assert layer.attention.self.query.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_layers_with_fewer_heads_stand_in_for_the_teachers() -> None:
    """Theseus: from the teacher's copy, whichever layers are drawn, it is the teacher's function but for lost heads."""
    other = teacher(1)
    student, whole = pruned(other).train(), pruned(other, [range(4)] * 3).train()
    for model in (student, whole):
        model.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, nn.Dropout) else None)
    logits = {}
    for drawn in ((False, False, True), (False, True, False), (True, True, True)):
        for model in (student, whole):
            replacement = Replacement([True] * 3, steps=1, seed=0, start=0.0, until=1.0)
            replacement.standing_in = drawn
            with replacing(model, other, replacement):
                logits[model] = model(**inputs(batch())).logits
        torch.testing.assert_close(logits[whole], other(**inputs(batch())).logits)
        assert not torch.allclose(logits[student], logits[whole], atol=1e-3)


@torch.no_grad()
def test_a_teacher_with_fewer_heads() -> None:
    """An assistant, of which each head is known by its number among the first teacher's."""
    first = teacher()
    assistant = pruned(first, [(0, 3), (1, 2), (3, 1, 0)])
    for heads in ([(0, 3), (1, 2), (3, 1, 0)], [(3,), (2, 1), (0, 1)]):
        student = pruned(first, heads)
        own, taught = (run(model, batch(), EVERYTHING) for model in (student, assistant))
        indices = [[taught.heads[layer].index(head) for head in kept] for layer, kept in enumerate(heads)]
        expected = sum(
            references.attention(array(a), array(b)[:, chosen], LENGTHS)
            for a, b, chosen in zip(own.attention_scores, taught.attention_scores, indices, strict=True)
        )
        assert loss("tinybert", student, assistant, **ONLY_ATTENTION).item() == exactly(expected)
        for name in ("minilm", "minilmv2", "minimoe"):
            settings = {} if name == "minilm" else {"relation_heads": 2}
            value = loss(name, student, assistant, labels=0.0, **settings)
            assert torch.isfinite(value) and (value > 1e-4) == (heads[0] != (0, 3) or name == "minimoe")
    layers = some_layers(assistant, [0, 2])
    assert layers.config.kept_heads == [[0, 3], [3, 1, 0]]
    with pytest.raises(
        ValueError,
        match=re.escape("minilm: layer 2 of the student has head 0 (counted from 0), and layer 2 of the teacher does"),
    ):
        loss("minilm", layers, assistant, teacher_layer=2)


KD = "choose an objective that compares none, such as kd"
TERM = "the attention term of efficientbert and tinybert"


@pytest.mark.parametrize(
    ("name", "settings", "heads", "message"),
    [
        *(
            (name, {}, [[0], [1], []], f"{name}: layer 3 of the student has no attention head: keep one there, or {KD}")
            for name in ("minilm", "minilmv2")
        ),
        *(
            (
                name,
                {},
                [[], [], []],
                f"{TERM}: none of the student's 3 layers has an attention head: keep one, set attention=0, or {KD}",
            )
            for name in ("efficientbert", "tinybert")
        ),
        (
            "minilm",
            {},
            None,
            "minilm: layer 3 of the student has 3 attention heads, and its configuration does not say by kept_heads "
            f"which ones: {KD}",
        ),
        (
            "tinybert",
            {},
            None,
            f"{TERM}: layer 1 of the student has 2 attention heads, and its configuration does not say by kept_heads "
            f"which ones: set attention=0, or {KD}",
        ),
    ],
)
def test_refused(name: str, settings: dict[str, Any], heads: Any, message: str) -> None:
    student = pruned(teacher(), heads or HEADS).config
    student.kept_heads = heads
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        OBJECTIVES[name].make({**OWN.get(name, {}), **settings}, student, teacher().config)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("minilm", {"attention": 0.0, "values": 0.0, "labels": 1.0}),
        ("minilmv2", {"relation": 0.0, "labels": 1.0}),
        ("tinybert", {"attention": 0.0}),
        ("tinybert", {"phase": "prediction"}),
        ("efficientbert", {"attention": 0.0}),
        ("minimoe", {}),
    ],
)
def test_what_compares_no_attention_is_not_refused(name: str, settings: dict[str, Any]) -> None:
    """Without heads it is the loss of a student whose heads are there and have no influence."""
    student, muted, other = pruned(teacher(), [(), (), ()]), from_teacher(teacher(), stack=1).eval(), teacher(1)
    for layer in encoder_layers(muted):
        nn.init.zeros_(layer.attention.output.dense.weight)
    found = loss(name, student, other, **settings)
    found.backward()
    torch.testing.assert_close(found, loss(name, muted, other, **settings))


@pytest.mark.parametrize("name", ["minilm", "minilmv2", "minimoe"])
def test_a_layer_of_the_teacher_without_heads(name: str) -> None:
    assistant = pruned(teacher(), [(0, 1), (), (2,)])
    student = pruned(teacher(), [(0,), (0,), (2,)])
    settings = {} if name == "minilm" else {"relation_heads": 2}
    assert torch.isfinite(loss(name, student, assistant, **settings))
    with pytest.raises(ValueError, match=rf"^{name}: layer .* of the teacher "):
        loss(name, student, assistant, teacher_layer=2, **settings)


def added(by_heads: bool) -> Callable[..., Objective]:
    def scores(student: Any, taught_by: Any, *, weight: float = 1.0) -> Objective:
        def compare(s: Outputs, t: Outputs, given: dict[str, Tensor]) -> Tensor:
            return losses.attention_mse(s.attention_scores[0], t.attention_scores[0], given["attention_mask"])

        needs = frozenset({ATTENTION_SCORES})
        return Objective([Term("scores", weight, needs, compare, needs, by_heads=by_heads)])

    return scores


def test_an_added_objective_says_whether_it_finds_counterparts() -> None:
    """Otherwise students with other heads, or in another order, are refused, and so are such teachers."""
    whole, student, other = (model.config for model in (teacher(), pruned(teacher()), permuted(teacher(), ORDERS)))
    spec = ObjectiveSpec(added(by_heads=False))
    spec.make({}, whole, whole)
    for pair, side in (((student, whole), "student"), ((other, whole), "student"), ((whole, student), "teacher")):
        message = f"scores compares attention of 4 heads in their order, and the {side}'s layers have other ones: {KD}"
        with pytest.raises(ValueError, match=f"^{message}$"):
            spec.make({}, *pair)
        ObjectiveSpec(added(by_heads=True)).make({}, *pair)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_output_attentions_has_an_entry_for_every_layer(implementation: str) -> None:
    """Of transformers' own attention that returns them, with as many heads as the layer has; the others return none."""
    student, given = pruned(teacher()), batch()
    student.set_attn_implementation(implementation)
    scores = run(student, given, EVERYTHING).attention_scores
    for model in (student, student.base_model):
        found = model(**inputs(given), output_attentions=True, output_hidden_states=True)
        assert len(found.hidden_states) == 4
        if implementation == "sdpa":
            assert not found.attentions
            continue
        assert [tuple(weights.shape) for weights in found.attentions] == [(4, len(heads), 9, 9) for heads in HEADS]
        hidden_keys = (1 - given["attention_mask"][:, None, None, :]).bool()
        for score, weights in zip(scores, found.attentions, strict=True):
            if weights.numel():
                torch.testing.assert_close(score.masked_fill(hidden_keys, float("-inf")).softmax(dim=-1), weights)


@torch.no_grad()
def test_outputs_of_a_last_layer_without_heads() -> None:
    student = pruned(teacher(), [(1,), (0, 2), ()])
    found = run(student, batch(), EVERYTHING)
    assert found.relations == ()
    assert [scores.numel() // (4 * 9 * 9) for scores in found.attention_scores] == [1, 2, 0]
    assert run(pruned(teacher(), [()] * 3), batch(), EVERYTHING).attention_scores == ()


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", SCORED])
def test_slices_of_a_one_shot_supernet(implementation: str) -> None:
    """One objective, made for all heads, compares those that each slice has: the leading ones of sorted heads."""
    whole, other = teacher(), teacher(1)
    supernet = permuted(whole, ORDERS)
    shared = OneShotSupernet(supernet, {"first": supernet.classifier}).eval()
    shared.set_attn_implementation(implementation)
    base, graph = base_of_teacher(whole.config)
    for name, settings in BY_HEADS:
        objective = OBJECTIVES[name].make(settings, shared.config, other.config)
        target = run(other, batch(), objective.teacher_needs)
        for counts in ((2, 0, 3), (4, 4, 4), (1, 2, 1)):
            layers = tuple(Layer(Attention(count), FFN(graph)) for count in counts)
            shared.activate(Architecture(base, layers), "first")
            own = run(shared, batch(), objective.needs)
            heads = [order[:count] for order, count in zip(ORDERS, counts, strict=True)]
            assert own.heads == tuple(map(tuple, heads))
            alone = pruned(whole, heads)
            expected = objective(run(alone, batch(), objective.needs), target, batch())
            torch.testing.assert_close(objective(own, target, batch()), expected, rtol=1e-4, atol=1e-6)
    layers = tuple(Layer(Attention(count), FFN(graph)) for count in (4, 4, 0))
    shared.activate(Architecture(base, layers), "first")
    objective = OBJECTIVES["minilm"].make({}, shared.config, other.config)
    with pytest.raises(ValueError, match="minilm: layer 3 of the student has no attention head"):
        objective(run(shared, batch(), objective.needs), run(other, batch(), objective.teacher_needs), batch())


def test_heads_of_configurations() -> None:
    whole = teacher().config
    assert heads_of(whole) == ((0, 1, 2, 3),) * 3
    student = pruned(teacher()).config
    assert heads_of(student) == HEADS
    student.kept_heads = None
    assert heads_of(student) == ((-1, -1), (), (-1, -1, -1))
    assert counterparts((3, 0), (0, 1, 2, 3)) == [3, 0]
    assert counterparts((3, 0), (3, 0)) is None
    states = torch.arange(24.0).expand(1, 1, 24)
    assert select_heads(states, [3, 0], 4)[0, 0].tolist() == [*range(18, 24), *range(6)]

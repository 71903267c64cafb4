"""Objectives are the sums of their terms, and ask for what these need."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from distill.objectives import Objective, efficientbert, minimoe, moebert
from distill.objectives.losses import balance, hidden_mse, symmetric_kl
from distill.objectives.outputs import (
    ATTENTION_SCORES,
    HIDDEN_STATES,
    LOGITS,
    RELATIONS,
    ROUTINGS,
    Outputs,
    of_layers,
    run,
)
from tests.distill.objectives.test_outputs import routed
from tests.tiny import batch, bert

EVERYTHING = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES})
WEIGHTS = ("attention", "hidden", "embedding", "prediction")
MORE = EVERYTHING | {RELATIONS, ROUTINGS}


def pair(width: int = 24) -> tuple[Any, Any, Outputs, Outputs]:
    """A student of two layers and a teacher of four."""
    student, teacher = bert(1, hidden_size=width), bert(2, num_hidden_layers=4)
    given = batch()
    return student.config, teacher.config, run(student, given, EVERYTHING), run(teacher, given, EVERYTHING)


@pytest.mark.parametrize(
    ("name", "needs", "layers"),
    [
        ("attention", ATTENTION_SCORES, (2, 4)),
        ("hidden", HIDDEN_STATES, (2, 4)),
        ("embedding", HIDDEN_STATES, (0,)),
        ("prediction", LOGITS, ()),
    ],
)
def test_a_weight_of_zero_is_not_computed(name: str, needs: str, layers: tuple[int, ...]) -> None:
    student_config, teacher_config, student, teacher = pair()
    objective = efficientbert(student_config, teacher_config, **{**dict.fromkeys(WEIGHTS, 0.0), name: 1.0})
    assert objective.needs == {needs}
    assert objective.teacher_needs == (of_layers(needs, layers) or {needs})
    assert [term.name for term in objective.terms] == [name]
    # Enough for the loss: outputs that nobody asked for are not there.
    given = batch()
    slim = [run(bert(1), given, objective.needs), run(bert(2, num_hidden_layers=4), given, objective.needs)]
    torch.testing.assert_close(objective(*slim, given), objective(student, teacher, given))


def longer(given: dict[str, Tensor], extra: int = 4) -> dict[str, Tensor]:
    """The same sentences with more padding."""
    return {name: tensor if name == "labels" else F.pad(tensor, (0, extra)) for name, tensor in given.items()}


def outputs_of(student: Any, teacher: Any, objective: Objective, given: dict[str, Tensor]) -> tuple[Outputs, Outputs]:
    return run(student, given, objective.needs), run(teacher, given, objective.teacher_needs)


@pytest.mark.parametrize("width", [24, 16])
@pytest.mark.parametrize(
    ("layers", "pairs"), [("all", [(0, 0), (1, 2), (2, 4)]), ("alternate", [(0, 0), (2, 4)]), ("last", [(2, 4)])]
)
def test_moebert(width: int, layers: str, pairs: list[tuple[int, int]]) -> None:
    student_config, teacher_config, s, t = pair(width)
    given = batch()
    weights = {"distill": 3.0, "labels": 0.5, "hidden": 0.2, "prediction": 0.7}
    objective = moebert(student_config, teacher_config, layers=layers, **weights)
    assert objective.needs == {LOGITS, HIDDEN_STATES, ROUTINGS}
    assert objective.teacher_needs == {LOGITS} | of_layers(HIDDEN_STATES, [n for _, n in pairs])
    if width == 24:
        assert not objective.projections
        project = dict.fromkeys(range(3), lambda state: state)
    else:
        assert set(objective.projections) == {"hidden", *(["embedding"] if layers != "last" else [])}
        project = {m: objective.projections["hidden" if m else "embedding"] for m, _ in pairs}
    states = [hidden_mse(project[m](s.hidden_states[m]), t.hidden_states[n], given["attention_mask"]) for m, n in pairs]
    expected = 0.5 * F.cross_entropy(s.logits, given["labels"])
    expected = expected + 3.0 * (0.2 * sum(states) + 0.7 * symmetric_kl(s.logits, t.logits))
    torch.testing.assert_close(objective(s, t, given), expected)
    objective(s, t, given).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


@torch.no_grad()
@pytest.mark.parametrize("paper_compatible", [False, True])
def test_moebert_and_padding(paper_compatible: bool) -> None:
    student, teacher = bert(1), bert(2)
    objective = moebert(student.config, teacher.config, paper_compatible=paper_compatible)
    short, long = (objective(*outputs_of(student, teacher, objective, b), b) for b in (batch(), longer(batch())))
    assert torch.isclose(short, long) != paper_compatible
    if paper_compatible:
        s, t = outputs_of(student, teacher, objective, batch())
        alone = moebert(student.config, teacher.config, labels=0, prediction=0, paper_compatible=True)
        expected = sum(F.mse_loss(a, b) for a, b in zip(s.hidden_states, t.hidden_states, strict=True))
        torch.testing.assert_close(alone(s, t, batch()), expected)


def test_moebert_refuses() -> None:
    two, three = bert().config, bert(num_hidden_layers=3).config
    with pytest.raises(ValueError, match="3 teacher layers cannot be shared out evenly to 2 student layers"):
        moebert(two, three)
    with pytest.raises(ValueError, match="unknown choice of layers 'every': choose one of all, alternate, last"):
        moebert(two, two, layers="every")


@torch.no_grad()
def test_the_teachers_own_maps_reproduce_its_relations() -> None:
    """The auxiliary block of a student whose last state is what the teacher's last layer reads."""
    teacher, given = bert(num_hidden_layers=3), batch()
    objective = minimoe(teacher.config, teacher.config, relation_heads=6)
    outputs = run(teacher, given, MORE)
    attention = teacher.base_model.encoder.layer[-1].attention.self
    for name, module in objective.projections.items():
        module.load_state_dict(getattr(attention, name).state_dict())
    student = Outputs(outputs.logits, hidden_states=outputs.hidden_states[:-1])
    torch.testing.assert_close(objective(student, outputs, given), torch.tensor(0.0))
    assert objective(outputs, outputs, given) > 1e-3


@pytest.mark.parametrize("make", [efficientbert, moebert, lambda *a, **k: minimoe(*a, relation_heads=4, **k)])
def test_balance_is_the_mean_over_gated_routers(make: Any) -> None:
    student, teacher, given = routed({0: 5, 2: 4}, hashed=(1,), num_hidden_layers=3), bert(num_hidden_layers=3), batch()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        objective = make(student.config, teacher.config, balance=0.5)
        torch.manual_seed(0)
        without = make(student.config, teacher.config, balance=0.0)
    assert objective.needs == without.needs | {ROUTINGS}
    assert objective.teacher_needs == without.teacher_needs
    s, t = run(student, given, MORE), run(teacher, given, MORE)
    expected = 0.5 * (balance(*s.routings[0]) + balance(*s.routings[1])) / 2
    torch.testing.assert_close(objective(s, t, given), without(s, t, given) + expected)
    objective(s, t, given).backward()
    assert student.base_model.encoder.layer[0].intermediate.router.gate.weight.grad.abs().sum() > 0
    # Nothing is routed by a gate.
    plain = Outputs(s.logits, s.kind, s.hidden_states, s.attention_scores)
    assert torch.equal(objective(plain, t, given), without(s, t, given))


def test_efficientbert_has_no_balance_by_default() -> None:
    config = bert().config
    assert [term.name for term in efficientbert(config, config).terms] == list(WEIGHTS)


def test_an_objective_of_the_student_alone() -> None:
    config = bert().config
    objective = moebert(config, config, distill=0.0)
    assert [term.name for term in objective.terms] == ["labels", "balance"]
    assert (objective.needs, objective.teacher_needs) == ({LOGITS, ROUTINGS}, frozenset())
    assert not objective.needs_teacher
    student = run(routed({1: 3}), batch(), objective.needs)
    expected = F.cross_entropy(student.logits, batch()["labels"]) + 0.01 * balance(*student.routings[0])
    torch.testing.assert_close(objective(student, None, batch()), expected)


@pytest.mark.parametrize("make", [efficientbert, moebert, lambda s, t: minimoe(s, t, relation_heads=4)])
def test_sentences_of_padding_alone(make: Any) -> None:
    """Their states count nowhere: with nothing else, only the terms on logits are left."""
    student, teacher, given = routed({0: 3}), bert(2), batch()
    given["attention_mask"] = torch.zeros_like(given["attention_mask"])
    objective = make(student.config, teacher.config)
    s, t = outputs_of(student, teacher, objective, given)
    for term in objective.terms:
        value = term.loss(s, t, given)
        assert torch.isfinite(value)
        assert term.name in ("labels", "prediction", "balance") or value == 0

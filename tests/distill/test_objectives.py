"""Objectives are the sums of their terms, and ask for what these need."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from distill.losses import attention_mse, hidden_mse, soft_cross_entropy
from distill.objectives import efficientbert, hard_labels
from distill.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, Outputs, run
from tests.tiny import batch, bert

EVERYTHING = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES})
WEIGHTS = ("attention", "hidden", "embedding", "prediction")


def pair(width: int = 24) -> tuple[Any, Any, Outputs, Outputs]:
    """A student of two layers and a teacher of four."""
    student, teacher = bert(1, hidden_size=width), bert(2, num_hidden_layers=4)
    given = batch()
    return student.config, teacher.config, run(student, given, EVERYTHING), run(teacher, given, EVERYTHING)


def terms(s: Outputs, t: Outputs, project: dict[str, Any], temperature: float) -> dict[str, Tensor]:
    """The four summands, written out for two student and four teacher layers."""
    mask = batch()["attention_mask"]
    hidden, embedding = project["hidden"], project["embedding"]
    return {
        "attention": attention_mse(s.attention_scores[0], t.attention_scores[1], mask)
        + attention_mse(s.attention_scores[1], t.attention_scores[3], mask),
        "hidden": hidden_mse(hidden(s.hidden_states[1]), t.hidden_states[2], mask)
        + hidden_mse(hidden(s.hidden_states[2]), t.hidden_states[4], mask),
        "embedding": hidden_mse(embedding(s.hidden_states[0]), t.hidden_states[0], mask),
        "prediction": soft_cross_entropy(s.logits, t.logits, temperature),
    }


@pytest.mark.parametrize("width", [24, 16])
def test_sum_of_terms(width: int) -> None:
    student_config, teacher_config, student, teacher = pair(width)
    weights = {"attention": 0.5, "hidden": 2.0, "embedding": 3.0, "prediction": 0.25}
    objective = efficientbert(student_config, teacher_config, **weights, temperature=2.0)
    project = dict(objective.projections) or dict.fromkeys(("hidden", "embedding"), lambda state: state)
    expected = sum(weights[name] * term for name, term in terms(student, teacher, project, 2.0).items())
    torch.testing.assert_close(objective(student, teacher, batch()), expected)
    assert objective.needs == EVERYTHING
    assert objective.needs_teacher


def test_projections_are_learned_only_where_widths_differ() -> None:
    same_student, teacher_config, *_ = pair()
    assert not list(efficientbert(same_student, teacher_config).parameters())

    narrow, _, student, teacher = pair(16)
    objective = efficientbert(narrow, teacher_config)
    shapes = {name: tuple(module.weight.shape) for name, module in objective.projections.items()}
    assert shapes == {"hidden": (24, 16), "embedding": (24, 16)}
    objective(student, teacher, batch()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("attention", {ATTENTION_SCORES}),
        ("hidden", {HIDDEN_STATES}),
        ("embedding", {HIDDEN_STATES}),
        ("prediction", {LOGITS}),
    ],
)
def test_a_weight_of_zero_is_not_computed(name: str, needs: set[str]) -> None:
    student_config, teacher_config, student, teacher = pair()
    objective = efficientbert(student_config, teacher_config, **{**dict.fromkeys(WEIGHTS, 0.0), name: 1.0})
    assert objective.needs == needs
    assert [term.name for term in objective.terms] == [name]
    # Enough for the loss: outputs that nobody asked for are not there.
    given = batch()
    slim = [run(bert(1), given, objective.needs), run(bert(2, num_hidden_layers=4), given, objective.needs)]
    torch.testing.assert_close(objective(*slim, given), objective(student, teacher, given))


def test_head_counts_that_differ() -> None:
    student, teacher = bert(num_attention_heads=2).config, bert().config
    with pytest.raises(ValueError, match="equal head counts: student 2, teacher 4; set its weight to 0"):
        efficientbert(student, teacher)
    assert ATTENTION_SCORES not in efficientbert(student, teacher, attention=0.0).needs


def test_depths_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="3 teacher layers cannot be shared out evenly to 2 student layers"):
        efficientbert(bert().config, bert(num_hidden_layers=3).config)


def test_hard_labels() -> None:
    given, objective = batch(), hard_labels()
    student = run(bert(), given, objective.needs)
    assert (objective.needs, objective.needs_teacher) == ({LOGITS}, False)
    torch.testing.assert_close(
        objective(student, None, given), F.cross_entropy(student.logits, given["labels"])
    )


def test_nothing_left_to_learn_costs_nothing() -> None:
    config, given = bert().config, batch()
    outputs = run(bert(), given, EVERYTHING)
    assert efficientbert(config, config, prediction=0.0)(outputs, outputs, given) == 0

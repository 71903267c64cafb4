"""EfficientBERT and TinyBERT, against references of their own."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import nn

from distill.encoders.parts import model_inputs
from distill.objectives import efficientbert, tinybert
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, of_layers, run
from distill.tasks.types import QUESTION_ANSWERING, REGRESSION, TASK_TYPES, get_task_type
from tests.distill.objectives import references
from tests.distill.objectives.cases import KINDS, Case, array, case, exactly, hard, mapped, reached, soft
from tests.renamed import of_every_kind, sentences
from tests.tiny import bert

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)
PAIRS = [(1, 2), (2, 4)]


def layers(given: Case, projections: nn.ModuleDict, released: bool = False) -> dict[str, float]:
    """L_attn and L_hidn over two student and four teacher layers, and L_embd."""
    student, teacher, lengths = given.student, given.teacher, given.lengths
    project = dict(projections)
    hidden, embedding = project.get("hidden"), project.get("hidden" if released else "embedding")
    counted = [given.batch["input_ids"].shape[1]] * len(lengths) if released else lengths
    attention = references.attention_as_released if released else references.attention

    def state(m: int, n: int, module: nn.Module | None) -> float:
        return references.hidden(mapped(student.hidden_states[m], module), array(teacher.hidden_states[n]), counted)

    scores = [(array(student.attention_scores[m - 1]), array(teacher.attention_scores[n - 1])) for m, n in PAIRS]
    return {
        "attention": sum(attention(a, b, lengths) for a, b in scores),
        "hidden": sum(state(m, n, hidden) for m, n in PAIRS),
        "embedding": state(0, 0, embedding),
    }


WEIGHTS = {"attention": 0.5, "hidden": 2.0, "embedding": 3.0}
TAUGHT = of_layers(HIDDEN_STATES, [0, 2, 4]) | of_layers(ATTENTION_SCORES, [2, 4])


def weighed(terms: dict[str, float]) -> float:
    return sum(WEIGHTS[name] * value for name, value in terms.items())


@settings(max_examples=25)
@drawn(st.sampled_from(KINDS), LENGTHS, st.integers(1, 4), st.sampled_from([12, 6]), st.integers(0, 999))
def test_efficientbert(kind: str, lengths: tuple[int, ...], classes: int, width: int, seed: int) -> None:
    shape = {"kind": kind, "lengths": lengths, "classes": classes, "widths": (width, 12), "seed": seed}
    given = case(**shape)
    objective = efficientbert(*given.configs, **WEIGHTS, prediction=0.25, temperature=2.0)
    expected = weighed(layers(given, objective.projections)) + 0.25 * soft(given, "soft_cross_entropy", 2.0)
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)


@pytest.mark.parametrize("paper_compatible", [False, True])
@torch.no_grad()
def test_only_pairs_that_exist_in_both_layers(paper_compatible: bool) -> None:
    """The teacher's second and fourth layer attend to tokens within two positions; of the layers that learn from them,
    the student's first one attends to all.
    """
    student, teacher = (of_every_kind(bert(2, num_hidden_layers=depth))["modernbert"] for depth in (2, 4))
    batch = sentences()
    if paper_compatible:  # which counts padding, whose own attention is to everything
        batch["attention_mask"].fill_(1)
    s, t = (run(model, batch, frozenset({ATTENTION_SCORES})) for model in (student, teacher))
    teacher.set_attn_implementation("eager")
    weights = teacher(**model_inputs(teacher, batch), output_attentions=True).attentions
    queries_B1T1 = batch["attention_mask"][:, None, :, None].bool()
    errors = []
    for m, n in PAIRS:
        there = (weights[n - 1] > 0) & queries_B1T1  # the softmax of what is masked is 0
        assert there[0, :, 0, 2].all() and not there[0, :, 0, 3].any()
        a, b = (
            scores.masked_fill((scores <= -100) & paper_compatible, 0.0)
            for scores in (s.attention_scores[m - 1], t.attention_scores[n - 1])
        )
        squares = (a - b).square() * there
        errors.append(squares.mean() if paper_compatible else squares.sum() / there.sum())
    others = dict.fromkeys(("hidden", "embedding", "prediction"), 0.0)
    objective = efficientbert(student.config, teacher.config, paper_compatible=paper_compatible, **others)
    assert objective(s, t, batch).item() == exactly(float(sum(errors)))


@pytest.mark.parametrize("paper_compatible", [False, True])
@pytest.mark.parametrize("width", [12, 6])
@pytest.mark.parametrize("make", [efficientbert, tinybert])
def test_transforms_are_learned_where_widths_agree(
    make: Callable[..., Any], width: int, paper_compatible: bool
) -> None:
    given = case(lengths=(4, 2), widths=(width, 12))
    objective = make(*given.configs, **WEIGHTS, always_transform=True, paper_compatible=paper_compatible)
    shapes = {name: tuple(module.weight.shape) for name, module in objective.projections.items()}
    assert shapes == dict.fromkeys(("hidden",) if paper_compatible else ("hidden", "embedding"), (12, width))
    expected = weighed(layers(given, objective.projections, released=paper_compatible))
    if make is efficientbert:
        expected += soft(given, "soft_cross_entropy", 1.0, paper_compatible)
    loss = objective(*given.given)
    assert loss.item() == exactly(expected)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


def answers_as_released(student_B2T: np.ndarray, teacher_B2T: np.ndarray, lengths: tuple[int, ...]) -> float:
    """10,000 is subtracted from the logits of padding and of the first token. The products of probability and log
    probability of starts and ends are added element by element, and then averaged over sentences and positions.
    """
    rows, _, tokens = student_B2T.shape
    masked_BT = np.array([[t == 0 or t >= length for t in range(tokens)] for length in lengths])
    elements_BT = np.zeros((rows, tokens))
    for end in (0, 1):
        s, t = (logits[:, end] - 10_000.0 * masked_BT for logits in (student_B2T, teacher_B2T))
        log_s, log_t = (x - x.max(axis=1, keepdims=True) for x in (s, t))
        log_s, log_t = (x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in (log_s, log_t))
        elements_BT -= np.exp(log_t) * log_s
    return float(elements_BT.mean())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [12, 6])
def test_efficientbert_as_released(kind: str, width: int) -> None:
    given = case(kind, lengths=(4, 2), widths=(width, 12))
    objective = efficientbert(*given.configs, **WEIGHTS, paper_compatible=True)
    assert set(objective.projections) == ({"hidden"} if width != 12 else set())
    expected = weighed(layers(given, objective.projections, released=True))
    if kind == QUESTION_ANSWERING:
        expected += answers_as_released(array(given.student.logits), array(given.teacher.logits), given.lengths)
    else:
        expected += hard(given) if kind == REGRESSION else soft(given, "soft_cross_entropy", 1.0, True)
    loss = objective(*given.given)
    assert loss.item() == exactly(expected)
    assert objective.teacher_needs - {LOGITS} == TAUGHT
    assert (LOGITS in objective.teacher_needs) == (kind != REGRESSION)
    loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


@pytest.mark.parametrize("paper_compatible", [False, True])
@pytest.mark.parametrize("width", [12, 6])
def test_tinybert_learns_states_first(width: int, paper_compatible: bool) -> None:
    given = case(lengths=(4, 2), widths=(width, 12))
    objective = tinybert(*given.configs, **WEIGHTS, paper_compatible=paper_compatible)
    expected = weighed(layers(given, objective.projections, released=paper_compatible))
    assert objective.needs == {HIDDEN_STATES, ATTENTION_SCORES}
    assert objective.teacher_needs == TAUGHT
    loss = objective(*given.given)
    assert loss.item() == exactly(expected)
    loss.backward()
    states = {f"hidden_states.{m}" for m in range(3)}
    assert reached(given) == {*states, "attention_scores.0", "attention_scores.1"}
    names = set() if width == 12 else {"hidden"} if paper_compatible else {"hidden", "embedding"}
    assert set(objective.projections) == names
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())


@pytest.mark.parametrize("paper_compatible", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_tinybert_learns_predictions_second(kind: str, paper_compatible: bool) -> None:
    given = case(kind, lengths=(4, 4), widths=(6, 12), heads=(1, 3), depths=(2, 3))
    objective = tinybert(
        *given.configs, phase="prediction", prediction=0.5, temperature=2.0, paper_compatible=paper_compatible
    )
    if kind == REGRESSION:
        assert not objective.needs_teacher
        expected = hard(given)
    else:
        assert objective.teacher_needs == {LOGITS}
        expected = soft(given, "soft_cross_entropy", 2.0, paper_compatible)
    assert objective.needs == {LOGITS}
    assert not list(objective.parameters())
    loss = objective(*given.given)
    assert loss.item() == exactly(0.5 * expected)
    loss.backward()
    assert reached(given) == {"logits"}


def test_an_added_type_that_predicts_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """TinyBERT learns them from the labels, without a teacher, as those of a regression."""
    student, teacher = case(QUESTION_ANSWERING).configs
    student.problem_type = "ratings"
    assert tinybert(student, teacher, phase="prediction").teacher_needs
    ratings = replace(get_task_type(REGRESSION), name="ratings", problem_type="ratings")
    monkeypatch.setitem(TASK_TYPES, "ratings", ratings)
    assert not tinybert(student, teacher, phase="prediction").teacher_needs

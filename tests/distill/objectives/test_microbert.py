"""MicroBERT: its losses, and the critic that learns against the student."""

import math

import numpy as np
import pytest
import torch

from distill.objectives import OBJECTIVES, Critic, microbert
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, ROUTINGS, of_layers
from distill.tasks.types import CLASSIFICATION, IGNORED, MASKED_LM, QUESTION_ANSWERING, REGRESSION
from tests.distill.objectives import references
from tests.distill.objectives.cases import KINDS, Case, array, case, exactly, hard, mapped, reached, soft


def logit(critic: Critic, features: np.ndarray) -> list[float]:
    """The network by hand, in float64."""
    first, _, second, _, third = critic.layers
    for module in (first, second):
        features = features @ array(module.weight).T + array(module.bias)
        features = np.where(features > 0, features, 0.2 * features)
    return (features @ array(third.weight).T + array(third.bias))[:, 0].tolist()


def first_states(given: Case, project: torch.nn.Module | None) -> tuple[np.ndarray, np.ndarray]:
    student = mapped(given.student.hidden_states[-1], project)[:, 0]
    return student, array(given.teacher.hidden_states[-1])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers", ["average", "overlapping", "last", "released", "released_last"])
@pytest.mark.parametrize("width", [12, 6])
@pytest.mark.parametrize("paper_compatible", [False, True])
def test_microbert(kind: str, layers: str, width: int, paper_compatible: bool) -> None:
    shape = {"kind": kind, "lengths": (4, 4, 4) if kind == "question_answering" else (5, 3, 1)}
    shape |= {"depths": (2, 6), "widths": (width, 12), "experts": 3}
    given = case(**shape)
    weights = {"alignment": 0.7, "soft": 0.3, "labels": 0.9, "adversarial": 0.2, "balance": 0.1}
    objective = microbert(*given.configs, temperature=2.0, layers=layers, paper_compatible=paper_compatible, **weights)
    assert objective.needs == {LOGITS, HIDDEN_STATES, ROUTINGS}
    groups = {
        "average": {1: (1, 2, 3), 2: (4, 5, 6)},
        "overlapping": {1: (1, 2, 3), 2: (3, 4, 5, 6)},
        "last": {1: (3,), 2: (6,)},
        "released": {0: (0, 1, 2), 1: (3, 4, 5), 2: (6,)},
        "released_last": {0: (2,), 1: (5,), 2: (6,)},
    }[layers]
    assert objective.teacher_needs == {LOGITS} | of_layers(
        HIDDEN_STATES, {n for group in groups.values() for n in group}
    )
    assert set(objective.projections) == ({"hidden"} if width != 12 else set())
    project = objective.projections["hidden"] if width != 12 else None
    counted = [max(given.lengths)] * 3 if paper_compatible else given.lengths
    alignment = sum(
        references.pooled(
            mapped(given.student.hidden_states[m], project),
            np.mean([array(given.teacher.hidden_states[n]) for n in group], axis=0),
            counted,
        )
        for m, group in groups.items()
    )
    fake = logit(objective.critic, first_states(given, project)[0])
    deception = references.mean([math.log1p(math.exp(-value)) for value in fake])
    shares = [references.balance(array(p).tolist(), chosen.tolist(), 3) for p, chosen in given.student.routings]
    expected = 0.7 * alignment + 0.3 * soft(given, "soft_cross_entropy", 2.0, paper_compatible) + 0.9 * hard(given)
    expected += 0.2 * deception + 0.1 * sum(shares) / 2
    loss = objective(*given.given)
    assert loss.item() == exactly(expected)
    if not paper_compatible:
        assert objective(*case(**shape, extra=3).given).item() == exactly(expected)
    loss.backward()
    states = {f"hidden_states.{m}" for m in groups}
    assert reached(given) == states | {"logits", "routings.0", "routings.1"}
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())
    assert all(parameter.grad is None for parameter in objective.critic.parameters())


@pytest.mark.parametrize("width", [12, 6])
def test_the_critics_loss(width: int) -> None:
    given = case(widths=(width, 12))
    objective = microbert(*given.configs, critic_learning_rate=3e-4)
    critic = objective.critic
    assert critic.learning_rate == 3e-4
    project = objective.projections["hidden"] if width != 12 else None
    fake, real = (logit(critic, features) for features in first_states(given, project))
    told = [math.log1p(math.exp(-value)) for value in real]
    refused = [math.log1p(math.exp(value)) for value in fake]
    loss = critic.loss(*given.given)
    assert loss.item() == exactly((references.mean(told) + references.mean(refused)) / 2)
    loss.backward()
    assert not reached(given)
    assert all(parameter.grad is None for parameter in objective.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in critic.parameters())


@pytest.mark.parametrize("paper_compatible", [False, True])
@pytest.mark.parametrize("width", [12, 6])
def test_the_embedding_term(width: int, paper_compatible: bool) -> None:
    """Equation 3: all tokens, and a transform of its own."""
    shape = {"widths": (width, 12), "lengths": (4, 4, 4) if paper_compatible else (5, 3, 1)}
    given = case(**shape)
    none = {"alignment": 0, "soft": 0, "labels": 0, "adversarial": 0}
    objective = microbert(*given.configs, embedding=0.4, paper_compatible=paper_compatible, **none)
    assert objective.needs == {HIDDEN_STATES, ROUTINGS} and objective.teacher_needs == of_layers(HIDDEN_STATES, [0])
    assert set(objective.projections) == (set() if width == 12 else {"embedding"})
    project = None if width == 12 else objective.projections["embedding"]
    student, teacher = mapped(given.student.hidden_states[0], project), array(given.teacher.hidden_states[0])
    expected = exactly(0.4 * references.hidden(student, teacher, given.lengths))
    loss = objective(*given.given)
    assert loss.item() == expected
    loss.backward()
    assert reached(given) == {"hidden_states.0"}
    if not paper_compatible:
        assert objective(*case(**shape, extra=3).given).item() == expected
    both = microbert(*given.configs, embedding=0.4)
    assert set(both.projections) == (set() if width == 12 else {"hidden", "embedding"})


def predictions(given: Case) -> tuple[np.ndarray, np.ndarray]:
    """The logits that a critic reads, one row for each sentence, labelled token or token of an answer's text."""
    student, teacher = (array(side.logits) for side in given.given[:2])
    places = references.tokens(given.lengths)
    if given.student.task_type == QUESTION_ANSWERING:
        rows = [(row, slice(None), token) for row, token in places]
    elif given.student.task_type in (CLASSIFICATION, REGRESSION):
        rows = [(row,) for row in range(len(given.lengths))]
    else:
        rows = [place for place in places if given.batch["labels"][place] != IGNORED]
    return np.array([student[row] for row in rows]), np.array([teacher[row] for row in rows])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != MASKED_LM])
@pytest.mark.parametrize("form", ["non_saturating", "minimax"])
def test_a_critic_of_predictions(kind: str, form: str) -> None:
    """Equations 10 to 12, by sigmoid and logarithm."""
    given = case(kind, widths=(6, 12))
    settings = {"adversarial_form": form, "critic_input": "logits"}
    objective = microbert(*given.configs, alignment=0, soft=0, labels=0, adversarial=0.3, balance=0, **settings)
    assert objective.needs == objective.teacher_needs == {LOGITS} and not objective.projections
    critic = objective.critic
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.mul_(3)  # away from D = 1/2
    fake, real = ([1 / (1 + math.exp(-value)) for value in logit(critic, rows)] for rows in predictions(given))
    losses = {"non_saturating": [-math.log(d) for d in fake], "minimax": [math.log(1 - d) for d in fake]}[form]
    loss = objective(*given.given)
    assert loss.item() == exactly(0.3 * references.mean(losses))
    loss.backward()
    assert reached(given) == {"logits"}
    assert all(parameter.grad is None for parameter in critic.parameters())
    given.student.logits.grad = None
    critics = critic.loss(*given.given)
    told, refused = [-math.log(d) for d in real], [-math.log(1 - d) for d in fake]
    assert critics.item() == exactly((references.mean(told) + references.mean(refused)) / 2)
    critics.backward()
    assert not reached(given) and all(parameter.grad.abs().sum() > 0 for parameter in critic.parameters())
    again = case(kind, widths=(6, 12), extra=3)
    assert objective(*again.given).item() == pytest.approx(loss.item(), rel=1e-5)


def test_a_critic_of_logits_reads_those_of_one_task() -> None:
    given = case(MASKED_LM, classes=50)
    objective = microbert(*given.configs, critic_input="logits")
    with pytest.raises(ValueError, match=r"the critic reads 2 logits at a time, and the model predicts 50; the critic"):
        objective.critic.loss(*given.given)
    assert not OBJECTIVES["microbert"].shares_tasks({"critic_input": "logits"})
    for shared in ({}, {"critic_input": "cls_state"}, {"critic_input": "logits", "adversarial": 0.0}):
        assert OBJECTIVES["microbert"].shares_tasks(shared)
    assert OBJECTIVES["microbert"].settings_without_labels()["critic_input"] == "cls_state"


def test_the_students_optimiser_does_not_see_the_critic() -> None:
    configs = case(widths=(6, 12)).configs
    objective = microbert(*configs)
    names = {"projections.hidden.weight", "projections.hidden.bias"}
    assert {name for name, _ in objective.named_parameters()} == set(objective.state_dict()) == names
    objective.to(torch.float64)
    assert next(objective.critic.parameters()).dtype == torch.float64
    assert microbert(*configs, adversarial=0.0).critic is None


def test_sentences_of_padding_alone() -> None:
    given = case()
    objective = microbert(*given.configs)
    given.batch["attention_mask"] = torch.zeros_like(given.batch["attention_mask"])
    assert objective.critic.loss(*given.given) == 0
    for term in objective.terms:
        if term.name in ("alignment", "adversarial"):
            assert term.loss(*given.given) == 0

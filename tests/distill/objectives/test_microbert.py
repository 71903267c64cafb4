"""MicroBERT: its losses, and the critic that learns against the student."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from distill.objectives import Critic, microbert
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, ROUTINGS, of_layers
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
@pytest.mark.parametrize("layers", ["average", "last"])
@pytest.mark.parametrize("width", [12, 6])
@pytest.mark.parametrize("paper_compatible", [False, True])
def test_microbert(kind: str, layers: str, width: int, paper_compatible: bool) -> None:
    shape = {"kind": kind, "lengths": (4, 4, 4) if kind == "question_answering" else (5, 3, 1)}
    shape |= {"depths": (2, 6), "widths": (width, 12), "experts": 3}
    given = case(**shape)
    weights = {"alignment": 0.7, "soft": 0.3, "labels": 0.9, "adversarial": 0.2, "balance": 0.1}
    objective = microbert(*given.configs, temperature=2.0, layers=layers, paper_compatible=paper_compatible, **weights)
    assert objective.needs == {LOGITS, HIDDEN_STATES, ROUTINGS}
    every = range(1, 7) if layers == "average" else (3, 6)
    assert objective.teacher_needs == {LOGITS} | of_layers(HIDDEN_STATES, every)
    assert set(objective.projections) == ({"hidden"} if width != 12 else set())
    project = objective.projections["hidden"] if width != 12 else None
    groups = {"average": [(1, 2, 3), (4, 5, 6)], "last": [(3,), (6,)]}[layers]
    counted = [max(given.lengths)] * 3 if paper_compatible else given.lengths
    alignment = sum(
        references.pooled(
            mapped(given.student.hidden_states[m], project),
            np.mean([array(given.teacher.hidden_states[n]) for n in group], axis=0),
            counted,
        )
        for m, group in enumerate(groups, start=1)
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
    assert reached(given) == {"logits", "hidden_states.1", "hidden_states.2", "routings.0", "routings.1"}
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


def test_the_students_optimiser_does_not_see_the_critic() -> None:
    configs = case(widths=(6, 12)).configs
    objective = microbert(*configs)
    names = {"projections.hidden.weight", "projections.hidden.bias"}
    assert {name for name, _ in objective.named_parameters()} == set(objective.state_dict()) == names
    objective.to(torch.float64)
    assert next(objective.critic.parameters()).dtype == torch.float64
    assert microbert(*configs, adversarial=0.0).critic is None


def test_the_critic_learns_and_the_student_deceives_it() -> None:
    """The student's states, themselves what is learned, move to where the teacher's are, far from their start."""
    given = case(lengths=(3,) * 32)
    last = given.student.hidden_states[-1]
    start, goal = last.detach().clone(), torch.full((12,), 2.0)
    states = tuple(goal + 0.3 * state for state in given.teacher.hidden_states)
    given = replace(given, teacher=replace(given.teacher, hidden_states=states))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        objective = microbert(*given.configs, alignment=0, soft=0, labels=0, critic_learning_rate=3e-3)
    critic = torch.optim.Adam(objective.critic.parameters(), lr=objective.critic.learning_rate)
    student = torch.optim.Adam([last], lr=0.05)

    def step(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    told = [step(critic, objective.critic.loss(*given.given)) for _ in range(30)]
    assert told[0] > 0.5
    assert told[-1] < 0.1
    for _ in range(100):
        step(critic, objective.critic.loss(*given.given))
        step(student, objective(*given.given))
    distances = [(side[:, 0].mean(0) - goal).norm().item() for side in (start, last.detach())]
    assert distances[1] < 0.5 * distances[0]
    assert torch.equal(last[:, 1:], start[:, 1:])


def test_weights_of_zero() -> None:
    configs = case(widths=(6, 12)).configs
    plain = microbert(*configs, alignment=0, adversarial=0, balance=0)
    assert plain.needs == plain.teacher_needs == {LOGITS}
    assert not list(plain.parameters())
    alone = microbert(*configs, alignment=0, soft=0, labels=0, balance=0)
    assert alone.needs == {HIDDEN_STATES} and alone.teacher_needs == of_layers(HIDDEN_STATES, [4])


def test_sentences_of_padding_alone() -> None:
    given = case()
    objective = microbert(*given.configs)
    given.batch["attention_mask"] = torch.zeros_like(given.batch["attention_mask"])
    assert objective.critic.loss(*given.given) == 0
    for term in objective.terms:
        if term.name in ("alignment", "adversarial"):
            assert term.loss(*given.given) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "all"}, "unknown choice of layers 'all': choose average or last"),
        ({"critic_learning_rate": 0.0}, "critic_learning_rate=0.0: must be a finite number above 0"),
        ({"temperature": -1.0}, "temperature=-1.0: must be a finite number above 0"),
        ({"adversarial": -1.0}, "adversarial=-1.0: a weight must be a finite number of at least 0"),
    ],
)
def test_settings_out_of_range(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        microbert(*case().configs, **settings)


def test_depths_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="5 teacher layers cannot be shared out evenly to 2 student layers"):
        microbert(*case(depths=(2, 5)).configs)

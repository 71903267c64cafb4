"""MoEBERT, against references of its own."""

import math

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from distill.objectives import moebert
from distill.tasks.types import QUESTION_ANSWERING
from tests.distill.objectives import references
from tests.distill.objectives.cases import KINDS, array, case, exactly, hard, mapped, soft

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


# Figure 3b of the paper: the states of two layers and the embedding output that are compared.
STATES = {"all": (0, 1, 2), "alternate": (0, 2), "last": (2,)}


@pytest.mark.parametrize("layers", STATES)
@settings(max_examples=15)
@drawn(st.sampled_from(KINDS), LENGTHS, st.integers(1, 4), st.sampled_from([12, 6]), st.integers(0, 999))
def test_moebert(layers: str, kind: str, lengths: tuple[int, ...], classes: int, width: int, seed: int) -> None:
    shape = {"kind": kind, "lengths": lengths, "classes": classes, "widths": (width, 12), "experts": 3, "seed": seed}
    given = case(**shape)
    weights = {"distill": 3.0, "labels": 0.5, "hidden": 0.2, "prediction": 0.7, "balance": 0.1}
    objective = moebert(*given.configs, layers=layers, **weights)
    project = dict(objective.projections)
    states = [
        references.hidden(
            mapped(given.student.hidden_states[m], project.get("hidden" if m else "embedding")),
            array(given.teacher.hidden_states[2 * m]),
            lengths,
        )
        for m in STATES[layers]
    ]
    shares = [references.balance(array(p).tolist(), chosen.tolist(), 3) for p, chosen in given.student.routings]
    expected = 0.5 * hard(given) + 3 * (0.2 * sum(states) + 0.7 * soft(given, "symmetric_kl")) + 0.1 * sum(shares) / 2
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)


@settings(max_examples=30)
@drawn(LENGTHS, st.integers(0, 999), st.integers(0, 2))
def test_answers_as_released(lengths: tuple[int, ...], seed: int, extra: int) -> None:
    """Padding is a choice: cross-entropies and symmetric divergences over all positions, in plain sums."""
    given = case(QUESTION_ANSWERING, lengths, seed=seed, extra=extra)
    teacher = given.teacher
    teacher.logits[teacher.logits.isinf()] = 0.25  # what the teacher computes for padding is finite
    objective = moebert(*given.configs, distill=3.0, hidden=0.0, paper_compatible=True)

    def probabilities(logits_B2T: object) -> list[list[list[float]]]:
        values = array(logits_B2T).tolist()
        return [
            [[math.exp(v) / math.fsum(math.exp(u) for u in ends) for v in ends] for ends in sentence]
            for sentence in values
        ]

    p, q = probabilities(given.student.logits), probabilities(teacher.logits)
    labels = given.batch["labels"].tolist()
    sentences, positions = range(len(lengths)), range(len(p[0][0]))
    start, end = (
        sum((p[b][k][t] - q[b][k][t]) * math.log(p[b][k][t] / q[b][k][t]) for b in sentences for t in positions) / 2
        for k in (0, 1)
    )
    first, last = (-sum(math.log(p[b][k][labels[b][k]]) for b in sentences) / len(lengths) for k in (0, 1))
    expected = (first + last) / 2 + 3 * (start + end) / len(lengths) / 2
    assert objective(*given.given).item() == exactly(expected)


def test_states_of_padding_as_released() -> None:
    given = case(lengths=(4, 4))
    objective = moebert(*given.configs, labels=0, prediction=0, paper_compatible=True)
    value = objective(*given.given).item()
    given.batch["attention_mask"][1, 2:] = 0
    assert objective(*given.given).item() == value
    assert moebert(*given.configs, labels=0, prediction=0)(*given.given).item() != value


@pytest.mark.parametrize("kind", sorted({*KINDS} - {QUESTION_ANSWERING}))
def test_other_predictions_are_as_in_the_paper(kind: str) -> None:
    given = case(kind, extra=2)
    ours, released = (moebert(*given.configs, hidden=0.0, paper_compatible=value) for value in (False, True))
    assert ours(*given.given).item() == released(*given.given).item()

"""MoEBERT, against references of its own."""

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from distill.objectives import moebert
from tests.distill.objectives import references
from tests.distill.objectives.cases import KINDS, array, case, exactly, hard, mapped, soft

LENGTHS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@settings(max_examples=30, deadline=None)
@drawn(st.sampled_from(KINDS), LENGTHS, st.integers(1, 4), st.sampled_from([12, 6]), st.integers(0, 999))
def test_moebert(kind: str, lengths: tuple[int, ...], classes: int, width: int, seed: int) -> None:
    shape = {"kind": kind, "lengths": lengths, "classes": classes, "widths": (width, 12), "experts": 3, "seed": seed}
    given = case(**shape)
    weights = {"distill": 3.0, "labels": 0.5, "hidden": 0.2, "prediction": 0.7, "balance": 0.1}
    objective = moebert(*given.configs, **weights)
    project = dict(objective.projections)
    states = [
        references.hidden(
            mapped(given.student.hidden_states[m], project.get("hidden" if m else "embedding")),
            array(given.teacher.hidden_states[2 * m]),
            lengths,
        )
        for m in range(3)
    ]
    shares = [references.balance(array(p).tolist(), chosen.tolist(), 3) for p, chosen in given.student.routings]
    expected = 0.5 * hard(given) + 3 * (0.2 * sum(states) + 0.7 * soft(given, "symmetric_kl")) + 0.1 * sum(shares) / 2
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)


@pytest.mark.parametrize("name", ["distill", "labels", "hidden", "prediction", "balance"])
def test_weights_out_of_range(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=-0.5: a weight must be a finite number of at least 0$"):
        moebert(*case().configs, **{name: -0.5})

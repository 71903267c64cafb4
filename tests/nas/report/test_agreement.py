"""Kendall's tau and its interval against scipy."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from nas.report.agreement import LEAST_FOR_INTERVAL, agreement


def test_tau_and_interval_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=25)
    others = scores + rng.normal(size=25)
    found = agreement(list(scores), list(others))
    assert found is not None and found.interval is not None
    expected = kendalltau(scores, others)
    assert found.tau == pytest.approx(expected.statistic)
    assert found.p == pytest.approx(expected.pvalue)
    drawn = [rng.integers(0, 25, 25) for _ in range(1000)]
    taus = [kendalltau(scores[rows], others[rows]).statistic for rows in drawn]
    assert found.interval == pytest.approx(np.percentile(taus, [2.5, 97.5]), abs=0.04)
    assert f"{found.interval[0]:.2f} to {found.interval[1]:.2f}" in str(found)


def test_few_architectures_have_no_interval() -> None:
    """The bootstrap interval of scores that agree entirely would have no width."""
    found = agreement([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])
    assert found is not None
    assert (found.tau, found.interval) == (1, None)
    assert found.p == pytest.approx(2 / 24)  # two of the 24 orders agree or disagree entirely
    assert "too few for an interval" in str(found)
    many = [float(value) for value in range(LEAST_FOR_INTERVAL)]
    assert getattr(agreement(many, many), "interval", None) == (1, 1)


@pytest.mark.parametrize(("scores", "others"), [([1.0, 2.0], [1.0, 2.0]), ([1.0] * 5, [1.0, 2, 3, 4, 5]), ([], [])])
def test_undefined(scores: list[float], others: list[float]) -> None:
    assert agreement(scores, others) is None

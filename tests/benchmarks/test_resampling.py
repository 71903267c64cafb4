"""Kendall's tau of resamples against scipy."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from benchmarks.resampling import percentiles, resampled_taus, resamples


def test_tau_and_interval_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=25)
    others = scores + rng.normal(size=25)
    assert resampled_taus(scores, others, np.ones((1, 25))) == pytest.approx(kendalltau(scores, others).statistic)
    drawn = [rng.integers(0, 25, 25) for _ in range(1000)]
    taus = [kendalltau(scores[rows], others[rows]).statistic for rows in drawn]
    interval = percentiles(resampled_taus(scores, others, resamples(25)))
    assert interval == pytest.approx(np.percentile(taus, [2.5, 97.5]), abs=0.04)

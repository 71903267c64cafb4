"""Bounds and costs in messages."""

import pytest

from search_spaces.limits import Limit


@pytest.mark.parametrize(
    ("name", "cost", "maximum", "said"),
    [
        ("size", 11_920_896, 10**7, "11.93 MB of 10 MB"),
        ("size", 10_000_001, 10**7, "10.01 MB of 10 MB"),
        ("size", 2_048, 1_000, "0.002048 MB of 0.001 MB"),
        ("latency", 12_346_700, 12_346_500, "12,350 ms of 12,346.5 ms"),
        ("latency", 286, 110, "0.286 ms of 0.11 ms"),
        ("macs", 85_054_464, 85_000_000, "85,060,000 of 85,000,000"),
    ],
)
def test_what_is_too_much_is_rounded_and_never_looks_equal(name: str, cost: int, maximum: int, said: str) -> None:
    limit = Limit(name, 0, lambda base, layer: 0, maximum)
    assert f"{limit.rounded_up(cost)} of {limit.in_words(maximum)}" == said

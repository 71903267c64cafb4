"""Slow tests are divided into thirds, each of which runs on one of three days; fast tests run every day."""

import re
from datetime import date

import pytest

SUITE = """\
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_slow(number):
    pass

def test_fast():
    pass
"""
CONFIGURATION = """\
[pytest]
addopts = -m 'not slow'
markers = slow: as in pyproject.toml
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A test suite of thirty slow tests and a fast one that uses the plugin."""
    pytester.makeini(CONFIGURATION)
    pytester.makepyfile(test_suite=SUITE)
    return pytester


def ran(suite: pytest.Pytester, *arguments: str) -> tuple[set[str], str]:
    """The names of the tests that passed, and pytest's output."""
    result = suite.runpytest_inprocess("-p", "tests.slow_thirds", "-v", *arguments)
    assert result.ret == pytest.ExitCode.OK
    output = result.stdout.str()
    return set(re.findall(r"::(\S+) PASSED", output)), output


def test_thirds_are_disjoint_and_complete(suite: pytest.Pytester) -> None:
    fast, _ = ran(suite)
    assert fast == {"test_fast"}
    thirds = [ran(suite, "--slow-third", third)[0] for third in "012"]
    assert all("test_fast" in third for third in thirds)
    slow = [third - fast for third in thirds]
    assert sum(map(len, slow)) == 30
    assert set.union(*slow) == {f"test_slow[{number}]" for number in range(30)}
    assert min(map(len, slow)) > 0


def test_the_third_of_the_day_is_named(suite: pytest.Pytester) -> None:
    before = date.today()
    passed, output = ran(suite, "--slow-third", "today", "-m", "slow")
    days = {day.timetuple().tm_yday for day in (before, date.today())}
    chosen = {int(third) for third in re.findall(r"third (\d) of the slow tests", output)}
    assert chosen <= {day % 3 for day in days}
    assert len(chosen) == 1
    assert "test_fast" not in passed
    assert set(re.findall(r"^  \S+::(\S+)$", output, re.M)) == passed

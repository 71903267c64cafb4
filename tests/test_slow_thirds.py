"""Slow tests are divided into thirds, each of which runs on one of three days; fast tests run every day."""

import re
from datetime import date

import pytest

from tests import slow_thirds

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


def test_thirds_are_disjoint_and_complete(pytester: pytest.Pytester) -> None:
    pytester.makeini(CONFIGURATION)
    pytester.makepyfile(test_suite=SUITE)

    def ran(*arguments: str) -> set[str]:
        """The names of the tests that passed."""
        result = pytester.runpytest_inprocess("-p", "tests.slow_thirds", "-v", *arguments)
        assert result.ret == pytest.ExitCode.OK
        return set(re.findall(r"::(\S+) PASSED", result.stdout.str()))

    fast, slow = {"test_fast"}, {f"test_slow[{number}]" for number in range(30)}
    assert ran() == fast
    thirds = [ran("--slow-third", third) for third in "012"]
    assert all(fast < third for third in thirds)
    assert set.union(*thirds) == fast | slow and sum(map(len, thirds)) == 3 + 30

    before = date.today()
    today = ran("--slow-third", "today", "-m", "slow")
    assert today in [thirds[day.timetuple().tm_yday % 3] - fast for day in (before, date.today())]


@pytest.mark.parametrize(("mark", "named"), [("", True), ("@pytest.mark.slow", False)])
@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_fast_test_that_is_slow(
    mark: str, named: bool, workers: tuple[str, ...], pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another process does its work."""
    monkeypatch.setattr(slow_thirds, "MOST_SECONDS", 0.05)
    pytester.makeconftest("from tests import slow_thirds\n\nslow_thirds.MOST_SECONDS = 0.05")  # in workers
    pytester.makeini(CONFIGURATION)
    work = "import subprocess, sys\n    subprocess.run([sys.executable, '-c', 'sum(range(10**7))'])"
    pytester.makepyfile(f"import pytest\n\n{mark}\ndef test_it():\n    {work}")
    result = pytester.runpytest_inprocess("-p", "tests.slow_thirds", "-m", "slow or not slow", *workers)
    result.assert_outcomes(passed=1)
    assert (" seconds of processor time: mark it slow" in result.stdout.str()) == named

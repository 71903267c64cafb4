"""The counts of this folder's tests."""

import json
from pathlib import Path

import pytest

TEST = """
import pytest

@pytest.mark.trust
def test_numbers(cases):
    counts = cases(sample=3, full=7)
    for case in range(counts.wanted):
        counts["even" if case % 2 == 0 else "odd"] += 1
"""


@pytest.mark.parametrize(("options", "even", "odd"), [([], 2, 1), (["--full"], 4, 3)])
def test_cases_are_counted(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, options: list[str], even: int, odd: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # the new process looks for the plugin
    file = Path(pytester.path, "counts.json")
    file.write_text('{"another": {"refused": 1}}')
    pytester.makepyfile(test_case=TEST)
    pytester.makeconftest("pytest_plugins = ['tests.trust_counts']")
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--counts", str(file), *options)
    result.assert_outcomes(passed=1)
    assert json.loads(file.read_text()) == {
        "another": {"refused": 1},
        "test_case.py::test_numbers": {"even": even, "odd": odd},
    }

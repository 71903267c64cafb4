"""How many cases the tests of this folder run, and where they report how these ended."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

TEST = """
import pytest

@pytest.mark.trust
def test_numbers(cases):
    counts = cases(sample=3, full=7000)
    for case in range(counts.wanted):
        counts["even" if case % 2 == 0 else "odd"] += 1
"""


@pytest.fixture(autouse=True)
def tests(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("pytest_plugins = ['tests.trust_counts']")
    pytester.makepyfile(test_case=TEST)


@pytest.mark.parametrize(
    ("options", "even", "odd"), [([], 2, 1), (["--full"], 3500, 3500), (["--cases", "5"], 3, 2)], ids=str
)
def test_cases_are_counted(pytester: pytest.Pytester, options: list[str], even: int, odd: int) -> None:
    report = Path(pytester.path, "report.xml")
    pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--junitxml={report}", *options).assert_outcomes(passed=1)
    found = {each.attrib["name"]: int(each.attrib["value"]) for each in ElementTree.parse(report).iter("property")}
    assert found == {"even": even, "odd": odd}


@pytest.mark.parametrize("options", [["--cases", "0"], ["--cases", "-1"], ["--cases", "5", "--full"]])
def test_wrong_numbers_of_cases(pytester: pytest.Pytester, options: list[str]) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--cases {options[1]}: must be at least 1, and cannot be combined with --full" in result.stderr.str()

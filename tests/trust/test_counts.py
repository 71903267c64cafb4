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


@pytest.mark.parametrize(("options", "even", "odd"), [([], 2, 1), (["--full"], 3500, 3500)], ids=str)
def test_cases_are_counted(pytester: pytest.Pytester, options: list[str], even: int, odd: int) -> None:
    pytester.makeconftest("pytest_plugins = ['tests.trust_counts']")
    pytester.makepyfile(test_case=TEST)
    report = Path(pytester.path, "report.xml")
    pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--junitxml={report}", *options).assert_outcomes(passed=1)
    counted = {each.attrib["name"]: int(each.attrib["value"]) for each in ElementTree.parse(report).iter("property")}
    assert counted == {"even": even, "odd": odd}

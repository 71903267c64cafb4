"""The counts of this folder's tests, and the table that is made from them."""

import json
from pathlib import Path

import pytest

TEST = """
import pytest

@pytest.mark.trust
@pytest.mark.parametrize("kind", ["a|b"])
def test_numbers(cases, kind):
    \"\"\"Numbers are counted.

    Even and odd ones.
    \"\"\"
    counts = cases(sample=3, full=7000)
    counts.ways += 1000 * (counts.wanted == 7000)
    for case in range(counts.wanted):
        counts["even" if case % 2 == 0 else "odd"] += 1
    assert counts.wanted != {fails}
"""
BEFORE = {"what": "Another", "full": True, "passed": True, "seconds": 1, "ended": {"refused": 1}}


@pytest.fixture
def page(pytester: pytest.Pytester) -> Path:
    """A page with a table; its counts are in the file beside it."""
    pytester.makeconftest("pytest_plugins = ['tests.trust_counts']")
    page = Path(pytester.path, "page.md")
    page.write_text("Before.\n\n<!-- counts -->\nold\n<!-- end of counts -->\n\nAfter.\n")
    page.with_suffix(".json").write_text(json.dumps({"another": BEFORE}))
    return page


@pytest.mark.parametrize(
    ("options", "fails", "even", "odd"),
    [
        ([], 0, 2, 1),
        (["--full"], 0, 3500, 3500),
        (["--cases", "5"], 0, 3, 2),
        (["--cases", "7001"], 0, 3501, 3500),
        ([], 3, 2, 1),
    ],
)
def test_cases_are_counted(
    pytester: pytest.Pytester, page: Path, options: list[str], fails: int, even: int, odd: int
) -> None:
    pytester.makepyfile(test_case=TEST.replace("{fails}", str(fails)))
    counts = page.with_suffix(".json")
    result = pytester.runpytest_inprocess(
        "-p", "no:cacheprovider", "--counts", str(counts), "--table", str(page), *options
    )
    result.assert_outcomes(passed=not fails, failed=bool(fails))
    records, full = json.loads(counts.read_text()), even + odd >= 7000
    assert records.pop("another") == BEFORE
    assert records == {
        "test_case.py::test_numbers[a|b]": {
            "what": "Numbers are counted: a|b",
            "full": full,
            "passed": not fails,
            "seconds": 0,
            "ended": {"even": even, "odd": odd},
            **({"ways": 1000} if even + odd == 7000 else {}),
        }
    }
    cases = f"{even + odd:,}" + ("" if full else " (a sample)")
    ended = ("**the test failed**: " if fails else "") + f"{even:,} even, {odd:,} odd"
    if even + odd == 7000:
        ended += "; end-to-end runs that ended as an undisturbed one: 1,000"
    assert page.read_text().splitlines()[2:-2] == [
        "<!-- counts -->",
        "| what | test | cases | how they ended | seconds |",
        "|---|---|---|---|---|",
        "| Another | `another` | 1 | 1 refused | 1 |",
        rf"| Numbers are counted: a\|b | `test_case.py::test_numbers` | {cases} | {ended} | 0 |",
        "<!-- end of counts -->",
    ]


@pytest.mark.parametrize("options", [["--cases", "0"], ["--cases", "-1"], ["--cases", "5", "--full"]])
def test_wrong_numbers_of_cases(pytester: pytest.Pytester, page: Path, options: list[str]) -> None:
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--cases {options[1]}: must be at least 1, and not be given together with --full" in result.stderr.str()


def test_a_page_without_a_table(pytester: pytest.Pytester, page: Path) -> None:
    page.write_text("Nothing.\n")
    result = pytester.runpytest_inprocess("--counts", "counts.json", "--table", str(page))
    assert f"--table: {page} must have the lines <!-- counts -->" in result.stderr.str()
    assert "add --counts FILE" in pytester.runpytest_inprocess("--table", str(page)).stderr.str()

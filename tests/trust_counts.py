"""Tests in `tests/trust` count what the program survives; options say how many cases, and where counts are written.

    pytest -m trust --full --counts results/raw/trust.json --table results/trust.md

runs them with as many cases as results/trust.md reports, and writes its table. Without `--full` every test runs a
sample, and with `--cases N` as many as that. The file keeps the counts of tests that did not run this time, so tests
can run one after another; but not at the same time, as with `-n`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

# The lines of results/trust.md between which the table is.
BEGIN, END = "<!-- counts -->", "<!-- end of counts -->"
# How one test ended, as in the JSON file.
Record = dict[str, Any]
_CASES = pytest.StashKey["Cases"]()
_RECORDS = pytest.StashKey[dict[str, Record]]()


class Cases(Counter[str]):
    """How many cases a test has, and how they ended.

    Attributes:
        wanted: how many cases the test is to run.
    """

    def __init__(self, wanted: int) -> None:
        super().__init__()
        self.wanted = wanted


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trust", "tests that count what the program survives (-m trust)")
    group.addoption("--full", action="store_true", help="run every case rather than a sample of a few minutes")
    group.addoption("--cases", type=int, metavar="N", help="run N cases of every test, however many that is of all")
    group.addoption("--counts", type=Path, metavar="FILE", help="write how the cases ended to this JSON file")
    group.addoption("--table", type=Path, metavar="FILE", help="write them into the table of this Markdown file, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trust: counts what the program survives; --full runs every case")
    config.stash[_RECORDS] = {}
    table: Path | None = config.getoption("--table")
    if table is not None and config.getoption("--counts") is None:
        raise pytest.UsageError("--table: the table is made from a file of counts; add --counts FILE")
    if table is not None and (not table.exists() or not marked(table.read_text())):
        raise pytest.UsageError(f"--table: {table} must have the lines {BEGIN} and {END}, between which the table goes")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[..., Cases]:
    """`cases(sample=200, full=100_000)`: the number of cases, and a counter of how they ended."""

    def begin(*, sample: int, full: int) -> Cases:
        chosen: int | None = request.config.getoption("--cases")
        counts = Cases(chosen or (full if request.config.getoption("--full") else sample))
        request.node.stash[_CASES] = counts
        return counts

    return begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "call" and _CASES in item.stash and not report.skipped:
        item.config.stash[_RECORDS][item.nodeid] = {
            "what": first_line(item),
            "full": item.config.getoption("--full"),
            "passed": report.passed,
            "seconds": round(report.duration),
            "ended": dict(sorted(item.stash[_CASES].items())),
        }
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    file: Path | None = session.config.getoption("--counts")
    new = session.config.stash[_RECORDS]
    if file is None or not new:
        return
    old = json.loads(file.read_text()) if file.exists() else {}
    records = dict(sorted({**old, **new}.items()))
    file.write_text(json.dumps(records, indent=1) + "\n")
    table_file: Path | None = session.config.getoption("--table")
    if table_file is not None:
        before, after = marked(table_file.read_text())
        table_file.write_text(f"{before}{BEGIN}\n{table(records)}{END}{after}")


def first_line(item: Any) -> str:
    """What a test does: the first line of its docstring, and the parameter that it has."""
    name = item.name.partition("[")[2].removesuffix("]")
    what = (item.obj.__doc__ or item.name).strip().splitlines()[0].rstrip(".")
    return f"{what}: {name}" if name else what


def marked(text: str) -> tuple[str, ...]:
    """What stands before and after the table; empty without its two lines."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return (before, after) if begin and end else ()


def table(records: Mapping[str, Record]) -> str:
    """The Markdown table of all tests, in the order of their names."""
    lines = ["| what | test | cases | how they ended | seconds |", "|---|---|---|---|---|"]
    for name, record in records.items():
        ended = ", ".join(f"{count:,} {how}" for how, count in record["ended"].items())
        test = name.partition("[")[0].removeprefix("tests/trust/")
        cells = [
            record["what"],
            f"`{test}`",
            f"{sum(record['ended'].values()):,}" + ("" if record["full"] else " (a sample)"),
            ended if record["passed"] else f"**the test failed**: {ended}",
            f"{record['seconds']:,}",
        ]
        lines.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"

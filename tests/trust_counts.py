"""Tests marked `trust` count what the program survives; options say how many cases, and where counts are written.

    pytest -m trust --full --counts results/raw/trust.json --table results/trust.md

runs every test with its full number of cases, and writes the table of results/trust.md. Without `--full` every test
runs a sample, and with `--cases N` as many as that. The file keeps the counts of tests that did not run this time, so
tests can run one after another; but not at the same time, as with `-n`.
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
        full: whether this is its full number of cases, rather than a sample.
        ways: on how many ways (`tests.trust.way`) the cases were, each of which ended as an undisturbed one does.
    """

    def __init__(self, wanted: int, full: bool) -> None:
        super().__init__()
        self.wanted, self.full, self.ways = wanted, full, 0


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trust", "tests that count what the program survives (-m trust)")
    group.addoption("--full", action="store_true", help="run each test's full number of cases, not a sample")
    group.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run N cases of each test, not its sample or full number",
    )
    group.addoption("--counts", type=Path, metavar="FILE", help="write how the cases ended to this JSON file")
    group.addoption(
        "--table", type=Path, metavar="FILE", help="also write the counts as a table into this Markdown file"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trust: counts what the program survives; --full runs more than a sample")
    config.stash[_RECORDS] = {}
    chosen: int | None = config.getoption("--cases")
    if chosen is not None and (chosen < 1 or config.getoption("--full")):
        raise pytest.UsageError(f"--cases {chosen}: must be at least 1, and not be given together with --full")
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
        wanted = chosen or (full if request.config.getoption("--full") else sample)
        request.node.stash[_CASES] = counts = Cases(wanted, wanted >= full)
        return counts

    return begin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "call" and _CASES in item.stash and not report.skipped:
        counts = item.stash[_CASES]
        item.config.stash[_RECORDS][item.nodeid] = {
            "what": first_line(item),
            "full": counts.full,
            "passed": report.passed,
            "seconds": round(report.duration),
            "ended": dict(sorted(counts.items())),
            **({"ways": counts.ways} if counts.ways else {}),
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
        if "ways" in record:
            ended += f"; end-to-end runs that ended as an undisturbed one: {record['ways']:,}"
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

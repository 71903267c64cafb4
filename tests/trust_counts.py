"""Tests in `tests/trust` count what the program survives; options say how many cases, and where counts are written.

    pytest -m trust --full --counts results/raw/trust.json

runs them with as many cases as results/trust.md reports; without `--full` every test runs a sample.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

_COUNTS = pytest.StashKey[dict[str, dict[str, int]]]()


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
    group.addoption("--counts", type=Path, metavar="FILE", help="write how the cases ended to this JSON file")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trust: counts what the program survives; --full runs every case")
    config.stash[_COUNTS] = {}


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Callable[..., Cases]:
    """`cases(sample=200, full=100_000)`: the number of cases, and a counter of how they ended, by the test's name."""

    def begin(*, sample: int, full: int) -> Cases:
        counts = Cases(full if request.config.getoption("--full") else sample)
        request.config.stash[_COUNTS][request.node.nodeid] = counts
        return counts

    return begin


def pytest_sessionfinish(session: pytest.Session) -> None:
    file: Path | None = session.config.getoption("--counts")
    new = {name: dict(sorted(counts.items())) for name, counts in session.config.stash[_COUNTS].items()}
    if file is not None and new:
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(dict(sorted({**old, **new}.items())), indent=1) + "\n")

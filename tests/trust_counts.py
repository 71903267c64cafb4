"""Tests marked `trust` count what the program survives. Without options each runs a sample of its cases.

    pytest -m trust --full --junitxml trust.xml

runs every test with its full number of cases, and `--cases N` with as many as that; the report has their counts as the
properties of each test.
"""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest


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
    group.addoption("--full", action="store_true", help="run each test's full number of cases, not a sample")
    group.addoption("--cases", type=int, metavar="N", help="run N cases of each test, not its sample or full number")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trust: counts what the program survives; --full runs more than a sample")
    chosen: int | None = config.getoption("--cases")
    if chosen is not None and (chosen < 1 or config.getoption("--full")):
        raise pytest.UsageError(f"--cases {chosen}: must be at least 1, and cannot be combined with --full")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[Callable[..., Cases]]:
    """`cases(sample=200, full=100_000)`: the number of cases, and a counter of how they ended."""
    begun: list[Cases] = []

    def begin(*, sample: int, full: int) -> Cases:
        chosen: int | None = request.config.getoption("--cases")
        begun.append(Cases(chosen or (full if request.config.getoption("--full") else sample)))
        return begun[-1]

    yield begin
    request.node.user_properties.extend(sorted(begun[-1].items()) if begun else ())

"""Tests marked `trust` count what the program survives. Without options each runs a sample of its cases.

    pytest -m trust --full --junitxml trust.xml

runs every test with its full number of cases; the report has their counts as the properties of each test.
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
    parser.addoption("--full", action="store_true", help="run the full number of cases of each test marked trust")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "trust: counts what the program survives; --full runs more than a sample")


@pytest.fixture
def cases(request: pytest.FixtureRequest) -> Iterator[Callable[..., Cases]]:
    """`cases(sample=200, full=100_000)`: the number of cases, and a counter of how they ended."""
    begun: list[Cases] = []

    def begin(*, sample: int, full: int) -> Cases:
        begun.append(Cases(full if request.config.getoption("--full") else sample))
        return begun[-1]

    yield begin
    request.node.user_properties += [pair for counts in begun for pair in sorted(counts.items())]

"""`pytest --slow-third 0|1|2|today`: every fast test and a third of the slow ones, so that three days run them all.

The summary names the tests that are not marked slow and take too much of the processor's time.
"""

import os
import zlib
from collections.abc import Generator
from datetime import date

import pytest

THIRDS = 3
# A test of ten seconds is slow. This is the time of processors, of the test and the processes that it has waited for.
# What else runs on the machine matters less than for the time on the clock, but still too much to fail a test.
MOST_SECONDS = 25.0
PROCESSOR_SECONDS = "processor_seconds"
# Of the first two hundred numbers this one divides the slow tests most evenly, by estimates of how long they take.
SALT = 165


def third_of(node_id: str) -> int:
    """The third that a slow test belongs to, which does not depend on the other tests."""
    return zlib.crc32(f"{SALT} {node_id}".encode()) % THIRDS


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-third",
        choices=[*map(str, range(THIRDS)), "today"],
        help="run the fast tests and this third of the slow ones; today: the day of the year modulo 3",
    )


def pytest_configure(config: pytest.Config) -> None:
    # The default in pyproject.toml deselects every slow test; an expression of the user's own stays.
    if config.getoption("--slow-third") is not None and config.option.markexpr == "not slow":
        config.option.markexpr = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    third = config.getoption("--slow-third")
    if third is None:
        return
    chosen = date.today().timetuple().tm_yday % THIRDS if third == "today" else int(third)
    others = {item for item in items if item.get_closest_marker("slow") and third_of(item.nodeid) != chosen}
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=list(others))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    most, before = MOST_SECONDS, sum(os.times()[:4])
    yield
    seconds = sum(os.times()[:4]) - before
    if seconds > most and not item.get_closest_marker("slow"):
        item.user_properties.append((PROCESSOR_SECONDS, seconds))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.stats.get("passed", []):
        if seconds := dict(report.user_properties).get(PROCESSOR_SECONDS):
            line = f"{report.nodeid} took {seconds:.0f} seconds of processor time: mark it slow, or make it faster"
            terminalreporter.write_line(line, yellow=True)

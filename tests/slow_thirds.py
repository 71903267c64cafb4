"""`pytest --slow-third 0|1|2|today`: every fast test and a third of the slow ones, so that three days run them all."""

import zlib
from collections.abc import Sequence
from datetime import date

import pytest

THIRDS = 3
# Of the first two hundred numbers this one divides the slow tests most evenly, by estimates of how long they take.
SALT = 165
_CHOSEN = pytest.StashKey[int]()
_NAMES = pytest.StashKey[list[str]]()


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
    third = config.getoption("--slow-third")
    if third is None:
        return
    config.stash[_CHOSEN] = date.today().timetuple().tm_yday % THIRDS if third == "today" else int(third)
    # The default in pyproject.toml deselects every slow test; an expression of the user's own stays.
    if config.option.markexpr == "not slow":
        config.option.markexpr = ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.stash.get(_CHOSEN, None)
    if chosen is None:
        return
    others = [item for item in items if item.get_closest_marker("slow") and third_of(item.nodeid) != chosen]
    deselected = set(others)
    items[:] = [item for item in items if item not in deselected]
    config.hook.pytest_deselected(items=others)
    config.stash[_NAMES] = [item.nodeid for item in items if item.get_closest_marker("slow")]


def pytest_report_collectionfinish(config: pytest.Config) -> Sequence[str]:
    names = config.stash.get(_NAMES, None)
    if names is None:
        return []
    return [f"third {config.stash[_CHOSEN]} of the slow tests, {len(names)} of them:", *(f"  {name}" for name in names)]

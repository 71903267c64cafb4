"""Pairing, turns and summaries, against their definitions; processes that answer and that die."""

import statistics
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measuring import difference, error_of_mean, ratio, summarise, take_turns, timed
from benchmarks.processes import in_new_process, start_server

VALUES = st.lists(st.floats(0.1, 100), min_size=1, max_size=20)


def test_sides_take_turns_and_the_order_is_reversed_in_every_second_round() -> None:
    calls: list[tuple[str, int]] = []

    def side(name: str, number: int) -> int:
        calls.append((name, number))
        return 10 * number + len(name)

    sides = {name: lambda number, name=name: side(name, number) for name in ("a", "bb", "ccc")}
    kept: list[tuple[str, int, int]] = []
    values = take_turns(sides, [7, 8, 9], warmup=2, on_value=lambda *value: kept.append(value))
    rounds = [calls[first : first + 3] for first in range(0, len(calls), 3)]
    assert [{number for _, number in calls_of} for calls_of in rounds] == [{7}, {7}, {7}, {8}, {9}]
    orders = ["".join(name[0] for name, _ in calls_of) for calls_of in rounds]
    assert orders == ["abc", "cba", "abc", "cba", "abc"]
    assert values == {"a": [71, 81, 91], "bb": [72, 82, 92], "ccc": [73, 83, 93]}
    assert kept == [(name, number, 10 * number + len(name)) for name, number in calls[6:]]


@given(VALUES)
def test_summaries_are_numpy_s(values: list[float]) -> None:
    summary = summarise(values)
    assert summary.median == pytest.approx(np.median(values))
    assert (summary.lower, summary.upper) == pytest.approx(np.quantile(values, (0.25, 0.75)))
    assert summary.mean == pytest.approx(np.mean(values))
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    assert summary.error == error_of_mean(values) == pytest.approx(error, abs=1e-12)


@given(VALUES, st.floats(0.5, 2))
def test_what_falls_on_all_sides_of_a_round_is_in_no_ratio(values: list[float], factor: float) -> None:
    """A side that takes a constant multiple has that ratio and no spread, however rounds differ."""
    summary = ratio([factor * value for value in values], values)
    assert (summary.median, summary.lower, summary.upper) == pytest.approx((factor, factor, factor))
    assert summary.error == pytest.approx(0, abs=1e-9)
    shifted = difference([value + factor for value in values], values)
    assert (shifted.mean, shifted.error) == pytest.approx((factor, 0), abs=1e-9)


def test_ratios_are_taken_round_by_round() -> None:
    assert ratio([1.0, 8.0], [2.0, 4.0]).mean == statistics.mean([0.5, 2.0])
    with pytest.raises(ValueError, match="shorter"):
        ratio([1.0, 2.0], [1.0])


def test_summaries_in_words() -> None:
    assert ratio([1.0, 3.0], [1.0, 1.0]).with_error() == "2.00 ± 1.00"
    assert difference([1.0], [3.0]).with_error(1, "+") == "-2.0 ± 0.0"
    assert summarise([1.0, 2.0, 3.0, 4.0, 5.0]).with_quartiles(1) == "3.0 (2.0 to 4.0)"


def test_timing_returns_the_value() -> None:
    value, seconds = timed(lambda: time.sleep(0.02) or "done")
    assert value == "done"
    assert seconds >= 0.02


def doubling(connection: Connection, ready: str) -> None:
    """A server that doubles numbers, and dies of 0."""
    connection.send(ready)
    while (number := connection.recv()) is not None:
        connection.send(2 * number // (number != 0))


def test_servers_answer_until_they_are_stopped_and_their_death_is_noticed() -> None:
    first, second = (start_server(doubling, "ready") for _ in range(2))
    for connection in (first, second):
        connection.send(21)
    assert [connection.recv() for connection in (first, second)] == [42, 42]
    first.send(None)
    second.send(0)
    with pytest.raises(EOFError):
        second.recv()


def test_a_new_process_returns_its_result() -> None:
    assert in_new_process(divmod, 17, 5) == (3, 2)

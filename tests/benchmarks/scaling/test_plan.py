"""The plan's counts against those by hand, for the preset."""

import json
import math
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.report import BenchmarkError
from benchmarks.scaling import plan, scaling
from benchmarks.scaling.plan import (
    DAY,
    ORCHESTRATION,
    Part,
    candidate_phases,
    implied_rate,
    parts,
    protocols,
    rate_of,
    wall,
)
from nas.config.load import load_config

CONFIG = load_config(plan.PRESET)
TEXT = 1_000_000
# Linear maps of a token.
TEACHER = 12 * (4 * 768**2 + 2 * 768 * 3072)
# Attention; then stack times expansion of the six layers, and where project's input is as wide as expand's output.
CANDIDATE = 6 * 4 * 540**2 + 2 * 540 * 540 // 6 * (12 + 12 + 3 + 6 + 3 + 4)
SUPERNET = 6 * (4 * 540**2 + 4 * 2 * 540**2)


def by_name() -> dict[str, Part]:
    return {part.name: part for part in parts(CONFIG, TEXT)}


def test_the_base_is_the_preset_s() -> None:
    assert not isinstance(CONFIG.base, str)
    assert CONFIG.base.build(scaling.BASE.vocabulary) == scaling.BASE
    assert CONFIG.objective.name == scaling.OBJECTIVE


def test_sequences_of_the_parts() -> None:
    found = by_name()
    # 2 % of the text once, and a tenth of MNLI's 392,702 rows without the 2,000 of the search split three times.
    candidate = 79 * 256 + math.ceil(3 * 39_071 / 256) * 256
    for name, times in (("stage 1", 1900), ("stage 2", 100), ("confirmations", 18)):
        assert (found[name].times, found[name].trained, found[name].scored) == (times, candidate, 2000)
    assert found["warm-up of the supernet"].trained == 39_063 * 256
    candidates = found["stage 3, its candidates"]
    assert (candidates.times, candidates.trained) == (3000, 0)
    assert candidates.scored == 4 * 2000 + 855 + 574 + 366 + 249
    rows = [390_702, 361_846, 102_743, 65_349, 7_696, 5_175, 3_302, 2_241]
    assert found["stage 3, its supernet"].trained == 39_063 * 256 + sum(math.ceil(10 * n / 256) * 256 for n in rows)
    assert found["final training"].trained == 39_063 * 256 + sum(math.ceil(10 * n / 32) * 32 for n in rows)
    assert found["fine-tuning of the teachers"].trained == sum(math.ceil(3 * n / 32) * 32 for n in rows)


def test_operations_of_the_parts() -> None:
    found = by_name()
    stage = found["stage 1"]
    assert stage.operations(128) == 1900 * 128 * CANDIDATE * (6 * stage.trained + 2 * 2000)
    assert stage.teaching(128) == 1900 * 128 * TEACHER * 2 * stage.trained
    assert stage.teaching(128, saved=True) == 128 * TEACHER * 2 * stage.trained
    assert found["stage 2"].teaching(128, saved=True) == 0
    warmup = found["warm-up of the supernet"]
    assert warmup.operations(1) == 6 * SUPERNET * warmup.trained
    assert warmup.teaching(1) == warmup.teaching(1, saved=True) == 2 * TEACHER * warmup.trained
    assert found["fine-tuning of the teachers"].teaching(1) == 0


def test_the_implied_rate_does_the_part_in_these_days() -> None:
    stage = by_name()["stage 1"]
    rate = implied_rate(stage, 128, 54)
    assert (stage.operations(128) + stage.teaching(128)) / rate == pytest.approx(54 * DAY)


def test_bytes_of_the_teacher_s_outputs() -> None:
    """Half precision: seven states, and the scores of six layers of twelve heads."""
    text, task = candidate_phases(CONFIG, TEXT)
    assert text.shapes == [(256, 128)] * 79
    assert text.saved == 79 * 256 * 2 * (7 * 128 * 768 + 6 * 12 * 128**2)
    assert text.breakeven == pytest.approx(2 * (7 * 768 + 6 * 12 * 128) / (2 * TEACHER))
    assert len(task.shapes) == 458
    assert task.saved == sum(rows * 2 * (7 * length * 768 + 6 * 12 * length**2) for rows, length in task.shapes)


def test_each_way_leaves_something_out() -> None:
    taught = candidate_phases(CONFIG, TEXT)
    ways = protocols(CONFIG, taught)
    whole = [1900 * each + once for each, once in ways.values()]
    assert whole == sorted(whole, reverse=True)
    (reference, none), *_, (cheapest, teacher) = ways.values()
    stage = by_name()["stage 1"]
    assert none == 0
    assert 1900 * reference == stage.operations(128) + stage.teaching(128)
    tokens = sum(rows * length for one in taught for rows, length in one.shapes)
    assert teacher == 2 * TEACHER * tokens
    assert cheapest == 6 * CANDIDATE * tokens + 2 * CANDIDATE * 2000 * 128


def test_the_last_turn_leaves_workers_idle() -> None:
    seconds, idle = wall(1900, 10.0, 64)
    assert seconds == pytest.approx(30 * (10 + ORCHESTRATION))
    assert idle == pytest.approx(20 / 1920)
    assert wall(1900, 10.0, 1900)[1] == 0


def test_the_rate_is_that_of_the_measured_step() -> None:
    seconds = {"tokens": {128: [4.0, 2.0, 3.0]}}
    assert rate_of(seconds, 128) == scaling.flops("tokens", 128) / 3
    with pytest.raises(BenchmarkError, match="no step of 128 tokens"):
        rate_of({"layers": {6: [1.0]}}, 128)


def test_memory_of_the_backward_pass_is_on_a_line() -> None:
    """Of each sequence at least the inputs of the linear maps of attention, in 16 bits."""
    one, two, four = (plan.backward_bytes(count, 16) for count in (1, 2, 4))
    assert four - two == pytest.approx(2 * (two - one), rel=0.01)
    assert two - one > 16 * 2 * 6 * 4 * 540


def test_the_plan_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "scaling.json"
    raw = tmp_path / "plan.json"
    machine = {"processor": "a processor", "cores": 4, "threads": 2}
    seconds = {"tokens": {"128": [1.0]}}
    file.write_text(json.dumps({"benchmark": "scaling", "machine": machine, "results": {"seconds": seconds}}))
    options = ["--flops", "5e13", "--workers", "3", "--words", "1e7", "--json", str(raw)]
    assert main(["plan", str(file), *options]) == 0
    printed = capsys.readouterr().out
    assert json.loads(raw.read_text())["results"]["operations a second"]["50 TFLOP/s"] == 5e13
    tables = [block.splitlines() for block in printed.split("\n\n") if block.startswith("|")]
    assert len(tables) == 5
    for rows in tables:
        assert len({row.count("|") for row in rows}) == 1
    assert re.search(r"\| stage 1 +\| +1,900 \|", printed)
    assert "| 50 TFLOP/s " in printed

"""The benchmark as it is run, and its table."""

import json
import random
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.report import BenchmarkError, Report
from benchmarks.signals import evidence, measurements, ranking
from benchmarks.signals.evidence import read, show
from benchmarks.signals.measurements import KEPT, RUNG, SEARCH, TARGET, draw, draw_allocations
from nas.allocation import PredictedLosses
from nas.samplers.encoding import widths
from search_spaces import Architecture, Space, cost
from search_spaces.equivalence import function_key
from search_spaces.operations import UNARY
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE

SPACE = Space(BASE, (1, 2), tuple(Fraction(1, n) for n in (1, 2, 4)), 1, 10**9)


# Prints the table of some results, and returns what it printed.
Show = Callable[[dict[str, Any], Sequence[int]], str]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Show:
    def text_of(results: dict[str, Any], seeds: Sequence[int]) -> str:
        show(Report("evidence", (), {}, tmp_path / "evidence.json"), results, seeds)
        return capsys.readouterr().out

    return text_of


def test_architectures_are_different_functions_and_the_same_ones_again() -> None:
    architectures = draw(SPACE, 12)
    assert len({function_key(architecture) for architecture in architectures}) == 12
    assert draw(SPACE, 5) == architectures[:5]


def test_allocations_are_different_functions_of_about_equal_size() -> None:
    rng = np.random.default_rng(0)
    falling = [np.append(np.sort(rng.random(BASE.inner))[::-1], 0) for _ in range(BASE.depth)]
    losses = PredictedLosses(BASE, "gelu", dict.fromkeys(UNARY, falling))
    most = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)))
    within = Space(BASE, (1,), tuple(Fraction(n, 16) for n in range(1, 17)), most - 200, most)
    found = draw_allocations(within, losses, 6)
    assert len({function_key(architecture) for architecture in found}) == 6
    assert all(architecture in within for architecture in found)
    assert draw_allocations(within, losses, 3) == found[:3]
    with pytest.raises(BenchmarkError, match="different allocations, not 2"):
        draw_allocations(Space(BASE, (1,), (Fraction(1),), 1, 10**9), losses, 2)


def test_slices_of_a_one_shot_supernet_are_signals(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measurements, "INTERMEDIATE", (1, 2))
    monkeypatch.setattr(evidence, "INTERMEDIATE", (1, 2))
    compensated = '[supernet]\norder = "reconstruction"\ninheritance = "compensated"\ncalibration_rows = 40\n'
    preset = tiny_study.variant(
        tmp_path / "compensated.toml",
        ("[finetune]\n", f"{compensated}[finetune]\n"),
        ('"1/8", "1/4", "3/8", "1/2", "1"', ", ".join(f'"{width}/32"' for width in range(1, 33))),
    )
    command = ["--architectures", "4", "--full-steps", "7", "--seeds", "1", "2", "--json", str(tmp_path / "a.json")]
    assert main(["evidence", "--preset", str(preset), "--allocations", "--one-shot", *command]) == 0
    out = capsys.readouterr().out
    for signal in ("supernet, sliced |", "supernet, compensated |", "predicted loss |", "fidelity untrained |"):
        assert signal in " ".join(out.split()), out
    assert main(["evidence", "--preset", str(preset), "--one-shot", *command]) == 2
    assert "give --allocations, too" in capsys.readouterr().err
    assert main(["evidence", "--preset", str(tiny_study.preset), "--allocations", *command]) == 2
    assert "has no predicted losses" in capsys.readouterr().err


def test_it_goes_on_where_it_was_cut_short(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "evidence.json"
    monkeypatch.setattr(measurements, "INTERMEDIATE", (1, 2))
    monkeypatch.setattr(evidence, "INTERMEDIATE", (1, 2))

    def run(*arguments: object, status: int = 0) -> tuple[str, str]:
        assert main(["evidence", *map(str, arguments)]) == status
        return capsys.readouterr()

    def write(path: Path, results: dict[str, Any]) -> None:
        path.write_text(json.dumps(json.loads(file.read_text()) | {"results": results}))

    command = ("--preset", tiny_study.preset, "--architectures", 4, "--full-steps", 7, "--seeds", 1, 2, "--json", file)
    first, _ = run(*command)
    whole = read(file)
    assert set(whole["measured"]) == {
        f"{place}{seed}" for place in range(4) for seed in ("", "/1", "/1/search", "/2", "/2/search")
    }
    assert not whole["failed"]
    table = ("--seeds", 1, 2, "--table")
    assert first == run(*table, file)[0]

    cut = read(file)
    for name in ("3", "2/1"):
        del cut["measured"][name]
    write(file, cut)
    lines = [line.split(":")[0] for line in run(*command)[1].splitlines()]
    assert [line for line in lines if line != "raw numbers"] == ["3", "teacher's outputs, seed 1", "2/1"]
    assert values_of(read(file)) == values_of(whole)

    parts = {tmp_path / "odd.json": ("1", "3"), tmp_path / "even.json": ("0", "2")}
    for path, places in parts.items():
        part = {name: row for name, row in whole["measured"].items() if name.startswith(places)}
        write(path, whole | {"measured": part})
    assert first == run(*table, *parts)[0]
    changed = read(file)
    changed["settings"]["full_steps"] = 8
    write(tmp_path / "odd.json", changed)
    _, error = run(*table, *reversed(parts), status=2)
    assert re.search(r"odd.json is of another run than .*even.json \(full_steps\)", error)

    _, error = run(*command, "--full-steps", 8, status=2)
    assert "is of another run (full_steps): give another --json" in error
    _, error = run(*command, "--full-steps", 6, status=2)
    assert "--full-steps: must be above 6, the steps of the search and of the last intermediate value, not 6" in error


def values_of(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Without the seconds."""
    return {key: {name: value for name, (value, _) in row.items()} for key, row in results["measured"].items()}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few random choices of known architectures: trees take long."""
    monkeypatch.setattr(ranking, "SPLITS", 2)


def raw(number: int = 12, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Scores that agree between seeds, a signal that has their order, and a loss that has the opposite one."""
    rng = random.Random(0)
    architectures = draw(SPACE, number)
    intermediate = [f"{kind} after {step} steps" for kind in ("score", "loss") for step in (10, 30)]
    truth = [rng.random() for _ in architectures]
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for place, value in enumerate(truth):
        measured[f"{place}"] = {KEPT: (rng.random(), 0.0), "loss untrained": (-value, 2.0)}
        for seed in seeds:
            measured[f"{place}/{seed}"] = {
                **{name: (rng.random(), 4.0) for name in intermediate},
                TARGET: (value, 5.0),
            }
            measured[f"{place}/{seed}/search"] = {RUNG: (-value, 2.0), SEARCH: (rng.random(), 3.0)}
    settings = {
        "name": "demo",
        "config": {"stage1": {"stop": 0.3}},
        "full_steps": 400,
        "search_steps": 60,
        "threads": 2,
        "widths": widths(SPACE),
        "architectures": [one.to_json() for one in architectures],
    }
    return {"settings": settings, "measured": measured, "failed": {}}


def lines_of(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in rows}


def test_the_table_of_all_signals(shown: Show) -> None:
    text = shown(raw(), (1, 2))
    lines = lines_of(text)
    assert lines["loss untrained"] == ["+1.00", "+1.00 to +1.00", "100%", "2"]
    assert lines[f"{TARGET} (400 steps)"] == ["+1.00", "+1.00 to +1.00", "100%", "5"]
    assert {"ridge, 8 known", f"ridge, 4 known, {KEPT}", "boosted trees, 8 known, values after 30 steps"} < set(lines)
    assert not any("16 known" in name for name in lines)
    assert "12 architectures, 400 steps (5 s), seeds 1, 2" in text
    assert "from seed to seed 0.0000" in text
    # The rung has the opposite order: the lowest three of twelve there are the best three.
    assert "among the lowest 30% at the rung are 100% of the best quarter" in text


def test_a_signal_is_not_compared_with_the_end_of_its_own_training(shown: Show) -> None:
    """Where every seed orders the architectures in its own way, an intermediate value that has the order of its own
    seed's end says as little as that end itself.
    """
    results = raw(number=32, seeds=(1, 2, 3))
    rng = np.random.default_rng(0)
    for name, row in results["measured"].items():
        if name.count("/") == 1:
            value = float(rng.random())
            row |= {TARGET: (value, 5.0), "score after 10 steps": (value / 2, 4.0)}
    lines = lines_of(shown(results, (1, 2, 3)))
    assert lines["score after 10 steps"][:3] == lines[f"{TARGET} (400 steps)"][:3]
    assert abs(float(lines["score after 10 steps"][0])) < 0.3


def test_a_seed_that_is_not_asked_for_leaves_nothing_out(shown: Show) -> None:
    more = raw(seeds=(1, 2))
    more["measured"] |= {f"0/3{way}": more["measured"][f"0/1{way}"] for way in ("", "/search")}
    assert shown(more, (1, 2)).startswith("demo: 12 architectures")
    with pytest.raises(BenchmarkError, match="1 architectures measured with all of 3 seeds"):
        shown(more, (1, 2, 3))


def test_architectures_that_lack_a_training_are_left_out(shown: Show) -> None:
    partial = raw(number=13)
    del partial["measured"]["12/2"]
    partial["failed"]["12/2"] = "the loss is nan at step 3"
    complete = raw(number=13)
    for name in ("12", "12/1", "12/2"):
        del complete["measured"][name]
    text = shown(partial, (1, 2))
    assert "12 architectures" in text and "diverged: 1" in text
    tables = [
        # Without the padding of the cells, which depends on measured seconds in other rows.
        [[cell.strip() for cell in row.split("|")] for row in table.partition("\n\n")[2].splitlines()[2:4]]
        for table in (text, shown(complete, (1, 2)))
    ]
    assert tables[0] == tables[1]
    with pytest.raises(BenchmarkError, match="3 architectures measured with all of 2 seeds"):
        shown(raw(number=3), (1, 2))

"""The benchmark as it is run, and its table."""

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.signals import evidence, ranking
from benchmarks.signals.evidence import KEPT, RUNG, SEARCH, TARGET, draw, main, report
from nas.samplers.encoding import widths
from search_spaces import Space
from search_spaces.equivalence import function_key
from tests.nas.house import House
from tests.tiny import BASE

SPACE = Space(BASE, (1, 2), tuple(Fraction(1, n) for n in (1, 2, 4)), 1, 10**9)


def test_architectures_are_different_functions_and_the_same_ones_again() -> None:
    found = draw(SPACE, 12)
    assert len({function_key(one) for one in found}) == 12
    assert draw(SPACE, 5) == found[:5]


def test_it_goes_on_where_it_was_cut_short(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "evidence.json"
    monkeypatch.setattr(evidence, "GLANCES", (1, 2))

    def run(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["evidence", *map(str, arguments)])
        main()
        return capsys.readouterr().out

    command = ("--preset", house.preset, "--architectures", 4, "--full-steps", 7, "--seeds", 1, 2, "--out", out)
    first = run(*command)
    whole = json.loads(out.read_text())
    assert set(whole["measured"]) == {
        f"{place}{seed}" for place in range(4) for seed in ("", "/1", "/1/search", "/2", "/2/search")
    }
    assert not whole["failed"]
    table = ("--seeds", 1, 2, "--table")
    assert first.endswith(run(*table, out))

    cut = json.loads(out.read_text())
    for name in ("3", "2/1"):
        del cut["measured"][name]
    out.write_text(json.dumps(cut))
    done = run(*command).partition("\n\n")[0]
    assert [line.split(":")[0] for line in done.splitlines()] == ["3", "teacher's outputs, seed 1", "2/1"]
    assert values_of(json.loads(out.read_text())) == values_of(whole)

    parts = {tmp_path / "odd.json": ("1", "3"), tmp_path / "even.json": ("0", "2")}
    for file, places in parts.items():
        part = {name: row for name, row in whole["measured"].items() if name.startswith(places)}
        file.write_text(json.dumps(whole | {"measured": part}))
    assert first.endswith(run(*table, *parts))
    changed = json.loads(out.read_text())
    changed["settings"]["full_steps"] = 8
    (tmp_path / "odd.json").write_text(json.dumps(changed))
    with pytest.raises(SystemExit, match=r"odd.json is of another run than .*even.json \(full_steps\)"):
        run(*table, *reversed(parts))

    with pytest.raises(SystemExit, match=r"is of another run \(full_steps\): give another --out"):
        run(*command, "--full-steps", 8)
    with pytest.raises(SystemExit, match="2"):
        run(*command, "--full-steps", 6)
    assert "--full-steps: must be above 6, the search's and the last glance's, not 6" in capsys.readouterr().err


def values_of(raw: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Without the seconds."""
    return {key: {name: value for name, (value, _) in row.items()} for key, row in raw["measured"].items()}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few random choices of known architectures: trees take long."""
    monkeypatch.setattr(ranking, "SPLITS", 2)


def raw(number: int = 12, seeds: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Scores that agree between seeds, a signal that has their order, and a loss that has the opposite one."""
    rng = random.Random(0)
    architectures = draw(SPACE, number)
    glances = [f"{kind} after {step} steps" for kind in ("score", "loss") for step in (10, 30)]
    truth = [rng.random() for _ in architectures]
    measured: dict[str, dict[str, tuple[float, float]]] = {}
    for place, value in enumerate(truth):
        measured[f"{place}"] = {KEPT: (rng.random(), 0.0), "loss untrained": (-value, 2.0)}
        for seed in seeds:
            measured[f"{place}/{seed}"] = {
                **{name: (rng.random(), 4.0) for name in glances},
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
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in rows}


def test_the_table_of_all_signals() -> None:
    text = report(raw(), (1, 2))
    lines = lines_of(text)
    assert lines["loss untrained"] == ["+1.00", "+1.00 to +1.00", "100%", "2"]
    assert lines[f"{TARGET} (400 steps)"] == ["+1.00", "+1.00 to +1.00", "100%", "5"]
    assert {"ridge, 8 known", f"ridge, 4 known, {KEPT}", "boosted trees, 8 known, glance after 30 steps"} < set(lines)
    assert not any("16 known" in name for name in lines)
    assert "12 architectures, 400 steps (5 s), seeds 1, 2" in text
    assert "from seed to seed 0.0000" in text
    # The rung has the opposite order: the lowest three of twelve there are the best three.
    assert "among the lowest 30% at the rung are 100% of the best quarter" in text


def test_a_signal_is_not_compared_with_the_end_of_its_own_training() -> None:
    """Where every seed orders the architectures in its own way, a glance that has the order of its own seed's end tells
    as little as that end itself.
    """
    own = raw(number=32, seeds=(1, 2, 3))
    rng = np.random.default_rng(0)
    for name, row in own["measured"].items():
        if name.count("/") == 1:
            value = float(rng.random())
            row |= {TARGET: (value, 5.0), "score after 10 steps": (value / 2, 4.0)}
    lines = lines_of(report(own, (1, 2, 3)))
    assert lines["score after 10 steps"][:3] == lines[f"{TARGET} (400 steps)"][:3]
    assert abs(float(lines["score after 10 steps"][0])) < 0.3


def test_a_seed_that_is_not_asked_for_leaves_nothing_out() -> None:
    more = raw(seeds=(1, 2))
    more["measured"] |= {f"0/3{way}": more["measured"][f"0/1{way}"] for way in ("", "/search")}
    assert report(more, (1, 2)).startswith("demo: 12 architectures")
    with pytest.raises(SystemExit, match="1 architectures measured under all of 3 seeds"):
        report(more, (1, 2, 3))


def test_architectures_that_lack_a_training_are_left_out() -> None:
    partial = raw(number=13)
    del partial["measured"]["12/2"]
    partial["failed"]["12/2"] = "the loss is nan at step 3"
    complete = raw(number=13)
    for name in ("12", "12/1", "12/2"):
        del complete["measured"][name]
    text = report(partial, (1, 2))
    assert "12 architectures" in text and "diverged: 1" in text
    tables = [table.partition("\n\n")[2].splitlines() for table in (text, report(complete, (1, 2)))]
    assert tables[0][2:4] == tables[1][2:4]
    with pytest.raises(SystemExit, match="3 architectures measured under all of 2 seeds"):
        report(raw(number=3), (1, 2))

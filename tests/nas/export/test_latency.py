"""The latency table: what is measured when, and what is said about it."""

import json
from functools import partial

import pytest
import torch

from nas.export.latency import INT8, ONNX, STUDENT, TEACHER, TORCH, LatencyReport, Timing, timings

BATCHES = (1, 32)


def test_models_take_turns_and_warm_up() -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []
    keys = [(TEACHER, TORCH), (STUDENT, INT8)]

    def forward(model: str, batch: dict[str, torch.Tensor]) -> None:
        assert batch["attention_mask"].all() and torch.is_inference_mode_enabled()
        calls.append((model, tuple(batch["input_ids"].shape)))

    forwards = {key: partial(forward, key[0]) for key in keys}
    measured = timings(forwards, vocabulary=10, tokens=7, batches=BATCHES, rounds=3)
    assert calls == [(model, (size, 7)) for size in BATCHES for _ in range(3) for model, _ in keys for _ in range(2)]
    assert [(timing.model, timing.form, timing.batch) for timing in measured] == [
        (model, form, size) for size in BATCHES for model, form in keys
    ]
    assert all(0 <= timing.lower_ms <= timing.median_ms <= timing.upper_ms for timing in measured)


def test_quartiles_of_two_rounds_are_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter((0.0, 0.001, 5.0, 5.009))
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    (timing,) = timings({(STUDENT, TORCH): lambda batch: None}, vocabulary=10, tokens=7, batches=(1,), rounds=2)
    assert (timing.lower_ms, timing.median_ms, timing.upper_ms) == pytest.approx((3, 5, 7))


def report(**changes: object) -> LatencyReport:
    medians = {
        (TEACHER, TORCH): (20.0, 200.0),
        (STUDENT, TORCH): (10.0, 80.0),
        (TEACHER, ONNX): (12.0, 120.0),
        (STUDENT, ONNX): (4.0, 100.0),
    }
    found = [
        Timing(model, form, size, median - 1, median, median + 2)
        for size, number in zip(BATCHES, (0, 1), strict=True)
        for (model, form), both in medians.items()
        for median in (both[number],)
    ]
    machine = {"processor": "a processor", "threads": 1}
    fields = {"tokens": 9, "timings": found, "macs": {TEACHER: 300, STUDENT: 100}, "machine": machine}
    return LatencyReport(**fields | changes)  # type: ignore[arg-type]


def test_the_prediction_of_the_macs() -> None:
    lines = report().sentences()
    assert lines[-1].startswith("MACs: the student has 33.3% of the teacher's, so it would be 3.00 times as fast")
    faster, predict = "times as fast as the teacher", "against what the MACs predict"
    assert lines[:-1] == [
        f"torch, batch 1: 2.00 {faster}, -33% {predict}.",
        f"ONNX, batch 1: 3.00 {faster} in ONNX, +0% {predict}; 5.00 {faster} in torch.",
        f"torch, batch 32: 2.50 {faster}, -17% {predict}.",
        f"ONNX, batch 32: 1.20 {faster} in ONNX, -60% {predict}; 2.00 {faster} in torch.",
    ]


def test_the_conditions() -> None:
    how = "Sentences of 9 tokens without padding on a processor, 1 thread, measured in turns; medians with quartiles"
    same_form = f"{how}; speeds are relative to the teacher in the same runtime"
    assert report().conditions() == f"{same_form}, and in the next column to the teacher in torch."
    timings = report().timings
    in_torch = report(timings=[timing for timing in timings if timing.form == TORCH])
    assert in_torch.conditions() == f"{same_form}."
    assert [column.head for column in in_torch.table().texts()[0]][3:5] == [
        "speed, same runtime",
        "batch 32: ms (quartiles)",
    ]
    assert report(timings=[timing for timing in timings if timing.model == STUDENT]).conditions() == f"{how}."


def test_without_a_teacher_or_its_macs() -> None:
    alone = [timing for timing in report().timings if timing.model == STUDENT]
    for macs in ({}, {STUDENT: 100}):
        unpredicted = report(macs=macs)
        assert unpredicted.predicted is None
        assert len(unpredicted.sentences()) == 4 and "MACs" not in " ".join(unpredicted.sentences())
    without = report(timings=alone, macs={})
    assert without.sentences() == []
    assert without.table().rows == [
        (STUDENT, TORCH, "10.00 (9.00 to 12.00)", "", "", "80.00 (79.00 to 82.00)", "", ""),
        (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "", "", "100.00 (99.00 to 102.00)", "", ""),
    ]


def test_table_and_json() -> None:
    table = report().table()
    heads = ["batch 1: ms (quartiles)", "speed, same runtime", "speed, to torch"]
    assert [column.head for column in table.columns][:5] == ["model", "form", *heads]
    # In the same runtime first; the teacher is as fast as itself.
    assert table.rows == [
        (TEACHER, TORCH, "20.00 (19.00 to 22.00)", "1.00×", "", "200.00 (199.00 to 202.00)", "1.00×", ""),
        (STUDENT, TORCH, "10.00 (9.00 to 12.00)", "2.00×", "", "80.00 (79.00 to 82.00)", "2.50×", ""),
        (TEACHER, ONNX, "12.00 (11.00 to 14.00)", "1.00×", "1.67×", "120.00 (119.00 to 122.00)", "1.00×", "1.67×"),
        (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "3.00×", "5.00×", "100.00 (99.00 to 102.00)", "1.20×", "2.00×"),
    ]
    written = json.loads(json.dumps(report().to_json()))
    assert written["predicted_speedup"] == 3
    assert written["speedups"][1] == {"form": ONNX, "batch": 1, "same_form": 3.0, "torch_teacher": 5.0}
    assert len(written["timings"]) == 8

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
    fields = {"tokens": 9, "timings": found, "macs": {TEACHER: 300, STUDENT: 100}, "machine": {"threads": 1}}
    return LatencyReport(**fields | changes)  # type: ignore[arg-type]


def test_the_prediction_of_the_macs() -> None:
    lines = report().sentences()
    assert lines[0].startswith("MACs: the student has 33.3% of the teacher's, so it would be 3.00 times as fast")
    faster = "times as fast as the teacher"
    assert lines[1:] == [
        f"torch, batch 1: 2.00 {faster}; -33% against the prediction.",
        f"ONNX, batch 1: 3.00 {faster} in the same form, 5.00 {faster} in torch; +0% against the prediction.",
        f"torch, batch 32: 2.50 {faster}; -17% against the prediction.",
        f"ONNX, batch 32: 1.20 {faster} in the same form, 2.00 {faster} in torch; -60% against the prediction.",
    ]


@pytest.mark.parametrize("macs", [{}, {STUDENT: 100}])
def test_without_the_teachers_macs(macs: dict[str, int]) -> None:
    unpredicted = report(macs=macs)
    assert unpredicted.predicted is None
    assert "prediction" not in " ".join(unpredicted.sentences())


def test_without_a_teacher() -> None:
    alone = [timing for timing in report().timings if timing.model == STUDENT]
    without = report(timings=alone, macs={})
    assert without.sentences() == []
    assert without.table().rows == [
        (STUDENT, TORCH, "10.00 (9.00 to 12.00)", "", "80.00 (79.00 to 82.00)", ""),
        (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "", "100.00 (99.00 to 102.00)", ""),
    ]


def test_table_and_json() -> None:
    table = report().table()
    assert [column.head for column in table.columns][:3] == ["model", "form", "batch 1: ms (quartiles)"]
    assert table.rows[3] == (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "5.00×", "100.00 (99.00 to 102.00)", "2.00×")
    written = json.loads(json.dumps(report().to_json()))
    assert written["predicted_speedup"] == 3
    assert written["speedups"][1] == {"form": ONNX, "batch": 1, "same_form": 3.0, "torch_teacher": 5.0}
    assert len(written["timings"]) == 8

"""The latency table: what is measured when, and what is said about it."""

import json

import pytest
import torch

from nas.export.latency import BATCHES, INT8, ONNX, STUDENT, TEACHER, TORCH, LatencyReport, Timing, table, timings


def test_models_take_turns_and_warm_up() -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []
    keys = [(TEACHER, TORCH), (STUDENT, INT8)]
    forwards = {key: lambda batch, key=key: calls.append((key[0], tuple(batch["input_ids"].shape))) for key in keys}
    found = timings(forwards, vocabulary=10, tokens=7, rounds=3)
    expected = [(model, (size, 7)) for size in BATCHES for _ in range(3) for model, _ in keys for _ in range(2)]
    assert calls == expected
    assert [(timing.model, timing.form, timing.batch) for timing in found] == [
        (model, form, size) for size in BATCHES for model, form in keys
    ]
    calls.clear()
    found = timings(forwards, vocabulary=10, tokens=7, rounds=2, batches=(128,))
    assert {timing.batch for timing in found} == {128} and calls == [
        (key[0], (128, 7)) for key in keys for _ in "ab"
    ] * 2
    assert all(0 <= timing.lower_ms <= timing.median_ms <= timing.upper_ms for timing in found)


def test_whole_sentences_are_measured() -> None:
    def forward(batch: dict[str, torch.Tensor]) -> None:
        assert batch["attention_mask"].all()
        assert torch.is_inference_mode_enabled()

    timings({(STUDENT, TORCH): forward}, vocabulary=10, tokens=7, rounds=2)


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
    found = report()
    assert found.predicted == 3
    lines = found.sentences()
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
    found = report(macs=macs)
    assert found.predicted is None
    assert "prediction" not in " ".join(found.sentences())


def test_without_a_teacher() -> None:
    alone = [timing for timing in report().timings if timing.model == STUDENT]
    found = report(timings=alone, macs={})
    assert found.sentences() == []
    assert found.rows() == [
        (STUDENT, TORCH, "10.00 (9.00 to 12.00)", "", "80.00 (79.00 to 82.00)", ""),
        (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "", "100.00 (99.00 to 102.00)", ""),
    ]


def test_rows_and_json() -> None:
    found = report()
    assert found.rows()[3] == (STUDENT, ONNX, "4.00 (3.00 to 6.00)", "5.00×", "100.00 (99.00 to 102.00)", "2.00×")
    assert [column.head for column in table(found).columns][:3] == ["model", "form", "batch 1: ms (quartiles)"]
    written = json.loads(json.dumps(found.to_json()))
    assert written["predicted_speedup"] == 3
    assert written["speedups"][1] == {"form": ONNX, "batch": 1, "same_form": 3.0, "torch_teacher": 5.0}
    assert len(written["timings"]) == 8

"""The latencies of teacher, base model and student in torch, ONNX and int8, and what their MACs predict."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

import torch

from distill.objectives.outputs import Batch
from distill.table import Column, Table
from nas.latency.steps import bounded
from nas.latency.table import WHOLE_ROUNDS, example

TEACHER, BASE_MODEL, STUDENT = "teacher", "base model", "student"
TORCH, ONNX, INT8 = "torch", "ONNX", "ONNX int8"
# The numbers of sentences in a batch that are timed unless others are given.
BATCHES = (1, 32)

Forward = Callable[[Batch], object]


@dataclass(frozen=True)
class Timing:
    """The quartiles of the latency of one model in one form, in milliseconds."""

    model: str
    form: str
    batch: int
    lower_ms: float
    median_ms: float
    upper_ms: float


@torch.inference_mode()
def timings(
    forwards: Mapping[tuple[str, str], Forward],
    vocabulary: int,
    tokens: int,
    rounds: int | None = None,
    batches: Sequence[int] = BATCHES,
) -> list[Timing]:
    """Time all models in turns, so that what else the machine does disturbs all of them alike.

    In each round a model runs twice and the second pass is timed: the first one refills the processor's caches, which
    the other models have used in the meantime.

    Args:
        forwards: by model and form, a forward pass.
        tokens: the number of tokens of each sentence, without padding.
        rounds: None: `WHOLE_ROUNDS`, or fewer if they take too long (`bounded`).
        batches: the numbers of sentences in a batch.
    """
    found = []
    for size in batches:
        batch = example(vocabulary, size, tokens, "cpu")
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in forwards}
        for _ in bounded(WHOLE_ROUNDS) if rounds is None else range(rounds):
            for key, forward in forwards.items():
                forward(batch)
                begun = time.perf_counter()
                forward(batch)
                seconds[key].append(time.perf_counter() - begun)
        for (model, form), passes in seconds.items():
            lower, median, upper = (1e3 * value for value in quantiles(passes, n=4))
            found.append(Timing(model, form, size, lower, median, upper))
    return found


@dataclass(frozen=True)
class LatencyReport:
    """Latencies and MACs.

    Attributes:
        tokens: the number of tokens of a sentence.
        macs: the multiply-accumulate operations of a sentence, by model; empty if they are not known.
        machine: processor, threads and versions.
    """

    tokens: int
    timings: Sequence[Timing]
    macs: Mapping[str, int]
    machine: Mapping[str, Any]

    def median(self, model: str, form: str, batch: int) -> float | None:
        """The median in milliseconds; None if it was not measured."""
        key = (model, form, batch)
        return next((found.median_ms for found in self.timings if (found.model, found.form, found.batch) == key), None)

    @property
    def predicted(self) -> float | None:
        """By which factor the student is faster than the teacher if latency is proportional to MACs."""
        if TEACHER not in self.macs or STUDENT not in self.macs:
            return None
        return self.macs[TEACHER] / self.macs[STUDENT]

    def speedups(self) -> list[dict[str, Any]]:
        """For each form and batch: the speed of the student relative to the teacher's in the same form and in torch."""
        rows = []
        for found in self.timings:
            teacher = self.median(TEACHER, TORCH, found.batch)
            same = self.median(TEACHER, found.form, found.batch)
            if found.model == STUDENT and teacher and same:
                row = {"form": found.form, "batch": found.batch}
                rows.append(row | {"same_form": same / found.median_ms, "torch_teacher": teacher / found.median_ms})
        return rows

    def sentences(self) -> list[str]:
        """What the latencies say, and how far they are from what the MACs predict."""
        lines = []
        if self.predicted is not None:
            share = self.macs[STUDENT] / self.macs[TEACHER]
            lines.append(
                f"MACs: the student has {share:.1%} of the teacher's, so it would be {self.predicted:.2f} times as "
                "fast if latency were proportional to MACs."
            )
        for row in self.speedups():
            text = f"{row['form']}, batch {row['batch']}: {row['same_form']:.2f} times as fast as the teacher"
            if row["form"] != TORCH:
                text += f" in the same form, {row['torch_teacher']:.2f} times as fast as the teacher in torch"
            if self.predicted is not None:
                text += f"; {row['same_form'] / self.predicted - 1:+.0%} against the prediction"
            lines.append(text + ".")
        return lines

    def to_json(self) -> dict[str, Any]:
        """The report as values that `json.dumps` accepts."""
        return {
            "tokens": self.tokens,
            "machine": dict(self.machine),
            "macs": dict(self.macs),
            "predicted_speedup": self.predicted,
            "timings": [asdict(found) for found in self.timings],
            "speedups": self.speedups(),
        }

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table: model, form, and for each batch the median with the quartiles, and the speed relative
        to the teacher's in torch.
        """
        result = []
        for model, form in dict.fromkeys((found.model, found.form) for found in self.timings):
            cells = [model, form]
            for found in self.timings:
                if (found.model, found.form) == (model, form):
                    reference = self.median(TEACHER, TORCH, found.batch)
                    cells.append(f"{found.median_ms:.2f} ({found.lower_ms:.2f} to {found.upper_ms:.2f})")
                    cells.append(f"{reference / found.median_ms:.2f}×" if reference else "")
            result.append(tuple(cells))
        return result


def table(report: LatencyReport) -> Table:
    """The report as a table; speeds are relative to the teacher's in torch."""
    batches = dict.fromkeys(timing.batch for timing in report.timings)
    columns = [(Column(f"batch {batch}: ms (quartiles)"), Column("speed")) for batch in batches]
    texts = (Column("model", is_text=True), Column("form", is_text=True))
    return Table([*texts, *(column for pair in columns for column in pair)], report.rows())

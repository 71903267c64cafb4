"""The latencies of teacher, base model and student in torch, ONNX and int8, and what their MACs predict.

Speeds compare models in the same runtime, since a teacher can be exported just as well; how fast a model is in its
runtime against the teacher in torch is said after that.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

import torch

from distill.objectives.outputs import Batch
from distill.table import Column, Table, plural
from nas.latency.steps import bounded
from nas.latency.whole import WHOLE_ROUNDS, example

TEACHER, BASE_MODEL, STUDENT = "teacher", "base model", "student"
TORCH, ONNX, INT8 = "torch", "ONNX", "ONNX int8"

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
    batches: Sequence[int],
    rounds: int | None = None,
) -> list[Timing]:
    """Time all models in turns, so that what else the machine does disturbs all of them alike.

    In each round a model runs twice and the second pass is timed: the first one refills the processor's caches, which
    the other models have used in the meantime.

    Args:
        forwards: by model and form, a forward pass.
        tokens: the number of tokens of each sentence, without padding.
        batches: the numbers of sentences in a batch.
        rounds: None: `WHOLE_ROUNDS`, or fewer if they take too long (`bounded`).
    """
    result = []
    for size in batches:
        batch = example(vocabulary, size, tokens, "cpu")
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in forwards}
        for _ in bounded(WHOLE_ROUNDS) if rounds is None else range(rounds):
            for key, forward in forwards.items():
                forward(batch)
                begun = time.perf_counter()
                forward(batch)
                seconds[key].append(time.perf_counter() - begun)
        for key, passes in seconds.items():
            quartiles = quantiles(passes, n=4, method="inclusive")
            result.append(Timing(*key, size, *(1e3 * quartile for quartile in quartiles)))
    return result


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
        medians = {(timing.model, timing.form, timing.batch): timing.median_ms for timing in self.timings}
        return medians.get((model, form, batch))

    @property
    def predicted(self) -> float | None:
        """By which factor the student is faster than the teacher if latency is proportional to MACs."""
        if TEACHER not in self.macs or STUDENT not in self.macs:
            return None
        return self.macs[TEACHER] / self.macs[STUDENT]

    def speedups(self) -> list[dict[str, Any]]:
        """For each runtime and batch: the student's speed relative to the teacher's in that runtime and in torch."""
        rows = []
        for timing in self.timings:
            torch_teacher = self.median(TEACHER, TORCH, timing.batch)
            same_form = self.median(TEACHER, timing.form, timing.batch)
            if timing.model == STUDENT and torch_teacher and same_form:
                speeds = {"same_form": same_form, "torch_teacher": torch_teacher}
                speeds = {name: teacher / timing.median_ms for name, teacher in speeds.items()}
                rows.append({"form": timing.form, "batch": timing.batch, **speeds})
        return rows

    def sentences(self) -> list[str]:
        """What the latencies say, and how far they are from what the MACs predict."""
        lines = []
        for row in self.speedups():
            text = f"{row['form']}, batch {row['batch']}: {row['same_form']:.2f} times as fast as the teacher"
            if row["form"] != TORCH:
                text += f" in {row['form']}"
            if self.predicted is not None:
                text += f", {row['same_form'] / self.predicted - 1:+.0%} against what the MACs predict"
            if row["form"] != TORCH:
                text += f"; {row['torch_teacher']:.2f} times as fast as the teacher in torch"
            lines.append(text + ".")
        if self.predicted is not None:
            lines.append(
                f"MACs: the student has {self.macs[STUDENT] / self.macs[TEACHER]:.1%} of the teacher's, so it would be "
                f"{self.predicted:.2f} times as fast if latency were proportional to MACs."
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """The report as values that `json.dumps` accepts."""
        return asdict(self) | {"predicted_speedup": self.predicted, "speedups": self.speedups()}

    def conditions(self) -> str:
        """How it was measured, and what the speeds of the table are relative to."""
        speeds = ""
        if any(timing.model == TEACHER for timing in self.timings):
            speeds = "; speeds are relative to the teacher in the same runtime"
            if any(timing.form != TORCH for timing in self.timings):
                speeds += ", and in the next column to the teacher in torch"
        return (
            f"Sentences of {self.tokens} tokens without padding on {self.machine['processor']}, "
            f"{plural(self.machine['threads'], 'thread')}, measured in turns; medians with quartiles{speeds}."
        )

    def table(self) -> Table:
        """A row for each model and form: for each batch the median with the quartiles, the speed relative to the
        teacher's in the same runtime, and where that is not torch, the speed relative to the teacher's in torch.
        """
        batches = list(dict.fromkeys(timing.batch for timing in self.timings))
        columns = [Column("model", is_text=True), Column("form", is_text=True)]
        for batch in batches:
            columns += map(Column, (f"batch {batch}: ms (quartiles)", "speed, same runtime", "speed, to torch"))
        rows: dict[tuple[str, str], list[str]] = {}
        for timing in self.timings:
            same_form = self.median(TEACHER, timing.form, timing.batch)
            torch_teacher = None if timing.form == TORCH else self.median(TEACHER, TORCH, timing.batch)
            rows.setdefault((timing.model, timing.form), [timing.model, timing.form]).extend(
                (
                    f"{timing.median_ms:.2f} ({timing.lower_ms:.2f} to {timing.upper_ms:.2f})",
                    *(
                        f"{teacher / timing.median_ms:.2f}×" if teacher else ""
                        for teacher in (same_form, torch_teacher)
                    ),
                )
            )
        return Table(columns, [tuple(cells) for cells in rows.values()])

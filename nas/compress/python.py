"""`compress_model`: compress a model and rows that are in memory."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from distill.command.report import show_measurements, write_metrics
from distill.training.layout import ARCHITECTURE_FILE
from distill.training.progress import ProgressCallback, ignore_progress
from distill.training.teacher import load_tokenizer, load_unchanged
from foundation.errors import UserError
from foundation.files import save_pretrained, scratch_folder
from nas.compress.command import OWN, PRESET
from nas.compress.rows import HELD_OUT, rows_of, write_rows
from nas.compress.run import CompressRun, compress
from nas.config.load import load_config
from search_spaces.architecture import Architecture


@dataclass(frozen=True, eq=False)
class Compressed:
    """A compressed model.

    Attributes:
        student: the model, in eval mode; a model of transformers.
        tokenizer: its tokenizer.
        architecture: what it consists of.
        metrics: scores, costs and latencies of teacher and student, as metrics.json has them.
    """

    student: PreTrainedModel
    tokenizer: Any
    architecture: Architecture
    metrics: Mapping[str, Any]

    def table(self, width: int = 120) -> str:
        """The scores, costs and latencies of teacher and student as text."""
        console = Console(highlight=False, markup=False, emoji=False, width=width, record=True, file=StringIO())
        show_measurements(console, self.metrics, "")
        return console.export_text()

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint that transformers loads by itself, with the architecture and the measurements."""
        folder = Path(folder)
        save_pretrained(folder, self.student, self.tokenizer)
        self.architecture.save(folder / ARCHITECTURE_FILE)
        write_metrics(folder, self.metrics)


def compress_model(
    model: PreTrainedModel | str | Path,
    train: Any,
    dev: Any = None,
    *,
    tokenizer: Any = None,
    text: str = "sentence",
    pair: str | None = None,
    label: str = "label",
    regression: bool = False,
    max_latency: str | None = None,
    max_params: int | None = None,
    max_size: str | None = None,
    runtime: str = "torch",
    threads: int | None = None,
    steps: int = 250,
    finetune_teacher: int = 0,
    max_length: int = 128,
    device: str = "auto",
    seed: int = 0,
    on_progress: ProgressCallback = ignore_progress,
) -> Compressed:
    """Make a model smaller and faster, as `python -m nas.compress` does. The model itself is not changed.

    Args:
        model: an encoder with a trained head for this task, or its folder or name on the hub.
        train, dev: labeled rows: a `datasets.Dataset`, a pandas data frame or a list of dictionaries. Without `dev`,
            every tenth row of `train` is measured on instead of trained on.
        tokenizer: of a `model` that is no folder or name.
        text, pair, label: the columns of the sentence, of a second one, and of the class or number.
        regression: whether the labels are numbers.
        max_latency: the limit on the latency, such as "12ms", or "0.3x" of the teacher's. If no limit is given at all,
            it is "1/3x".
        max_params, max_size: the limits on the parameters, and on the file of the weights, such as "10MB".
        runtime, threads: in what the student will run, "torch", "onnx" or "onnx-int8", and on how many threads.
        steps: training steps of the student; 0: it is only compensated.
        finetune_teacher: training steps of the teacher before, if its head is not trained.
        on_progress: called with the current piece of work and the fraction of it that is done.

    Raises:
        UserError: the model, the rows and the limits do not fit together; a `ValueError` in most cases.
    """
    with scratch_folder() as folder, _quiet_transformers():
        source = _source(model, tokenizer, folder / "teacher")
        rows = rows_of(train), None if dev is None else rows_of(dev)
        for name, given in zip(("train", "dev"), rows, strict=True):
            _check_columns(given, name, (text, *([pair] if pair else ()), label))
        if rows[1] is None and len(rows[0]) < 2 * HELD_OUT:
            raise CompressError(f"train: {len(rows[0])} rows are too few to hold every tenth out; give dev, too")
        files = write_rows(folder, *rows)
        table = {"train": str(files[0]), "dev": str(files[1]), "text": text, "label": label, "regression": regression}
        settings = {
            "teacher": source,
            "tasks": [OWN],
            "rows": {OWN: table | ({"pair": pair} if pair else {})},
            "max_length": max_length,
            "seed": seed,
            "space.max_latency": "1/3x" if max_latency is max_params is max_size is None else max_latency,
            "space.max_params": max_params,
            "space.max_size": max_size,
            "deployment.runtime": runtime,
            "deployment.threads": threads,
            "final.steps": steps,
            "finetune.steps": finetune_teacher,
        }
        config = load_config(PRESET, settings)
        out = folder / "student"
        metrics = compress(CompressRun(config=config, out=out, device=device), on_progress, warnings.warn)
        if metrics is None:
            raise CompressError("only the first of several processes has a result")
        student = load_unchanged(str(out)).eval()
        architecture = Architecture.load(out / ARCHITECTURE_FILE)
        return Compressed(student, load_tokenizer(str(out)), architecture, metrics)


class CompressError(UserError, ValueError):
    """A model or rows that cannot be compressed."""


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """A context in which transformers shows neither warnings nor progress bars."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def _source(model: Any, tokenizer: Any, folder: Path) -> str:
    """The folder or name of a model. One in memory is saved in `folder`, in float32, wherever and in whatever precision
    it is.

    Raises:
        CompressError: it is no model, or has no tokenizer or one too many.
    """
    if isinstance(model, str | Path):
        if tokenizer is not None:
            raise CompressError("tokenizer: a folder or name has its own; leave it out")
        return str(model)
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise CompressError(f"model: must be a model of transformers, a folder or a name, not {kind}")
    if tokenizer is None:
        raise CompressError("tokenizer: give that of the model")
    weights = {name: tensor.detach().float().cpu() for name, tensor in model.state_dict().items()}
    model.save_pretrained(folder, state_dict=weights)
    tokenizer.save_pretrained(folder)
    return str(folder)


def _check_columns(rows: list[dict[str, Any]] | None, name: str, columns: Sequence[str]) -> None:
    """Raise CompressError unless there are rows, all with these columns; None stands for no rows at all."""
    if rows is None:
        return
    if not rows:
        raise CompressError(f"{name}: there are no rows")
    for number, row in enumerate(rows):
        for column in columns:
            if column not in row:
                raise CompressError(
                    f"{name}: row {number} has no column {column!r}; it has {', '.join(map(repr, row))}"
                )

"""`compress_model`: compress a model and rows that are in memory."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.command.report import measurement_table
from distill.memory import SPLITS, naming_memory, quiet_transformers, source_of, write_splits
from distill.python import Distilled
from distill.training.layout import ARCHITECTURE_FILE
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.errors import UserError
from foundation.files import scratch_folder
from nas.compress.command import OWN, PRESET
from nas.compress.run import CompressRun, compress
from nas.config.load import load_config
from nas.report.drawing import svg
from search_spaces.architecture import Architecture


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Compressed(Distilled):
    """A compressed model; notebooks show its measurements and the drawing of its architecture.

    Attributes:
        architecture: what it consists of.
    """

    architecture: Architecture

    def _repr_html_(self) -> str:
        return measurement_table(self.metrics).html() + svg(self.architecture)

    @classmethod
    def load(cls, folder: str | Path) -> "Compressed":
        """Read what `save`, `python -m nas.compress` or `train_final.py` has written.

        Raises:
            UserError: the folder is no such checkpoint.
        """
        distilled = Distilled.load(folder)
        return cls(**vars(distilled), architecture=Architecture.load(Path(folder) / ARCHITECTURE_FILE))

    def save(self, folder: str | Path) -> None:
        super().save(folder)
        self.architecture.save(Path(folder) / ARCHITECTURE_FILE)


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
    reranking: bool = False,
    multi_label: bool = False,
    threshold: float = 0.5,
    class_weights: str | Mapping[str, float] | None = None,
    max_latency: str | None = None,
    max_params: int | None = None,
    max_size: str | None = None,
    runtime: str = "torch",
    threads: int | None = None,
    uniform: bool = False,
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
        regression, multi_label: whether the labels are numbers, or lists of any number of classes.
        reranking: whether the model is a reranker, of which the student learns the scores of `text`, a query, and
            `pair`, a passage. Rows need no labels; without `dev`, every tenth query is held out.
        threshold: the probability from which a class is predicted with `multi_label`.
        class_weights: weights of classes in the loss with labels: "balanced", or by their names, 1 for others.
        max_latency: the limit on the latency, such as "12ms", or "0.3x" of the teacher's. If no limit is given at all,
            it is "1/3x".
        max_params, max_size: the limits on the parameters, and on the file of the weights, such as "10MB".
        runtime, threads: in what the student will run, "torch", "onnx" or "onnx-int8", and on how many threads.
        uniform: whether all FFNs have one width, and heads and layers are kept.
        steps: training steps of the student; 0: it is only compensated.
        finetune_teacher: training steps of the teacher before, if its head is not trained.
        on_progress: called with the current piece of work and the fraction of it that is done.

    Raises:
        UserError: the model, the rows and the limits do not fit together; a `ValueError` in most cases.
    """
    with scratch_folder() as folder, quiet_transformers(), naming_memory(folder, "model"):
        source = source_of(model, tokenizer, folder / "model")
        columns = (text, *([pair] if pair else ()), *(() if reranking else [label]))
        files = write_splits(folder, train, dev, columns, by=text if reranking else None)
        table: dict[str, Any] = {"text": text, "pair": pair, "label": label, "threshold": threshold}
        table |= {"regression": regression, "reranking": reranking, "multi_label": multi_label}
        table |= {"class_weights": class_weights, **dict(zip(SPLITS, map(str, files), strict=True))}
        settings = {
            "teacher": source,
            "tasks": [OWN],
            "rows": {OWN: {name: value for name, value in table.items() if value is not None}},
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
        config, out = load_config(f"{PRESET}-reranking" if reranking else PRESET, settings), folder / "student"
        run = CompressRun(config=config, out=out, uniform=uniform, device=device)
        if compress(run, on_progress, warnings.warn) is None:
            raise UserError("only the first of several processes has a result")
        return Compressed.load(out)

"""Prepares the calibration of compensated inheritance: what the supernet computes on training rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from distill.files import fingerprint
from distill.tasks.encoding import collate, eval_batches, take
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.supernet import load_supernet
from supernet.compensation.calibration import calibrate

# Sentences of similar length share a batch of this size.
BATCH_SIZE = 64
# Part of the cache key: change it with what the file holds.
CONTENTS = "sums and norms"


def prepare_calibration(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Path | None:
    """The file with the calibration of the supernet in this folder; None if candidates are sliced."""
    file = calibration_path(context, supernet)
    if file is None:
        return None
    return _calibrated_once(context, folders, file, lambda: load_supernet(context.config, folders, supernet))


def calibration_path(context: PreparationContext, supernet: Path) -> Path | None:
    """The file of the calibration in the cache, which may not exist yet; None if candidates are sliced."""
    table = context.config.supernet
    if table.inheritance == "sliced":
        return None
    key = fingerprint(FORMAT, CONTENTS, supernet.name, context.teacher_key, table.calibration_rows, context.config.seed)
    return _file(context, key)


def prepare_one_shot_calibration(
    context: PreparationContext, folders: TaskFolders, one_shot: Path, model: Callable[[], PreTrainedModel]
) -> Path:
    """The file with the calibration of the one-shot supernet in this folder.

    Args:
        model: returns its largest model.
    """
    rows = context.config.supernet.calibration_rows
    key = fingerprint(FORMAT, CONTENTS, "one-shot", one_shot.name, context.teacher_key, rows, context.config.seed)
    return _calibrated_once(context, folders, _file(context, key), model)


def _calibrated_once(
    context: PreparationContext, folders: TaskFolders, file: Path, supernet: Callable[[], PreTrainedModel]
) -> Path:
    def make(path: Path) -> None:
        context.on_progress("supernet: calibration", None)
        model = supernet()
        rows = folders.rows("train")
        drawn = np.random.default_rng([context.config.seed, 3]).permutation(len(rows))
        chosen = take(rows, np.sort(drawn[: context.config.supernet.calibration_rows]))
        batches = [collate(chosen, batch, model.config.pad_token_id) for batch in eval_batches(chosen, BATCH_SIZE)]
        calibrate(model, batches, context.accelerator).save(path)

    return context.create_once(file, make)


def _file(context: PreparationContext, key: str) -> Path:
    return context.cache / "calibrations" / f"{key}.safetensors"

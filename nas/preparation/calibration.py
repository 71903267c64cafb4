"""Prepares the calibration of compensated inheritance: what the supernet computes on training rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from distill.tasks.encoding import collate, eval_batches, take
from foundation.files import fingerprint
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import Entry
from nas.preparation.supernet import load_supernet
from supernet.compensation.calibration import calibrate

# Sentences of similar length share a batch of this size.
BATCH_SIZE = 64


def calibration_entry(
    context: PreparationContext,
    folders: TaskFolders,
    supernet: Path,
    one_shot: Callable[[], PreTrainedModel] | None = None,
) -> Entry:
    """The sums of the supernet in this folder on calibration text.

    Args:
        one_shot: if it is a one-shot supernet, returns its largest model.
    """
    load = one_shot or (lambda: load_supernet(context.config, folders, supernet))
    source = [supernet.name] if one_shot is None else ["one-shot", supernet.name]
    count, seed = context.config.supernet.calibration_rows, context.config.seed
    attentions = context.config.space.varies_heads

    def make(path: Path, state: Path) -> None:
        context.on_progress("supernet: calibration", None)
        model = load()
        rows = folders.rows("train")
        drawn = np.random.default_rng([seed, 3]).permutation(len(rows))
        chosen = take(rows, np.sort(drawn[:count]))
        batches = [collate(chosen, batch, model.config.pad_token_id) for batch in eval_batches(chosen, BATCH_SIZE)]
        calibrate(model, batches, context.accelerator, attentions).save(path)

    key = fingerprint(FORMAT, *source, context.teacher_key, count, seed, attentions)
    return Entry("calibration", context.cache / "calibrations" / f"{key}.safetensors", make)

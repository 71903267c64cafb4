"""Prepares the calibration of compensated inheritance: what candidates should compute on training rows."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from transformers import PreTrainedModel

from distill.tasks.encoding import collate, eval_batches, take
from foundation.files import fingerprint
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import Entry
from nas.preparation.supernet import is_independent_of_task, load_supernet
from nas.preparation.workspace import load_teacher
from supernet.build import from_teacher
from supernet.compensation.calibration import bytes_of_token, calibrate

# Sentences of similar length share a batch of this size.
BATCH_SIZE = 64
# What the reference computes may take this many bytes, so of long texts and in wide encoders fewer rows are taken.
MOST_BYTES, FEWEST_ROWS = 4 * 2**30, 10


def calibration_entry(
    context: PreparationContext,
    folders: TaskFolders,
    supernet: Path,
    one_shot: Callable[[], PreTrainedModel] | None = None,
) -> Entry:
    """The sums on calibration text of the model that candidates are compensated to approximate: the fine-tuned teacher,
    if the supernet in this folder started as a copy of it; otherwise the supernet.

    Args:
        one_shot: if it is a one-shot supernet, returns its largest model, which candidates then approximate.
    """
    config = context.config
    load = one_shot or (lambda: load_supernet(config, folders, supernet))
    source = [supernet.name] if one_shot is None else ["one-shot", supernet.name]
    if one_shot is None and config.base == "teacher" and not is_independent_of_task(config):
        load, source = lambda: from_teacher(load_teacher(config, folders), stack=1), [context.precision]
    count, seed, attentions = config.supernet.calibration_rows, config.seed, config.space.varies_heads

    def make(path: Path, state: Path) -> None:
        context.on_progress("supernet: calibration", None)
        model = load()
        rows = folders.rows("train")
        drawn = np.random.default_rng([seed, 3]).permutation(len(rows))[:count]
        sizes = np.cumsum(rows.lengths_of(drawn)) * bytes_of_token(model, attentions)
        fit = int(np.searchsorted(sizes, MOST_BYTES, side="right"))
        chosen = take(rows, np.sort(drawn[: max(fit, FEWEST_ROWS)]))
        batches = [collate(chosen, batch, model.config.pad_token_id) for batch in eval_batches(chosen, BATCH_SIZE)]
        calibrate(model, batches, context.accelerator, attentions).save(path)

    key = fingerprint(FORMAT, *source, context.teacher_key, count, seed, attentions)
    return Entry("calibration", context.cache / "calibrations" / f"{key}.safetensors", make)

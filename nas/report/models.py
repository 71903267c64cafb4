"""What the trained student and its teacher do with sentences of the dev split: attention and outputs of the FFNs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nas.config.load import load_config
from nas.config.schema import ConfigError

# How many sentences are shown, and how many tokens they have, so that a figure can label them.
SENTENCES = 2
SHORTEST, LONGEST = 8, 16


@dataclass(frozen=True, eq=False)
class Maps:
    """What one model computes for one sentence of T tokens.

    Attributes:
        attention_HTT: the attention of the last layer, by head, query and key.
        outputs_LTD: the output of every layer's FFN after its residual connection and LayerNorm.
    """

    attention_HTT: np.ndarray
    outputs_LTD: np.ndarray


@dataclass(frozen=True, eq=False)
class Sentence:
    """A sentence of the dev split, and what teacher and student compute for it."""

    tokens: tuple[str, ...]
    teacher: Maps
    student: Maps


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder has a checkpoint of the final training."""
    return all((folder / name).exists() for name in ("config.json", "config.toml", "metrics.json", "architecture.json"))


def sentences(folder: Path) -> list[Sentence]:
    """Run the student in a folder and its teacher on sentences of the dev split.

    Nothing is prepared or trained: rows and teacher are taken from the cache.

    Raises:
        ConfigError: the folder has no checkpoint of the final training, or the cache does not have its data and its
            teacher.
        distill.training.teacher.TeacherError: a model cannot be loaded.
    """
    import torch
    from transformers.utils import logging

    from distill.tasks.encoding import collate
    from distill.training.teacher import load_model
    from nas.preparation.context import preparation_context
    from nas.preparation.data import TaskFolders

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not is_checkpoint(folder):
        raise ConfigError(f"{folder} is not a checkpoint of train_final.py: it lacks metrics.json or another file")
    context = preparation_context(load_config(str(folder / "config.toml")), "cpu")
    folders = TaskFolders(context.cache / "data" / context.data_key, context.cache / "teachers" / context.teacher_key)
    if not folders.data.exists() or not folders.teacher.exists():
        raise ConfigError(
            f"the cache {context.cache} does not have the task's rows and the teacher of {folder}: train_final.py or a "
            "search makes them"
        )
    task, rows = folders.task, folders.rows("dev")
    models = [load_model(str(path), task.labels, task.kind).eval() for path in (folders.teacher, folder)]
    result = []
    for number in chosen(rows.lengths):
        batch = collate(rows, np.array([number]), context.tokenizer.pad_token_id)
        with torch.inference_mode():
            teacher, student = (maps(model, batch) for model in models)
        tokens = context.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        result.append(Sentence(tuple(tokens), teacher, student))
    return result


def chosen(lengths: Sequence[int] | np.ndarray) -> list[int]:
    """The first rows of a length that a figure can show; the shortest ones if there are none."""
    lengths = np.asarray(lengths)
    fitting = np.flatnonzero((lengths >= SHORTEST) & (lengths <= LONGEST))
    rows = fitting if len(fitting) else lengths.argsort(kind="stable")
    return [int(row) for row in rows[:SENTENCES]]


def maps(model: Any, batch: Any) -> Maps:
    """The maps of a model for a batch of one sentence without padding."""
    from distill.encoders.parts import encoder_layers
    from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, of_layers, run

    depth = len(encoder_layers(model))
    needs = frozenset({LOGITS, HIDDEN_STATES}) | of_layers(ATTENTION_SCORES, [depth])
    outputs = run(model, batch, needs)
    attention_HTT = outputs.attention_scores[depth - 1][0].float().softmax(dim=-1).numpy()
    states = [state[0].float().numpy() for state in outputs.hidden_states[1:]]
    return Maps(attention_HTT, np.stack(states))


def similarities(sentence: Sentence) -> list[float] | None:
    """The mean cosine similarity over the tokens of the two models' outputs, for every layer; None if their sizes
    differ.
    """
    teacher_LTD, student_LTD = sentence.teacher.outputs_LTD, sentence.student.outputs_LTD
    if teacher_LTD.shape != student_LTD.shape:
        return None
    products_LT = (teacher_LTD * student_LTD).sum(axis=-1)
    norms_LT = np.linalg.norm(teacher_LTD, axis=-1) * np.linalg.norm(student_LTD, axis=-1)
    return [float(value) for value in (products_LT / norms_LT).mean(axis=-1)]

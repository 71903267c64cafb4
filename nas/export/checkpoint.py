"""Reads the checkpoint of a student, as `train_final.py` and `supernet.experts` write it, or an ordinary one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.unshare import shared_config
from distill.tasks.types import EMBEDDINGS, TASK_TYPES, TaskType, get_task_type, task_type_of_class
from distill.tasks.types.embeddings import POOLING
from distill.training.reranker import keep_activation
from distill.training.sentences import MODULES, is_sentence_encoder, pooling_of
from distill.training.teacher import labels_of, load_checked, load_tokenizer
from distill.training.teacher import load_config as load_config_of_model
from foundation.errors import UserError, shortened
from foundation.files import read_json
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.export.latency import STUDENT, TEACHER
from nas.onnx.model import type_of_head
from search_spaces.architecture import Architecture

ARCHITECTURE, CONFIG, METRICS = "architecture.json", "config.toml", "metrics.json"


class ExportError(UserError, ValueError):
    """A checkpoint cannot be read, or cannot be exported in the form that was asked for."""


@dataclass(frozen=True)
class Checkpoint:
    """A trained student with what lies beside its weights, or an ordinary checkpoint of transformers.

    Attributes:
        architecture, config, metrics: None for an ordinary checkpoint, and where the folder has no such file.
            `train_final.py` writes all three; `supernet.experts` and `supernet.prune` write no configuration, and
            metrics of another form.
    """

    folder: Path
    model: PreTrainedModel
    tokenizer: Any
    architecture: Architecture | None
    config: StudyConfig | None
    metrics: dict[str, Any] | None

    @property
    def type(self) -> TaskType:
        return type_of_head(self.model)

    @property
    def is_student(self) -> bool:
        return family_of(self.model).students_of is not None

    @property
    def name(self) -> str:
        """What the model is called in tables."""
        return STUDENT if self.is_student else TEACHER


def load_checkpoint(folder: Path, labels: Sequence[str] = ()) -> Checkpoint:
    """Load a student or an ordinary checkpoint, in eval mode and float32.

    Args:
        labels: names of the classes in place of those of the checkpoint.

    Raises:
        ExportError: the model has no head, and is no sentence encoder, or the labels do not fit it.
        UserError: the model, its tokenizer, architecture or configuration cannot be read.
    """
    source = str(folder)
    config = load_config_of_model(source, students=True)
    name, *_ = config.architectures or (None,)
    head = task_type_of_class(str(name), config)
    if is_sentence_encoder(source) or (head is None and (folder / MODULES).exists()):
        head = get_task_type(EMBEDDINGS)
        setattr(config, POOLING, pooling_of(source))
    if head is None:
        known = ", ".join(dict.fromkeys(f"...{known.suffix}" for known in TASK_TYPES.values() if not known.pool))
        raise ExportError(
            f"{folder}: config.json has the architecture {shortened(name)}; give a model with a trained head "
            f"({known}), or a folder of sentence-transformers"
        )
    keep_activation(source, config)
    # Weights that layers share stay shared, and so small; a sentence encoder may lack the pooler.
    model, info = load_checked(head.model, source, shared_config(config, source), strict=head.pool is None)
    if any(missing.startswith("pooler.") for missing in info["missing_keys"]):
        model.pooler = None  # instead of a random one
    student = family_of(model).students_of is not None
    files = {file: folder / file for file in (ARCHITECTURE, CONFIG, METRICS) if student and (folder / file).exists()}
    metrics = read_object(files[METRICS]) if METRICS in files else {}
    checkpoint = Checkpoint(
        folder,
        model.eval(),
        load_tokenizer(source, head.name),
        Architecture.load(files[ARCHITECTURE]) if ARCHITECTURE in files else None,
        load_config(str(files[CONFIG])) if CONFIG in files else None,
        metrics if "task" in metrics else None,
    )
    name_outputs(model.config, checkpoint.type, labels)
    return checkpoint


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        UserError: there is no such file, or no object in it.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ExportError(f"{path}: not a JSON object")
    return value


def name_outputs(config: Any, task_type: TaskType, labels: Sequence[str] = ()) -> None:
    """Give the outputs of a model names that are words.

    Args:
        config: a Hugging Face configuration, which is changed.
        labels: the names of its classes, in order; without them it keeps its own.

    Raises:
        ExportError: the labels do not fit the model.
    """
    if labels and (not task_type.classes or len(set(labels)) != len(labels) or len(labels) != config.num_labels):
        wanted = f"{config.num_labels} distinct names" if task_type.classes else f"none for a {task_type}"
        raise ExportError(f"--labels: the model needs {wanted}, not {', '.join(labels)}")
    names = labels or (() if labels_of(config) else task_type.output_names)
    if names:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}

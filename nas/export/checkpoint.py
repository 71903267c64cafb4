"""Reads the checkpoint of a student, as `train_final.py` and `supernet.experts` write it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.encoders.student.families import FAMILIES
from distill.encoders.students import CLASSES
from distill.tasks.types import TaskType
from distill.tasks.types.embeddings import POOLING
from distill.training.teacher import labels_of, load_tokenizer
from distill.training.teacher import load_config as load_config_of_model
from distill.training.weights import WeightsError, load_weights
from foundation.errors import UserError, shortened
from foundation.files import read_json
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.onnx.model import type_of_head
from search_spaces.architecture import Architecture

ARCHITECTURE, CONFIG, METRICS = "architecture.json", "config.toml", "metrics.json"


class ExportError(UserError, ValueError):
    """A checkpoint cannot be read, or cannot be exported in the form that was asked for."""


@dataclass(frozen=True)
class Checkpoint:
    """A trained student with what lies beside its weights.

    Attributes:
        architecture, config, metrics: None where the folder has no such file. `train_final.py` writes all three;
            `supernet.experts` and `supernet.prune` write no configuration, and metrics of another form.
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


def load_checkpoint(folder: Path, labels: Sequence[str] = ()) -> Checkpoint:
    """Load a student, in eval mode and float32.

    Args:
        labels: names of the classes in place of those of the checkpoint.

    Raises:
        ExportError: the folder is not the checkpoint of a student, or the labels do not fit it.
        UserError: its tokenizer, architecture or configuration cannot be read.
    """
    what_to_give = "give the checkpoint of a student, as train_final.py writes it"
    if not (folder / "config.json").exists():
        raise ExportError(f"{folder} has no config.json: {what_to_give}")
    described = read_object(folder / "config.json")
    model_type = described.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None or family.students_of is None:
        raise ExportError(f"{folder}: config.json is of a {shortened(model_type)} model; {what_to_give}")
    pools = described.get(POOLING) is not None
    kinds = CLASSES[family.students_of].items()
    classes = {cls.__name__: cls for auto, cls in kinds if "For" in auto or (pools and auto == "AutoModel")}
    names = described.get("architectures")
    name = names[0] if isinstance(names, list) and names else None
    if not isinstance(name, str) or name not in classes:
        known = ", ".join(classes)
        raise ExportError(f"{folder}: config.json has the architecture {shortened(name)}; known are {known}")
    config = load_config_of_model(str(folder), students=True)
    try:
        model, _ = load_weights(classes[name], str(folder), config, strict=True)
    except WeightsError as error:
        raise ExportError(f"{folder}: no readable weights: {error}") from None
    files = {file: folder / file for file in (ARCHITECTURE, CONFIG, METRICS)}
    metrics = read_object(files[METRICS]) if files[METRICS].exists() else {}
    checkpoint = Checkpoint(
        folder,
        model.eval(),
        load_tokenizer(str(folder)),
        Architecture.load(files[ARCHITECTURE]) if files[ARCHITECTURE].exists() else None,
        load_config(str(files[CONFIG])) if files[CONFIG].exists() else None,
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

"""Students that consist of some of the teacher's layers, or of any checkpoint with the teacher's vocabulary."""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.objectives import layer_maps
from distill.training.teacher import TeacherError, load_config, load_model, load_tokenizer

# The settings of a configuration that are lists with a value for each layer.
OF_EACH_LAYER = ("ffn", "attention_heads", "kept_heads", "attention_experts", "layer_types")
_LAYERS = re.compile(r"(first|uniform):(\d{1,4})")


def load_student(
    spec: str, teacher: PreTrainedModel, tokenizer: Any, labels: Sequence[str], task_type: str
) -> PreTrainedModel:
    """The student that `spec` names, with a head for the task.

    "first:N" is a copy of the teacher's lowest N layers (the initialization of PKD and BERT-of-Theseus), "uniform:N" of
    the last layer of each of N equal groups. Anything else is the folder or hub name of a checkpoint.

    Raises:
        TeacherError: there is no such checkpoint, the teacher has fewer layers, or the vocabulary is not the teacher's.
    """
    match = _LAYERS.fullmatch(spec)
    if match:
        return some_layers(teacher, _chosen_layers(match[1], int(match[2]), teacher.config.num_hidden_layers))
    _check_same_vocabulary(spec, tokenizer)
    return load_model(spec, labels, task_type)


def planned(spec: str, teacher: Any, tokenizer: Any) -> Any:
    """The configuration of the student that `load_student` would load, given that of its teacher."""
    match = _LAYERS.fullmatch(spec)
    if match:
        return _of_layers(teacher, _chosen_layers(match[1], int(match[2]), teacher.num_hidden_layers))
    _check_same_vocabulary(spec, tokenizer)
    return load_config(spec, students=True)


def _check_same_vocabulary(spec: str, tokenizer: Any) -> None:
    if ":" in spec and not Path(spec).exists():
        raise TeacherError(f"student {spec}: for layers of the teacher give first:N or uniform:N, with N at least 1")
    student_tokenizer = load_tokenizer(spec)
    if student_tokenizer.get_vocab() != tokenizer.get_vocab():
        raise TeacherError(
            f"the student {spec!r} has a vocabulary of {len(student_tokenizer):,} tokens that is not the teacher's of "
            f"{len(tokenizer):,}: choose one with the teacher's tokenizer"
        )


def _chosen_layers(rule: str, count: int, layers: int) -> tuple[int, ...]:
    """The indices, from 0, of the teacher's layers that the student takes."""
    if not 1 <= count <= layers:
        raise TeacherError(f"student {rule}:{count}: the teacher has {layers} layers; choose 1 to {layers}")
    if rule == "first":
        return tuple(range(count))
    try:
        return tuple(layer - 1 for layer in layer_maps.uniform(count, layers))
    except ValueError as error:
        raise TeacherError(f"student {rule}:{count}: {error}") from None


def _of_layers(config: Any, chosen: Sequence[int]) -> Any:
    """A configuration with only the chosen layers, counted from 0. Raises TeacherError if there can be none."""
    if chosen[0] and not family_of(config).first_norm:
        raise TeacherError(
            f"the lowest layer of a {config.model_type!r} model has no LayerNorm before its attention, so that no "
            f"other can take its place: take first:{len(chosen)}"
        )
    result = copy.deepcopy(config)
    result.num_hidden_layers = len(chosen)
    for key in (key for key, size in family_of(config).unshared.items() if size == "depth"):
        setattr(result, key, len(chosen))
    for name in OF_EACH_LAYER:
        if isinstance(values := getattr(config, name, None), list | tuple):
            setattr(result, name, [values[layer] for layer in chosen])
    return result


def some_layers(teacher: PreTrainedModel, chosen: Sequence[int]) -> PreTrainedModel:
    """A copy of the teacher with only the chosen layers, counted from 0."""
    student = type(teacher)(_of_layers(teacher.config, chosen))
    family, weights = family_of(teacher), {}
    for name, weight in teacher.state_dict().items():
        parts = family.split(name)
        if parts is None:
            weights[name] = weight
        elif parts[1] in chosen:
            weights[f"{parts[0]}{list(chosen).index(parts[1])}.{parts[2]}"] = weight
    student.load_state_dict(weights)
    return student

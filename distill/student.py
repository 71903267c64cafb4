"""Students: layers of the teacher's own, or any checkpoint with the teacher's vocabulary."""

import copy
import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel

from distill import layer_maps
from distill.teacher import TeacherError, load_model, load_tokenizer

_LAYERS = re.compile(r"(first|uniform):(\d{1,4})")


def load_student(
    spec: str, teacher: PreTrainedModel, tokenizer: Any, labels: Sequence[str], kind: str
) -> PreTrainedModel:
    """The student that `spec` names, with a head for the task.

    "first:N" is a copy of the teacher with its lowest N layers alone (as PKD and BERT-of-Theseus start), "uniform:N"
    with the last of each of N equal groups of layers. Anything else is the folder or hub name of a checkpoint.

    Raises:
        TeacherError: there is no such checkpoint or so many layers, or its vocabulary is not the teacher's.
    """
    match = _LAYERS.fullmatch(spec)
    if match:
        return some_layers(teacher, _chosen(match[1], int(match[2]), teacher.config.num_hidden_layers))
    student = load_model(spec, labels, kind)
    own = load_tokenizer(spec)
    if own.get_vocab() != tokenizer.get_vocab():
        raise TeacherError(
            f"the student {spec!r} has a vocabulary of {len(own):,} tokens that is not the teacher's of "
            f"{len(tokenizer):,}: choose one with the teacher's tokenizer"
        )
    return student


def _chosen(rule: str, count: int, layers: int) -> tuple[int, ...]:
    if not 1 <= count <= layers:
        raise TeacherError(f"student {rule}:{count}: the teacher has {layers} layers; choose 1 to {layers}")
    if rule == "first":
        return tuple(range(count))
    try:
        return tuple(layer - 1 for layer in layer_maps.uniform(count, layers))
    except ValueError as error:
        raise TeacherError(f"student {rule}:{count}: {error}") from None


def some_layers(teacher: PreTrainedModel, chosen: Sequence[int]) -> PreTrainedModel:
    """A copy of the teacher with these of its layers, counted from 0."""
    config = copy.deepcopy(teacher.config)
    config.num_hidden_layers = len(chosen)
    if getattr(config, "ffn", None):
        config.ffn = [config.ffn[layer] for layer in chosen]
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in chosen]
    student = type(teacher)(config)
    place = {str(layer): str(number) for number, layer in enumerate(chosen)}
    weights = {}
    for name, weight in teacher.state_dict().items():
        before, found, after = name.partition("encoder.layer.")
        layer, _, rest = after.partition(".")
        if not found:
            weights[name] = weight
        elif layer in place:
            weights[f"{before}{found}{place[layer]}.{rest}"] = weight
    student.load_state_dict(weights)
    return student

"""Students: layers of the teacher's own, or any checkpoint with the teacher's vocabulary."""

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.objectives import layer_maps
from distill.training.teacher import NAS_BERT, TeacherError, load_config, load_model, load_tokenizer

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
    _check_vocabulary(spec, tokenizer)
    return load_model(spec, labels, kind)


def planned(spec: str, teacher: Any, tokenizer: Any) -> Any:
    """The configuration of the student that `spec` names, by that of its teacher, which need not be there yet.

    Raises:
        TeacherError: as `load_student`.
    """
    match = _LAYERS.fullmatch(spec)
    if match:
        config = copy.deepcopy(teacher)
        config.num_hidden_layers = len(_chosen(match[1], int(match[2]), teacher.num_hidden_layers))
        return config
    _check_vocabulary(spec, tokenizer)
    return load_config(spec, ("bert", NAS_BERT))


def _check_vocabulary(spec: str, tokenizer: Any) -> None:
    if ":" in spec and not Path(spec).exists():
        raise TeacherError(f"student {spec}: the teacher's layers are first:N or uniform:N, N a whole number from 1")
    own = load_tokenizer(spec)
    if own.get_vocab() != tokenizer.get_vocab():
        raise TeacherError(
            f"the student {spec!r} has a vocabulary of {len(own):,} tokens that is not the teacher's of "
            f"{len(tokenizer):,}: choose one with the teacher's tokenizer"
        )


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

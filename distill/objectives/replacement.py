"""BERT-of-Theseus (Xu et al., 2020): a student's layers learn while they stand in for the teacher's."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from distill.objectives import layer_maps
from distill.objectives.outputs import Batch


class Replacement:
    """Which of the student's layers stand in for the teacher's groups, drawn once for each batch.

    A layer stands in with a probability that rises linearly from `start` to 1 at the share `until` of the steps, from
    where on the student trains alone. Where none is drawn, one is: such a batch would teach nothing.
    """

    def __init__(self, layers: int, steps: int, seed: int, start: float = 0.3, until: float = 0.75) -> None:
        self.layers, self.steps, self.seed = layers, steps, seed
        self.start, self.until = start, until
        self.standing_in = (True,) * layers

    def rate(self, step: int) -> float:
        """The probability in step number `step`, from 0."""
        reached = step / (self.until * self.steps) if self.until * self.steps else 1.0
        return min(1.0, self.start + (1.0 - self.start) * reached)

    def drawn(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, a draw for each."""
        for step, batch in enumerate(batches):
            rng = random.Random(f"{self.seed}/{step}")
            chosen = [rng.random() < self.rate(step) for _ in range(self.layers)]
            chosen[rng.randrange(self.layers)] |= not any(chosen)
            self.standing_in = tuple(chosen)
            yield batch


@contextlib.contextmanager
def replacing(student: PreTrainedModel, teacher: PreTrainedModel, replacement: Replacement) -> Iterator[None]:
    """While this lasts, the student in training computes with the teacher's layers where its own do not stand in; in
    evaluation with its own alone. Only its own layers learn: embeddings and head become the teacher's and stay so.

    The teacher is in eval mode; the released code keeps its dropout.

    Raises:
        ValueError: the student's shape is not the teacher's but for the number of layers, which must divide it.
    """
    groups = _groups(student, teacher)
    rest = {name: weight for name, weight in teacher.state_dict().items() if ".encoder.layer." not in name}
    own = student.state_dict()
    different = [name for name, weight in rest.items() if name not in own or own[name].shape != weight.shape]
    if different:
        raise ValueError(
            f"theseus puts the student's layers in the teacher's place: {different[0]} must have the teacher's shape"
        )
    student.load_state_dict(rest, strict=False)
    teacher.eval().requires_grad_(False)
    frozen = [p for name, p in student.named_parameters() if ".encoder.layer." not in name and p.requires_grad]
    layers = list(student.base_model.encoder.layer)
    for parameter in frozen:
        parameter.requires_grad_(False)
    for number, (layer, group) in enumerate(zip(layers, groups, strict=True)):
        layer.forward = _standing_in(student, teacher, layer, group, number, replacement)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        for parameter in frozen:
            parameter.requires_grad_(True)


def check_places(student: Any, teacher: Any) -> None:
    """Raises ValueError where layers of the one configuration cannot stand in for those of the other."""
    if teacher.model_type != "bert":
        raise ValueError(f"theseus takes layers of a plain BERT, not of type {teacher.model_type!r}")
    layer_maps.uniform(student.num_hidden_layers, teacher.num_hidden_layers)
    if student.hidden_size != teacher.hidden_size:
        raise ValueError(
            f"theseus puts the student's layers in the teacher's place, but they are {student.hidden_size} wide, not "
            f"{teacher.hidden_size}: take a student of the teacher's width"
        )


def _groups(student: PreTrainedModel, teacher: PreTrainedModel) -> list[list[Any]]:
    check_places(student.config, teacher.config)
    ends = layer_maps.uniform(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
    layers = list(teacher.base_model.encoder.layer)
    return [layers[end - len(layers) // len(ends) : end] for end in ends]


def _standing_in(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    layer: Any,
    group: list[Any],
    number: int,
    replacement: Replacement,
) -> Callable[..., Tensor]:
    own = layer.forward

    def forward(hidden_BTD: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if not layer.training or replacement.standing_in[number]:
            return own(hidden_BTD, *arguments, **named)
        named.pop("tokens", None)  # of experts, which a plain BERT has not
        implementation = student.config._attn_implementation
        if teacher.config._attn_implementation != implementation:  # masks are made for the student's
            teacher.set_attn_implementation(implementation)
        for predecessor in group:
            hidden_BTD = predecessor(hidden_BTD, *arguments, **named)
        return hidden_BTD

    return forward

"""Layers of a teacher that are replaced by a student's while the student learns (Xu et al., 2020, BERT-of-Theseus)."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from distill.objectives import layer_maps
from distill.objectives.outputs import Batch


class Replacement:
    """Which of the student's layers stand in for the teacher's groups of layers, drawn once for each batch.

    A layer stands in with a probability that rises linearly from `start` to 1 at the share `until` of the steps; from
    there on the student trains alone. Where no layer is drawn, one is chosen: the student would learn nothing from
    such a batch.
    """

    def __init__(self, layers: int, steps: int, seed: int, start: float = 0.3, until: float = 0.75) -> None:
        self.layers, self.steps, self.seed = layers, steps, seed
        self.start, self.until = start, until
        self.standing_in = (True,) * layers

    def rate(self, step: int) -> float:
        """The probability in step number `step`, counted from 0."""
        progress = step / (self.until * self.steps) if self.until * self.steps else 1.0
        return min(1.0, self.start + (1.0 - self.start) * progress)

    def drawn(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, with a new draw before each."""
        for step, batch in enumerate(batches):
            rng = random.Random(f"{self.seed}/{step}")
            standing_in = [rng.random() < self.rate(step) for _ in range(self.layers)]
            standing_in[rng.randrange(self.layers)] |= not any(standing_in)
            self.standing_in = tuple(standing_in)
            yield batch


@contextlib.contextmanager
def replacing(student: PreTrainedModel, teacher: PreTrainedModel, replacement: Replacement) -> Iterator[None]:
    """In this context the student, in training mode, computes with the teacher's layers where its own do not stand in;
    in evaluation mode it computes with its own layers alone. Only these learn: embeddings and head are the teacher's
    from the start and stay so.

    The teacher is in evaluation mode; the released code keeps its dropout.

    Raises:
        ValueError: the shapes of student and teacher differ in more than the number of layers, or the student's number
            does not divide the teacher's.
    """
    groups = _teacher_groups(student, teacher)
    shared = {name: weight for name, weight in teacher.state_dict().items() if ".encoder.layer." not in name}
    weights = student.state_dict()
    different = [name for name, weight in shared.items() if name not in weights or weights[name].shape != weight.shape]
    if different:
        raise ValueError(
            f"the student's layers take the place of the teacher's: {different[0]} must have the teacher's shape"
        )
    student.load_state_dict(shared, strict=False)
    teacher.eval().requires_grad_(False)
    frozen = [p for name, p in student.named_parameters() if ".encoder.layer." not in name and p.requires_grad]
    layers = list(student.base_model.encoder.layer)
    for parameter in frozen:
        parameter.requires_grad_(False)
    for index, (layer, group) in enumerate(zip(layers, groups, strict=True)):
        layer.forward = _replaceable_forward(student, teacher, layer, group, index, replacement)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        for parameter in frozen:
            parameter.requires_grad_(True)


def check_replaceable(student: Any, teacher: Any) -> None:
    """Raises ValueError where layers of the one configuration cannot stand in for those of the other."""
    if teacher.model_type != "bert":
        raise ValueError(f"only layers of a plain BERT can be replaced, not those of the type {teacher.model_type!r}")
    layer_maps.uniform(student.num_hidden_layers, teacher.num_hidden_layers)
    if student.hidden_size != teacher.hidden_size:
        raise ValueError(
            f"the student's layers take the place of the teacher's, but they are {student.hidden_size} wide, not "
            f"{teacher.hidden_size}: take a student of the teacher's width"
        )


def _teacher_groups(student: PreTrainedModel, teacher: PreTrainedModel) -> list[list[Any]]:
    """The teacher's layers that each layer of the student stands in for."""
    check_replaceable(student.config, teacher.config)
    groups = layer_maps.groups(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
    layers = list(teacher.base_model.encoder.layer)
    return [[layers[number - 1] for number in group] for group in groups]


def _replaceable_forward(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    layer: Any,
    group: list[Any],
    index: int,
    replacement: Replacement,
) -> Callable[..., Tensor]:
    student_forward = layer.forward

    def forward(hidden_BTD: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not layer.training or replacement.standing_in[index]:
            return student_forward(hidden_BTD, *args, **kwargs)
        kwargs.pop("tokens", None)  # read by a student's experts, which a plain BERT does not have
        implementation = student.config._attn_implementation
        if teacher.config._attn_implementation != implementation:  # attention masks have the form of the student's
            teacher.set_attn_implementation(implementation)
        for teacher_layer in group:
            hidden_BTD = teacher_layer(hidden_BTD, *args, **kwargs)
        return hidden_BTD

    return forward

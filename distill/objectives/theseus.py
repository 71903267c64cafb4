"""BERT-of-Theseus (Xu et al., 2020): the student's layers are trained while they replace layers of the teacher."""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers
from distill.encoders.student.configuration import is_left_out
from distill.objectives import layer_maps
from distill.objectives.base import Objective, check_fractions
from distill.objectives.kd import none
from distill.objectives.outputs import Batch
from distill.objectives.spec import Settings


def theseus(student: Any, teacher: Any, *, balance: float = 0.0, start: float = 0.3, until: float = 0.75) -> Objective:
    """The only loss term is that of the labels, as in `none`: distillation happens by replacing the teacher's layers by
    the student's during the training, see `replacing`.

    Args:
        start: probability in the first step that a layer of the student replaces its group of teacher layers.
        until: fraction of the steps after which this probability, which rises linearly, reaches 1.

    Raises:
        ValueError: the student's layers cannot replace the teacher's.
    """
    check_fractions(start=start, until=until)
    check_replaceable(student, teacher)
    return none(student, teacher, balance=balance)


class Replacement:
    """The replacement schedule: which of the student's layers replace their groups of teacher layers, drawn for each
    batch.

    Each layer is active with a probability that rises linearly from `start` to 1 at the fraction `until` of the steps;
    from then on the student is trained without the teacher's layers. If no layer is drawn that can learn, one is chosen
    at random, since the student would learn nothing from such a batch.

    Args:
        learns: for each of the student's layers whether it can learn: not if it is left out.
        steps: number of batches.
    """

    def __init__(self, learns: Sequence[bool], steps: int, seed: int, start: float, until: float) -> None:
        self.layers, self.steps, self.seed = len(learns), steps, seed
        self.learning = [layer for layer, can_learn in enumerate(learns) if can_learn]
        self.start, self.until = start, until
        self.standing_in = (True,) * self.layers

    def rate(self, step: int) -> float:
        """The probability in step number `step`, counted from 0."""
        progress = step / (self.until * self.steps) if self.until * self.steps else 1.0
        return min(1.0, self.start + (1.0 - self.start) * progress)

    def drawn(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches, drawing the active layers anew before each."""
        for step, batch in enumerate(batches):
            rng = random.Random(f"{self.seed}/{step}")
            standing_in = [rng.random() < self.rate(step) for _ in range(self.layers)]
            standing_in[rng.choice(self.learning)] |= not any(standing_in[layer] for layer in self.learning)
            self.standing_in = tuple(standing_in)
            yield batch


@contextlib.contextmanager
def replacing(student: PreTrainedModel, teacher: PreTrainedModel, replacement: Replacement) -> Iterator[None]:
    """In this context the student, in training mode, uses the teacher's layers wherever its own are not drawn as
    replacement; in evaluation mode it only uses its own layers. Only these are trained: the embeddings and the head are
    copied from the teacher at the start and frozen.

    The teacher is in evaluation mode; the released code keeps its dropout.

    Raises:
        ValueError: student and teacher differ in more than the number of layers, or the student's depth does not divide
            the teacher's.
    """
    check_replaceable(student.config, teacher.config)
    groups = layer_maps.groups(student.config.num_hidden_layers, teacher.config.num_hidden_layers)
    teacher_layers = encoder_layers(teacher)
    family = family_of(student)
    shared = {name: weight for name, weight in teacher.state_dict().items() if not family.split(name)}
    weights = student.state_dict()
    different = [name for name, weight in shared.items() if name not in weights or weights[name].shape != weight.shape]
    if different:
        raise ValueError(
            f"the student's layers take the place of the teacher's: {different[0]} must have the teacher's shape"
        )
    student.load_state_dict(shared, strict=False)
    teacher.eval().requires_grad_(False)
    frozen = [p for name, p in student.named_parameters() if not family.split(name) and p.requires_grad]
    layers = encoder_layers(student)
    for parameter in frozen:
        parameter.requires_grad_(False)
    for index, (layer, group) in enumerate(zip(layers, groups, strict=True)):
        replaced = [teacher_layers[number - 1] for number in group]
        layer.forward = _replaceable_forward(student, teacher, layer, replaced, index, replacement)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward
        for parameter in frozen:
            parameter.requires_grad_(True)


def check_replaceable(student: Any, teacher: Any) -> None:
    """Raise ValueError if layers of a student with this configuration cannot replace the teacher's."""
    students_of = family_of(student).students_of or student.model_type
    if teacher.model_type != students_of:
        raise ValueError(
            f"a student of the type {student.model_type!r} can replace the layers of a plain {students_of!r} model, "
            f"not of a {teacher.model_type!r} one"
        )
    if family_of(teacher).layer_types:
        raise ValueError(
            f"layers of a {teacher.model_type!r} model attend to different tokens, so that they cannot stand in for "
            "one another: choose another objective"
        )
    layer_maps.uniform(student.num_hidden_layers, teacher.num_hidden_layers)
    if not any(_learning(student)):
        raise ValueError("all layers of the student are left out, and nothing else is trained: keep one of them")
    if student.hidden_size != teacher.hidden_size:
        raise ValueError(
            f"the student's layers take the place of the teacher's, but they are {student.hidden_size} wide, not "
            f"{teacher.hidden_size}: take a student of the teacher's width"
        )


def _learning(student: Any) -> list[bool]:
    """For each layer of a student with this configuration whether it can learn."""
    is_ours = family_of(student).students_of is not None
    return [not (is_ours and is_left_out(student, layer)) for layer in range(student.num_hidden_layers)]


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
        kwargs.pop("tokens", None)  # only used by a student's experts; an ordinary layer does not accept it
        implementation = student.config._attn_implementation
        if teacher.config._attn_implementation != implementation:  # masks have the student's format
            teacher.set_attn_implementation(implementation)
        outputs: Any = hidden_BTD
        for teacher_layer in group:  # some families' layers return tuples
            outputs = teacher_layer(outputs[0] if isinstance(outputs, tuple) else outputs, *args, **kwargs)
        return outputs

    return forward


@contextlib.contextmanager
def replaced_layers(
    student: PreTrainedModel, teacher: PreTrainedModel, *, settings: Settings, steps: int, seed: int
) -> Iterator[Callable[[Iterable[Batch]], Iterable[Batch]]]:
    """The training context of `theseus`, see `distill.objectives.spec.TrainingContext`."""
    start, until = float(settings["start"]), float(settings["until"])
    replacement = Replacement(_learning(student.config), steps, seed, start, until)
    with replacing(student, teacher, replacement):
        yield replacement.drawn

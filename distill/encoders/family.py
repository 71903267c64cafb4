"""Which family a model, a configuration or a state dict is of, and the names that only students have."""

import re
from collections.abc import Iterable
from typing import Any

from distill.encoders.student.anatomy import Family
from distill.encoders.student.families import FAMILIES
from foundation.errors import UserError

# Names in a layer that only students have: the gates of a block ("{}" is its number) and of the attention, and the
# routing table; and the prefix of the names in a head of experts.
BLOCK_GATE, ATTENTION_GATE, TABLE = "ffn.{}.router.weight", "attention.router.weight", "router.table"
EXPERT_HEAD = "classifier."
_IN_BLOCK = re.compile(r"ffn\.(\d+)\.(\w+)\.(\w+)")


class FamilyError(UserError, ValueError):
    """An encoder is of no known family, or not what its family says."""


def in_block(inside: str) -> tuple[int, str, str] | None:
    """The block, the module and the tensor of a name in a student's layer, such as (1, "expand", "weight"); None for
    what is in no block.
    """
    match = _IN_BLOCK.fullmatch(inside)
    return (int(match[1]), match[2], match[3]) if match else None


def decoders() -> tuple[str, ...]:
    """The output embeddings of masked language models, which may be tied to the word embedding."""
    return tuple({family.decoder: None for family in FAMILIES.values()})


def supported(students: bool = False) -> tuple[str, ...]:
    """The model types that are supported, with those of our own students or without."""
    return tuple(name for name, family in FAMILIES.items() if students or family.students_of is None)


def family_of(model: Any) -> Family:
    """The family of a model or of a Hugging Face configuration.

    Raises:
        FamilyError: it is not supported.
    """
    model_type = getattr(model, "config", model).model_type
    if model_type not in FAMILIES:
        raise FamilyError(f"encoders of type {model_type!r} are not supported: use one of {', '.join(supported())}")
    return FAMILIES[model_type]


def windows_of(config: Any) -> tuple[int | None, ...]:
    """For every layer of a model with this configuration how far from its own position a token attends; None: to all
    tokens.
    """
    if not family_of(config).layer_types:
        return (None,) * config.num_hidden_layers
    return tuple(config.sliding_window if kind == "sliding_attention" else None for kind in config.layer_types)


def family_of_weights(names: Iterable[str]) -> Family:
    """The first family of students whose paths fit parameters with these names. It may be another one than the model's
    with the same paths: only these count, and what follows from them, as `slices`.

    Raises:
        FamilyError: there is none.
    """
    names = tuple(names)
    students = [family for family in FAMILIES.values() if family.students_of]
    insides = {family.layers: {parts[2] for name in names if (parts := family.split(name))} for family in students}
    # Families with the same paths in layers may have their words elsewhere. A part of the weights may be without words.
    students.sort(key=lambda family: not any(name.endswith(f"{family.words}.weight") for name in names))
    # An attention without heads has only the output's bias.
    for path in ("query", "output", "project"):
        for family in students:
            module = f"{getattr(family, path)}.".format(0)
            if any(inside.startswith(module) for inside in insides[family.layers]):
                return family
    raise FamilyError("these are not the weights of a student")

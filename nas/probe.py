"""Say whether the parts of an encoder are where its type has them; if its type is not supported, find one like it.

    python -m nas.probe CHECKPOINT

The model is compared with the supported types: whether it has the modules and settings of such a type; whether it
computes what it should with some of its heads or channels, and with its FFNs replaced; whether its student computes the
same; and whether it has as many parameters as are counted. Computations are compared on one short sentence.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModel

from distill.cli import DONE, Parser, interruptible
from distill.encoders.family import family_of, supported
from distill.encoders.parts import model_inputs
from distill.encoders.student.anatomy import Family
from distill.encoders.student.families import FAMILIES
from distill.encoders.students import add_family
from distill.encoders.verify import TOLERANCE, verify
from distill.training.progress import silence_transformers
from distill.training.teacher import load_config, load_unchanged, locate, read_config
from distill.training.weights import UNREADABLE, load_weights
from foundation.errors import UserError, reason
from foundation.extensions import VARIABLE
from search_spaces import Architecture, cost
from supernet.build import base_of_teacher, from_teacher

VERIFIED = (
    "all parts are where they should be: with some of its heads or channels, with its FFNs replaced, and as a student "
    "the model computes the same, and it has as many parameters as are counted"
)
EXAMPLE = """\
from dataclasses import replace

from distill.encoders.student.families import FAMILIES
from distill.encoders.students import add_family

add_family(replace(FAMILIES["{like}"], model_type="{model_type}"))"""


def probe(source: str) -> str:
    """What was found, in words.

    Raises:
        TeacherError: the model cannot be read.
        UserError: it is built like no supported type.
    """
    model_type = read_config(source).model_type
    if model_type in supported(students=True):
        if teacher := FAMILIES[model_type].students_of:
            return f"{source} is a student of a model of type {teacher!r}; students are not verified"
        model = load_unchanged(source)
        if fault := fault_of(model):
            raise UserError(f"the model {source!r} is of type {model_type!r}, which is supported, but {fault}")
        return f"{source} is of type {model_type!r}, which is supported; {VERIFIED}"
    unlike: dict[str, list[str]] = {}
    for like, fault in _compared(source, model_type):
        if not fault:
            return (
                f"{source} is of type {model_type!r} and is built like {like!r}; {VERIFIED}.\n"
                f"To use it, write this into a module, and name that in {VARIABLE}:\n\n"
                + EXAMPLE.format(like=like, model_type=model_type)
            )
        unlike.setdefault(fault, []).append(like)
    reasons = "".join(f"\n  unlike {', '.join(types)}: {fault}" for fault, types in unlike.items())
    raise UserError(f"the model {source!r} is of type {model_type!r}, which is built like no supported type:{reasons}")


def _compared(source: str, model_type: str) -> Iterator[tuple[str, str]]:
    """Each supported type with what it differs in; "" if in nothing."""
    for like in supported():
        try:
            add_family(replace(FAMILIES[like], model_type=model_type))
            config = load_config(source)
            model, _ = load_weights(AutoModel, locate(source), config)
            yield like, fault_of(model)
        except (UserError, *UNREADABLE) as error:  # such as a setting that this type does not have
            said = reason(error).removeprefix(f"the model {source!r} is damaged: ")
            yield like, said.removeprefix(f"the model {source!r}: ")
        finally:
            for name in (model_type, f"nas_{model_type}"):
                FAMILIES.pop(name, None)


@torch.no_grad()
def fault_of(model: Any) -> str:
    """What in a model is not as its type has it; "" if nothing is."""
    family, encoder = family_of(model), model.base_model.eval()
    there = {path for path, _ in encoder.named_modules(remove_duplicate=False)}
    if missing := [path for path in _paths(family) if path not in there]:
        return f"there is no module {missing[0]!r}"
    try:
        verify(encoder, model.name_or_path)
        base, graph = base_of_teacher(model.config)
        student = from_teacher(encoder, stack=1).eval()
    except UserError as error:
        return str(error)
    counted, pooler = cost.params_encoder(Architecture.uniform(base, graph)), getattr(encoder, "pooler", None)
    found = sum(each.numel() for each in encoder.parameters())
    found -= 0 if pooler is None else sum(each.numel() for each in pooler.parameters())
    if found != counted:
        return f"the encoder has {found:,} parameters, and {counted:,} are counted"
    ids_BT = torch.arange(min(16, family.positions(model.config)))[None] * 7 % model.config.vocab_size
    given = model_inputs(model, {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)})
    states = [each(**given).last_hidden_state for each in (encoder, student)]
    difference, scale = float((states[0] - states[1]).abs().max()), float(states[0].abs().max())
    return "" if difference <= TOLERANCE * scale else f"hidden states of its student differ by {difference:.2g}"


def _paths(family: Family) -> Iterator[str]:
    """The paths of modules in an encoder, those in the lowest layer among them."""
    yield from filter(None, (family.layers, family.embeddings, family.embeddings_norm, family.words, family.final_norm))
    inside = (family.expand, family.project, family.gate, family.norm, family.attention, family.attention_norm)
    maps = {path for maps in family.fused.values() for path in maps}
    for path in filter(None, (*inside, family.self_attention, family.query, family.key, family.value, family.output)):
        if path not in maps:
            yield f"{family.layers}.0.{path}"


def parser() -> Parser:
    result = Parser("nas.probe", description=__doc__)
    result.add_argument("checkpoint", metavar="CHECKPOINT", help="a folder, or a name on the hub")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def run() -> int:
        silence_transformers()
        print(probe(options.checkpoint))
        return DONE

    return interruptible("nas.probe", run)


if __name__ == "__main__":
    sys.exit(main())

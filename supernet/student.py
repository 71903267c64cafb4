"""Build an untrained student of any architecture, for `python -m distill --student`.

    python -m supernet.student ARCH --like CHECKPOINT --out DIR [--fresh] [--seed N]

ARCH is a file or a published name (`python -m nas.inspect`). The student gets the tokenizer and the weights of
CHECKPOINT, an encoder or the folder of a student: the leading inner channels and, if it has fewer layers, the last
layer of each of as many equal groups. With --fresh its weights are random.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from distill.cli import DONE, Parser, interruptible
from distill.command.folder import check_new, write_new
from distill.training.layout import ARCHITECTURE_FILE
from foundation.errors import UserError
from foundation.files import save_pretrained
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.published import load

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# The fields of a base that may differ from the checkpoint's because they do not affect the shapes of inherited weights.
FREE = ("gelu", "mismatch", "depth")


class StudentError(UserError, ValueError):
    """The student cannot be built from this checkpoint."""


def parser() -> Parser:
    result = Parser("supernet.student", description=__doc__)
    result.add_argument("architecture", help="a file, or the name of a published architecture")
    source = "where weights and tokenizer are from: an encoder (a folder, or a name on the hub), or a student's folder"
    result.add_argument("--like", required=True, metavar="CHECKPOINT", help=source)
    result.add_argument("--out", type=Path, required=True, help="folder of the student")
    result.add_argument("--fresh", action="store_true", help="start from random weights instead of the checkpoint's")
    result.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("supernet.student", lambda: run(options))


def run(options: argparse.Namespace) -> int:
    """Build the student and save it."""
    architecture = load(options.architecture)
    check_new(options.out)

    import torch

    from distill.encoders.family import family_of
    from distill.training.progress import silence_transformers
    from distill.training.teacher import labels_of, load_config, load_model, load_tokenizer
    from supernet.build import build, check_exportable

    silence_transformers()

    check_exportable(architecture)
    torch.manual_seed(options.seed)
    config = load_config(options.like, students=True)
    tokenizer = load_tokenizer(options.like)
    if architecture.base.vocabulary < len(tokenizer):
        raise StudentError(
            f"the architecture has {architecture.base.vocabulary:,} tokens and the tokenizer of {options.like} "
            f"{len(tokenizer):,}: change base.vocabulary"
        )
    labels = labels_of(config) or [str(number) for number in range(config.num_labels)]
    if options.fresh:
        student = build(architecture, num_labels=len(labels), template=config)
    else:
        model = load_model(options.like, labels)
        stored = stored_architecture(Path(options.like)) if family_of(config).students_of else None
        student = inheriting(architecture, model, options.seed, stored)

    def write(folder: Path) -> None:
        save_pretrained(folder, student, tokenizer)
        architecture.save(folder / ARCHITECTURE_FILE)

    write_new(options.out, write)
    count = sum(parameter.numel() for parameter in student.parameters())
    print(f"wrote {options.out}: {count / 1e6:.2f} M parameters")
    return DONE


def stored_architecture(folder: Path) -> Architecture:
    """The architecture of a checkpoint that this project has written.

    Raises:
        StudentError: the folder does not have it.
        ArchitectureError: it cannot be read.
    """
    file = folder / ARCHITECTURE_FILE
    if not file.exists():
        raise StudentError(f"--like {folder}: there is no {ARCHITECTURE_FILE}, which says what its weights are")
    return Architecture.load(file)


def inheriting(
    architecture: Architecture, teacher: "PreTrainedModel", seed: int = 0, stored: Architecture | None = None
) -> "PreTrainedModel":
    """A student that inherits the weights of an encoder or of another student.

    Args:
        seed: seed for routing tables, gates and heads of experts.
        stored: the architecture of `teacher`; None if it is no student.

    Raises:
        StudentError: the bases differ in fields other than `FREE`, the student's depth does not divide the teacher's,
            or a layer of the student has more blocks or channels, or experts where `teacher` has other ones.
    """
    from distill.objectives.layer_maps import uniform
    from distill.training.students import some_layers
    from supernet.build import base_of_teacher, build, from_teacher
    from supernet.inherit import inherit

    if stored == architecture:
        return teacher
    base = stored.base if stored else base_of_teacher(teacher.config)[0]
    actual, expected = fixed_values(architecture.base), fixed_values(base.with_gates_of(architecture.base))
    for name, value in actual.items():
        if value != expected[name]:
            raise StudentError(
                f"base.{name} is {value}, the checkpoint's {expected[name]}: "
                "start from random weights (--fresh), or change the architecture"
            )
    depth = architecture.base.depth
    try:
        if depth != base.depth:
            teacher = some_layers(teacher, [layer - 1 for layer in uniform(depth, base.depth)])
        source = teacher if stored else from_teacher(teacher, stack=1)
        weights = inherit(source.state_dict(), architecture, seed=seed)
    except ValueError as error:
        raise StudentError(f"{error}; or start from random weights (--fresh)") from None
    student = build(architecture, num_labels=teacher.config.num_labels, template=teacher.config, weights=weights)
    return student


def fixed_values(base: Base) -> dict[str, object]:
    """The fields of a base that must agree with the checkpoint's."""
    return {name: value for name, value in asdict(base).items() if name not in FREE}


if __name__ == "__main__":
    sys.exit(main())

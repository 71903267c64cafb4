"""Distil a student on a task, or on text.

    python -m distill --teacher MODEL --student MODEL|first:N|uniform:N --objective NAME --task NAME --out DIR
    python -m distill ... --task NAME --data DIR
    python -m distill ... --train FILE --dev FILE --text COLUMN --label COLUMN [--pair COLUMN]
    python -m distill ... --corpus FILE|DIR|NAME ... [--pack] [--masked-lm]

The teacher must have been fine-tuned on the task, or is so first (--finetune-teacher). With --assistant the student
learns from an assistant, which learns from the teacher. Scores are of the whole dev split.
"""

import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Slow imports are inside functions, where Ctrl-C is caught.
from distill.choices import OBJECTIVES, TASKS, columns, listing, objectives
from distill.cli import (
    Parser,
    add_device_option,
    add_output_options,
    add_precision_option,
    called_as,
    interruptible,
)
from distill.command.options import add_rows_options
from distill.training.progress import loading
from search_spaces.errors import UserError


def parser() -> Parser:
    epilog = f"objectives (--objective):\n{columns(OBJECTIVES)}\n\ntasks (--task):\n{columns(TASKS)}"
    result = Parser(prog="distill", description=__doc__, epilog=epilog, formatter_class=RawDescriptionHelpFormatter)
    result.usage = f"{called_as('python -m distill')} --student MODEL --out DIR [option ...]"
    add = result.add_argument
    add("--student", required=True, metavar="MODEL", help="a checkpoint, or the teacher's first:N or uniform:N layers")
    add("--teacher", metavar="MODEL", help="an encoder: a folder, or a name on the hub")
    add(
        "--assistant",
        action="append",
        default=[],
        metavar="MODEL",
        help="a model between teacher and student, given like --student; may be repeated",
    )
    add(
        "--objective",
        action=listing(objectives),
        default="kd",
        metavar="NAME",
        help="name of the objective; '?' lists all (default: %(default)s)",
    )
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the objective; '?' lists all")
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder for the student and metrics.json")
    add("--resume", action="store_true", help="continue the interrupted run in --out")
    rows = result.add_argument_group("rows")
    add_rows_options(rows, own_rows_of_a_task=True)
    add = rows.add_argument
    add(
        "--corpus",
        nargs="+",
        metavar="TEXT",
        help="text without labels, one source or several: a .txt file, a folder of such files, or a hub data set",
    )
    add("--pack", action="store_true", help="put paragraphs of --corpus together to rows of --max-length tokens")
    add("--masked-lm", action="store_true", help="also learn to predict masked words of --corpus")
    training = result.add_argument_group("training")
    add = training.add_argument
    add("--steps", type=int, default=1000, metavar="N", help="training steps, a batch each (default: %(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="rows per batch (default: %(default)s)")
    add("--learning-rate", type=float, default=5e-5, metavar="X", help="peak learning rate (default: %(default)s)")
    add(
        "--warmup",
        type=float,
        default=0.1,
        metavar="X",
        help="share of steps in which the rate rises (default: %(default)s)",
    )
    add("--weight-decay", type=float, default=0.01, metavar="X", help="weight decay of AdamW (default: %(default)s)")
    add("--freeze-embeddings", action="store_true", help="do not train the word embeddings")
    add(
        "--finetune-teacher",
        type=int,
        default=0,
        metavar="STEPS",
        help="first fine-tune the teacher on the rows for so many steps",
    )
    add(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of new parameters, batch order and dropout (default: %(default)s)",
    )
    add_device_option(training)
    add_precision_option(training)
    add("--tensorboard", type=Path, metavar="DIR", help="log the losses for TensorBoard in this folder")
    add_output_options(result, "the content of metrics.json")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("distill", lambda: command(options), "add --resume to go on")


def command(options: Any) -> int:
    """Check the options, then run the chain.

    Raises:
        UserError: the options are invalid, or the models, rows and settings are incompatible.
    """
    from distill.command.options import check, check_models, objective_settings, recorded

    check(options, parser())
    with loading(options.quiet):
        settings = objective_settings(options)  # imports torch, which takes seconds
        check_models(options, settings)
    if options.tensorboard is not None:
        try:
            options.tensorboard.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--tensorboard {options.tensorboard}: {error.strerror}") from None
    with loading(options.quiet):
        from safetensors import SafetensorError

        from distill.command.chain import run

    try:
        return run(options, settings, recorded(options))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--out {options.out}: {reason}; free some space there and add --resume") from error


if __name__ == "__main__":
    sys.exit(main())

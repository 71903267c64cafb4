"""Split a fine-tuned dense BERT into a mixture of experts (MoEBERT), or prune the experts of a mixture.

    python -m supernet.experts CHECKPOINT --experts 4 --out DIR [--width 768] [--shared 512] [--steps 500] ...
    python -m supernet.experts MIXTURE --drop 1/4 --out DIR ...

The first form splits the FFNs of an encoder, which was fine-tuned on the task, by the importance of their
channels on training rows. With --steps or --epochs the mixture then learns from the dense model, as by `python -m
distill --objective moebert`. The second form takes a checkpoint that the first one has written. Both report the task's
metrics on the dev rows before and after, and the load of the experts.
"""

import argparse
import math
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from distill.cli import Parser, ParserOrGroup, interruptible
from distill.command.folder import check_new
from distill.command.options import (
    add_importance_option,
    add_recipe_options,
    add_rows_options,
    add_run_options,
    check_labeled_rows,
    check_minima,
    check_out,
    check_recipe,
)
from search_spaces.base import GATE_SCALES
from search_spaces.numbers import fraction
from search_spaces.routing import ROUTINGS
from supernet.experts import ExpertsError

SPLITS = ("importance", "random", "inverse", "copy")


def parser() -> Parser:
    result = Parser("supernet.experts", description=__doc__)
    result.add_argument("checkpoint", help="a fine-tuned model: a folder, or a name on the hub")
    result.add_argument("--out", type=Path, required=True, metavar="DIR", help="empty or new folder of the checkpoint")
    result.add_argument("--resume", action="store_true", help="continue the interrupted training in --out")
    _add_split_options(result.add_argument_group("splitting"))
    _add_pruning_options(result.add_argument_group("pruning experts"))
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    add_importance_option(rows)
    training = result.add_argument_group("distillation (MoEBERT's objective, from the checkpoint itself)")
    add_recipe_options(training, steps=0)
    add = training.add_argument
    add("--dropout", type=float, metavar="X", help="of the mixture in training (default: the checkpoint's)")
    add("--distill", type=float, default=1.0, metavar="X", help="MoEBERT's lambda; 0 trains on the labels alone")
    add("--layers", default="all", choices=["all", "alternate", "last"], help="layers whose states are compared")
    add("--balance", type=float, default=0.01, metavar="X", help="weight of the gates' load balance")
    released = "let padding take part in the losses, as in the released code"
    add("--paper-compatible", action="store_true", help=released)
    add_run_options(result, "everything random")
    result.set_defaults(corpus=None)  # rows are those of `distill`, where they may also be text without labels
    return result


def _add_split_options(split: ParserOrGroup) -> None:
    add = split.add_argument
    add("--experts", type=int, metavar="N", help="number of experts of every FFN")
    add("--width", type=int, metavar="N", help="inner channels per expert (default: the FFN's width / experts)")
    add("--shared", type=int, metavar="N", help="channels that all experts share (default: 2/3 of the width)")
    order = "order in which channels go to the experts (default: %(default)s)"
    add("--split", default="importance", choices=SPLITS, help=order)
    add("--routing", default="hash", choices=ROUTINGS, help="how experts are chosen (default: %(default)s)")
    add("--top-k", type=int, default=1, metavar="N", help="experts per token (default: %(default)s)")
    capacity = "limit on an expert's tokens, such as 1.25 times an equal load (default: none)"
    add("--capacity", type=_ratio, metavar="X", help=capacity)
    attention = "attention experts of every layer, chosen by a gate"
    add("--attention-experts", type=int, default=1, metavar="N", help=attention)
    head = "prediction layers of the head (MicroBERT), chosen by a gate; they start random, so give --steps"
    add("--head-experts", type=int, default=1, metavar="N", help=head)
    scale = (
        "multiply outputs by a gate's probability relative to an equal one, so that the mixture starts close to the "
        "dense model, or by the probability alone as MoEBERT (default: %(default)s)"
    )
    add("--gate-scale", default="relative", choices=GATE_SCALES, help=scale)


def _add_pruning_options(pruning: ParserOrGroup) -> None:
    add = pruning.add_mutually_exclusive_group().add_argument
    add("--drop", type=_ratio, metavar="X", help="drop experts whose load is below this fraction of an equal load")
    add("--fuse", type=_ratio, metavar="X", help="instead fuse such experts with the one that is most similar")
    part = "whose experts are pruned: the FFNs', or the prediction layers of the head (default: %(default)s)"
    pruning.add_argument("--part", default="ffn", choices=["ffn", "head"], help=part)


def _ratio(text: str) -> Fraction:
    try:
        ratio = fraction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < ratio <= 64:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 64, not {text!r}")
    return ratio


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        from supernet.experts import run  # imports torch, which takes seconds

        return run.split(options) if options.experts is not None else run.prune(options)

    resumable = options.experts is not None
    return interruptible("supernet.experts", command, "add --resume to continue" if resumable else "start it again")


def check(options: argparse.Namespace) -> None:
    """Raise UserError for invalid options, before anything is loaded."""
    prunes = options.drop is not None or options.fuse is not None
    if prunes == (options.experts is not None):
        raise ExpertsError("give --experts N to split a dense checkpoint, or --drop or --fuse to prune a mixture")
    if options.part != "ffn" and not prunes:
        raise ExpertsError(
            f"--part {options.part}: says what --drop and --fuse prune; add one of these, or leave it out"
        )
    check_labeled_rows(options, parser())
    check_minima(options, importance_batches=0)
    check_recipe(options, parser())
    for name in ("distill", "balance"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ExpertsError(f"--{name}: must be a finite number of at least 0, not {getattr(options, name)}")
    if options.dropout is not None and not 0 <= options.dropout < 1:
        raise ExpertsError(f"--dropout: must be at least 0 and below 1, not {options.dropout}")
    if prunes:
        check_new(options.out)
    else:
        check_out(options)

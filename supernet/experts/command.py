"""Turn a dense BERT into a mixture of experts (MoEBERT), or thin out the experts of a mixture.

    python -m supernet.experts CHECKPOINT --experts 4 --out DIR [--width 768] [--shared 512] [--steps 500] ...
    python -m supernet.experts MIXTURE --drop 1/4 --out DIR ...

The first form takes an encoder that was fine-tuned on the task. Its FFNs are split by the importance of their
channels on training rows, and with --steps or --epochs the mixture is then distilled from the dense model. The second
form takes a checkpoint that the first one has written. Both report the task's metrics on the dev rows before and after,
and the load of the experts.
"""

import argparse
import json
import math
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from distill.cli import DONE, Parser, ParserOrGroup, add_device_option, add_precision_option, interruptible
from distill.command.options import add_rows_options, check_labelled_rows, check_new, check_numbers, write_new
from distill.files import save_pretrained
from search_spaces.base import GATE_SCALES
from search_spaces.numbers import fraction
from search_spaces.routing import ROUTINGS
from supernet.experts import ExpertsError

# torch and transformers are imported lazily, so that --help and user errors do not wait for them.
if TYPE_CHECKING:
    from accelerate import Accelerator

    from distill.command.rows import Rows
    from distill.training.evaluation import Load
    from supernet.experts.stages import Stage

SPLITS = ("importance", "random", "inverse", "copy")


def parser() -> Parser:
    result = Parser(prog="supernet.experts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("checkpoint", help="a fine-tuned model: a folder, or a name on the hub")
    result.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    _add_split_options(result.add_argument_group("splitting"))
    _add_thinning_options(result.add_argument_group("thinning out"))
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    rows.add_argument(
        "--importance-batches",
        type=int,
        default=16,
        help="training batches on which the importance is measured (default: %(default)s)",
    )
    _add_training_options(result.add_argument_group("distillation (MoEBERT's objective, from the checkpoint itself)"))
    result.add_argument("--seed", type=int, default=0, help="seed of everything random (default: %(default)s)")
    result.set_defaults(corpus=None)  # rows are those of `distill`, where they may also be text without labels
    add_device_option(result)
    add_precision_option(result)
    return result


def _add_split_options(split: ParserOrGroup) -> None:
    split.add_argument("--experts", type=int, help="number of experts of every FFN")
    split.add_argument("--width", type=int, help="inner channels per expert (default: the FFN's width / experts)")
    split.add_argument("--shared", type=int, help="channels that all experts share (default: 2/3 of the width)")
    split.add_argument(
        "--split",
        default="importance",
        choices=SPLITS,
        help="order in which channels go to the experts (default: %(default)s)",
    )
    split.add_argument(
        "--routing", default="hash", choices=ROUTINGS, help="how experts are chosen (default: %(default)s)"
    )
    split.add_argument("--top-k", type=int, default=1, help="experts per token (default: %(default)s)")
    split.add_argument(
        "--capacity", type=_ratio, help="limit on an expert's tokens, such as 1.25 times an equal share (default: none)"
    )
    split.add_argument(
        "--attention-experts", type=int, default=1, help="attention experts of every layer, chosen by a gate"
    )
    split.add_argument(
        "--head-experts",
        type=int,
        default=1,
        help="prediction layers of the head (MicroBERT), chosen by a gate; they start random, so give --steps",
    )
    split.add_argument(
        "--gate-scale",
        default="relative",
        choices=GATE_SCALES,
        help="multiply outputs by a gate's probability relative to an equal one, so that the mixture starts close to "
        "the dense model, or by the probability alone as MoEBERT (default: %(default)s)",
    )


def _add_thinning_options(thinning: ParserOrGroup) -> None:
    thin = thinning.add_mutually_exclusive_group()
    thin.add_argument(
        "--drop", type=_ratio, metavar="SHARE", help="drop experts whose load is below this part of an equal share"
    )
    thin.add_argument(
        "--fuse", type=_ratio, metavar="SHARE", help="instead fuse such experts with the one that is most similar"
    )
    thinning.add_argument(
        "--part",
        default="ffn",
        choices=["ffn", "head"],
        help="whose experts --drop and --fuse remove: the FFNs', or the prediction layers of the head (default: "
        "%(default)s)",
    )


def _add_training_options(train: ParserOrGroup) -> None:
    train.add_argument("--steps", type=int, default=0, help="training steps, a batch each (default: %(default)s)")
    train.add_argument("--epochs", type=float, help="in place of --steps: passes over the training rows")
    train.add_argument("--batch-size", type=int, default=32, help="rows per batch (default: %(default)s)")
    train.add_argument("--learning-rate", type=float, default=5e-5, help="peak learning rate (default: %(default)s)")
    train.add_argument(
        "--warmup",
        type=float,
        default=0.1,
        help="share of steps in which the rate rises; MoEBERT has 0 (default: %(default)s)",
    )
    train.add_argument("--weight-decay", type=float, default=0.01, help="weight decay of AdamW (default: %(default)s)")
    train.add_argument("--dropout", type=float, help="of the mixture in training (default: the checkpoint's)")
    train.add_argument("--distill", type=float, default=1.0, help="MoEBERT's lambda; 0 trains on the labels alone")
    train.add_argument(
        "--layers", default="all", choices=["all", "alternate", "last"], help="layers whose states are compared"
    )
    train.add_argument("--balance", type=float, default=0.01, help="weight of the gates' load balance")
    train.add_argument(
        "--paper-compatible", action="store_true", help="let padding take part in the losses, as in the released code"
    )


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
        return run(options)

    return interruptible("supernet.experts", command)


def check(options: argparse.Namespace) -> None:
    """Raise UserError for invalid options, before anything is loaded."""
    thins = options.drop is not None or options.fuse is not None
    if thins == (options.experts is not None):
        raise ExpertsError("give --experts N to split a dense checkpoint, or --drop or --fuse to thin out a mixture")
    if options.part != "ffn" and not thins:
        raise ExpertsError(
            f"--part {options.part}: says what --drop and --fuse remove; add one of these, or leave it out"
        )
    check_labelled_rows(options, parser())
    check_numbers(options, steps=0, seed=0, batch_size=1, importance_batches=1, max_length=8)
    if options.epochs is not None:
        if options.steps:
            raise ExpertsError("--epochs says how long the training is in place of --steps: leave one of them out")
        if not 0 < options.epochs <= 10_000:
            raise ExpertsError(f"--epochs: must be above 0 and at most 10,000, not {options.epochs}")
    for name in ("distill", "balance"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ExpertsError(f"--{name}: must be a finite number of at least 0, not {getattr(options, name)}")
    if options.dropout is not None and not 0 <= options.dropout < 1:
        raise ExpertsError(f"--dropout: must be at least 0 and below 1, not {options.dropout}")
    check_new(options.out)


def run(options: argparse.Namespace) -> int:
    """Split the model or remove experts, evaluate it at every stage, and save the last one with its measurements."""
    import torch
    from rich.console import Console
    from transformers.utils import logging

    from distill.command.report import METRICS_FILE
    from distill.command.rows import check_sizes, load_rows
    from distill.tasks.metrics import Score
    from distill.training.loop import make_accelerator
    from distill.training.teacher import labels_of, load_config, load_tokenizer
    from supernet.experts.stages import ARCHITECTURE, split_and_train, thin_out

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    console = Console(highlight=False, soft_wrap=True)
    accelerator = make_accelerator(options.device, options.mixed_precision)
    torch.manual_seed(options.seed)
    thins = options.experts is None
    config = load_config(options.checkpoint, students=thins)
    tokenizer = load_tokenizer(options.checkpoint)
    rows = load_rows(options, tokenizer, labels_of(config))
    check_sizes(options, config, options.checkpoint, rows, tokenizer)
    assert rows.task is not None and rows.split is not None
    if options.head_experts > 1 and not rows.task.type.head.pooled:
        raise ExpertsError(
            f"--head-experts {options.head_experts}: heads for {rows.kind} predict from single tokens; only those that "
            "predict from whole sentences can have experts"
        )
    stages = (thin_out if thins else split_and_train)(options, rows, accelerator)
    measurements = {}
    for stage in stages:
        measurement, loads = measure_stage(stage, rows, accelerator, tokenizer.pad_token_id)
        measurements[stage.name] = measurement | {"expert_load": [load.to_json() for load in loads]}
        scores = (f"{name} {Score(**measurement[name])}, " for name in rows.task.metrics)
        console.print(
            f"{stage.name}: {''.join(scores)}"
            f"{measurement['params'] / 1e6:.2f} M parameters, {measurement['params_active'] / 1e6:.2f} M of them "
            f"active, {measurement['macs'] / 1e9:.2f} G MACs for 128 tokens"
        )
        for load in loads:
            console.print(f"  {load}")
        if stage.note:
            console.print(f"  {stage.note}")
    used_options = {name: str(value) for name, value in vars(options).items() if value is not None}
    report = {"dev_rows": len(rows.split), "options": used_options, "models": measurements}

    def write(folder: Path) -> None:
        save_pretrained(folder, stage.model, tokenizer)
        stage.architecture.save(folder / ARCHITECTURE)
        (folder / METRICS_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    write_new(options.out, write)
    console.print(f"wrote {options.out}")
    return DONE


def measure_stage(
    stage: "Stage", rows: "Rows", accelerator: "Accelerator", pad_id: int
) -> tuple[dict[str, Any], "list[Load]"]:
    """The metrics of a model on the dev rows with their standard errors, its sizes and MACs; and its routers' loads."""
    from distill.command.report import measure
    from distill.training.evaluation import expert_load
    from search_spaces import cost

    assert rows.task is not None
    head, labels = rows.task.type.head, len(rows.labels)
    measurement = measure(stage.model, rows, accelerator, pad_id) | {
        "params_active": cost.params_active(stage.architecture, labels, head),
        "macs": cost.macs(stage.architecture, labels=labels, head=head),
    }
    return measurement, expert_load(stage.model, rows.dev_batches(pad_id), accelerator=accelerator)

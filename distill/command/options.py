"""The options of the commands that train or prune a model, and the checks of them that need neither weights nor
examples.
"""

import math
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from distill.choices import listing, tasks
from distill.cli import Parser, ParserOrGroup, add_device_option, add_output_options, add_precision_option
from distill.command.folder import check_new, check_resumed, contents_of
from distill.defaults import BATCH_SIZE, LABEL, LEARNING_RATE, MAX_LENGTH, TEXT
from distill.tasks.splits import CUT, THRESHOLD, LongTexts
from distill.training.layout import OPTIONS_FILE
from foundation.errors import UserError, shortened

if TYPE_CHECKING:
    from distill.training.recipe import Recipe

# Options that may differ when a run is resumed.
FREE = ("resume", "device", "tensorboard", "quiet", "json")
# Options that only apply to a user's own files.
OF_OWN_ROWS = ("dev", "text", "pair", "label", "regression", "multi_label", "metric", "threshold", "class_weights")


def add_rows_options(parser: ParserOrGroup, own_rows_of_a_task: bool = False) -> None:
    """Add the options that say on which labeled rows a command trains and measures scores, and their length.

    Args:
        own_rows_of_a_task: whether `--train` may be combined with `--task`.
    """
    add_training_rows_options(parser, own_rows_of_a_task)
    add = parser.add_argument
    unless = ", unless there is a --task" if own_rows_of_a_task else ""
    measured = f"labeled rows to measure the scores on, in a format of --train; required with --train{unless}"
    add("--dev", type=Path, metavar="FILE", help=measured)
    add("--multi-label", action="store_true", help="the labels of --train are lists of any number of classes")
    probability = "probability from which a class is predicted with --multi-label (default: %(default)s)"
    add("--threshold", type=float, default=THRESHOLD, metavar="X", help=probability)
    weights = "weights of classes in the loss with labels: inverse to how often they occur, or 1 for those not named"
    add("--class-weights", type=_class_weights, metavar="balanced|NAME=X,...", help=weights)
    score = (
        "score of --train's rows, such as f1_macro or matthews (default: accuracy, Spearman's correlation of numbers, "
        "or f1_micro with --multi-label)"
    )
    add("--metric", metavar="NAME", help=score)
    length = "longer rows are truncated to N tokens (default: %(default)s)"
    add("--max-length", type=int, default=MAX_LENGTH, metavar="N", help=length)
    long = "of longer single texts, read the beginning, both ends, or all in overlapping windows (default: %(default)s)"
    add("--long-texts", choices=get_args(LongTexts), default=CUT, help=long)


def _class_weights(text: str) -> str | dict[str, float]:
    if text == "balanced":
        return text
    try:
        weights = {name.strip(): float(value) for name, _, value in (part.rpartition("=") for part in text.split(","))}
    except ValueError:
        weights = {}
    if not weights or "" in weights or not all(0 < weight < math.inf for weight in weights.values()):
        raise ArgumentTypeError(f"{shortened(text)} is neither balanced nor NAME=X,... with weights above 0")
    return weights


def add_training_rows_options(parser: ParserOrGroup, own_rows_of_a_task: bool = False) -> None:
    """Add those of `add_rows_options` that say which labeled rows a command trains on or augments."""
    add = parser.add_argument
    instead = "; with --task, they replace its training rows" if own_rows_of_a_task else ""
    formats = f"your own labeled rows: .tsv, .csv, .jsonl or .parquet, with column names{instead}"
    files = "folder of the task's official files (default: downloaded from the hub)"
    add("--task", action=listing(tasks), metavar="NAME", help="name of the task; '?' lists all")
    add("--data", type=Path, metavar="DIR", help=files)
    add("--train", type=Path, metavar="FILE", help=formats)
    add("--text", default=TEXT, metavar="COLUMN", help="column of the (first) sentence (default: %(default)s)")
    add("--pair", metavar="COLUMN", help="column of the second sentence, if there are pairs")
    add("--label", default=LABEL, metavar="COLUMN", help="column of the class or number (default: %(default)s)")
    add("--regression", action="store_true", help="the labels of --train are numbers, not classes")


def add_importance_option(parser: ParserOrGroup) -> None:
    of = "training batches on which the importance is measured; 0: every training row once (default: %(default)s)"
    parser.add_argument("--importance-batches", type=int, default=16, metavar="N", help=of)


def add_batch_size_option(parser: ParserOrGroup) -> None:
    of = "rows per batch (default: %(default)s)"
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="N", help=of)


def add_recipe_options(parser: ParserOrGroup, steps: int) -> None:
    """Add the options of a training's recipe; `steps` is the default of `--steps`."""
    add = parser.add_argument
    rise = "fraction of the steps in which the rate rises (default: %(default)s)"
    add("--steps", type=int, default=steps, metavar="N", help="training steps, a batch each (default: %(default)s)")
    add("--epochs", type=float, metavar="X", help="passes over the training rows; cannot be combined with --steps")
    add_batch_size_option(parser)
    peak = "peak learning rate (default: %(default)s)"
    add("--learning-rate", type=float, default=LEARNING_RATE, metavar="X", help=peak)
    add("--warmup-ratio", type=float, default=0.1, metavar="X", help=rise)
    add("--weight-decay", type=float, default=0.01, metavar="X", help="weight decay of AdamW (default: %(default)s)")
    add("--freeze-embeddings", action="store_true", help="do not train the word embeddings")
    logs = "log the losses for TensorBoard in this folder"
    add("--tensorboard", type=Path, metavar="DIR", help=logs)


def add_run_options(parser: ParserOrGroup, seed_of: str) -> None:
    """Add `--seed`, which is that of `seed_of`, and the options of device, precision and output."""
    parser.add_argument("--seed", type=int, default=0, metavar="N", help=f"seed of {seed_of} (default: %(default)s)")
    add_device_option(parser)
    add_precision_option(parser)
    add_output_options(parser, "the content of metrics.json")


def recipe_of(options: Any, rows: int) -> "Recipe":
    """The recipe that the options of `add_recipe_options` give for a training on this many rows."""
    from distill.training.recipe import Recipe, steps_of_epochs

    steps = options.steps if options.epochs is None else steps_of_epochs(options.epochs, rows, options.batch_size)
    names = ("batch_size", "learning_rate", "warmup_ratio", "weight_decay", "freeze_embeddings")
    return Recipe(steps=steps, **{name: getattr(options, name) for name in names})


def flag(name: str) -> str:
    """The option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def recorded(options: Any) -> dict[str, Any]:
    """The options that determine the results, as JSON values."""
    plain = (str, int, float, list, dict, type(None))  # bool is an int
    values = {name: value for name, value in vars(options).items() if name not in FREE}
    return {name: value if isinstance(value, plain) else str(value) for name, value in values.items()}


def check_rows(options: Any, parser: Parser) -> None:
    """Raise UserError unless rows are given by one of the ways of `python -m distill`."""
    sources = [name for name in ("task", "train", "corpus") if getattr(options, name) is not None]
    if len(sources) != 1 and sources != ["task", "train"]:
        raise UserError(
            "name the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT; only --task and "
            "--train can be combined, to train on other rows than the task's"
        )
    source = sources[0]
    if sources == ["task", "train"]:
        for name in ("dev", "regression", "multi_label"):
            if getattr(options, name):
                raise UserError(f"{flag(name)} cannot be combined with --task {options.task}: leave one of them out")
    if options.pack and source != "corpus":
        raise UserError("--pack joins paragraphs of --corpus TEXT: add --corpus, or leave out --pack")
    if options.long_texts != CUT and source == "corpus":
        raise UserError("--long-texts is for rows with labels, and --corpus has none: leave it out")
    if options.masked_lm and source != "corpus":
        raise UserError("--masked-lm masks words of --corpus TEXT: add --corpus, or leave out --masked-lm")
    _check_files(options, parser)
    if options.finetune_teacher and source == "corpus" and not options.masked_lm:
        raise UserError("--finetune-teacher needs labels, and --corpus has none: leave it out, or add --masked-lm")


def check_labeled_rows(options: Any, parser: Parser) -> None:
    """Raise UserError unless there is either a task or a file of the user's own, with the options that belong to it."""
    if options.task is None and options.train is None:
        raise UserError("name the rows by --task NAME, or by --train FILE and --dev FILE")
    if options.task is not None and options.train is not None:
        raise UserError(f"--train cannot be combined with --task {options.task}: leave one of them out")
    _check_files(options, parser)


def _check_files(options: Any, parser: Parser) -> None:
    if options.data is not None and options.task is None:
        raise UserError("--data is the folder of the files of a --task: add --task, or leave out --data")
    if options.train is not None and options.task is None and options.dev is None:
        raise UserError("--train needs --dev FILE: scores are not measured on training rows")
    if options.train is None:
        check_own_rows(options, parser, OF_OWN_ROWS)
    if options.regression and options.multi_label:
        raise UserError("--regression cannot be combined with --multi-label: leave one of them out")
    if options.regression and options.class_weights is not None:
        raise UserError("--class-weights: the rows of --regression have no classes; leave it out")
    if not 0 < options.threshold < 1:
        raise UserError(f"--threshold: must be between 0 and 1, not {options.threshold}")
    if options.threshold != THRESHOLD and not options.multi_label:
        raise UserError("--threshold is for rows with any number of classes: add --multi-label, or leave it out")


def check_own_rows(options: Any, parser: Parser, names: Iterable[str]) -> None:
    """Raise UserError for those of these options that are given although they describe the rows of `--train`."""
    for name in names:
        if getattr(options, name) != parser.get_default(name):
            raise UserError(f"{flag(name)} describes the rows of --train FILE; add --train, or leave it out")


def check_minima(options: Any, **minima: int) -> None:
    """Raise UserError for whole numbers below these minima, or too large."""
    for name, minimum in minima.items():
        value, bound = getattr(options, name), 2**32 if name == "seed" else 2**31
        if not isinstance(value, int):
            raise UserError(f"{flag(name)}: must be a whole number, not {shortened(value)}")
        if value < minimum:
            raise UserError(f"{flag(name)}: must be at least {minimum}, not {value}")
        if value >= bound:
            raise UserError(f"{flag(name)}: must be below {bound:,}, not {value:,}")


def check_recipe(options: Any, parser: Parser) -> None:
    """Raise UserError for options of a recipe out of their range, and for a folder of logs that cannot be made."""
    check_minima(options, steps=0, seed=0, batch_size=1, max_length=8)
    if options.epochs is not None:
        if options.steps != parser.get_default("steps"):
            raise UserError("--epochs cannot be combined with --steps: leave one of them out")
        if not 0 < options.epochs <= 10_000:
            raise UserError(f"--epochs: must be above 0 and at most 10,000, not {options.epochs}")
    if not isinstance(options.learning_rate, int | float) or not 0 < options.learning_rate < math.inf:
        raise UserError(f"--learning-rate: must be a number above 0, not {shortened(options.learning_rate)}")
    if not 0 <= options.weight_decay < math.inf:
        raise UserError(f"--weight-decay: must be at least 0, not {options.weight_decay}")
    if not 0 <= options.warmup_ratio <= 1:
        raise UserError(f"--warmup-ratio: must be a fraction of the steps, from 0 to 1, not {options.warmup_ratio}")
    if options.tensorboard is not None:
        try:
            options.tensorboard.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--tensorboard {options.tensorboard}: {error.strerror}") from None


def check_out(options: Any) -> None:
    """Raise UserError unless `--out` is new or empty or, with `--resume`, has a run with the same options."""
    if options.resume and options.out.is_dir() and any(options.out.iterdir()):
        check_resumed(options.out, options.out / OPTIONS_FILE, recorded(options), contents_of(options))
    else:
        check_new(options.out, ", or add --resume")

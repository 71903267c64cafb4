"""The options of `python -m distill`: checks that do not need the weights, and the objective's settings. Those that say
which rows are read, and where the result is written, are also other commands'.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distill.choices import listing, tasks
from distill.cli import Parser, ParserOrGroup
from distill.files import write_atomically
from search_spaces.errors import UserError, did_you_mean

OPTIONS_FILE = "options.json"
# Options that may differ when a run is resumed.
FREE = ("resume", "device", "tensorboard", "quiet", "json")
# Options that only apply to a user's own files.
OF_OWN_ROWS = ("dev", "text", "pair", "label", "regression")


def add_rows_options(parser: ParserOrGroup, own_rows_of_a_task: bool = False) -> None:
    """Add the options that say on which labelled rows a command trains and measures scores, and their length.

    Args:
        parser: a parser, or a group of one.
        own_rows_of_a_task: whether `--train` may be given together with `--task`.
    """
    add_training_rows_options(parser, own_rows_of_a_task)
    add = parser.add_argument
    unless = ", unless there is a --task" if own_rows_of_a_task else ""
    add(
        "--dev",
        type=Path,
        metavar="FILE",
        help=f"labelled rows to measure the scores on, in a format of --train; required with --train{unless}",
    )
    add(
        "--max-length",
        type=int,
        default=128,
        metavar="N",
        help="longer rows are truncated to N tokens (default: %(default)s)",
    )


def add_training_rows_options(parser: ParserOrGroup, own_rows_of_a_task: bool = False) -> None:
    """Add the options that say which labelled rows a command trains on or augments; the arguments are those of
    `add_rows_options`.
    """
    add = parser.add_argument
    instead = "; with --task in place of its own" if own_rows_of_a_task else ""
    add("--task", action=listing(tasks), metavar="NAME", help="name of the task; '?' lists all")
    add(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder of the task's official files (default: downloaded from the hub)",
    )
    add(
        "--train",
        type=Path,
        metavar="FILE",
        help=f"your own labelled rows: .tsv, .csv, .jsonl or .parquet, with column names{instead}",
    )
    add("--text", default="sentence", metavar="COLUMN", help="column of the (first) sentence (default: %(default)s)")
    add("--pair", metavar="COLUMN", help="column of the second sentence, if there are pairs")
    add("--label", default="label", metavar="COLUMN", help="column of the class or number (default: %(default)s)")
    add("--regression", action="store_true", help="the labels of --train are numbers, not classes")


def flag(name: str) -> str:
    """The option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def recorded(options: Any) -> dict[str, Any]:
    """The options that determine the results, as JSON values."""
    values = {name: value for name, value in vars(options).items() if name not in FREE}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def check(options: Any, parser: Parser) -> None:
    """Raise UserError for options that are invalid independently of models and rows."""
    _check_rows(options, parser)
    _check_teacher(options)
    check_numbers(options, steps=0, finetune_teacher=0, seed=0, batch_size=1, max_length=8)
    _check_out(options)


def _check_rows(options: Any, parser: Parser) -> None:
    sources = [name for name in ("task", "train", "corpus") if getattr(options, name) is not None]
    if len(sources) != 1 and sources != ["task", "train"]:
        raise UserError(
            "give the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT; or by --task NAME "
            "with other training rows, --train FILE"
        )
    source = sources[0]
    if sources == ["task", "train"] and (options.dev is not None or options.regression):
        name = "dev" if options.dev is not None else "regression"
        raise UserError(f"--{name}: --task {options.task} has its own; leave it out, or leave out --task")
    if options.pack and source != "corpus":
        raise UserError("--pack: only paragraphs of text are put together; add --corpus TEXT, or leave out --pack")
    if options.masked_lm and source != "corpus":
        raise UserError("--masked-lm: masked words are learned from text; add --corpus TEXT, or leave out --masked-lm")
    _check_files(options, parser)
    if options.finetune_teacher and source == "corpus" and not options.masked_lm:
        raise UserError("--finetune-teacher: text has no labels to learn from; leave it out, or add --masked-lm")


def _check_teacher(options: Any) -> None:
    if options.teacher is not None:
        return
    for name in ("assistant", "finetune_teacher"):
        if getattr(options, name):
            raise UserError(f"{flag(name)} needs a --teacher")
    if options.student.startswith(("first:", "uniform:")):
        raise UserError(
            f"--student {options.student} takes its layers from the teacher: add --teacher, or give a checkpoint"
        )


def check_labelled_rows(options: Any, parser: Parser) -> None:
    """Raise UserError unless there is either a task or a file of the user's own, with the options that belong to it."""
    if options.task is None and options.train is None:
        raise UserError("give the rows by --task NAME, or by --train FILE and --dev FILE")
    if options.task is not None and options.train is not None:
        raise UserError(f"--train: --task {options.task} has its own rows; leave out one of the two")
    _check_files(options, parser)


def _check_files(options: Any, parser: Parser) -> None:
    if options.data is not None and options.task is None:
        raise UserError("--data: only a --task has a folder of official files; add --task, or leave out --data")
    if options.train is not None and options.task is None and options.dev is None:
        raise UserError("--dev: give another file than --train, because scores are not measured on training rows")
    for name in OF_OWN_ROWS if options.train is None else ():
        if getattr(options, name) != parser.get_default(name):
            raise UserError(f"--{name} describes the rows of --train FILE; add --train, or leave it out")


def check_minima(options: Any, **minima: int) -> None:
    """Raise UserError for whole numbers below these minima, or too large."""
    for name, minimum in minima.items():
        value, bound = getattr(options, name), 2**32 if name == "seed" else 2**31
        if value < minimum:
            raise UserError(f"{flag(name)}: must be at least {minimum}, not {value}")
        if value >= bound:
            raise UserError(f"{flag(name)}: must be below {bound:,}, not {value:,}")


def check_numbers(options: Any, **minima: int) -> None:
    """Raise UserError for whole numbers below these minima, and for a recipe out of its range."""
    check_minima(options, **minima)
    if not 0 < options.learning_rate < math.inf:
        raise UserError(f"--learning-rate: must be above 0, not {options.learning_rate}")
    if not 0 <= options.weight_decay < math.inf:
        raise UserError(f"--weight-decay: must be at least 0, not {options.weight_decay}")
    if not 0 <= options.warmup <= 1:
        raise UserError(f"--warmup: must be a share of the steps, from 0 to 1, not {options.warmup}")


def check_new(out: Path) -> None:
    """Raise UserError unless `--out` is new, or an empty folder."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is not a folder")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} exists and is not empty: choose another folder")


def write_new(out: Path, write: Callable[[Path], object]) -> None:
    """Write the folder `--out` atomically: `write` fills another one, which then takes its place. An interrupted
    command leaves nothing in it, so the same command can be started again.

    Raises:
        UserError: it cannot be written.
        distill.files.DiskFullError: there is no space left.
    """

    def fill(draft: Path) -> None:
        draft.mkdir()
        write(draft)

    try:
        write_atomically(out.resolve(), fill)
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"--out {out}: {error.strerror or error}") from error


def _check_out(options: Any) -> None:
    """Raise UserError unless --out is new or empty or, with --resume, has a run with the same options."""
    out, file = options.out, options.out / OPTIONS_FILE
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is not a folder")
    if not out.exists() or not any(out.iterdir()):
        return
    if not options.resume:
        raise UserError(f"--out {out} is not empty: choose another folder, or add --resume")
    if not file.exists():
        raise UserError(f"--out {out} has nothing to resume: there is no {OPTIONS_FILE}")
    try:
        stored = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"--resume: {file} cannot be read ({error}); choose another --out") from None
    for name, value in recorded(options).items():
        if name != "out" and stored.get(name) != value:
            raise UserError(f"--resume: {flag(name)} was {stored.get(name)!r}, not {value!r}")


def objective_settings(options: Any) -> dict[str, Any]:
    """The objective's settings from --set, converted to the types of their defaults.

    Raises:
        UserError: there is no such objective or setting, or the objective needs a teacher or labels that are missing.
    """
    from distill.objectives import OBJECTIVES

    name = options.objective
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise UserError(f"unknown objective {name!r}{did_you_mean(name, OBJECTIVES)} (objectives: {known})")
    objective_spec = OBJECTIVES[name]
    if options.teacher is None and objective_spec.needs_teacher:
        without = ", ".join(other for other, spec in OBJECTIVES.items() if not spec.needs_teacher)
        raise UserError(f"--objective {name} needs a --teacher; these objectives do not: {without}")
    settings: dict[str, Any] = {}
    if options.corpus and not options.masked_lm:
        try:
            settings |= objective_spec.settings_without_labels()
        except ValueError as error:
            raise UserError(f"--objective {error}; choose another, or add --masked-lm") from None
    defaults = objective_spec.defaults
    for assignment in options.set:
        key, separator, text = assignment.partition("=")
        if not separator or key not in defaults:
            listed = ", ".join(f"{setting}={value}" for setting, value in defaults.items())
            raise UserError(f"--set {assignment}: {name} has {listed}{did_you_mean(key, defaults)}")
        settings[key] = _converted(assignment, key, text, type(defaults[key]))
    return settings


def _converted(assignment: str, key: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number"}.get(kind, "a number")
        raise UserError(f"--set {assignment}: {key} is {expected}") from None


def check_models(options: Any, settings: dict[str, Any]) -> None:
    """Check before any training that the objective can be used with all models of the chain.

    Raises:
        UserError: the objective cannot be used with a model and its teacher.
    """
    if options.teacher is None:
        return
    from distill.objectives import OBJECTIVES
    from distill.training.students import planned
    from distill.training.teacher import load_config, load_tokenizer

    objective_spec = OBJECTIVES[options.objective]
    if not options.corpus or options.masked_lm:
        settings = objective_spec.settings_with_labels(settings)
    teacher, tokenizer = load_config(options.teacher, students=True), load_tokenizer(options.teacher)
    for name in [*options.assistant, options.student]:
        student = planned(name, teacher, tokenizer)
        try:
            for phase in objective_spec.phases(settings):
                objective_spec.make(phase.settings, student, teacher)
        except ValueError as error:
            raise UserError(f"--objective {options.objective}: {error}") from None
        teacher = student

"""Distil a student on a task, or on text.

    python -m distill --teacher MODEL --student MODEL|first:N|uniform:N --objective NAME --task NAME --out DIR
    python -m distill ... --task NAME --data DIR
    python -m distill ... --train FILE --dev FILE --text COLUMN --label COLUMN [--pair COLUMN]
    python -m distill ... --corpus FILE|DIR|NAME [--masked-lm]

The teacher must have been fine-tuned on the task, or is so first (--finetune-teacher). With --assistant the student
learns from an assistant, which learns from the teacher. Scores are of the whole dev split.
"""

import json
import math
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# All else is imported where Ctrl-C is caught.
from distill.cli import INTERRUPTED, Parser, guard
from search_spaces.errors import UserError

OPTIONS = "options.json"
# What may be another when a run is resumed.
FREE = ("resume", "device", "tensorboard")
# What says something of one's own rows alone.
OF_TABLES = ("dev", "text", "pair", "label", "regression")


class DistillError(UserError, ValueError):
    """What is asked for cannot be done."""


def parser() -> Parser:
    result = Parser(prog="distill", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    result.usage = "python -m distill --student MODEL --out DIR [option ...]"
    add = result.add_argument
    add("--student", required=True, metavar="MODEL", help="a checkpoint, or the teacher's first:N or uniform:N layers")
    add("--teacher", metavar="MODEL", help="a BERT-shaped checkpoint: a folder, or a name on the hub")
    add("--assistant", action="append", default=[], metavar="MODEL", help="as --student; may be repeated")
    add("--objective", default="kd", metavar="NAME", help="the recipe; '?' names all (default: %(default)s)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the objective; '?' names all")
    add("--out", type=Path, required=True, metavar="DIR", help="empty folder, for the student and metrics.json")
    add("--resume", action="store_true", help="go on with the interrupted run in --out")
    add = result.add_argument_group("rows").add_argument
    add("--task", metavar="NAME", help="a task: sst2, mnli, squad, conll2003, ...")
    add("--data", type=Path, metavar="DIR", help="the task's official files (default: from the hub)")
    add("--train", type=Path, metavar="FILE", help="your own rows: .tsv, .csv, .jsonl or .parquet, with column names")
    add("--dev", type=Path, metavar="FILE", help="rows on which scores are measured")
    add("--text", default="sentence", metavar="COLUMN", help="the (first) sentence (default: %(default)s)")
    add("--pair", metavar="COLUMN", help="the second sentence")
    add("--label", default="label", metavar="COLUMN", help="the class, or number (default: %(default)s)")
    add("--regression", action="store_true", help="labels are numbers")
    add("--corpus", metavar="TEXT", help="no labels: a .txt file, a folder of such, or a data set on the hub")
    add("--masked-lm", action="store_true", help="of text, learn masked words too")
    add("--max-length", type=int, default=128, metavar="N", help="tokens of a row (default: %(default)s)")
    add = result.add_argument_group("training").add_argument
    add("--steps", type=int, default=1000, metavar="N", help="batches to learn from (default: %(default)s)")
    add("--batch-size", type=int, default=32, metavar="N", help="rows of a batch (default: %(default)s)")
    add("--learning-rate", type=float, default=5e-5, metavar="X", help="the highest (default: %(default)s)")
    add("--warmup", type=float, default=0.1, metavar="X", help="share of the steps (default: %(default)s)")
    add("--weight-decay", type=float, default=0.01, metavar="X", help="of AdamW (default: %(default)s)")
    add("--freeze-embeddings", action="store_true", help="leave word embeddings as they are")
    add("--finetune-teacher", type=int, default=0, metavar="STEPS", help="fine-tune the teacher on the rows first")
    add("--seed", type=int, default=0, metavar="N", help="of new parameters, order of batches and dropout")
    add("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(default: %(default)s)")
    add("--tensorboard", type=Path, metavar="DIR", help="log losses there")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        # Imports torch, which takes seconds.
        from safetensors import SafetensorError

        from distill.chain import run

        given = settings(options)
        check_chain(options, given)
        if options.tensorboard is not None:
            try:
                options.tensorboard.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise DistillError(f"--tensorboard {options.tensorboard}: {error.strerror}") from None
        try:
            return run(options, given, recorded(options))
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DistillError(f"--out {options.out}: {reason}; make room there and add --resume") from error

    try:
        return guard("distill", command)
    except KeyboardInterrupt:
        print("distill: interrupted; add --resume to go on", file=sys.stderr)
        return INTERRUPTED


def check(options: Any) -> None:
    """Refuse what can be seen to be wrong before anything is loaded."""
    given = [name for name in ("task", "train", "corpus") if getattr(options, name) is not None]
    if len(given) != 1:
        raise DistillError("give the rows: one of --task NAME, --train FILE with --dev FILE, --corpus TEXT")
    if given == ["train"] and options.dev is None:
        raise DistillError("--dev: scores are measured on other rows than those trained on; give a second file")
    if options.masked_lm and given != ["corpus"]:
        raise DistillError("--masked-lm is for text: give --corpus")
    if options.data is not None and given != ["task"]:
        raise DistillError("--data is the folder of a --task")
    for name in OF_TABLES if given != ["train"] else ():
        if getattr(options, name) != parser().get_default(name):
            raise DistillError(f"--{name} is of your own rows: give --train FILE too, or leave it out")
    if options.teacher is None:
        for name in ("assistant", "finetune_teacher"):
            if getattr(options, name):
                raise DistillError(f"{flag(name)} needs a --teacher")
        if options.student.startswith(("first:", "uniform:")):
            raise DistillError(f"--student {options.student} is layers of a teacher: give --teacher, or a checkpoint")
    if options.finetune_teacher and given == ["corpus"] and not options.masked_lm:
        raise DistillError("--finetune-teacher: text has no labels to learn from; leave it out, or add --masked-lm")
    for name, least in (("steps", 0), ("finetune_teacher", 0), ("seed", 0), ("batch_size", 1), ("max_length", 8)):
        below = 2**32 if name == "seed" else 2**31
        if getattr(options, name) < least:
            raise DistillError(f"{flag(name)}: must be at least {least}, not {getattr(options, name)}")
        if getattr(options, name) >= below:
            raise DistillError(f"{flag(name)}: must be below {below:,}, not {getattr(options, name):,}")
    if not 0 < options.learning_rate < math.inf:
        raise DistillError(f"--learning-rate: must be above 0, not {options.learning_rate}")
    if not 0 <= options.weight_decay < math.inf:
        raise DistillError(f"--weight-decay: must be at least 0, not {options.weight_decay}")
    if not 0 <= options.warmup <= 1:
        raise DistillError(f"--warmup: a share of the steps, from 0 to 1, not {options.warmup}")
    saved = options.out / OPTIONS
    if options.out.exists() and not options.out.is_dir():
        raise DistillError(f"--out {options.out} is no folder")
    if options.out.exists() and any(options.out.iterdir()):
        if not options.resume:
            raise DistillError(f"--out {options.out} is not empty: choose another folder, or add --resume")
        if not saved.exists():
            raise DistillError(f"--out {options.out} has nothing to resume: there is no {OPTIONS}")
        try:
            before, now = dict(json.loads(saved.read_text(encoding="utf-8"))), recorded(options)
        except (OSError, ValueError, TypeError) as error:
            raise DistillError(f"--resume: {saved} cannot be read ({error}); choose another --out") from None
        for name in now:
            if name != "out" and before.get(name) != now[name]:
                raise DistillError(f"--resume: {flag(name)} was {before.get(name)!r}, not {now[name]!r}")


def check_chain(options: Any, given: dict[str, Any]) -> None:
    """Refuse students that the objective cannot be used with before a teacher or an assistant is trained."""
    if options.teacher is None:
        return
    from distill.objectives import OBJECTIVES
    from distill.training.students import planned
    from distill.training.teacher import NAS_BERT, load_config, load_tokenizer

    name, objective_spec = options.objective, OBJECTIVES[options.objective]
    if not options.corpus or options.masked_lm:
        given = objective_spec.settings_with_labels(given)
    teacher, tokenizer = load_config(options.teacher, ("bert", NAS_BERT)), load_tokenizer(options.teacher)
    for spec in [*options.assistant, options.student]:
        student = planned(spec, teacher, tokenizer)
        try:
            for phase in objective_spec.phases(given):
                objective_spec.make(phase.settings, student, teacher)
        except ValueError as error:
            raise DistillError(f"--objective {name}: {error}") from None
        teacher = student


def flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def recorded(options: Any) -> dict[str, Any]:
    """The options that decide what is computed, as JSON has them."""
    values = {name: value for name, value in vars(options).items() if name not in FREE}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def settings(options: Any) -> dict[str, Any]:
    """The objective's settings from --set, each of the type of its default."""
    from distill.objectives import OBJECTIVES
    from search_spaces.errors import did_you_mean

    name = options.objective
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise DistillError(f"unknown objective {name!r}{did_you_mean(name, OBJECTIVES)} (objectives: {known})")
    objective_spec = OBJECTIVES[name]
    if options.teacher is None and objective_spec.needs_teacher:
        without = ", ".join(other for other, spec in OBJECTIVES.items() if not spec.needs_teacher)
        raise DistillError(f"--objective {name} needs a --teacher; only {without} does without")
    own = objective_spec.defaults
    try:
        result: dict[str, Any] = (
            objective_spec.settings_without_labels() if options.corpus and not options.masked_lm else {}
        )
    except ValueError as error:
        raise DistillError(f"--objective {error}; choose another, or add --masked-lm") from None
    for text in options.set:
        key, found, value = text.partition("=")
        if not found or key not in own:
            shown = ", ".join(f"{setting}={value}" for setting, value in own.items())
            raise DistillError(f"--set {text}: {name} has {shown}{did_you_mean(key, own)}")
        kind = type(own[key])
        try:
            result[key] = {"true": True, "false": False}[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            expected = {bool: "true or false", int: "a whole number"}.get(kind, "a number")
            raise DistillError(f"--set {text}: {key} is {expected}") from None
    return result


if __name__ == "__main__":
    sys.exit(main())

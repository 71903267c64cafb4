"""Distil a student on a task, or on text.

    python -m distill --teacher DIR --student DIR|first:N|uniform:N --objective NAME --task NAME [--data DIR] --out DIR
    python -m distill ... --train FILE --dev FILE --text COLUMN --label COLUMN [--pair COLUMN]
    python -m distill ... --corpus FILE|DIR|NAME [--masked-lm]

The teacher must have been fine-tuned on the task, or is so first (--finetune-teacher). With --assistant the student
learns from an assistant, which learns from the teacher. Scores are of the whole dev split.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that wait in a spin make a machine with other work on it many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from distill.cli import INTERRUPTED, Parser, guard
from search_spaces.operations import did_you_mean

OPTIONS = "options.json"
# What may be another when a run is resumed.
FREE = ("resume", "device", "tensorboard")


class DistillError(ValueError):
    """What is asked for cannot be done."""


def parser() -> Parser:
    result = Parser(prog="distill", description="Distil a student on a task, or on text.")
    result.add_argument("--student", required=True, help="a checkpoint, or the teacher's first:N or uniform:N layers")
    result.add_argument("--teacher", help="a BERT-shaped checkpoint: a folder, or a name on the hub")
    result.add_argument("--objective", default="kd", help="the recipe (default: %(default)s)")
    result.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the objective")
    result.add_argument("--assistant", action="append", default=[], metavar="STUDENT", help="between; may be repeated")
    result.add_argument("--out", type=Path, required=True, help="folder of the student")
    rows = result.add_argument_group("rows")
    rows.add_argument("--task", help="sst2, mnli, squad, conll2003, ...")
    rows.add_argument("--data", type=Path, help="folder of the task's official files (default: from the hub)")
    rows.add_argument("--train", type=Path, help="your own rows: .tsv, .csv, .jsonl or .parquet")
    rows.add_argument("--dev", type=Path, help="rows on which scores are measured")
    rows.add_argument("--text", default="sentence", help="column of the (first) sentence (default: %(default)s)")
    rows.add_argument("--pair", help="column of the second sentence")
    rows.add_argument("--label", default="label", help="column of the class, or number (default: %(default)s)")
    rows.add_argument("--regression", action="store_true", help="labels are numbers")
    rows.add_argument("--corpus", help="text without labels: a .txt file, a folder of such, or a data set on the hub")
    rows.add_argument("--masked-lm", action="store_true", help="of text, learn masked words too")
    rows.add_argument("--max-length", type=int, default=128, help="tokens of a row (default: %(default)s)")
    train = result.add_argument_group("training")
    train.add_argument("--steps", type=int, default=1000, help="default: %(default)s")
    train.add_argument("--batch-size", type=int, default=32, help="default: %(default)s")
    train.add_argument("--learning-rate", type=float, default=5e-5, help="default: %(default)s")
    train.add_argument("--warmup", type=float, default=0.1, help="share of the steps (default: %(default)s)")
    train.add_argument("--weight-decay", type=float, default=0.01, help="default: %(default)s")
    train.add_argument("--freeze-embeddings", action="store_true", help="leave word embeddings as they are")
    train.add_argument("--finetune-teacher", type=int, default=0, metavar="STEPS", help="fine-tune the teacher first")
    train.add_argument("--seed", type=int, default=0, help="of new parameters, order of batches and dropout")
    train.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    train.add_argument("--tensorboard", type=Path, metavar="DIR", help="log losses there")
    result.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        # Imports torch, which takes seconds.
        from distill.chain import MISTAKES, run

        return guard("distill", lambda: run(options, settings(options), recorded(options)), (*MISTAKES, DistillError))

    try:
        return guard("distill", command, (DistillError,))
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
    for name, least in (("steps", 0), ("finetune_teacher", 0), ("seed", 0), ("batch_size", 1), ("max_length", 8)):
        if getattr(options, name) < least:
            flag = name.replace("_", "-")
            raise DistillError(f"--{flag}: must be at least {least}, not {getattr(options, name)}")
    if not options.learning_rate > 0:
        raise DistillError(f"--learning-rate: must be above 0, not {options.learning_rate}")
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
        before, now = json.loads(saved.read_text(encoding="utf-8")), recorded(options)
        for name in now:
            if before.get(name) != now[name]:
                raise DistillError(f"--resume: {name} was {before.get(name)!r}, not {now[name]!r}")


def recorded(options: Any) -> dict[str, Any]:
    """The options that decide what is computed, as JSON has them."""
    values = {name: value for name, value in vars(options).items() if name not in FREE}
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


def settings(options: Any) -> dict[str, Any]:
    """The objective's settings from --set, each of the type of its default."""
    from distill.distil import defaults, without_labels
    from distill.objectives import OBJECTIVES

    name = options.objective
    if options.teacher is None and name != "none":
        raise DistillError(f"--objective {name} needs a --teacher; only none does without")
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise DistillError(f"unknown objective {name!r}{did_you_mean(name, OBJECTIVES)} (objectives: {known})")
    own = defaults(name)
    try:
        result: dict[str, Any] = without_labels(name) if options.corpus and not options.masked_lm else {}
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

"""Distill a student on a task, or on text.

    python -m distill --teacher MODEL --student MODEL|first:N|uniform:N --objective NAME --task NAME --out DIR
    python -m distill ... --task NAME --data DIR
    python -m distill ... --train FILE --dev FILE --text COLUMN --label COLUMN [--pair COLUMN]
    python -m distill ... --corpus FILE|DIR|NAME ... [--pack] [--masked-lm]

The teacher must have been fine-tuned on the task, or is so first (--finetune-teacher). With --assistant the student
learns from an assistant, which learns from the teacher. Scores are of the whole dev split.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

# Slow imports are inside functions, where Ctrl-C is caught.
from distill.choices import OBJECTIVES, TASKS, all_settings, columns, listing, objectives
from distill.cli import Parser, called_as, interruptible
from distill.command.options import (
    add_recipe_options,
    add_rows_options,
    add_run_options,
    check_minima,
    check_out,
    check_recipe,
    check_rows,
    flag,
    recipe_of,
)
from distill.defaults import OBJECTIVE, STEPS
from distill.training.progress import loading
from foundation.errors import UserError


def parser() -> Parser:
    epilog = f"objectives (--objective):\n{columns(OBJECTIVES)}\n\ntasks (--task):\n{columns(TASKS)}"
    result = Parser("distill", description=__doc__, epilog=epilog)
    result.usage = f"{called_as('python -m distill')} --student MODEL --out DIR [option ...]"
    add = result.add_argument
    add("--student", required=True, metavar="MODEL", help="a checkpoint, or the teacher's first:N or uniform:N layers")
    add("--teacher", metavar="MODEL", help="an encoder: a folder, or a name on the hub")
    between = "a model that learns from the teacher and teaches the student, named like --student; may be repeated"
    add("--assistant", action="append", default=[], metavar="MODEL", help=between)
    names = "name of the objective; '?' lists all (default: %(default)s)"
    add("--objective", action=listing(objectives), default=OBJECTIVE, metavar="NAME", help=names)
    setting = "a setting of the objective, may be repeated; '?' lists those of all objectives"
    add("--set", action=listing(all_settings), default=[], metavar="NAME=VALUE", help=setting)
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder for the student and metrics.json")
    add("--resume", action="store_true", help="continue the interrupted run in --out")
    rows = result.add_argument_group("rows")
    add_rows_options(rows, own_rows_of_a_task=True)
    add = rows.add_argument
    text = "text without labels, one source or several: a .txt file, a folder of such files, or a hub data set"
    add("--corpus", nargs="+", metavar="TEXT", help=text)
    add("--pack", action="store_true", help="join paragraphs of --corpus to rows of up to --max-length tokens")
    add("--masked-lm", action="store_true", help="also learn to predict masked words of --corpus")
    training = result.add_argument_group("training")
    add_recipe_options(training, steps=STEPS)
    first = "first fine-tune the teacher on the rows for this many steps"
    training.add_argument("--finetune-teacher", type=int, default=0, metavar="STEPS", help=first)
    add_run_options(result, "new parameters, batch order and dropout")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("distill", lambda: command(options), "add --resume to continue")


def check(options: Any) -> None:
    """Raise UserError for options that are invalid independently of models and rows."""
    check_rows(options, parser())
    for name in ("assistant", "finetune_teacher"):
        if options.teacher is None and getattr(options, name):
            raise UserError(f"{flag(name)} needs a --teacher")
    if options.teacher is None and options.student.startswith(("first:", "uniform:")):
        raise UserError(
            f"--student {options.student} takes its layers from the teacher: add --teacher, or give a checkpoint"
        )
    check_minima(options, finetune_teacher=0)
    check_recipe(options, parser())
    check_out(options)


def command(options: Any) -> int:
    """Train the chain of the teacher, the assistants and the student, and print the results; returns the exit status.

    Raises:
        UserError: the options are invalid, or the models, rows and settings are incompatible.
    """
    planned = plan(options)
    from distill.command.report import train_and_report

    return train_and_report(options, **planned)


def plan(options: Any) -> dict[str, Any]:
    """What `distill.command.report.train_models` trains, on what, for these options.

    Raises:
        UserError: the options are invalid, or the models, rows and settings are incompatible.
    """
    check(options)
    with loading(options.quiet):
        from distill.command.examples import check_sizes, open_examples
        from distill.command.objective import check_models, objective_settings
        from distill.training.kept_teacher import check_kept
        from distill.training.run import TEACHER, Training
        from distill.training.students import load_student
        from distill.training.teacher import load_model

        settings = objective_settings(options)
        check_models(options, settings)
    kept = options.teacher is not None and not options.finetune_teacher
    accelerator, _, examples = open_examples(options, options.teacher or options.student, students=True, kept=kept)
    labels, task_type, recipe = examples.labels, examples.task_type, recipe_of(options, len(examples.train))

    def make(source: str, teacher: Any) -> Any:
        if teacher is None:
            model = load_model(source, labels, task_type)
        else:
            model = load_student(source, teacher, examples.tokenizer, labels, task_type)
        check_sizes(options, model.config, source, examples)
        return model

    def make_teacher(_: Any) -> Any:
        new_head = bool(options.finetune_teacher) or examples.headless
        model = load_model(options.teacher, labels, task_type, new_head=new_head).eval()
        if not new_head and examples.eval_set is not None:
            check_kept(options.teacher, model, examples.eval_set, accelerator)
        return model

    models = {}
    if options.teacher is not None:
        first = options.finetune_teacher
        models[TEACHER] = Training(
            make=make_teacher,
            recipe=replace(recipe, steps=first) if first else None,
            measured_before=False,
        )
    assistants = {f"assistant {number}": source for number, source in enumerate(options.assistant, start=1)}
    for name, source in (assistants | {"student": options.student}).items():
        student = partial(make, source)
        models[name] = Training(make=student, recipe=recipe, objective=options.objective, settings=settings)
    return {"models": models, "examples": examples, "accelerator": accelerator, "settings": settings}


if __name__ == "__main__":
    sys.exit(main())

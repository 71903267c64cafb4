"""`distil`: train a student from a teacher, with models and rows that are in memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from pathlib import Path
from typing import Any, Self

from transformers import PreTrainedModel

from distill.__main__ import parser, plan
from distill.command.report import measurement_table, show_measurements, train_models, write_metrics
from distill.defaults import BATCH_SIZE, LABEL, LEARNING_RATE, MAX_LENGTH, OBJECTIVE, STEPS, TEXT
from distill.memory import ModelError, memory_folder, quiet_transformers, source_of, write_splits
from distill.table import Table
from distill.tasks.splits import CUT, THRESHOLD, class_weights_of
from distill.training.layout import METRICS_FILE
from distill.training.progress import ProgressCallback, ignore_progress, terminal
from distill.training.sentences import MODULES, read_modules
from distill.training.teacher import load_tokenizer, load_unchanged
from foundation.errors import UserError, shortened
from foundation.files import read_json, save_pretrained


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Distilled:
    """A trained student; it is shown as the table of its measurements.

    Attributes:
        student: the model, in eval mode; a model of transformers.
        tokenizer: its tokenizer.
        metrics: scores, costs and latencies of teacher and student, as metrics.json has them.
        modules: of a sentence encoder, the further files of its folder, by their paths in it.
    """

    student: PreTrainedModel
    tokenizer: Any
    metrics: Mapping[str, Any]
    modules: Mapping[str, bytes] = field(default_factory=dict)

    def table(self, width: int = 120) -> str:
        """The scores, costs and latencies of teacher and student as text."""
        console = terminal(soft_wrap=False, width=width, record=True, file=StringIO())
        show_measurements(console, self.metrics)
        for further in self.tables()[1:]:
            further.print(console)
        return console.export_text()

    def tables(self) -> list[Table]:
        """What was measured, as tables."""
        return [measurement_table(self.metrics)]

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save` or a command has written.

        Raises:
            UserError: the folder is no such checkpoint.
        """
        if not (Path(folder) / METRICS_FILE).exists():
            raise UserError(f"{folder} is not a finished checkpoint: it has no {METRICS_FILE}")
        with quiet_transformers():
            student, tokenizer = load_unchanged(str(folder)).eval(), load_tokenizer(str(folder))
        modules = read_modules(Path(folder)) if (Path(folder) / MODULES).is_file() else {}
        metrics = read_json(Path(folder) / METRICS_FILE)
        return cls(student=student, tokenizer=tokenizer, metrics=metrics, modules=modules)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint that transformers loads by itself, with the measurements; of a sentence encoder, a folder
        of sentence-transformers.
        """
        with quiet_transformers():
            save_pretrained(Path(folder), self.student, self.tokenizer)
        for path, content in self.modules.items():
            (Path(folder) / path).parent.mkdir(exist_ok=True)
            (Path(folder) / path).write_bytes(content)
        write_metrics(Path(folder), self.metrics)


def distil(
    student: PreTrainedModel | str | Path,
    train: Any,
    dev: Any = None,
    *,
    teacher: PreTrainedModel | str | Path | None = None,
    tokenizer: Any = None,
    text: str = TEXT,
    pair: str | None = None,
    label: str = LABEL,
    regression: bool = False,
    multi_label: bool = False,
    threshold: float = THRESHOLD,
    class_weights: str | Mapping[str, float] | None = None,
    metric: str | None = None,
    objective: str = OBJECTIVE,
    settings: Mapping[str, Any] | None = None,
    finetune_teacher: int = 0,
    steps: int = STEPS,
    batch_size: int = BATCH_SIZE,
    learning_rate: float = LEARNING_RATE,
    max_length: int = MAX_LENGTH,
    long_texts: str = CUT,
    device: str = "auto",
    seed: int = 0,
    on_progress: ProgressCallback = ignore_progress,
) -> Distilled:
    """Train a student from a teacher, as `python -m distill` does. The models that are given are not changed.

    Args:
        student: a model, its folder or name, or the teacher's "first:N" or "uniform:N" layers.
        train, dev: labeled rows: a `datasets.Dataset`, a pandas data frame or a list of dictionaries. Without `dev`,
            every tenth row of `train` is measured on instead of trained on, and with it those with the same text.
        teacher: a model, or its folder or name; None: the objective has none, such as "none", ordinary fine-tuning.
        tokenizer: of the models that are no folders or names.
        text, pair, label: the columns of the sentence, of a second one, and of the class or number.
        regression, multi_label: whether the labels are numbers, or lists of any number of classes, or of a 0 or 1 for
            each class.
        threshold: the probability from which a class is predicted with `multi_label`.
        class_weights: weights of classes in the loss with labels: "balanced", or by their names, 1 for others.
        metric: the score, such as "f1_macro"; None: accuracy, Spearman's correlation, or "f1_micro" with lists.
        objective, settings: a name of `distill.objectives.OBJECTIVES`, and the settings that differ from its defaults.
        finetune_teacher: training steps of the teacher before, if its head is not trained.
        steps: training steps of the student, a batch each; `learning_rate` is the highest.
        max_length: longer rows are truncated to this many tokens.
        long_texts: what is read of longer single texts: "cut", the beginning; "head_tail", both ends; "windows", all.
        on_progress: called with the current piece of work and the fraction of it that is done.

    Raises:
        UserError: the models, the rows and the objective do not fit together, or the training diverged.
    """
    with memory_folder("teacher", "student", held_out=dev is None) as folder:
        if tokenizer is not None and not any(isinstance(model, PreTrainedModel) for model in (student, teacher)):
            raise ModelError("tokenizer: a folder or name has its own; leave it out")

        def source(name: str, model: Any) -> str:
            return source_of(model, None if isinstance(model, str | Path) else tokenizer, folder / name)

        out = folder / "out"
        options = parser().parse_args(["--student", source("student", student), "--out", str(out)])
        options.teacher = None if teacher is None else source("teacher", teacher)
        texts = (text, *([pair] if pair else ()))
        options.train, options.dev = write_splits(
            folder, train, dev, (*texts, label), by=texts, classes=None if regression else label
        )
        chosen = _checked(settings, class_weights)
        options.set = [f"{name}={value}" for name, value in (settings or {}).items()]
        columns = {"text": text, "pair": pair, "label": label, "regression": regression, "multi_label": multi_label}
        weights = {"threshold": threshold, "class_weights": chosen, "metric": metric}
        recipe = {"steps": steps, "batch_size": batch_size, "learning_rate": learning_rate}
        others = {"objective": objective, "finetune_teacher": finetune_teacher, "max_length": max_length}
        others["long_texts"] = long_texts
        vars(options).update(columns | weights | recipe | others | {"device": device, "seed": seed, "quiet": True})
        if train_models(options, **plan(options), on_progress=on_progress) is None:
            raise UserError("only the first of several processes has a result")
        result = Distilled.load(out)
    # The options name what was in memory as files, which are gone.
    return replace(result, metrics={name: value for name, value in result.metrics.items() if name != "options"})


def _checked(settings: Any, class_weights: Any) -> str | dict[str, float] | None:
    """The class weights. Raises UserError unless they and the settings of the objective have their types."""
    if not isinstance(settings, Mapping | None):
        raise UserError(f"settings: must be a mapping of names to values, not {shortened(settings)}")
    try:
        return class_weights_of(class_weights)
    except ValueError as error:
        raise UserError(f"class_weights: {error}") from None

"""Reads and encodes the rows of a study's tasks; they are kept in the user's cache."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch import nn

from distill.command.folder import contents
from distill.encoders.family import family_of
from distill.objectives import OBJECTIVES
from distill.tasks.classes import weighted, with_classes_of
from distill.tasks.corpora import Corpus
from distill.tasks.encoding import Encoded, load_encoded, save_encoded
from distill.tasks.readers import embedded, load_task, reader_of
from distill.tasks.readers.tables import passage_task, table_task, text_task
from distill.tasks.row_checks import notes
from distill.tasks.splits import AnySplit, PassageSplit, joined
from distill.tasks.task import Task, TaskData, TaskError, hold_out, load_split, save_split
from distill.tasks.text import load_text
from distill.tasks.types import CLASSIFICATION, EMBEDDINGS, MULTI_LABEL, REGRESSION, TaskType, encode, get_task_type
from distill.training.evaluation import rows_logits
from distill.training.reranker import check_reranker
from distill.training.sentences import check_prompt, lower_cases, pooling_of
from distill.training.teacher import check_positions, load_config, load_model, locate, outputs_of
from foundation.errors import UserError
from foundation.files import fingerprint
from nas.config.rows import RowsTable
from nas.config.schema import ConfigError, StudyConfig, reporting

# Part of the cache keys of rows from files: increase it when a reader returns other rows for the same files.
READERS_VERSION = 5
NOTES = "notes.json"


@dataclass(frozen=True)
class TaskFolders:
    """The folders of one task's data, of the teacher that was fine-tuned on it, and of text without labels.

    Attributes:
        texts: the names of tables of trainings on text, each with the folder of its text.
    """

    data: Path
    teacher: Path
    texts: tuple[tuple[str, Path], ...] = ()

    @property
    def task(self) -> Task:
        fields = json.loads((self.data / "task.json").read_text(encoding="utf-8"))
        return Task(**fields | {name: tuple(fields[name]) for name in ("labels", "metrics")})

    def rows(self, name: str) -> Encoded:
        """The encoded rows of the split "train", "search" or "dev"."""
        return load_encoded(self.data / f"{name}.npz")

    def text(self, table: str) -> Encoded:
        """The encoded text of the training of this table, mapped into memory."""
        return load_text(dict(self.texts)[table])

    def notes(self) -> list[str]:
        """The lines about the rows that users should see."""
        return list(json.loads((self.data / NOTES).read_text(encoding="utf-8")))

    def split(self, name: str) -> AnySplit:
        """The split "search" or "dev" before encoding, as metrics need it."""
        return load_split(self.task.task_type, self.data / f"{name}.json")


def check_tasks(config: StudyConfig) -> None:
    """Raise ConfigError if a task does not exist, or if the tasks cannot be searched on together."""
    for task in config.max_length_of.keys() - config.rows.keys():
        with reporting("max_length_of", TaskError):
            reader_of(task)
    for task in config.tasks:
        try:
            reader_of(task)
        except TaskError as error:
            if task not in config.rows:
                own = "your own rows ([rows.NAME] in a configuration, or --train of nas.compress)"
                raise ConfigError(f"{error}, or {own}") from None
            # The one-shot supernet has modules that are named after the tasks.
            if not task.isidentifier() or hasattr(nn.ModuleDict(), task):
                raise ConfigError(f"rows.{task}: this name cannot be used; choose one such as my_rows") from None
        else:
            if task in config.rows:
                raise ConfigError(f"rows.{task}: another task has this name; choose a different one")
    if config.data is not None and all(task in config.rows or task in embedded.TASKS for task in config.tasks):
        raise ConfigError(
            f"data: none of the tasks {', '.join(config.tasks)} reads files from a folder; leave out data"
        )
    types = [task_type_of(config, task) for task in config.tasks]
    if len({each.model for each in types}) > 1:
        raise ConfigError(
            f"tasks: {' and '.join(config.tasks)} need different heads, but stage 3 shares one model; "
            "search in separate studies"
        )
    for task, each in zip(config.tasks, types, strict=True):
        if max(config.space.head_experts) > 1 and not each.head.may_have_experts:
            raise ConfigError(
                f"space.head_experts: heads for {task} predict from single tokens; only those that predict from whole "
                "sentences have experts: leave it out"
            )
    objective_spec, settings = OBJECTIVES[config.objective.name], config.objective.settings()
    if len(config.tasks) > 1 and not objective_spec.shares_tasks(settings):
        name = config.objective.name + (" with these settings" if objective_spec.of_one_task(settings) else "")
        raise ConfigError(f"tasks: {name} works with the rows of a single task; give one task, or another objective")


def task_type_of(config: StudyConfig, task: str) -> TaskType:
    rows = config.rows.get(task)
    return get_task_type(reader_of(task).task_type(task) if rows is None else type_of_rows(rows))


def type_of_rows(rows: RowsTable) -> str:
    """The name of the task type of a user's own rows."""
    if rows.embeddings:
        return EMBEDDINGS
    return REGRESSION if rows.regression or rows.reranking else MULTI_LABEL if rows.multi_label else CLASSIFICATION


def reranks(config: StudyConfig) -> bool:
    """Whether the rows of the study's first task are pairs for a reranker."""
    return config.task in config.rows and config.rows[config.task].reranking


def labelled_by_teacher(config: StudyConfig) -> bool:
    """Whether the labels of the study's first task are outputs of the teacher, see `encoded`."""
    return task_type_of(config, config.task).pool is not None or reranks(config)


def check_one_shot(config: StudyConfig) -> None:
    """Raise ConfigError if there can be no one-shot supernet, which has a head for every task."""
    if task_type_of(config, config.task).pool is not None:
        raise ConfigError(
            f"tasks: {config.task} predicts sentence vectors, without a head, which a one-shot supernet needs: set "
            'stage3.evaluation = "untrained" or "trained", and no final.start = "one_shot"'
        )


def read(config: StudyConfig, corpus: Callable[[], Corpus]) -> TaskData[Any]:
    """The rows of the task that stages 1 and 2 search on.

    Raises:
        ConfigError: they cannot be read, or are too few to hold some out.
    """
    data = _read(config, corpus)
    last = config.search_rows == "last"
    if config.search_fraction is None and not last:
        return replace(data, ordered=None)
    if last and data.ordered is None:
        raise ConfigError(f'search_rows: the rows of {config.task} have no order: use "random"')
    rows = data.ordered if last and data.ordered is not None else joined(data.train, data.search)
    with reporting("search_fraction", TaskError):
        train, search = hold_out(rows, fraction=config.search_fraction, last=last)
    return replace(data, train=train, search=search, ordered=None)


def _read(config: StudyConfig, corpus: Callable[[], Corpus]) -> TaskData[Any]:
    name = config.task
    with reporting("", TaskError):
        if name in config.rows:
            rows = config.rows[name]
            files = Path(rows.train), Path(rows.dev)
            task_type = type_of_rows(rows)
            if task_type == EMBEDDINGS:
                return text_task(*files, rows.text)
            if rows.reranking:
                return passage_task(*files, rows.text, str(rows.pair))
            names = ("text", "label", "pair", "labels", "metric", "threshold")
            return table_task(*files, task_type=task_type, **{name: getattr(rows, name) for name in names})
        if name in embedded.TASKS:
            return embedded.demo_task(name, corpus())
        return load_task(name, None if config.data is None else Path(config.data))


def rows_key(config: StudyConfig, corpus: Callable[[], Corpus]) -> str:
    """The cache key of the rows: it changes when the rows or their columns do. Files are hashed, not parsed.

    Raises:
        ConfigError: a file or data set does not exist.
    """
    name = config.task
    if name not in config.rows and name in embedded.TASKS:
        return corpus().fingerprint
    try:
        if name in config.rows:
            rows = config.rows[name]
            files = [Path(rows.train), Path(rows.dev)]
            settings: list[Any] = [rows.model_dump(exclude={"train", "dev"})]
            if rows.embeddings:
                settings.append(pooling_of(locate(config.teacher)))
                settings += ["lower-cased"] if lower_cases(locate(config.teacher)) else []
            return fingerprint(READERS_VERSION, json.dumps(settings), [file.suffix for file in files], *files)
        folder = None if config.data is None else Path(config.data)
        return fingerprint(READERS_VERSION, *reader_of(name).sources(name, folder))
    except TaskError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{error.filename}: {error.strerror}") from None


def contents_of(config: StudyConfig) -> dict[str, str]:
    """By path, hashes of the rows, models and text of a configuration that are here; see `contents`.

    Raises:
        ConfigError: a task has no data.
    """
    own_text = (config.candidate_pretrain, config.one_shot_warmup, config.one_shot_pretrain, config.pretrain)
    tables: list[Any] = [config, *own_text]
    files = [source for table in filter(None, tables) for source in table.corpus or ()]
    for task in config.tasks:
        if task in config.rows:
            files += [config.rows[task].train, config.rows[task].dev]
        elif config.data is not None and task not in embedded.TASKS:
            with reporting("", TaskError):
                files += filter(Path.exists, map(Path, reader_of(task).sources(task, Path(config.data))))
    models = [config.teacher, config.pretrain.assistant, config.base if isinstance(config.base, str) else None]
    return contents(files, map(locate, filter(None, models)))


def teacher_config(config: StudyConfig) -> Any:
    """The Hugging Face configuration of the teacher before fine-tuning. It may be one of our own students, such as a
    BERT with experts in its head, unless the students of the study start from it.

    Raises:
        distill.training.teacher.TeacherError: as `distill.training.teacher.load_config`.
    """
    return load_config(config.teacher, students=config.base != "teacher")


def notes_of(config: StudyConfig, tokenizer: Any, data: TaskData[Any]) -> list[str]:
    """The lines about the rows of the task, see `distill.tasks.row_checks.notes`."""
    teacher = teacher_config(config)
    segments = family_of(teacher).size(teacher, "token_types")
    train = joined(data.train, data.search)
    return notes(tokenizer, train, data.dev, config.row_length, segments, config.long_texts)


def encoded(
    config: StudyConfig, task: Task, rows: AnySplit, tokenizer: Any, accelerator: Accelerator
) -> tuple[AnySplit, Encoded]:
    """A split of the configuration's task, and the same encoded. Encoded sentences have the teacher's vectors as
    labels; queries and passages have its scores, in both.

    Raises:
        ConfigError: `max_length` is too small for them.
        UserError: `long_texts` is not for them.
        distill.training.teacher.TeacherError: the teacher cannot be loaded.
    """
    try:
        result = encode(tokenizer, rows, config.row_length, task_type=task.task_type, long_texts=config.long_texts)
    except UserError:
        raise
    except ValueError as error:
        raise ConfigError(f"max_length: {error}") from None
    if task.type.pool is None and not isinstance(rows, PassageSplit):
        return rows, result
    if isinstance(rows, PassageSplit):
        check_reranker(locate(config.teacher), load_config(config.teacher))
    else:
        check_prompt(locate(config.teacher))
    teacher = load_model(config.teacher, (), task.task_type, new_head=False)
    check_positions(config.teacher, teacher.config, int(result.lengths.max()), f"max_length {config.row_length}")
    logits_NC = rows_logits(teacher, result, tokenizer.pad_token_id, accelerator)
    if isinstance(rows, PassageSplit):
        scores_N = logits_NC[:, 0]
        return replace(rows, labels=tuple(scores_N.tolist())), replace(result, labels=scores_N)
    return rows, replace(result, labels=logits_NC)


def write(
    config: StudyConfig, tokenizer: Any, corpus: Callable[[], Corpus], folder: Path, accelerator: Accelerator
) -> None:
    """Write the folder of a task's data: its encoded rows and its splits.

    Raises:
        ConfigError: the rows cannot be read, or `max_length` is too small for them.
    """
    data = read(config, corpus)
    if (own := config.rows.get(config.task)) is None or own.labels is None:
        outputs = outputs_of(teacher_config(config))
        data = with_classes_of(data, outputs, all_of_them=config.finetune.steps == 0)
    folder.mkdir()
    (folder / NOTES).write_text(json.dumps(notes_of(config, tokenizer, data)), encoding="utf-8")
    for name, split in (("train", data.train), ("search", data.search), ("dev", data.dev)):
        rows, arrays = encoded(config, data.task, split, tokenizer, accelerator)
        if name == "train" and own is not None and own.class_weights is not None:
            with reporting(f"rows.{config.task}", TaskError):
                arrays = weighted(arrays, data.task, own.class_weights)
        save_encoded(arrays, folder / f"{name}.npz")
        if name in ("search", "dev"):
            save_split(rows, folder / f"{name}.json")
    (folder / "task.json").write_text(json.dumps(asdict(data.task)), encoding="utf-8")

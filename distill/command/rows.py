"""The rows on which `python -m distill` trains and evaluates."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from distill.checksums import create_once
from distill.files import cache_folder
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded
from distill.tasks.readers import load_task
from distill.tasks.readers.tables import read_rows, table_task
from distill.tasks.readers.texts import read_paragraphs, text_key
from distill.tasks.splits import AnySplit, Split, joined
from distill.tasks.task import Task, TaskData, TaskError
from distill.tasks.text import load_text, save_text, stored_text_key
from distill.tasks.types import CLASSIFICATION, MASKED_LM, REGRESSION, encode
from distill.training.evaluation import split_batches
from distill.training.teacher import check_positions, check_vocabulary
from search_spaces.errors import UserError


@dataclass(frozen=True)
class Rows:
    """Encoded rows for training and, if there is a task, for evaluation; text has neither a task nor dev rows."""

    kind: str
    train: Encoded
    task: Task | None = None
    split: AnySplit | None = None
    dev: Encoded | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes. On text the head has two dummy classes and is not trained."""
        return ("0", "1") if self.task is None else self.task.labels

    @property
    def headless(self) -> bool:
        """Whether only the encoder is trained: the rows are text without masked words to predict."""
        return self.task is None and self.kind != MASKED_LM

    @property
    def longest(self) -> int:
        """Number of tokens of the longest row."""
        return max(int(part.lengths.max()) for part in (self.train, self.dev) if part is not None)

    def dev_batches(self, pad_id: int) -> Iterator[Batch]:
        """The dev rows of a task, padded."""
        assert self.dev is not None
        return (batch for _, batch in split_batches(self.dev, pad_id))


def load_rows(options: Any, tokenizer: Any, labels: tuple[str, ...] = ()) -> Rows:
    """Load and encode the rows that the options name.

    Args:
        labels: the names of the classes of the user's own files; by default those that occur, sorted.

    Raises:
        UserError: there are no such rows, or they cannot be encoded in `max_length` tokens.
    """

    def encoded(rows: AnySplit, kind: str) -> Encoded:
        try:
            return encode(tokenizer, rows, options.max_length, kind=kind)
        except ValueError as error:
            raise UserError(f"--max-length: {error}") from None

    if options.corpus is not None:
        text = encoded_text(options, tokenizer)
        return Rows(text.kind, text)
    if options.train is not None and options.task is None:
        kind = REGRESSION if options.regression else CLASSIFICATION
        columns = {"text": options.text, "label": options.label, "pair": options.pair}
        data = table_task(options.train, options.dev, **columns, labels=labels or None, kind=kind)
    else:
        data = load_task(options.task, options.data)
    kind = data.task.kind
    rows = joined(data.train, data.search) if options.train is None or options.task is None else own_rows(options, data)
    train = encoded(rows, kind)
    return Rows(kind, train, data.task, data.dev, encoded(data.dev, kind))


def check_sizes(options: Any, config: Any, name: str, rows: Rows, tokenizer: Any) -> None:
    """Raise UserError if a model has no embedding for one of its tokenizer's token ids, or fewer positions than a row
    has tokens.
    """
    check_vocabulary(name, config, tokenizer)
    check_positions(name, config, rows.longest, f"--max-length {options.max_length}")


def own_rows(options: Any, data: TaskData[Any]) -> Split:
    """The rows of `--train`, which take the place of a task's training rows.

    Raises:
        UserError: they cannot be read, or are not such rows as the task's.
    """
    task = data.task
    if not isinstance(data.train, Split):
        raise UserError(f"--train: the rows of --task {options.task} are not those of a table; leave it out")
    if data.train.paired != (options.pair is not None):
        problem = "are pairs: add --pair" if data.train.paired else "are single sentences: leave out --pair"
        raise UserError(f"--train {options.train}: the rows of --task {options.task} {problem}")
    rows, _ = read_rows(options.train, options.text, options.label, options.pair, task.labels or None, task.kind)
    return rows


def encoded_text(options: Any, tokenizer: Any) -> Encoded:
    """The text that the options name, encoded; it is kept in the user's cache and mapped into memory.

    Raises:
        UserError: as `load_rows`.
    """
    keys = [text_key(source) for source in options.corpus]
    key = stored_text_key(keys, tokenizer, options.max_length, options.pack)

    def write(folder: Path) -> None:
        paragraphs = chain.from_iterable(read_paragraphs(source) for source in options.corpus)
        try:
            save_text(paragraphs, tokenizer, options.max_length, folder, options.pack)
        except TaskError:
            raise
        except ValueError as error:
            raise UserError(f"--max-length: {error}") from None

    folder = create_once(cache_folder() / "texts" / key, write)
    return load_text(folder, MASKED_LM if options.masked_lm else CLASSIFICATION)

"""The examples on which a command trains, prunes and measures models.

A UserError says which option, file or model is wrong.
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from distill.encoders.family import family_of
from distill.objectives.outputs import Batch
from distill.tasks.classes import weighted, with_classes_of
from distill.tasks.encoding import Encoded, training_batches
from distill.tasks.readers import load_task
from distill.tasks.readers.tables import read_rows, table_task
from distill.tasks.readers.texts import read_paragraphs, text_key
from distill.tasks.row_checks import notes
from distill.tasks.splits import AnySplit, Split, joined
from distill.tasks.task import TaskData, TaskError
from distill.tasks.text import load_text, save_text, stored_text_key
from distill.tasks.types import CLASSIFICATION, MASKED_LM, MULTI_LABEL, REGRESSION, encode
from distill.training.evaluation import EvalSet, split_batches
from distill.training.loop import make_accelerator
from distill.training.progress import silence_transformers
from distill.training.run import Examples
from distill.training.teacher import check_positions, check_vocabulary, load_config, load_tokenizer, outputs_of
from foundation.checksums import create_once
from foundation.errors import UserError, warn_once
from foundation.files import cache_folder


def open_examples(
    options: Any, source: str, students: bool = False, kept: bool = True
) -> tuple[Accelerator, Any, Examples]:
    """The accelerator, the configuration of the checkpoint `source`, and the examples, encoded with its tokenizer.

    Args:
        students: whether the checkpoint may be one of our own students.
        kept: whether the checkpoint keeps its head, whose classes then are those of the examples.
    """
    silence_transformers()
    accelerator = make_accelerator(options.device, options.mixed_precision)
    config, tokenizer = load_config(source, students), load_tokenizer(source)
    examples = load_examples(options, tokenizer, outputs_of(config), kept, config)
    check_sizes(options, config, source, examples)
    return accelerator, config, examples


def batches_for_importance(options: Any, examples: Examples) -> list[Batch]:
    """The training batches on which importance is measured: `--importance-batches` of `--batch-size` rows, or every row
    once.
    """
    pad_id = examples.tokenizer.pad_token_id
    if not options.importance_batches:
        return split_batches(examples.train, pad_id)
    few = options.importance_batches
    return list(training_batches(examples.train, options.batch_size, few, options.seed, pad_id))


def check_sizes(options: Any, config: Any, name: str, examples: Examples) -> None:
    """Raise UserError if a model has no embedding for one of its tokenizer's token ids, or fewer positions than an
    example has tokens.
    """
    check_vocabulary(name, config, examples.tokenizer)
    check_positions(name, config, examples.longest, f"--max-length {options.max_length}")


def load_examples(
    options: Any, tokenizer: Any, outputs: Sequence[str] = (), kept: bool = False, config: Any = None
) -> Examples:
    """Load and encode the examples that the options name.

    Args:
        outputs, kept: the model's classes, and whether it keeps its head: see `distill.tasks.classes.with_classes_of`.
        config: of the model; with it, what is lost of the rows is shown.
    """

    def encoded(rows: AnySplit, task_type: str) -> Encoded:
        try:
            return encode(tokenizer, rows, options.max_length, task_type=task_type, long_texts=options.long_texts)
        except ValueError as error:
            raise UserError(f"--max-length: {error}") from None

    if options.corpus is not None:
        text = encoded_text(options, tokenizer)
        return Examples(text.task_type, tokenizer, text)
    if options.train is not None and options.task is None:
        task_type = REGRESSION if options.regression else MULTI_LABEL if options.multi_label else CLASSIFICATION
        columns = {name: getattr(options, name) for name in ("text", "label", "pair", "metric", "threshold")}
        data = table_task(options.train, options.dev, **columns, task_type=task_type)
    else:
        data = load_task(options.task, options.data)
    data = with_classes_of(data, outputs, all_of_them=kept)
    task_type = data.task.task_type
    rows = joined(data.train, data.search) if options.train is None or options.task is None else own_rows(options, data)
    if config is not None:
        segments = family_of(config).size(config, "token_types")
        for line in notes(tokenizer, rows, data.dev, options.max_length, segments, options.long_texts):
            warn_once(line)
    train = encoded(rows, task_type)
    if options.class_weights is not None:
        train = weighted(train, data.task, options.class_weights)
    eval_set = EvalSet(data.task, data.dev, encoded(data.dev, task_type), tokenizer.pad_token_id)
    return Examples(task_type, tokenizer, train, eval_set)


def own_rows(options: Any, data: TaskData[Any]) -> Split:
    """The rows of `--train`, which replace a task's training rows."""
    task = data.task
    if not isinstance(data.train, Split):
        raise UserError(
            f"--train cannot be combined with --task {options.task}, whose rows are not single sentences or pairs"
        )
    if data.train.paired != (options.pair is not None):
        advice = "are pairs: add --pair" if data.train.paired else "are single sentences: leave out --pair"
        raise UserError(f"--train {options.train}: the rows of --task {options.task} {advice}")
    rows, _ = read_rows(options.train, options.text, options.label, options.pair, task.labels or None, task.task_type)
    return rows


def encoded_text(options: Any, tokenizer: Any) -> Encoded:
    """The text that the options name, encoded; it is kept in the user's cache and mapped into memory."""
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

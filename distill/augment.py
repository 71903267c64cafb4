"""Augment labeled sentences by copies with some words replaced, for `python -m distill --train`.

    python -m distill.augment --model MLM --task sst2 --data GLUE --out rows.tsv
    python -m distill.augment --model MLM --train FILE --text COLUMN --label COLUMN [--pair COLUMN] --out rows.tsv

TinyBERT's augmentation (Jiao et al., 2020, section 3.3): MLM, an encoder with a masked-word head, predicts the words
that may replace another. rows.tsv has every training row, followed by its copies with the same label.
"""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from distill.cli import DONE, Parser, add_device_option, add_output_options, interruptible

# Slow imports are inside functions, where Ctrl-C is caught.
from distill.command.options import add_training_rows_options, check_minima, check_own_rows, flag
from distill.training.progress import loading, silence_transformers, terminal
from foundation.errors import UserError

# A sentence, the second one of a pair or None, and the label.
AugmentedRow = tuple[str, str | None, Any]


def parser() -> Parser:
    result = Parser("distill.augment", description=__doc__)
    result.usage = "python -m distill.augment --model MLM --out FILE [option ...]"
    add = result.add_argument
    add("--model", required=True, metavar="MLM", help="a pre-trained encoder with its masked-word head")
    add("--out", type=Path, required=True, metavar="FILE", help="new .tsv file for the rows and their copies")
    add("--dev-out", type=Path, metavar="FILE", help="new .tsv file for the dev rows of --task, as they are")
    add_training_rows_options(result.add_argument_group("rows"))
    add = result.add_argument_group("copies").add_argument
    add("--copies", type=int, default=20, metavar="N", help="copies of every sentence (default: %(default)s)")
    chance = "probability that a copy replaces a word (default: %(default)s)"
    add("--probability", type=float, default=0.4, metavar="P", help=chance)
    several = "words that may replace a word (default: %(default)s)"
    add("--candidates", type=int, default=15, metavar="K", help=several)
    near = "word vectors such as GloVe's, whose neighbors replace words of several pieces (default: these stay)"
    add("--vectors", type=Path, metavar="FILE", help=near)
    add("--seed", type=int, default=0, metavar="N", help="seed of the choices (default: %(default)s)")
    add("--batch-size", type=int, default=64, metavar="N", help="masked sentences per batch (default: %(default)s)")
    add_device_option(result)
    add_output_options(result, "the numbers of rows")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("distill.augment", lambda: command(options))


def command(options: Any) -> int:
    """Write the rows and their copies.

    Raises:
        UserError: the options are invalid, or the model or the rows cannot be used.
    """
    check(options)
    with loading(options.quiet):
        from distill.tasks.augmentation import Augmentation, read_neighbors
        from distill.tasks.types import MASKED_LM
        from distill.training.loop import make_accelerator
        from distill.training.progress import Progress
        from distill.training.teacher import load_model, load_tokenizer
        from foundation.files import write_atomically

    silence_transformers()
    train, dev, names, columns = load(options)
    tokenizer = load_tokenizer(options.model)
    model = load_model(options.model, (), MASKED_LM, new_head=False)
    augmentation = Augmentation(
        model.to(make_accelerator(options.device, mixed_precision="no").device).eval(),
        tokenizer,
        None if options.vectors is None else read_neighbors(options.vectors),
        options.copies,
        options.probability,
        options.candidates,
        options.seed,
        options.batch_size,
    )
    total = len(train) * (1 + options.copies * (2 if train.paired else 1))
    with Progress(terminal(stderr=options.json), options.quiet) as progress:

        def reported() -> Iterator[AugmentedRow]:
            for number, row in enumerate(augmentation.rows(train)):
                if number % 1000 == 0:
                    progress.update("augmenting", number / total)
                yield row

        try:
            write_atomically(options.out, lambda draft: write(draft, reported(), columns, names))
            if options.dev_out is not None:
                plain = zip(dev.texts, dev.pairs or [None] * len(dev), dev.labels, strict=True)
                write_atomically(options.dev_out, lambda draft: write(draft, plain, columns, names))
        except OSError as error:
            raise UserError(f"--out {options.out}: {error.strerror}") from None
    if options.json:
        print(json.dumps({"rows": len(train), "written": total, "file": str(options.out)}, indent=2))
    else:
        print(f"wrote {options.out}: {len(train):,} rows, {total:,} with their copies")
    return DONE


def check(options: Any) -> None:
    """Raise UserError for options that are invalid independently of model and rows."""
    if (options.task is None) == (options.train is None):
        raise UserError("name the rows by one of --task NAME or --train FILE")
    if options.task is None:
        for name in ("data", "dev_out"):
            if getattr(options, name) is not None:
                raise UserError(f"{flag(name)} needs a --task")
    else:
        check_own_rows(options, parser(), ("text", "pair", "label", "regression"))
    check_minima(options, copies=1, candidates=1, batch_size=1, seed=0)
    if not 0 <= options.probability <= 1:
        raise UserError(f"--probability: must be between 0 and 1, not {options.probability}")
    for name in ("out", "dev_out"):
        file = getattr(options, name)
        if file is not None and file.suffix != ".tsv":
            raise UserError(f"{flag(name)} {file}: the name must end in .tsv")
        if file is not None and file.exists():
            raise UserError(f"{flag(name)} {file} exists: choose another name")
    if options.out == options.dev_out:
        raise UserError(f"--dev-out {options.dev_out}: this is --out; choose another name")


def load(options: Any) -> tuple[Any, Any, tuple[str, ...], tuple[str, ...]]:
    """The training rows, the dev rows (None for own files), the names of the classes, and the columns to write.

    Raises:
        UserError: they cannot be read, or are not sentences.
    """
    from distill.tasks.readers import load_task
    from distill.tasks.readers.tables import read_rows
    from distill.tasks.splits import Split, joined
    from distill.tasks.types import CLASSIFICATION, REGRESSION

    if options.train is not None:
        task_type = REGRESSION if options.regression else CLASSIFICATION
        rows, names = read_rows(options.train, options.text, options.label, options.pair, task_type=task_type)
        pair = () if options.pair is None else (options.pair,)
        return rows, None, names, (options.text, *pair, options.label)
    data = load_task(options.task, options.data)
    if not isinstance(data.train, Split):
        raise UserError(f"--task {options.task}: only labeled sentences can be augmented, not {data.task.task_type}")
    columns = ("sentence", "pair", "label") if data.train.paired else ("sentence", "label")
    return joined(data.train, data.search), data.dev, data.task.labels, columns


def write(path: Path, rows: Iterable[AugmentedRow], columns: Sequence[str], names: Sequence[str]) -> None:
    """Write rows as they are made.

    Args:
        names: the names of the classes; empty if the labels are numbers.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write("\t".join(columns) + "\n")
        for text, pair, label in rows:
            cells = [text, *([] if pair is None else [pair]), str(names[label] if names else label)]
            # The format has no quotes, so that a cell cannot have tabs or line breaks.
            file.write("\t".join(re.sub(r"[\t\r\n]+", " ", cell) for cell in cells) + "\n")


if __name__ == "__main__":
    sys.exit(main())

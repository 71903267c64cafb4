"""Encodes the text without labels on which a study's trainings may learn; it is kept in the user's cache."""

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

from distill.tasks.readers import embedded
from distill.tasks.readers.texts import read_paragraphs, text_key
from distill.tasks.task import TaskError
from distill.tasks.text import save_text, stored_text_key
from nas.config.recipes import TextRecipeTable
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.preparation.context import PreparationContext
from nas.preparation.entries import Entry
from nas.preparation.phases import learns_from_text


def texts_of(context: PreparationContext, tables: Iterable[str]) -> tuple[tuple[str, Path], ...]:
    """The names of those of these tables of the configuration whose trainings learn from text, each with the folder of
    its text in the cache, which may not exist yet.

    Raises:
        ConfigError: a file or data set does not exist.
    """
    chosen = [table for table in tables if learns_from_text(context.config, table)]
    return tuple((table, text_folder(context, corpora_of(context.config, table))) for table in chosen)


def text_entries(context: PreparationContext, tables: Iterable[str]) -> Iterator[Entry]:
    """The text of these tables. Making it raises ConfigError if the text cannot be read or encoded."""
    corpora = {folder: corpora_of(context.config, table) for table, folder in texts_of(context, tables)}
    for folder, sources in corpora.items():
        yield Entry("encoded text", folder, partial(_make_text, context, sources))


def corpora_of(config: StudyConfig, table: str) -> tuple[str, ...] | None:
    """The sources of the text of this training; None: the text of this installation."""
    own = getattr(config, table)
    return own.corpus if isinstance(own, TextRecipeTable) and own.corpus is not None else config.corpus


def text_folder(context: PreparationContext, corpora: tuple[str, ...] | None) -> Path:
    """The folder of the encoded text in the cache, which may not exist yet.

    Raises:
        ConfigError: a file or data set does not exist.
    """
    with reporting("corpus", TaskError):
        if not context.known:
            sources = ["unknown"]
        else:
            sources = [context.corpus().fingerprint] if corpora is None else [text_key(source) for source in corpora]
    config = context.config
    return context.cache / "texts" / stored_text_key(sources, context.tokenizer, config.max_length, config.pack_text)


def _make_text(context: PreparationContext, corpora: tuple[str, ...] | None, folder: Path, state: Path) -> None:
    context.on_progress("text without labels", None)
    own = embedded.text_corpus(context.corpus()) if corpora is None else ()
    paragraphs = chain(own, *map(read_paragraphs, corpora or ()))
    config = context.config
    try:
        save_text(paragraphs, context.tokenizer, config.max_length, folder, config.pack_text)
    except TaskError as error:
        raise ConfigError(f"corpus: {error}") from None
    except ValueError as error:
        raise ConfigError(f"max_length: {error}") from None

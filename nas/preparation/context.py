"""The context of the preparation, which all its steps share: configuration, tokenizer, device, and cache keys."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from distill.objectives.outputs import Batch
from distill.tasks.corpora import Corpus, corpus_file, embedded_corpus
from distill.tasks.encoding import Encoded, training_batches
from distill.tasks.splits import CUT
from distill.training.loop import make_accelerator
from distill.training.progress import ProgressCallback, ignore_progress
from distill.training.recipe import Recipe
from distill.training.teacher import load_tokenizer, source_fingerprint
from foundation.checksums import refuse_earlier_format
from foundation.files import cache_folder, fingerprint
from nas.config.schema import StudyConfig
from nas.preparation import data
from nas.preparation.nodes import check_shared
from nas.preparation.phases import CANDIDATE
from search_spaces.operations import UNARY

# Part of every cache key: increase it when the meaning of what is kept in the cache changes.
FORMAT = 5
# The tables of trainings whose text a search needs, and the activations that it allocates.
TEXTS, ACTIVATIONS = ("warmup", *CANDIDATE), tuple(sorted(UNARY))


@dataclass(frozen=True)
class PreparationContext:
    """What the preparation of a configuration's first task needs.

    Attributes:
        on_progress: the progress callback.
        cache: the user's cache folder.
        corpus: returns the text of this installation, which is read only once.
        data_key: the cache key of the encoded rows.
        teacher_key: the cache key of the fine-tuned teacher.
        precision: "bf16" or "no", in which all is made; also where the configuration has "auto".
        known: see `preparation_context`.
        outputs: whether to prepare the teacher's outputs, which only the training of candidates needs.
        texts: the tables of the trainings whose text is prepared if they learn from text.
        activations: for which ones losses are predicted, which only allocations need.
    """

    config: StudyConfig
    accelerator: Accelerator
    tokenizer: Any
    on_progress: ProgressCallback
    cache: Path
    corpus: Callable[[], Corpus]
    data_key: str
    teacher_key: str
    precision: str
    known: bool = True
    outputs: bool = True
    texts: tuple[str, ...] = TEXTS
    activations: tuple[str, ...] = ACTIVATIONS

    @property
    def data(self) -> Path:
        """The folder of the encoded examples, which may not exist yet."""
        return self.cache / "data" / self.data_key

    @property
    def teacher(self) -> Path:
        """The folder of the fine-tuned teacher, which may not exist yet."""
        return self.cache / "teachers" / self.teacher_key

    def batches(self, rows: Encoded, batch_size: int, steps: int, seed: int) -> Iterator[Batch]:
        return training_batches(rows, batch_size, steps, seed, self.tokenizer.pad_token_id)

    def recipe_batches(self, rows: Encoded, recipe: Recipe, seed: int) -> Iterator[Batch]:
        return self.batches(rows, recipe.batch_size, recipe.batches, seed)


def preparation_context(
    config: StudyConfig,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
    *,
    known: bool = True,
    precision: str | None = None,
) -> PreparationContext:
    """Create the context of a configuration. Of the data set, only what its cache key needs is read.

    Args:
        known: whether the data set and the text are on this machine. Otherwise they are not read, and the paths in the
            cache that depend on them do not exist.
        precision: that of what is sought in the cache, if it was made on another device; None: this device's.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: rows or tokenizer cannot be read, or the processes of this
            launch do not share the cache.
        foundation.files.CacheError: the cache was made by version 0.1, or others could write there.
    """
    cache = cache_folder()
    refuse_earlier_format(cache)
    accelerator = make_accelerator(device, config.mixed_precision)
    tokenizer = load_tokenizer(config.teacher, data.task_type_of(config, config.task).name)
    precision = precision or str(accelerator.mixed_precision)
    check_shared(cache, accelerator)

    @once
    def corpus() -> Corpus:
        if not corpus_file().exists():
            on_progress("collecting the text of this installation", None)
        return embedded_corpus()

    on_progress("reading the rows", None)
    data_key = fingerprint(
        FORMAT,
        data.rows_key(config, corpus) if known else "unknown",
        source_fingerprint(config.teacher),
        config.task,
        config.row_length,
        config.search_fraction if config.search_rows == "random" else [config.search_fraction, config.search_rows],
        config.finetune.steps == 0,  # whose classes the rows have
        *([] if config.long_texts == CUT else [config.long_texts]),
        *([precision] if data.labelled_by_teacher(config) else []),
    )
    return PreparationContext(
        config=config,
        accelerator=accelerator,
        tokenizer=tokenizer,
        on_progress=on_progress,
        cache=cache,
        corpus=corpus,
        data_key=data_key,
        known=known,
        teacher_key=fingerprint(data_key, config.finetune.model_dump(), config.seed, precision),
        precision=precision,
    )

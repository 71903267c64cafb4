"""What is compared (studies, checkpoints and architectures), on which rows, and the paired differences on them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

import numpy as np

from distill.table import plural
from distill.tasks.metrics import paired_difference
from foundation.errors import UserError
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.report.study import read
from nas.study.contributions import metric_of_rows
from nas.study.folder import Folder
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.published import load

# Standard errors on each side of a 95 % interval.
NORMAL = 1.959964
SEARCH, DEV = "search split", "dev split"
# What decides which rows a study has.
ORIGIN = ("task", "data", "table of rows", "corpus", "search_fraction", "search_rows", "teacher")


@dataclass(frozen=True, eq=False)
class Item:
    """What is compared.

    Attributes:
        config: of the study or the checkpoint; None for an architecture.
        rows: the contributions of the rows to the score, by the seed of the training: of the search split for a study
            and for what it has confirmed, of the dev split for a checkpoint.
        checkpoint, study: the folder, for a checkpoint or a study.
    """

    name: str
    architecture: Architecture
    config: StudyConfig | None = None
    rows: Mapping[int, np.ndarray] = field(default_factory=dict)
    checkpoint: Path | None = None
    study: Path | None = None


def item_of(text: str) -> Item:
    """A study, a checkpoint, an architecture file or a published architecture, without rows.

    Raises:
        UserError: it is none of these.
    """
    path = Path(text)
    if not path.is_dir():
        return Item(text, load(text))
    folder = Folder(path)
    if (path / "model.safetensors").exists() or (path / "config.json").exists():
        if not folder.architecture.exists():
            raise UserError(f"{path} is not a checkpoint of this project: it has no {folder.architecture.name}")
        if not folder.config.exists():  # as of `supernet.prune` and `supernet.experts`
            return Item(text, Architecture.load(folder.architecture))
        config = load_config(str(folder.config))
        return Item(text, Architecture.load(folder.architecture), config, checkpoint=path)
    if not folder.config.exists():
        raise UserError(f"{path} is neither a study's folder nor a checkpoint: it has no config.toml")
    if not folder.architecture.exists():
        raise UserError(
            f"{path} has no architecture.json, because none of its stages has ended; to compare one of its trials, "
            f"write its architecture to a file with: python -m nas.pick {quote(str(path))} --trial N"
        )
    return Item(text, Architecture.load(folder.architecture), load_config(str(folder.config)), study=path)


@dataclass(frozen=True)
class Difference:
    """The difference in score between two items on the same rows.

    Attributes:
        score: of the item, the mean over the seeds that both have.
        reference: the item whose score is subtracted.
        value, standard_error: of the paired difference; with several seeds the error covers their choice, too.
        interval: the 95 % interval, by the normal approximation.
        p: the two-sided p-value of no difference, by the same.
        seeds: of the trainings; empty for checkpoints.
        on: what the rows are.
    """

    name: str
    score: float
    reference: str
    value: float
    standard_error: float
    interval: tuple[float, float]
    p: float
    seeds: tuple[int, ...]
    rows: int
    on: str


def check_tasks(items: Sequence[Item]) -> None:
    """Raise UserError if two items are of different tasks, or two studies of different data; the rows of checkpoints
    themselves are compared (`scored_checkpoints`).
    """
    scored = [item for item in items if item.study] + [item for item in items if item.checkpoint]
    for item in scored[1:]:
        for what, one, other in zip(ORIGIN, _origin(scored[0]), _origin(item), strict=True):
            if one != other and (what == "task" or item.study):
                raise UserError(
                    f"{item.name} and {scored[0].name} cannot be compared on the same rows: the {what} is {other!r} "
                    f"and {one!r}; to see layers and costs alone, give their architecture.json files"
                )


def _origin(item: Item) -> tuple[Any, ...]:
    """The values of `ORIGIN` of a study or a checkpoint."""
    config = item.config
    assert config is not None
    rows = config.rows.get(config.task)
    files = rows and rows.model_dump(mode="json"), None if rows else config.corpus
    # The labels of vectors and scores are the teacher's.
    teacher = config.teacher if rows and (rows.embeddings or rows.reranking) else None
    return config.task, config.data, *files, config.search_fraction, config.search_rows, teacher


def with_confirmed_rows(items: Sequence[Item], storage: str | None) -> list[Item]:
    """The items with the rows of their confirmations: a study's winner in its own study, an architecture in the first
    of the given studies that has confirmed it.

    Raises:
        ConfigError, StorageError: a study cannot be opened.
    """
    studies = {item.study: read(Folder(item.study), storage) for item in items if item.study is not None}
    result = []
    for item in items:
        function = function_key(item.architecture)
        given = [] if item.checkpoint else [studies[item.study]] if item.study else list(studies.values())
        for study in given:
            confirmed = study.confirmed.get(function, {})
            rows = {seed: one.rows for seed, one in sorted(confirmed.items()) if one.rows is not None}
            if rows:
                item = replace(item, rows=rows, config=item.config or study.config)
                break
        result.append(item)
    return result


def scored_checkpoints(items: Sequence[Item], first: int | None, device: str) -> list[Item]:
    """The items, of which the checkpoints have the rows of the dev split, if there are at least two of them.

    Args:
        first: score on this many rows; None: on all.

    Raises:
        UserError: the dev splits of the checkpoints differ.
        distill.training.teacher.TeacherError: a checkpoint cannot be loaded.
    """
    if sum(item.checkpoint is not None for item in items) < 2:
        return list(items)
    from distill.training.progress import silence_transformers
    from distill.training.teacher import load_model
    from nas.preparation.context import preparation_context
    from nas.preparation.teacher import dev_set

    silence_transformers()
    splits: dict[str, Any] = {}
    result = []
    for item in items:
        if item.checkpoint is None:
            result.append(item)
            continue
        # All in the same precision, whatever their configurations say.
        config = load_config(str(item.checkpoint / "config.toml"), {"mixed_precision": "auto"})
        context = preparation_context(config, device)
        dev = dev_set(context)
        for name, split in splits.items():
            if split != dev.split:
                raise UserError(f"{item.name} and {name} cannot be compared: their dev splits have different rows")
        splits[item.name] = dev.split
        model = load_model(str(item.checkpoint), dev.task.labels, dev.task.task_type, new_head=False)
        contributions = dev.contributions(model, context.accelerator, first)
        result.append(replace(item, rows={0: contributions[dev.task.metrics[0]]}))
    return result


def differences(items: Sequence[Item]) -> tuple[list[Difference], list[str]]:
    """The paired differences of confirmed architectures to the first of them, and of checkpoints to the first of them;
    and what could not be compared.

    Raises:
        UserError: the numbers of rows differ.
    """
    result: list[Difference] = []
    notes = [
        f"{item.name}: no rows are known, as "
        + ("a single checkpoint is not scored" if item.checkpoint else "it was not confirmed in a study that was given")
        for item in items
        if not item.rows
    ]
    for split in (SEARCH, DEV):
        known = [item for item in items if item.rows and (item.checkpoint is not None) == (split == DEV)]
        for item in known[1:]:
            difference = _difference(item, known[0], split)
            if difference is None:
                notes.append(f"{item.name} and {known[0].name}: no training with the same seed")
            else:
                result.append(difference)
    return result, notes


def _difference(item: Item, reference: Item, split: str) -> Difference | None:
    """The difference over the seeds that both have; None without a common seed."""
    from scipy.stats import norm

    seeds = sorted(item.rows.keys() & reference.rows.keys())
    if not seeds or item.config is None:
        return None
    pairs = [(item.rows[seed], reference.rows[seed]) for seed in seeds]
    lengths = {len(rows) for pair in pairs for rows in pair}
    if len(lengths) > 1:
        counts = " and ".join(f"{length:,}" for length in sorted(lengths))
        raise UserError(f"{item.name} and {reference.name} were scored on different rows: {counts} of them")
    metric = metric_of_rows(item.config, pairs[0][0])
    lead = paired_difference(metric, pairs)
    sure = lead.standard_error == 0
    p = float(lead.value == 0) if sure else float(2 * norm.sf(abs(lead.value) / lead.standard_error))
    count = lengths.pop()
    trainings = f", {plural(len(seeds), 'seed')}" if split == SEARCH else ""
    return Difference(
        name=item.name,
        score=fmean(metric.of_contributions(rows).value for rows, _ in pairs),
        reference=reference.name,
        value=lead.value,
        standard_error=lead.standard_error,
        interval=(lead.value - NORMAL * lead.standard_error, lead.value + NORMAL * lead.standard_error),
        p=p,
        seeds=tuple(seeds) if split == SEARCH else (),
        rows=count,
        on=f"{count:,} rows of the {split}{trainings}",
    )

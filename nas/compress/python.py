"""`compress_model`: compress a model and rows that are in memory."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.defaults import LABEL, MAX_LENGTH, TEXT
from distill.memory import SPLITS, RowsError, memory_folder, source_of, write_splits
from distill.python import Distilled
from distill.table import Table
from distill.tasks.splits import CUT, THRESHOLD
from distill.training.layout import ARCHITECTURE_FILE
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.errors import UserError
from foundation.files import scratch_folder
from nas.compress.command import OWN, PRESET
from nas.compress.retrieval import pairs_of, retrieval_table
from nas.compress.rows import texts_of, write_texts
from nas.compress.run import CompressRun, compress
from nas.config.load import Given, load_config
from nas.config.schema import StudyConfig
from nas.export.hub import NOT_THERE, Publication
from nas.export.run import publish
from nas.report.drawing import svg
from search_spaces.architecture import Architecture

# The arguments of `compress_model` that are called otherwise in a configuration.
ARGUMENTS = {"finetune.steps": "finetune_teacher", "pretrain.steps": "pretrain_steps"}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Compressed(Distilled):
    """A compressed model; notebooks show its measurements and the drawing of its architecture.

    Attributes:
        architecture: what it consists of.
    """

    architecture: Architecture

    def tables(self) -> list[Table]:
        return [*super().tables(), *([retrieval_table(self.metrics)] if "retrieval" in self.metrics else [])]

    def _repr_html_(self) -> str:
        return "".join(table.html() for table in self.tables()) + svg(self.architecture)

    @classmethod
    def load(cls, folder: str | Path) -> "Compressed":
        """Read what `save`, `python -m nas.compress` or `train_final.py` has written.

        Raises:
            UserError: the folder is no such checkpoint.
        """
        distilled = Distilled.load(folder)
        return cls(**vars(distilled), architecture=Architecture.load(Path(folder) / ARCHITECTURE_FILE))

    def save(self, folder: str | Path) -> None:
        super().save(folder)
        self.architecture.save(Path(folder) / ARCHITECTURE_FILE)

    def push_to_hub(self, repo: str, *, license: str, base_model: str | None, private: bool = False) -> str:
        """Upload what `save` writes to the Hugging Face hub, with a model card; returns its address.

        Args:
            repo: its name there, "organization/name".
            license: the identifier of its license on the hub, such as "apache-2.0".
            base_model: the name on the hub of the model that it was made from; None: it is not there.

        Raises:
            UserError: a name is wrong, or the hub does not take it.
        """
        publication = Publication(repo, license, base_model or NOT_THERE, private)
        publication.check(None)
        with scratch_folder() as folder:
            self.save(folder / "student")
            return publish(folder / "student", publication)


def compress_model(
    model: Any,
    train: Any = None,
    dev: Any = None,
    *,
    unlabeled: Any = None,
    embeddings: Any = None,
    retrieval: Any = None,
    tokenizer: Any = None,
    text: str = TEXT,
    pair: str | None = None,
    label: str = LABEL,
    regression: bool = False,
    reranking: bool = False,
    multi_label: bool = False,
    threshold: float = THRESHOLD,
    class_weights: str | Mapping[str, float] | None = None,
    metric: str | None = None,
    max_latency: str | None = None,
    max_params: int | None = None,
    max_size: str | None = None,
    runtime: str = "torch",
    threads: int | None = None,
    uniform: bool = False,
    steps: int | None = None,
    learning_rate: float | None = None,
    pretrain_steps: int = 0,
    corpus: str | Sequence[str] | None = None,
    finetune_teacher: int = 0,
    max_length: int = MAX_LENGTH,
    long_texts: str = CUT,
    device: str = "auto",
    seed: int = 0,
    on_progress: ProgressCallback = ignore_progress,
) -> Compressed:
    """Make a model smaller and faster, as `python -m nas.compress` does. The model itself is not changed.

    Args:
        model: an encoder with a trained head for this task, or its folder or name on the hub; or a SentenceTransformer.
        tokenizer: of a `model` of transformers.
        train, dev: labeled rows: a `datasets.Dataset`, a pandas data frame or a list of dictionaries. Without `dev`,
            every tenth row of `train` is measured on instead of trained on, and with it those with the same text.
        unlabeled, embeddings: in place of `train`, texts, as rows, a list or a text file, from which the student learns
            what a classifier predicts, or the vectors of a sentence encoder. Every tenth is measured on.
        retrieval: with `embeddings`, pairs on which retrieval is measured: rows or a file with the columns `query` and
            `passage`; with `reranking` all pairs to rank, with a third column, `relevant` (0 or 1).
        text, pair, label: the columns of the sentence, of a second one, and of the class or number.
        regression, multi_label: whether the labels are numbers, or lists of classes, predicted from the `threshold` on.
        reranking: whether the model is a reranker, of which the student learns the scores of `text`, a query, and
            `pair`, a passage. Rows need no labels; without `dev`, every tenth query is held out.
        class_weights, metric: see `distil`.
        max_latency: the limit on the latency, such as "12ms", or "0.3x" of the teacher's; without any limit "1/3x".
        max_params, max_size: the limits on the parameters, and on the file of the weights, such as "10MB".
        runtime, threads: in what the student will run, "torch", "onnx" or "onnx-int8", and on how many threads.
        uniform: whether all FFNs have one width, and heads and layers are kept.
        steps, learning_rate: of the student's training; None: 250 and 2e-4, for vectors and scores 1,500 and 3e-4.
        pretrain_steps, corpus: steps on text first, and its files, folders or hub data sets; None: the embedded text.
        finetune_teacher: steps to train the teacher first, if its head is not trained.
        max_length, long_texts: tokens of a row, and what is read of longer texts: "cut", "head_tail" or "windows".
        on_progress: called with the current work and the fraction of it that is done.

    Raises:
        UserError: the model, the rows and the limits do not fit together; a `ValueError` in most cases.
    """
    given = {"train": train, "unlabeled": unlabeled, "embeddings": embeddings}
    kinds = {"regression": regression, "reranking": reranking, "multi_label": multi_label}
    scored = {"pair": pair, "class_weights": class_weights, "metric": metric}
    columns = {"text": text, "label": label, "threshold": threshold, **scored}
    others = scored | {"dev": dev, "finetune_teacher": finetune_teacher}
    _check(given, columns, **others, **kinds, retrieval=None if reranking else retrieval)
    settings = _budget(max_latency, max_params, max_size, runtime, threads) | {"max_length": max_length, "seed": seed}
    settings |= _training(steps, learning_rate, finetune_teacher, pretrain_steps, corpus) | {"long_texts": long_texts}
    with memory_folder("model", held_out=dev is None) as folder:
        source = source_of(model, tokenizer, folder / "model")
        rows = _write_rows(folder, given, dev, columns | kinds, (source, max_length, long_texts, device))
        kind = "embeddings" if embeddings is not None else "reranking" if reranking else None
        config = _config(kind, settings, {"teacher": source, "tasks": [OWN], "rows": {OWN: rows}})
        made: dict[str, Any] = {"out": folder / "student", "uniform": uniform, "device": device}
        made["pairs"] = None if retrieval is None else pairs_of(retrieval, ranked=reranking)
        return _compressed(CompressRun(config=config, **made), on_progress)


def _compressed(run: CompressRun, on_progress: ProgressCallback) -> Compressed:
    if compress(run, on_progress, warnings.warn) is None:
        raise UserError("only the first of several processes has a result")
    return Compressed.load(run.out)


def _config(of: str | None, settings: Mapping[str, Any], values: Mapping[str, Any]) -> StudyConfig:
    """The configuration of the preset `of` embeddings or reranking; messages name the arguments of `settings`."""
    named = {place: ARGUMENTS.get(place, place.rpartition(".")[2]) for place in settings}
    given: dict[str, Any] = {place: Given(f"--{name}", settings[place]) for place, name in named.items()}
    return load_config(PRESET if of is None else f"{PRESET}-{of}", given | dict(values))


def _budget(
    max_latency: str | None, max_params: int | None, max_size: str | None, runtime: str, threads: int | None
) -> dict[str, Any]:
    latency = "1/3x" if max_latency is max_params is max_size is None else max_latency
    limits = {"space.max_latency": latency, "space.max_params": max_params, "space.max_size": max_size}
    return limits | {"deployment.runtime": runtime, "deployment.threads": threads}


def _training(
    steps: int | None,
    learning_rate: float | None,
    finetune_teacher: int,
    pretrain_steps: int,
    corpus: str | Sequence[str] | None,
) -> dict[str, Any]:
    if corpus is not None and not pretrain_steps:
        raise RowsError("corpus: is the text for pretrain_steps: give both")
    chosen = {"final.steps": steps, "final.learning_rate": learning_rate, "pretrain.corpus": corpus}
    always = {"finetune.steps": finetune_teacher, "pretrain.steps": pretrain_steps}
    return always | {name: value for name, value in chosen.items() if value is not None}


def _check(given: Mapping[str, Any], columns: Mapping[str, Any], **others: Any) -> None:
    """Raise RowsError unless rows are given in one of the ways, with nothing that belongs to another one."""
    names = [name for name, data in given.items() if data is not None]
    if len(names) != 1:
        said = f"not {' and '.join(names)}" if names else "there are no rows"
        raise RowsError(f"give one of {', '.join(given)}; {said}")
    changed = {name: columns[name] != usual for name, usual in (("label", LABEL), ("threshold", THRESHOLD))}
    for name, value in (others | changed).items():
        if value is not None and not (isinstance(value, int) and value == 0):
            needs = "embeddings" if name == "retrieval" else "train"
            if names != [needs]:
                raise RowsError(f"{name}: belongs to {needs}, and cannot be combined with {names[0]}: leave it out")
    if others["reranking"] and changed["label"]:
        raise RowsError("label: a reranker's student learns its scores, not labels: leave it out")


def _write_rows(
    folder: Path, given: Mapping[str, Any], dev: Any, columns: Mapping[str, Any], labeling: tuple[str, int, str, str]
) -> dict[str, Any]:
    """Write the rows to files; returns the table of a configuration that describes them.

    Args:
        labeling: the arguments of `predicted_labels` beside the texts.
    """
    if given["train"] is not None:
        table = {name: value for name, value in columns.items() if value is not None}
        if columns["reranking"]:
            del table["label"]
        texts = [table[name] for name in ("text", "pair") if name in table]
        named = [*texts, *([table["label"]] if "label" in table else [])]
        by = texts[:1] if columns["reranking"] else texts
        classes = None if columns["regression"] else table.get("label")
        files = write_splits(folder, given["train"], dev, named, by, classes)
        return table | dict(zip(SPLITS, map(str, files), strict=True))
    name = "unlabeled" if given["embeddings"] is None else "embeddings"
    texts = texts_of(given[name], name, columns["text"])
    return write_texts(folder, texts, labeling if name == "unlabeled" else None)

"""The demo's three classification tasks, whose labels are derived from the text of a corpus; they do not need the hub.

``library``: which library a sentence documents. ``neighbours``: whether the second sentence follows the first or was
taken from another document of the same library. ``word_order``: whether two neighboring words of the sentence were
swapped, which a bag of words cannot tell. All tasks use the same division of the documents into train, search and dev,
so that no task trains on text on which another one is scored.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from distill.tasks.corpora import Corpus, embedded_corpus
from distill.tasks.splits import Split
from distill.tasks.task import Task, TaskData, TaskError
from distill.tasks.types import CLASSIFICATION
from foundation.errors import did_you_mean


@dataclass(frozen=True)
class Sizes:
    """The maximum sizes of the splits. If the corpus is too small they get fewer rows, still balanced by class."""

    train: int = 60_000
    search: int = 2_000
    dev: int = 6_000


Row = tuple[str, str | None, int]


def load(name: str, data: Path | None = None) -> TaskData[Split]:
    """One task on the text of this installation (:func:`distill.tasks.corpora.embedded_corpus`).

    Raises:
        TaskError: `data` is given, or as `demo_task`.
    """
    if data is not None:
        raise TaskError(f"the task {name!r} uses the embedded text: leave out the folder {data}")
    return demo_task(name, embedded_corpus())


def task_type(name: str) -> str:
    return CLASSIFICATION


def sources(name: str, data: Path | None = None) -> list[Path | str]:
    """The fingerprint of the text of this installation."""
    return [embedded_corpus().fingerprint]


def demo_task(name: str, corpus: Corpus, sizes: Sizes | None = None) -> TaskData[Split]:
    """One task on this corpus. Raises TaskError if the name is unknown or the corpus is too small."""
    if name not in TASKS:
        raise TaskError(f"unknown task {name!r}{did_you_mean(name, TASKS)}; there are {', '.join(TASKS)}")
    task, make_rows = TASKS[name](corpus)
    sizes = sizes or Sizes()
    splits = {}
    for number, (split, indices) in enumerate(document_splits(corpus).items()):
        rng = np.random.default_rng([0, number, list(TASKS).index(name)])
        splits[split] = _balanced(make_rows(indices, rng), len(task.labels), getattr(sizes, split), rng)
        if not len(splits[split]):
            raise TaskError(f"task {name!r}: the corpus of {len(corpus)} sentences has no rows for {split}")
    return TaskData(task, **splits)


def document_splits(corpus: Corpus) -> dict[str, np.ndarray]:
    """Ascending sentence indices of ``train``, ``search`` and ``dev``: 84, 8 and 8 % of the documents."""
    documents = sorted(set(corpus.documents))
    places = np.random.default_rng([0, len(documents)]).permutation(len(documents)) / len(documents)
    place = dict(zip(documents, places, strict=True))
    at = np.array([place[document] for document in corpus.documents])
    return {
        "train": np.flatnonzero(at >= 0.16),
        "search": np.flatnonzero(at < 0.08),
        "dev": np.flatnonzero((at >= 0.08) & (at < 0.16)),
    }


def text_corpus(corpus: Corpus) -> list[str]:
    """Sentences for training without labels: those of the ``train`` documents, on which no score is measured."""
    return [corpus.texts[index] for index in document_splits(corpus)["train"]]


MakeRows = Callable[[np.ndarray, np.random.Generator], list[Row]]

LIBRARIES_COMPARED = 8


def _library(corpus: Corpus) -> tuple[Task, MakeRows]:
    common = Counter(corpus.sources).most_common(LIBRARIES_COMPARED)
    if len(common) < 2:
        raise TaskError(f"task 'library': needs text of two sources or more, not of {len(common)}")
    names = tuple(sorted(name for name, _ in common))
    label = {name: index for index, name in enumerate(names)}

    def make_rows(indices: np.ndarray, rng: np.random.Generator) -> list[Row]:
        chosen = [index for index in indices if corpus.sources[index] in label]
        return [(corpus.texts[index], None, label[corpus.sources[index]]) for index in chosen]

    return Task("library", names), make_rows


def _neighbours(corpus: Corpus) -> tuple[Task, MakeRows]:
    def make_rows(indices: np.ndarray, rng: np.random.Generator) -> list[Row]:
        by_source: dict[str, list[int]] = defaultdict(list)
        for index, following in pairwise(indices.tolist()):
            same = corpus.documents[index] == corpus.documents[following]
            if same and corpus.positions[following] == corpus.positions[index] + 1:
                by_source[corpus.sources[index]].append(index)
        rows: list[Row] = []
        for firsts in by_source.values():
            shuffled = rng.permutation(firsts).tolist()
            half = len(shuffled) // 2
            rows += [(corpus.texts[index], corpus.texts[index + 1], 1) for index in shuffled[:half]]
            # Second sentences of negatives are second sentences of true pairs too: alone they tell nothing.
            others = shuffled[half:]
            for index, other in zip(others, others[1:] + others[:1], strict=True):
                if corpus.documents[index] != corpus.documents[other]:
                    rows.append((corpus.texts[index], corpus.texts[other + 1], 0))
        return rows

    return Task("neighbours", ("elsewhere", "next")), make_rows


def _word_order(corpus: Corpus) -> tuple[Task, MakeRows]:
    def make_rows(indices: np.ndarray, rng: np.random.Generator) -> list[Row]:
        rows: list[Row] = []
        for index in indices:
            text = corpus.texts[index]
            swapped = swap_two_words(text, rng)
            if swapped is not None:
                label = int(rng.integers(2))
                rows.append((swapped if label else text, None, label))
        return rows

    return Task("word_order", ("original", "swapped")), make_rows


def swap_two_words(sentence: str, rng: np.random.Generator) -> str | None:
    """Swap a random pair of different neighboring words of lower-case letters only; None if there is no such pair.

    Words with capitals or punctuation stay in place, so they do not give the swap away.
    """
    words = sentence.split(" ")
    plain = [re.fullmatch("[a-z]+", word) is not None for word in words]
    choices = [
        place
        for place in range(len(words) - 1)
        if plain[place] and plain[place + 1] and words[place] != words[place + 1]
    ]
    if not choices:
        return None
    place = choices[rng.integers(len(choices))]
    words[place], words[place + 1] = words[place + 1], words[place]
    return " ".join(words)


TASKS: Mapping[str, Callable[[Corpus], tuple[Task, MakeRows]]] = {
    "library": _library,
    "neighbours": _neighbours,
    "word_order": _word_order,
}


def _balanced(rows: Sequence[Row], classes: int, size: int, rng: np.random.Generator) -> Split:
    """At most ``size`` shuffled rows with the same number of every class."""
    order = rng.permutation(len(rows))
    by_class = [[index for index in order if rows[index][2] == label] for label in range(classes)]
    each = min(size // classes, *map(len, by_class))
    chosen = rng.permutation([index for members in by_class for index in members[:each]])
    picked = [rows[int(index)] for index in chosen]
    pairs = tuple(pair for _, pair, _ in picked if pair is not None)
    return Split(tuple(text for text, _, _ in picked), pairs or None, tuple(label for _, _, label in picked))

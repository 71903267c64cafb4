import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.tasks.corpora import Corpus, build_corpus, installed_sources
from distill.tasks.readers import load_task
from distill.tasks.readers.embedded import TASKS, Sizes, demo_task, document_splits, swap_two_words, text_corpus
from distill.tasks.splits import Split
from distill.tasks.task import TaskData, TaskError

SMALL = Sizes(train=2000, search=200, dev=200)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    folders = installed_sources()
    return build_corpus({name: folders[name] for name in ("networkx", "optuna")})


def all_tasks(corpus: Corpus) -> dict[str, TaskData[Split]]:
    return {name: demo_task(name, corpus, SMALL) for name in TASKS}


@pytest.fixture(scope="module")
def tasks(corpus: Corpus):  # type: ignore[no-untyped-def]
    return all_tasks(corpus)


def document_of(corpus: Corpus) -> dict[str, str]:
    """Document by sentence, and by the bag of its words, which a swap keeps."""
    pairs = list(zip(corpus.texts, corpus.documents, strict=True))
    return dict(pairs) | {" ".join(sorted(text.split())): document for text, document in pairs}


def test_the_three_tasks(tasks) -> None:  # type: ignore[no-untyped-def]
    assert {name: data.task.labels for name, data in tasks.items()} == {
        "library": ("networkx", "optuna"),
        "neighbours": ("elsewhere", "next"),
        "word_order": ("original", "swapped"),
    }
    assert {name: data.train.pairs is not None for name, data in tasks.items()} == {
        "library": False,
        "neighbours": True,
        "word_order": False,
    }


def test_no_document_is_shared_by_two_splits_of_any_tasks(corpus: Corpus, tasks) -> None:  # type: ignore[no-untyped-def]
    document = document_of(corpus)
    used: dict[str, set[str]] = {"train": set(), "search": set(), "dev": set()}
    for data in tasks.values():
        for split, seen in used.items():
            rows = getattr(data, split)
            for text in (*rows.texts, *(rows.pairs or ())):
                seen.add(document.get(text) or document[" ".join(sorted(text.split()))])
    for first, second in itertools.combinations(used.values(), 2):
        assert first and second and not first & second


def test_document_splits_cover_every_sentence_once(corpus: Corpus) -> None:
    splits = document_splits(corpus)
    assert sorted(np.concatenate(list(splits.values()))) == list(range(len(corpus)))
    assert text_corpus(corpus) == [corpus.texts[index] for index in splits["train"]]


def test_labels_are_balanced_and_sizes_kept(tasks) -> None:  # type: ignore[no-untyped-def]
    for data in tasks.values():
        for split, size in (("train", SMALL.train), ("search", SMALL.search), ("dev", SMALL.dev)):
            rows = getattr(data, split)
            assert 0 < len(rows) <= size
            assert len(set(Counter(rows.labels).values())) == 1
            assert set(rows.labels) == set(range(len(data.task.labels)))


def test_same_arguments_same_rows(corpus: Corpus, tasks) -> None:  # type: ignore[no-untyped-def]
    assert all_tasks(corpus) == tasks


def test_library_labels(corpus: Corpus, tasks) -> None:  # type: ignore[no-untyped-def]
    source = dict(zip(corpus.texts, corpus.sources, strict=True))
    data = tasks["library"]
    for text, label in zip(data.dev.texts, data.dev.labels, strict=True):
        assert data.task.labels[label] == source[text]


def test_neighbours_follow_and_others_are_from_another_document(corpus: Corpus, tasks) -> None:  # type: ignore[no-untyped-def]
    place = {text: index for index, text in enumerate(corpus.texts)}
    for split in (tasks["neighbours"].train, tasks["neighbours"].dev):
        for first, second, label in zip(split.texts, split.pairs, split.labels, strict=True):
            here, there = place[first], place[second]
            same = corpus.documents[here] == corpus.documents[there]
            assert corpus.sources[here] == corpus.sources[there]
            assert same == bool(label)
            if label:
                assert corpus.positions[there] == corpus.positions[here] + 1


def test_word_order_swaps_exactly_two_words_and_keeps_the_bag(corpus: Corpus, tasks) -> None:  # type: ignore[no-untyped-def]
    by_bag: dict[str, list[str]] = {}
    for text in corpus.texts:
        by_bag.setdefault(" ".join(sorted(text.split())), []).append(text)
    split = tasks["word_order"].train
    for text, label in zip(split.texts, split.labels, strict=True):
        originals = by_bag[" ".join(sorted(text.split()))]
        if label:
            differing = [
                [place for place, (a, b) in enumerate(zip(text.split(), original.split(), strict=True)) if a != b]
                for original in originals
            ]
            assert 2 in map(len, differing)
        else:
            assert text in originals


@given(
    st.lists(st.sampled_from(["the", "door", "opens", "and", "closes,", "X", "a1"]), min_size=1, max_size=12),
    st.integers(0, 9),
)
def test_swap_is_a_swap(words: list[str], seed: int) -> None:
    sentence = " ".join(["This", *words, "end."])
    swapped = swap_two_words(sentence, np.random.default_rng(seed))
    possible = [
        (i, j)
        for i, j in itertools.combinations(range(len(words)), 2)
        if j - i == 1 and words[i] != words[j] and words[i].islower() and words[j].islower()
        if words[i].isalpha() and words[j].isalpha()
    ]
    if not possible:
        assert swapped is None
        return
    assert swapped is not None
    before, after = sentence.split(), swapped.split()
    places = [place for place in range(len(before)) if before[place] != after[place]]
    assert len(places) == 2 and (places[0] - 1, places[1] - 1) in possible
    assert (before[places[0]], before[places[1]]) == (after[places[1]], after[places[0]])


def test_too_small_a_corpus_is_named() -> None:
    corpus = Corpus(("One sentence only.",), ("s",), ("d",), (0,))
    with pytest.raises(TaskError, match="task 'word_order': the corpus of 1 sentences has no rows"):
        demo_task("word_order", corpus)
    with pytest.raises(TaskError, match="two sources"):
        demo_task("library", corpus)
    with pytest.raises(TaskError, match="unknown task 'neighbors'; did you mean 'neighbours'"):
        demo_task("neighbors", corpus)


def test_the_demo_takes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="'library' uses the embedded text"):
        load_task("library", tmp_path)

"""Every metric against an independent implementation: scikit-learn, SciPy, seqeval, or worked by hand."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from seqeval.metrics import f1_score as entity_f1
from sklearn import metrics as sk

from distill.tasks.metrics import accuracy, normalised, standard_error
from distill.tasks.task import Task, score
from distill.tasks.types import QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION

PARAPHRASE = Task("t", ("no", "yes"), metrics=("f1", "accuracy", "matthews_correlation"))
TOPIC = Task("t", ("a", "b", "c", "d"), metrics=("accuracy", "matthews_correlation"))
SIMILARITY = Task("t", (), REGRESSION, ("pearson", "spearmanr"))
TAGS = ("O", "B-x", "I-x", "B-y", "I-y")
ENTITIES = Task("t", TAGS, TOKEN_CLASSIFICATION, ("f1", "accuracy"))
ANSWERS = Task("t", (), QUESTION_ANSWERING, ("f1", "exact_match"))


def values(task: Task, predictions, references) -> dict[str, float]:  # type: ignore[no-untyped-def]
    return {name: found.value for name, found in score(task, predictions, references).items()}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_accuracy_counts_the_right_ones(rows: list[tuple[int, int]]) -> None:
    predictions, labels = zip(*rows, strict=True)
    share = sum(a == b for a, b in rows) / len(rows)
    assert accuracy(predictions, labels) == pytest.approx(share)
    found = score(TOPIC, predictions, labels)["accuracy"]
    assert found.value == accuracy(predictions, labels)
    assert found.standard_error == standard_error(found.value, len(rows))


def test_accuracy_of_unequal_or_no_rows_is_an_error() -> None:
    for predictions, labels in (([1, 0], [1]), ([], []), ([[1]], [[1]])):
        with pytest.raises(ValueError, match="shape"):
            accuracy(predictions, labels)
    for predictions, labels in (([1, 0], [1]), ([], [])):
        with pytest.raises(ValueError, match="rows"):
            score(TOPIC, predictions, labels)


def test_standard_error_is_the_spread_of_many_measurements() -> None:
    measured = np.random.default_rng(0).binomial(2000, 0.8, size=20_000) / 2000
    assert standard_error(0.8, 2000) == pytest.approx(measured.std(), rel=0.03)
    with pytest.raises(ValueError, match="standard_error"):
        standard_error(1.5, 10)
    with pytest.raises(ValueError, match="standard_error"):
        standard_error(0.5, 0)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2))
def test_two_classes_equal_scikit_learn(rows: list[tuple[int, int]]) -> None:
    predictions, labels = map(list, zip(*rows, strict=True))
    found = values(PARAPHRASE, predictions, labels)
    assert list(found) == ["f1", "accuracy", "matthews_correlation"]
    assert found["f1"] == pytest.approx(sk.f1_score(labels, predictions, zero_division=0.0))
    if len(set(labels + predictions)) == 2:  # scikit-learn warns of one class alone
        assert found["matthews_correlation"] == pytest.approx(sk.matthews_corrcoef(labels, predictions))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_matthews_of_several_classes(rows: list[tuple[int, int]]) -> None:
    predictions, labels = map(list, zip(*rows, strict=True))
    found = values(TOPIC, predictions, labels)["matthews_correlation"]
    expected = sk.matthews_corrcoef(labels, predictions) if len(set(labels + predictions)) > 1 else 0.0
    assert found == pytest.approx(expected, abs=1e-12)


numbers = st.floats(-5, 5).map(lambda x: round(x, 2))


@given(st.lists(st.tuples(numbers, numbers), min_size=2))
def test_correlations_equal_scipy(rows: list[tuple[float, float]]) -> None:
    x, y = zip(*rows, strict=True)
    found = values(SIMILARITY, x, y)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert found == {"pearson": 0.0, "spearmanr": 0.0}
    else:
        assert found["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-9)
        assert found["spearmanr"] == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-9)


def test_correlations_of_numbers_far_from_0() -> None:
    x = np.random.default_rng(0).normal(size=200)
    y = x + np.random.default_rng(1).normal(size=200)
    assert values(SIMILARITY, 1e9 + x, y)["pearson"] == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-6)
    constant = score(SIMILARITY, np.full(200, np.float32(0.1)), y)["pearson"]
    assert (constant.value, constant.standard_error) == (0.0, 0.0)


sentences = st.lists(st.integers(0, 4), min_size=1, max_size=8)


@given(st.lists(sentences.flatmap(lambda tags: st.tuples(st.just(tags), st.permutations(tags))), min_size=1))
def test_entities_equal_seqeval(rows: list[tuple[list[int], list[int]]]) -> None:
    references, predictions = zip(*rows, strict=True)
    names = [[[TAGS[tag] for tag in tags] for tags in column] for column in (references, predictions)]
    found = values(ENTITIES, predictions, references)
    assert found["f1"] == pytest.approx(entity_f1(*names, zero_division=0))
    words = [(a, b) for row in rows for a, b in zip(*row, strict=True)]
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in words) / len(words))


def test_entities_by_hand() -> None:
    """Found: x at 0-1 (right), y at 3 (too short). Real: x at 0-1, y at 3-4, x at 5."""
    reference, prediction = [1, 2, 0, 3, 4, 1], [1, 2, 0, 3, 0, 0]
    assert values(ENTITIES, [prediction], [reference])["f1"] == pytest.approx(2 * (1 / 2) * (1 / 3) / (1 / 2 + 1 / 3))
    assert values(ENTITIES, [[0, 0]], [[0, 0]])["f1"] == 0.0
    # What is not predicted is in no entity, and no right word.
    assert values(ENTITIES, [[1, -1, 1]], [[1, 2, 1]]) == {"f1": 0.5, "accuracy": 2 / 3}


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Normans.", "normans"),
        ("a theatre, an anthem", "theatre anthem"),
        ("10th-century", "10thcentury"),
        ("the", ""),
        ("Café – “x”", "café – “x”"),
        ("an\tA\nthe US$", "us"),
    ],
)
def test_answers_are_normalised(answer: str, expected: str) -> None:
    assert normalised(answer) == expected


@pytest.mark.parametrize(
    ("prediction", "right", "exact", "f1"),
    [
        ("the Denver Broncos", ["Denver Broncos", "Broncos"], 1.0, 1.0),
        ("Denver", ["Denver Broncos", "Denver Broncos team"], 0.0, 2 / 3),
        ("green green", ["green"], 0.0, 2 / 3),
        ("blue", ["green"], 0.0, 0.0),
        ("", [], 1.0, 1.0),
        ("something", [], 0.0, 0.0),
        ("", ["green"], 0.0, 0.0),
        ("", ["the", "green"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
    ],
)
def test_answers(prediction: str, right: list[str], exact: float, f1: float) -> None:
    assert values(ANSWERS, [prediction], [right]) == {"f1": pytest.approx(f1), "exact_match": exact}


def test_means_are_over_all_questions() -> None:
    found = score(ANSWERS, ["Denver", "x", "", "green"], [["Denver Broncos"], ["y"], [], ["green"]])
    assert found["f1"].value == pytest.approx((2 / 3 + 0 + 1 + 1) / 4)
    assert found["f1"].standard_error == pytest.approx(np.std([2 / 3, 0, 1, 1]) / 2)
    assert found["exact_match"].standard_error == pytest.approx(math.sqrt(0.5 * 0.5 / 4))


def test_bootstrapped_errors_are_the_spread_of_many_measurements() -> None:
    """Against measuring again and again on fresh rows from the same source."""
    rng = np.random.default_rng(0)
    spreads: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}

    def measured(name: str, task: Task, predictions, references) -> None:  # type: ignore[no-untyped-def]
        for metric, found in score(task, predictions, references).items():
            spreads.setdefault(f"{name} {metric}", []).append(found.value)
            errors.setdefault(f"{name} {metric}", []).append(found.standard_error)

    for _ in range(150):
        labels = (rng.random(300) < 0.3).astype(int)
        measured("classes", PARAPHRASE, np.where(rng.random(300) < 0.8, labels, 1 - labels), labels)
        x = rng.normal(size=300)
        measured("numbers", SIMILARITY, x + rng.normal(size=300), x)
        tags = rng.choice(5, (80, 6), p=[0.6, 0.1, 0.1, 0.1, 0.1])
        measured("tags", ENTITIES, np.where(rng.random((80, 6)) < 0.8, tags, 0), tags)
    assert len(spreads) == 7
    for name, found in spreads.items():
        assert np.mean(errors[name]) == pytest.approx(np.std(found), rel=0.25), name


def test_the_same_rows_have_the_same_error() -> None:
    rows = [0, 1, 1, 0, 1], [0, 1, 0, 0, 1]
    assert score(PARAPHRASE, *rows) == score(PARAPHRASE, *rows)
    assert Counter(found.standard_error > 0 for found in score(PARAPHRASE, *rows).values()) == {True: 3}
    assert str(score(PARAPHRASE, [1, 1], [1, 1])["f1"]) == "1.0000 ± 0.0000"

"""Every metric against an independent implementation: scikit-learn, SciPy, regular expressions, or worked by hand."""

import math
import re
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

from distill.tasks import metrics
from distill.tasks.metrics import (
    PEARSON,
    Score,
    fidelity,
    metric_of,
    normalized,
    paired_difference,
    standard_error,
)
from distill.tasks.task import Task, contributions
from distill.tasks.types import QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from tests.scores import score

PARAPHRASE = Task("t", ("no", "yes"), metrics=("f1", "accuracy", "matthews_correlation"))
TOPIC = Task("t", ("a", "b", "c", "d"), metrics=("accuracy", "matthews_correlation"))
SIMILARITY = Task("t", (), REGRESSION, ("pearson", "spearmanr"))
TAGS = ("O", "B-x", "I-x", "E-x", "S-x", "B-y", "I-y", "E-y", "S-y")
ENTITIES = Task("t", TAGS, TOKEN_CLASSIFICATION, ("f1", "accuracy"))
ANSWERS = Task("t", (), QUESTION_ANSWERING, ("f1", "exact_match"))


def values(task: Task, predictions, references) -> dict[str, float]:  # type: ignore[no-untyped-def]
    return {name: found.value for name, found in score(task, predictions, references).items()}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1))
def test_accuracy_counts_the_right_ones(rows: list[tuple[int, int]]) -> None:
    predictions, labels = zip(*rows, strict=True)
    found = score(TOPIC, predictions, labels)["accuracy"]
    assert found.value == pytest.approx(sum(a == b for a, b in rows) / len(rows))
    assert found.standard_error == standard_error(found.value, len(rows))


def test_scores_of_unequal_or_no_rows_is_an_error() -> None:
    for predictions, labels in (([1, 0], [1]), ([], [])):
        with pytest.raises(ValueError, match="rows"):
            score(TOPIC, predictions, labels)


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


sentences = st.lists(st.integers(0, len(TAGS) - 1), min_size=1, max_size=8)


def matched_entities(tags: list[int]) -> set[tuple[int, int]]:
    """Spans of entities by one regular expression over a sentence of a letter a tag."""
    letters = "".join("ObiesBIES"[tag] for tag in tags)
    return {match.span() for match in re.finditer("bi*e?|i+e?|e|s|BI*E?|I+E?|E|S", letters)}


@given(st.lists(sentences.flatmap(lambda tags: st.tuples(st.just(tags), st.permutations(tags))), min_size=1))
def test_entities_equal_matches(rows: list[tuple[list[int], list[int]]]) -> None:
    references, predictions = zip(*rows, strict=True)
    right = found_number = real_number = 0
    for reference, prediction in rows:
        found, real = matched_entities(prediction), matched_entities(reference)
        # Two entities with the same words have the same type if their first words' tags have.
        same = {(a, b) for a, b in found & real if TAGS[reference[a]][2:] == TAGS[prediction[a]][2:]}
        right, found_number, real_number = right + len(same), found_number + len(found), real_number + len(real)
    f1 = 2 * right / (found_number + real_number) if right else 0.0
    scores = values(ENTITIES, predictions, references)
    assert scores["f1"] == pytest.approx(f1)
    words = [(a, b) for row in rows for a, b in zip(*row, strict=True)]
    assert scores["accuracy"] == pytest.approx(sum(a == b for a, b in words) / len(words))


def test_entities_by_hand() -> None:
    """Found: x at 0-1 (right), y at 3 (too short). Real: x at 0-1, y at 3-4, x at 5."""
    reference, prediction = [1, 2, 0, 5, 6, 1], [1, 2, 0, 5, 0, 0]
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
def test_answers_are_normalized(answer: str, expected: str) -> None:
    assert normalized(answer) == expected


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


def difference(task: Task, ours, theirs, references) -> Score:  # type: ignore[no-untyped-def]
    """The paired difference in the task's score."""
    name = task.metrics[0]
    rows = [contributions(task, predictions, references)[name] for predictions in (ours, theirs)]
    return paired_difference(task.score_metric, [(rows[0], rows[1])])


@given(st.lists(st.tuples(*3 * [st.integers(0, 3)]), min_size=1))
def test_a_difference_of_accuracies_is_mcnemar_s(rows: list[tuple[int, int, int]]) -> None:
    ours, theirs, labels = zip(*rows, strict=True)
    found = difference(TOPIC, ours, theirs, labels)
    # McNemar: only the rows on which one model alone is right count.
    gained = sum(a == label != b for a, b, label in rows)
    lost = sum(b == label != a for a, b, label in rows)
    assert found.value == pytest.approx((gained - lost) / len(rows))
    variance = gained + lost - (gained - lost) ** 2 / len(rows)
    assert found.standard_error == pytest.approx(math.sqrt(variance) / len(rows), abs=1e-12)


def test_a_difference_of_other_means_is_that_of_a_paired_sample() -> None:
    words = np.random.default_rng(0).choice(["a b", "b", "b c d", "d"], (3, 200))
    references = [[answer] for answer in words[2]]
    f1 = [
        [values(ANSWERS, [word], [right])["f1"] for word, right in zip(row, references, strict=True)] for row in words
    ]
    found = difference(ANSWERS, words[0], words[1], references)
    assert found.value == pytest.approx(np.mean(f1[0]) - np.mean(f1[1]))
    assert found.standard_error == pytest.approx(stats.sem(np.subtract(f1[0], f1[1]), ddof=0))


@pytest.mark.parametrize("seed", range(5))
def test_a_function_of_a_user_s_own_and_the_mean_f1_of_classes(seed: int) -> None:
    predictions, labels = np.random.default_rng(seed).integers(0, 5, (2, 12))
    task = Task("t", tuple("abcdef"), metrics=("f1_macro",))
    expected = sk.f1_score(labels, predictions, average="macro", zero_division=0.0)
    assert values(task, predictions, labels)["f1_macro"] == pytest.approx(expected)
    kappa = metric_of(sk.cohen_kappa_score)
    own = kappa.of_contributions(kappa.contributions(predictions, labels, task.labels))
    assert own.value == pytest.approx(sk.cohen_kappa_score(labels, predictions))


REFERENCES = {
    "f1": lambda predictions, labels: sk.f1_score(labels, predictions, zero_division=0.0),
    "f1_macro": lambda predictions, labels: sk.f1_score(labels, predictions, average="macro", zero_division=0.0),
    "matthews_correlation": lambda predictions, labels: sk.matthews_corrcoef(labels, predictions),
    "spearmanr": lambda predictions, labels: stats.spearmanr(predictions, labels).statistic,
}


def two_models(metric: str, rows: int = 300) -> tuple[Task, np.ndarray, np.ndarray, np.ndarray]:
    """A task whose score is this metric, and predictions of two models that err on many of the same rows."""
    rng = np.random.default_rng(0)
    if metric == "spearmanr":
        x, shared = rng.normal(size=(2, rows))
        ours, theirs = (x + shared + spread * rng.normal(size=rows) for spread in (0.2, 0.4))
        return Task("t", (), REGRESSION, (metric,)), ours, theirs, x
    labels = (rng.random(rows) < 0.4).astype(int)
    shared = np.where(rng.random(rows) < 0.8, labels, 1 - labels)
    ours, theirs = (np.where(rng.random(rows) < right, shared, 1 - shared) for right in (0.97, 0.94))
    return Task("t", ("no", "yes"), metrics=(metric,)), ours, theirs, labels


@pytest.mark.parametrize("metric", REFERENCES)
def test_differences_of_functions_of_sums_have_the_error_of_scipy_s_paired_bootstrap(metric: str) -> None:
    task, ours, theirs, labels = two_models(metric)
    reference = REFERENCES[metric]
    found = difference(task, ours, theirs, labels)
    assert found.value == pytest.approx(reference(ours, labels) - reference(theirs, labels))
    resampled = stats.bootstrap(
        (ours, theirs, labels),
        lambda ours, theirs, labels: reference(ours, labels) - reference(theirs, labels),
        n_resamples=1000,
        paired=True,
        vectorized=False,
        method="percentile",
        rng=1,
    )
    assert found.standard_error == pytest.approx(resampled.standard_error, rel=0.15)
    # The errors of two scores know nothing of what the models have in common.
    alone = [score(task, predictions, labels)[metric].standard_error for predictions in (ours, theirs)]
    assert found.standard_error < 0.6 * math.hypot(*alone)
    back = difference(task, theirs, ours, labels)
    assert back.value == -found.value
    assert back.standard_error == pytest.approx(found.standard_error, rel=0.15)


binary = st.integers(0, 1)


@given(st.lists(st.tuples(binary, binary, binary), min_size=1), st.sampled_from(PARAPHRASE.metrics))
def test_differences_are_antisymmetric_and_none_for_one_model(rows: list[tuple[int, int, int]], metric: str) -> None:
    task = Task("t", PARAPHRASE.labels, metrics=(metric,))
    ours, theirs, labels = zip(*rows, strict=True)
    assert difference(task, ours, ours, labels) == Score(0.0, 0.0)
    there, back = difference(task, ours, theirs, labels), difference(task, theirs, ours, labels)
    assert there.value == -back.value
    if metric == "accuracy":
        assert there.standard_error == pytest.approx(back.standard_error)


def test_models_of_different_rows_are_not_compared() -> None:
    for metric, shape in (("accuracy", ()), ("f1", (3,))):
        task = Task("t", PARAPHRASE.labels, metrics=(metric,))
        with pytest.raises(ValueError, match="paired difference: the models have 4 and 5 rows, not the same ones"):
            paired_difference(task.score_metric, [(np.ones((5, *shape)), np.ones((4, *shape)))])


@pytest.mark.parametrize("between_seeds", [0.0, 0.1])
def test_the_error_of_a_mean_over_seeds_is_its_spread_over_rows_and_seeds(between_seeds: float) -> None:
    """Against measuring again and again with fresh rows and fresh seeds."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1500):
        of_rows, of_seeds = 0.5 * rng.normal(size=100), between_seeds * rng.normal(size=3)
        differences = of_rows + of_seeds[:, None] + 0.5 * rng.normal(size=(3, 100))
        others = rng.normal(size=(3, 100))
        found.append(paired_difference(TOPIC.score_metric, list(zip(others + differences, others, strict=True))))
    variance = np.mean([one.standard_error**2 for one in found])
    assert variance == pytest.approx(np.var([one.value for one in found]), rel=0.15)


def test_equal_seeds_add_nothing() -> None:
    for metric in ("f1", "accuracy"):
        task, ours, theirs, labels = two_models("f1")
        task = Task("t", task.labels, metrics=(metric,))
        one, two = (contributions(task, predictions, labels)[metric] for predictions in (ours, theirs))
        alone, twice = (paired_difference(task.score_metric, [(one, two)] * seeds) for seeds in (1, 2))
        assert (twice.value, twice.standard_error) == pytest.approx((alone.value, alone.standard_error))


@given(st.integers(2, 60), st.integers(1, 4), st.integers(0, 10**6))
def test_fidelity_is_the_correlation_of_all_outputs(rows: int, choices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    teacher, student = rng.normal(size=(2, rows, choices))
    student += teacher
    expected = stats.pearsonr(student.ravel(), teacher.ravel()).statistic
    assert fidelity(student, teacher).value == pytest.approx(expected, abs=1e-9)
    assert fidelity(3 * student + 7, teacher).value == pytest.approx(expected, abs=1e-9)
    assert fidelity(student, np.full_like(teacher, 0.1)) == Score(0.0, 0.0)


def test_the_standard_error_of_fidelity_is_what_samples_vary() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(400):
        teacher = rng.normal(size=(500, 2))
        found.append(fidelity(teacher + rng.normal(size=(500, 2)), teacher))
    spread = np.std([score.value for score in found])
    assert np.mean([score.standard_error for score in found]) == pytest.approx(spread, rel=0.1)


def test_the_bootstrap_of_many_rows_draws_a_few_samples_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers are those of all samples at once."""
    rng = np.random.default_rng(0)
    x_N = rng.normal(size=4000)
    rows_NK = PEARSON.contributions(x_N + rng.normal(size=4000), x_N, ())
    at_once = PEARSON.of_contributions(rows_NK)
    monkeypatch.setattr(metrics, "DRAWN", 2**18)
    tracemalloc.start()
    in_parts = PEARSON.of_contributions(rows_NK)
    assert (in_parts.value, in_parts.standard_error) == pytest.approx(
        (at_once.value, at_once.standard_error), rel=1e-12
    )
    assert tracemalloc.get_traced_memory()[1] < 2**18 * 8 * 4
    tracemalloc.stop()

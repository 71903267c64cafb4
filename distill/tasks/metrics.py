"""The official metrics of every task type on a whole split, with standard errors.

Every metric is a function of sums over the rows of a split, so it is computed from the contribution of each row. The
standard error follows from the same numbers: analytically for means (binomial for means of 0 and 1), otherwise by the
bootstrap. Two models are compared on the same rows: the standard error of the paired difference leaves out what makes
rows easy or hard for both. An undefined metric (no entities at all, constant predictions in a correlation) is 0.0
instead of NaN, as in scikit-learn and the official scripts for F1 and Matthews.
"""

import math
import operator
import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, variance
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distill.tasks.entities import OUTSIDE, entities_of

Rows = Sequence[Any] | np.ndarray

RESAMPLES = 1000
"""Number of bootstrap samples, drawn with a fixed seed; this gives standard errors with an accuracy of about 2 %."""

DRAWN = 2**22
"""The bootstrap draws so many samples at a time that they have at most this many numbers (32 MB)."""

NEAREST = 10
"""The number of nearest neighbours of a sentence that are compared."""


@dataclass(frozen=True)
class Score:
    """The value of a metric on a split, as a fraction (not in per cent), with its standard error."""

    value: float
    standard_error: float

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.standard_error:.4f}"


OfSums = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Metric:
    """A metric, defined by the contribution of each row.

    Attributes:
        rows: (predictions, references, names of the classes) -> the contributions: (N,) numbers whose mean is the
            metric, or (N, K) numbers of whose sums it is a function.
        of_sums: the function of the sums (..., K); None for a mean.
        classes: the required number of classes; None for any number.
    """

    rows: Callable[[Any, Any, Sequence[str]], np.ndarray]
    of_sums: OfSums | None = None
    classes: int | None = None

    def contributions(self, predictions: Rows, references: Rows, labels: Sequence[str]) -> np.ndarray:
        """The contribution of each row in float64: (N,) for a mean, otherwise (N, K)."""
        return np.asarray(self.rows(predictions, references, labels), np.float64)

    def of_contributions(self, rows: np.ndarray) -> Score:
        """The metric and its standard error, given the contributions of the rows."""
        return _mean(rows) if self.of_sums is None else _bootstrapped(rows, self.of_sums)


def paired_difference(metric: Metric, pairs: Sequence[tuple[np.ndarray, np.ndarray]], factor: float = 1.0) -> Score:
    """By how much the metric of one model exceeds that of another on the same rows: the mean over several pairs of
    models, one pair for each training seed.

    With one pair the standard error covers the choice of the rows alone: it is analytical for means (McNemar's for rows
    of 0 and 1), and otherwise from a bootstrap that draws the same rows for both models. With several it also covers
    the choice of the seeds: rows and seeds are crossed random effects, so the variance of the mean is that over the
    rows, plus what the differences vary between seeds beyond the interaction of rows and seeds, which the former
    contains.

    Args:
        pairs: for every seed the contributions of the rows, in the same order, for the two models.
        factor: of the second models' metrics, before they are subtracted.

    Raises:
        ValueError: the numbers of rows differ.
    """
    mean = _mean_of_differences(metric, pairs, factor)
    if len(pairs) == 1:
        return mean
    each = [_mean_of_differences(metric, [pair], factor) for pair in pairs]
    over_rows = mean.standard_error**2
    # A single seed has S times the interaction that the mean over S seeds has, and the same effect of the rows.
    interaction = (fmean(one.standard_error**2 for one in each) - over_rows) / (len(each) - 1)
    between_seeds = variance(one.value for one in each) / len(each) - max(0.0, interaction)
    return Score(mean.value, math.sqrt(over_rows + max(0.0, between_seeds)))


def _mean_of_differences(metric: Metric, pairs: Sequence[tuple[np.ndarray, np.ndarray]], factor: float = 1.0) -> Score:
    """The mean of the differences, with its standard error over the rows."""
    counts = sorted({len(rows) for pair in pairs for rows in pair})
    if len(counts) != 1:
        raise ValueError(f"paired difference: the models have {' and '.join(map(str, counts))} rows, not the same ones")
    of_sums = metric.of_sums
    if of_sums is None:
        return _mean(np.mean([rows_N - factor * others_N for rows_N, others_N in pairs], axis=0))

    def difference(sums: np.ndarray) -> np.ndarray:
        values = of_sums(sums.reshape(*sums.shape[:-1], len(pairs), 2, -1))
        return (values[..., 0] - factor * values[..., 1]).mean(axis=-1)

    return _bootstrapped(np.concatenate([rows_NK for pair in pairs for rows_NK in pair], axis=1), difference)


def fidelity(outputs_NC: np.ndarray, teacher_NC: np.ndarray) -> Score:
    """How well the outputs of a student agree with the teacher's (the fidelity of Stanton et al., 2021): Pearson's
    correlation of all outputs (instead of their rate of agreement). It has far less noise than a score on the same
    rows, since every row says how far a student is from the teacher, and not only on which side of a boundary.

    The standard error is by the delta method, over the N predictions.

    Args:
        outputs_NC, teacher_NC: what `distill.training.evaluation.comparable_outputs` returns for the same rows.
    """
    x_NC, y_NC = (outputs - outputs.mean() for outputs in (outputs_NC, teacher_NC))
    scale = math.sqrt(float((x_NC**2).sum()) * float((y_NC**2).sum()))
    # The mean of equal numbers may differ from them by a rounding error.
    if scale < 1e-12:
        return Score(0.0, 0.0)
    value = float((x_NC * y_NC).sum()) / scale
    products_N = (x_NC * y_NC).sum(axis=1) / scale
    squares_N = (x_NC**2).sum(axis=1) / float((x_NC**2).sum()) + (y_NC**2).sum(axis=1) / float((y_NC**2).sum())
    influence_N = products_N - value / 2 * squares_N
    return Score(value, math.sqrt(len(x_NC)) * float(influence_N.std()))


def standard_error(score: float, rows: int) -> float:
    """Binomial standard error of an accuracy measured on ``rows`` rows: sqrt(p (1 - p) / n)."""
    if not 0.0 <= score <= 1.0 or rows < 1:
        raise ValueError(f"standard_error: needs an accuracy in [0, 1] and rows >= 1, not {score} and {rows}")
    return math.sqrt(score * (1.0 - score) / rows)


def _mean(rows: np.ndarray) -> Score:
    value = float(rows.mean())
    if np.isin(rows, (0.0, 1.0)).all():
        return Score(value, standard_error(value, len(rows)))
    return Score(value, float(rows.std() / math.sqrt(len(rows))))


def _bootstrapped(rows_NK: np.ndarray, of_sums: OfSums) -> Score:
    """The bootstrap, which draws how often each distinct row occurs among N rows, as there are few distinct rows."""
    distinct_MK, counts_M = np.unique(rows_NK, axis=0, return_counts=True)
    rng, at_once = np.random.default_rng(0), max(1, DRAWN // len(counts_M))
    sizes = (min(at_once, RESAMPLES - first) for first in range(0, RESAMPLES, at_once))
    drawn = (rng.multinomial(len(rows_NK), counts_M / counts_M.sum(), size=size) for size in sizes)
    spread = np.std(of_sums(np.concatenate([drawn_RM @ distinct_MK for drawn_RM in drawn])))
    return Score(float(of_sums(rows_NK.sum(axis=0))), float(spread))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """The quotient, or 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros(np.shape(below)), where=below != 0)


def _accuracy(sums: np.ndarray) -> np.ndarray:
    right, all_ = np.moveaxis(sums, -1, 0)
    return _ratio(right, all_)


def _f1(sums: np.ndarray) -> np.ndarray:
    """The harmonic mean of precision (right / predicted) and recall (right / expected)."""
    right, predicted, expected = np.moveaxis(sums, -1, 0)
    return _ratio(2 * right, predicted + expected)


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    """The mean F1 of the classes that are predicted or expected."""
    right, predicted, expected = np.split(sums, 3, axis=-1)
    there = predicted + expected > 0
    return _ratio(_ratio(2 * right, predicted + expected).sum(-1), there.sum(-1))


def _matthews(sums: np.ndarray) -> np.ndarray:
    """Gorodkin's generalization to several classes; with two it is the Matthews coefficient."""
    classes = (sums.shape[-1] - 1) // 2
    right, predicted, expected = sums[..., 0], sums[..., 1 : 1 + classes], sums[..., 1 + classes :]
    rows = expected.sum(-1)
    covariance = right * rows - (predicted * expected).sum(-1)
    return _ratio(covariance, np.sqrt(np.prod([rows**2 - (n**2).sum(-1) for n in (predicted, expected)], axis=0)))


def _pearson(sums: np.ndarray) -> np.ndarray:
    """The correlation of columns that are standardized over the whole split (to 0 if they are constant)."""
    rows, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    variances = (xx / rows - (x / rows) ** 2) * (yy / rows - (y / rows) ** 2)
    # The correlation is undefined in a bootstrap sample in which a column is constant up to rounding.
    return _ratio(xy / rows - x * y / rows**2, np.sqrt(np.where(variances > 1e-12, variances, 0)))


def _positives(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    return _labels_right(np.equal(predictions, 1), np.equal(references, 1), labels)


def _classes(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    one = np.eye(len(labels))
    right = np.equal(predictions, references)
    return np.column_stack((right, one[np.asarray(predictions)], one[np.asarray(references)]))


def _classes_right(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    one = np.eye(len(labels))
    return _labels_right(one[np.asarray(predictions)], one[np.asarray(references)], labels)


def _labels_right(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    predicted, expected = np.asarray(predictions, bool), np.asarray(references, bool)
    return np.column_stack((predicted & expected, predicted, expected))


def _micro_f1(sums: np.ndarray) -> np.ndarray:
    return _f1(sums.reshape(*sums.shape[:-1], 3, -1).sum(-1))


def metric_of(score: Callable[[np.ndarray, np.ndarray], float]) -> Metric:
    """A metric of classes from a function of a user's own.

    Args:
        score: (references, predictions) -> the score; both are class indices of shape (N,), in any order of the rows.
    """

    def cells(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
        return np.eye(len(labels) ** 2)[np.asarray(references) * len(labels) + np.asarray(predictions)]

    def of_sums(sums: np.ndarray) -> np.ndarray:
        classes = math.isqrt(sums.shape[-1])
        counts = sums.reshape(-1, classes**2).round().astype(int)
        pairs = (np.divmod(np.repeat(np.arange(classes**2), count), classes) for count in counts)
        return np.array([score(*pair) for pair in pairs], np.float64).reshape(sums.shape[:-1])

    return Metric(cells, of_sums)


def _products(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    x, y = _standardized(predictions), _standardized(references)
    return np.column_stack((np.ones(len(x)), x, y, x * x, y * y, x * y))


def _standardized(values: ArrayLike) -> np.ndarray:
    x = np.asarray(values, np.float64)
    spread = x.std()
    # The mean of equal numbers may differ from them by a rounding error.
    return np.zeros(len(x)) if x.min() == x.max() or spread == 0 else (x - x.mean()) / spread


def _products_of_ranks(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    from scipy.stats import rankdata

    return _products(rankdata(predictions), rankdata(references), labels)


def _right_words(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    pairs = zip(predictions, references, strict=True)
    return np.array([(np.equal(predicted, expected).sum(), len(expected)) for predicted, expected in pairs])


def _entities(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    """Counts of the entities that are in both, that are predicted and that are real. An entity is correct if its type
    and its first and last word are.
    """

    def entities(tags: Sequence[int]) -> set[tuple[str, int, int]]:
        return set(entities_of([OUTSIDE if tag < 0 else labels[tag] for tag in tags]))

    rows = []
    for predicted, expected in zip(predictions, references, strict=True):
        claimed, real = entities(predicted), entities(expected)
        rows.append((len(claimed & real), len(claimed), len(real)))
    return np.array(rows)


def _answers(
    compare: Callable[[str, str], float], predictions: Any, references: Sequence[Sequence[str]], labels: Sequence[str]
) -> np.ndarray:
    """The score of each against the most similar correct answer; if there is none, the correct answer is ""."""
    rows = []
    for prediction, answers in zip(map(normalized, predictions), references, strict=True):
        worded = filter(None, map(normalized, answers))
        rows.append(max((compare(prediction, answer) for answer in worded), default=compare(prediction, "")))
    return np.array(rows)


def _word_f1(predicted: str, expected: str) -> float:
    words, right = predicted.split(), expected.split()
    if not words or not right:
        return float(words == right)
    shared = sum((Counter(words) & Counter(right)).values())
    return 2 * shared / (len(words) + len(right))


def _vectors(predictions: Any) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of the student and of its teacher, (N, D) each, of length 1."""
    pairs_N2D = np.asarray(predictions, np.float32)
    lengths_N21 = np.linalg.norm(pairs_N2D, axis=-1, keepdims=True)
    student_ND, teacher_ND = np.moveaxis(pairs_N2D / np.maximum(lengths_N21, 1e-12), 1, 0)
    return student_ND, teacher_ND


def _cosines(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    student_ND, teacher_ND = _vectors(predictions)
    return (student_ND * teacher_ND).sum(axis=-1)


def _shared_neighbours(predictions: Any, references: Any, labels: Sequence[str]) -> np.ndarray:
    """Of each row the fraction of its nearest rows by the teacher's vectors that are also nearest by the student's."""
    student_ND, teacher_ND = _vectors(predictions)
    count = min(NEAREST, len(student_ND) - 1)
    if not count:
        return np.ones(len(student_ND))
    fractions = []
    for start in range(0, len(student_ND), 1000):
        nearest = []
        for vectors_ND in (student_ND, teacher_ND):
            cosines_MN = vectors_ND[start : start + 1000] @ vectors_ND.T
            np.fill_diagonal(cosines_MN[:, start:], -np.inf)
            chosen_MN = np.zeros(cosines_MN.shape, bool)
            np.put_along_axis(chosen_MN, np.argpartition(-cosines_MN, count - 1, axis=1)[:, :count], True, axis=1)
            nearest.append(chosen_MN)
        fractions.append((nearest[0] & nearest[1]).sum(axis=1) / count)
    return np.concatenate(fractions)


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """SQuAD's normalization: lower case, without ASCII punctuation and the articles a, an, the, with single spaces."""
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(_PUNCTUATION)).split())


MEAN = Metric(lambda predictions, references, labels: predictions)
"""The mean of what is given as predictions."""
CLASS_ACCURACY = Metric(lambda predictions, references, labels: np.equal(predictions, references))
CLASS_F1 = Metric(_positives, _f1, classes=2)
"""The F1 score of the second of two classes."""
MACRO_F1 = Metric(_classes_right, _macro_f1)
MATTHEWS = Metric(_classes, _matthews)
LABELS_MICRO_F1 = Metric(_labels_right, _micro_f1)
"""The F1 score of all decisions whether a row has a class; `LABELS_MACRO_F1` is the mean of the classes' own."""
LABELS_MACRO_F1 = Metric(_labels_right, _macro_f1)
ALL_LABELS = Metric(lambda predictions, references, labels: np.equal(predictions, references).all(axis=1))
"""How often all classes of a row are right."""
PEARSON = Metric(_products, _pearson)
SPEARMAN = Metric(_products_of_ranks, _pearson)
WORD_ACCURACY = Metric(_right_words, _accuracy)
ENTITY_F1 = Metric(_entities, _f1)
EXACT_MATCH = Metric(partial(_answers, operator.eq))
ANSWER_F1 = Metric(partial(_answers, _word_f1))
COSINE = Metric(_cosines)
"""The cosine of a sentence's vector and the teacher's."""
NEIGHBOURS = Metric(_shared_neighbours)
"""How many of a sentence's nearest neighbours are those of the teacher."""

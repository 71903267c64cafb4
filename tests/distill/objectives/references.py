"""The losses once more, in float64 and sentence by sentence; sides are arrays, `lengths` those of sentences."""

import math
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
from scipy.special import log_softmax

Rows = Sequence[Sequence[float]]


def mean(values: Sequence[float] | np.ndarray) -> float:
    return math.fsum(values) / max(1, len(values))


def logs(rows: Rows | np.ndarray, temperature: float = 1.0) -> list[np.ndarray]:
    return [log_softmax(np.array(row, float) / temperature) for row in rows]


def divergence(log_p: np.ndarray, log_q: np.ndarray) -> float:
    return math.fsum(np.exp(log_p) * (log_p - log_q))


def compared(
    compare: Callable[[np.ndarray, np.ndarray], float],
    student: Rows,
    teacher: Rows,
    temperature: float = 1.0,
    over_classes: bool = False,
) -> float:
    """The mean over the rows, and `over_classes`, of what compares the logarithms of their probabilities."""
    sides = zip(logs(student, temperature), logs(teacher, temperature), strict=True)
    return mean([compare(s, t) / (len(s) if over_classes else 1) for s, t in sides])


def soft_cross_entropy(student: Rows, teacher: Rows, temperature: float = 1.0, over_classes: bool = False) -> float:
    return compared(lambda s, t: -math.fsum(np.exp(t) * s), student, teacher, temperature, over_classes)


def soft_kl(student: Rows, teacher: Rows, temperature: float, over_classes: bool = False) -> float:
    return temperature**2 * compared(lambda s, t: divergence(t, s), student, teacher, temperature, over_classes)


def symmetric_kl(student: Rows, teacher: Rows) -> float:
    return compared(lambda s, t: (divergence(s, t) + divergence(t, s)) / 2, student, teacher)


def cross_entropy(rows: Rows, classes: Sequence[int]) -> float:
    return mean([-log_p[number] for log_p, number in zip(logs(rows), classes, strict=True)])


def square(a: np.ndarray, b: np.ndarray) -> float:
    """Mean square difference of two arrays."""
    return mean(((a.astype(float) - b.astype(float)) ** 2).ravel())


def attention(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    errors = (
        ((a[:, :length, :length].astype(float) - b[:, :length, :length]) ** 2).ravel()
        for a, b, length in zip(student, teacher, lengths, strict=True)
    )
    return mean(np.concatenate(list(errors)))


def attention_as_released(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    """-10,000 is added to padding keys' scores, and what is no more than -100 then becomes 0."""
    mask = np.array([[-10_000.0 * (key >= length) for key in range(student.shape[-1])] for length in lengths])
    sides = (scores.astype(float) + mask[:, None, None] for scores in (student, teacher))
    return square(*(np.where(scores <= -100, 0, scores) for scores in sides))


def tokens(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(sentence, position) of all that is no padding."""
    return [(row, token) for row, length in enumerate(lengths) for token in range(length)]


def hidden(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    return mean([square(student[place], teacher[place]) for place in tokens(lengths)])


def unit(vector: np.ndarray) -> np.ndarray:
    return vector.astype(float) / np.linalg.norm(vector.astype(float))


def cosine_distance(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    return mean([1 - float(unit(student[place]) @ unit(teacher[place])) for place in tokens(lengths)])


def normalized(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    rows = [row for row, length in enumerate(lengths) if length]
    return mean([square(unit(student[row, 0]), unit(teacher[row, 0])) for row in rows])


def pooled(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    terms = []
    for row, length in enumerate(lengths):
        if length:
            a, b = (side[row, :length].astype(float) for side in (student, teacher))
            terms += [square(a[0], b[0]), square(a.mean(0), b.mean(0)), square(a.max(0), b.max(0))]
    return mean(terms)


def relations(
    student: Sequence[np.ndarray], teacher: Sequence[np.ndarray], lengths: Sequence[int], heads: int
) -> float:
    """Each side is one array, related to itself, or queries and keys; every distribution is made by itself, of a
    sentence without its padding.
    """

    def distributions(side: Sequence[np.ndarray], row: int, head: int) -> list[np.ndarray]:
        size = side[0].shape[-1] // heads
        channels = slice(head * size, (head + 1) * size)
        queries, keys = (states[row, : lengths[row], channels].astype(float) for states in (side[0], side[-1]))
        return logs(queries @ keys.T / math.sqrt(size))

    terms = []
    for row, head in product(range(len(lengths)), range(heads)):
        sides = zip(distributions(student, row, head), distributions(teacher, row, head), strict=True)
        terms += [divergence(log_t, log_s) for log_s, log_t in sides]
    return mean(terms)


def contrastive(anchors: np.ndarray, positives: np.ndarray, negatives: np.ndarray, temperature: float) -> float:
    terms = []
    for anchor, positive, others in zip(anchors, positives, negatives, strict=True):
        products = np.array([positive, *others], float) @ anchor.astype(float)
        terms.append(-log_softmax(products / temperature)[0])
    return mean(terms)


def balance(probabilities: Rows, chosen: Sequence[int], experts: int) -> float:
    fractions = np.bincount(chosen, minlength=experts) / len(chosen)
    return experts * float(fractions @ np.mean(probabilities, axis=0))

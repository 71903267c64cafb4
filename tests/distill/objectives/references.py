"""The losses once more, in float64 and plain loops over what counts; sides are arrays, `lengths` those of sentences."""

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

Rows = Sequence[Sequence[float]]


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(1, len(values))


def log_softmax(values: Sequence[float]) -> list[float]:
    top = max(values)
    return [value - top - math.log(math.fsum(math.exp(v - top) for v in values)) for value in values]


def logs(rows: Rows, temperature: float = 1.0) -> list[list[float]]:
    return [log_softmax([float(value) / temperature for value in row]) for row in rows]


def divergence(log_p: Sequence[float], log_q: Sequence[float]) -> float:
    return math.fsum(math.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def soft_cross_entropy(student: Rows, teacher: Rows, temperature: float = 1.0, over_classes: bool = False) -> float:
    terms = []
    for log_s, log_t in zip(logs(student, temperature), logs(teacher, temperature), strict=True):
        total = -math.fsum(math.exp(t) * s for s, t in zip(log_s, log_t, strict=True))
        terms.append(total / len(log_s) if over_classes else total)
    return mean(terms)


def soft_kl(student: Rows, teacher: Rows, temperature: float, over_classes: bool = False) -> float:
    terms = []
    for log_s, log_t in zip(logs(student, temperature), logs(teacher, temperature), strict=True):
        total = temperature * temperature * divergence(log_t, log_s)
        terms.append(total / len(log_s) if over_classes else total)
    return mean(terms)


def symmetric_kl(student: Rows, teacher: Rows) -> float:
    sides = zip(logs(student), logs(teacher), strict=True)
    return mean([(divergence(a, b) + divergence(b, a)) / 2 for a, b in sides])


def cross_entropy(rows: Rows, classes: Sequence[int]) -> float:
    return mean([-log_p[number] for log_p, number in zip(logs(rows), classes, strict=True)])


def square(a: Sequence[float], b: Sequence[float]) -> float:
    """Mean square difference of two vectors."""
    return mean([(float(x) - float(y)) ** 2 for x, y in zip(a, b, strict=True)])


def attention(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    return mean(
        [
            (float(student[row, head, i, j]) - float(teacher[row, head, i, j])) ** 2
            for row, length in enumerate(lengths)
            for head, i, j in product(range(student.shape[1]), range(length), range(length))
        ]
    )


def attention_as_released(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    """-10,000 is added to padding keys' scores, and what is no more than -100 then becomes 0."""
    terms = []
    for row, head, i, j in np.ndindex(*student.shape):
        sides = (float(scores[row, head, i, j]) - 10_000 * (j >= lengths[row]) for scores in (student, teacher))
        a, b = (0.0 if score <= -100 else score for score in sides)
        terms.append((a - b) ** 2)
    return mean(terms)


def tokens(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """(sentence, position) of all that is no padding."""
    return [(row, token) for row, length in enumerate(lengths) for token in range(length)]


def hidden(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    return mean([square(student[place], teacher[place]) for place in tokens(lengths)])


def cosine_distance(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
    terms = []
    for place in tokens(lengths):
        a, b = student[place].astype(float), teacher[place].astype(float)
        terms.append(1 - math.fsum(a * b) / math.sqrt(math.fsum(a * a) * math.fsum(b * b)))
    return mean(terms)


def unit(vector: np.ndarray) -> np.ndarray:
    vector = vector.astype(float)
    return vector / math.sqrt(math.fsum(vector * vector))


def normalised(student: np.ndarray, teacher: np.ndarray, lengths: Sequence[int]) -> float:
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
    terms = []
    for row, length in enumerate(lengths):
        for head in range(heads):
            sides = []
            for side in (student, teacher):
                size = side[0].shape[-1] // heads
                channels = slice(head * size, (head + 1) * size)
                a, b = (states[row, :length, channels].astype(float).tolist() for states in (side[0], side[-1]))
                dots = [[math.fsum(x * y for x, y in zip(q, k, strict=True)) for k in b] for q in a]
                sides.append(logs([[dot / math.sqrt(size) for dot in line] for line in dots]))
            terms += [divergence(log_t, log_s) for log_s, log_t in zip(*sides, strict=True)]
    return mean(terms)


def contrastive(anchors: np.ndarray, positives: np.ndarray, negatives: np.ndarray, temperature: float) -> float:
    terms = []
    for anchor, positive, others in zip(anchors, positives, negatives, strict=True):
        products = [math.fsum(anchor.astype(float) * other.astype(float)) for other in (positive, *others)]
        terms.append(-log_softmax([value / temperature for value in products])[0])
    return mean(terms)


def balance(probabilities: Rows, chosen: Sequence[int], experts: int) -> float:
    total = 0.0
    for expert in range(experts):
        share = sum(choice == expert for choice in chosen) / len(chosen)
        total += share * sum(row[expert] for row in probabilities) / len(chosen)
    return experts * total

"""The rows of data sets: sentences, tagged words, and questions about a text."""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, TypeVar, get_args

from foundation.errors import shortened

# What is read of single texts that are longer than the length of a row: their beginning, both ends, or windows.
LongTexts = Literal["cut", "head_tail", "windows"]
CUT, HEAD_TAIL, WINDOWS = get_args(LongTexts)
# The usual probability from which a class is predicted if rows have any number of classes.
THRESHOLD = 0.5


def class_weights_of(value: Any) -> str | dict[str, float] | None:
    """What is given as weights of classes: None, "balanced", or weights by the names of classes.

    Raises:
        ValueError: it is something else.
    """
    if value is None or (isinstance(value, str) and value == "balanced"):
        return value
    weights = value if isinstance(value, Mapping) else {}
    if not weights or not all(map(_is_weight, weights.values())):
        raise ValueError(f'{shortened(value)} is neither "balanced" nor a table of weights above 0 by names of classes')
    return {str(name): float(weight) for name, weight in weights.items()}


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


@dataclass(frozen=True)
class AnySplit:
    """The interface of all splits, whose fields are columns: tuples of equal length, or None."""

    def __post_init__(self) -> None:
        sizes = [len(column) for column in self.columns if column is not None]
        if len(set(sizes)) != 1:
            raise ValueError(f"{type(self).__name__}: columns differ in length: {sizes}")

    @property
    def columns(self) -> list[Any]:
        """The columns in the order of the fields."""
        return [getattr(self, field.name) for field in fields(self)]

    def __len__(self) -> int:
        return len(self.columns[0])

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of texts."""
        return False

    def keys(self) -> Sequence[Hashable]:
        """A key for each row. Rows with the same key are never divided between training and search rows."""
        first: Sequence[Hashable] = self.columns[0]
        return first

    def take(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        chosen = (None if column is None else tuple(column[row] for row in rows) for column in self.columns)
        return type(self)(*chosen)


S = TypeVar("S", bound=AnySplit)


@dataclass(frozen=True)
class Split(AnySplit):
    """Rows of a classification or regression: sentences, for pairs also the second ones (else None), and as labels
    class indices (int), numbers (float), or for several classes a tuple with 0 or 1 for each class.
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    labels: tuple[Any, ...]

    @property
    def paired(self) -> bool:
        return self.pairs is not None

    def keys(self) -> Sequence[Hashable]:
        return self.texts if self.pairs is None else list(zip(self.texts, self.pairs, strict=True))


@dataclass(frozen=True)
class PassageSplit(Split):
    """Queries, each with a passage, and as labels the scores of a reranker. The passages of a query stay together."""

    def keys(self) -> Sequence[Hashable]:
        return self.texts


@dataclass(frozen=True)
class SentenceSplit(AnySplit):
    """Sentences without labels; what is learned of them are the teacher's vectors."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class TaggedSplit(AnySplit):
    """Sentences: the words of each, and the class index of each word's tag."""

    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for row, (words, tags) in enumerate(zip(self.words, self.tags, strict=True)):
            if len(words) != len(tags) or not words:
                raise ValueError(f"TaggedSplit: row {row} has {len(words)} words and {len(tags)} tags")


@dataclass(frozen=True)
class QuestionSplit(AnySplit):
    """Questions about contexts. Each has any number of answers in its context: (text, index of the first character)."""

    ids: tuple[str, ...]
    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    answers: tuple[tuple[tuple[str, int], ...], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, context, answers in zip(self.ids, self.contexts, self.answers, strict=True):
            for text, start in answers:
                if not text or start < 0 or context[start : start + len(text)] != text:
                    given, actual = shortened(text), shortened(context[max(0, start) : max(0, start) + len(text)])
                    raise ValueError(f"question {shortened(name)}: at character {start} is not {given}, but {actual}")

    @property
    def paired(self) -> bool:
        return True

    def keys(self) -> Sequence[Hashable]:
        return self.contexts


def joined(first: S, second: S) -> S:
    """Concatenate two splits."""
    pairs = zip(first.columns, second.columns, strict=True)
    return type(first)(*(None if one is None else one + other for one, other in pairs))

"""The rows of data sets: sentences, tagged words, and questions about a text."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self, TypeVar

from foundation.errors import shortened


class AnySplit(Protocol):
    """The interface of all splits, which are frozen dataclasses of columns: tuples of equal length, or None."""

    def __len__(self) -> int: ...

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of texts."""
        ...

    def keys(self) -> Sequence[Hashable]:
        """A key for each row. Rows with the same key are never divided between training and search rows."""
        ...

    def take(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        ...


S = TypeVar("S", bound=AnySplit)


@dataclass(frozen=True)
class Split:
    """Rows of a classification or regression: sentences, for pairs also the second ones (else None), and as labels
    class indices (int) or numbers (float).
    """

    texts: tuple[str, ...]
    pairs: tuple[str, ...] | None
    labels: tuple[Any, ...]

    def __post_init__(self) -> None:
        check_lengths(self, self.texts, self.labels, *([] if self.pairs is None else [self.pairs]))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of texts."""
        return self.pairs is not None

    def keys(self) -> Sequence[Hashable]:
        """The sentences. See `AnySplit.keys`."""
        return self.texts if self.pairs is None else list(zip(self.texts, self.pairs, strict=True))

    def take(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        pairs = None if self.pairs is None else tuple(self.pairs[row] for row in rows)
        return type(self)(tuple(self.texts[row] for row in rows), pairs, tuple(self.labels[row] for row in rows))


@dataclass(frozen=True)
class TaggedSplit:
    """Sentences: the words of each, and the class index of each word's tag."""

    words: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        check_lengths(self, self.words, self.tags)
        for row, (words, tags) in enumerate(zip(self.words, self.tags, strict=True)):
            if len(words) != len(tags) or not words:
                raise ValueError(f"TaggedSplit: row {row} has {len(words)} words and {len(tags)} tags")

    def __len__(self) -> int:
        return len(self.words)

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of texts."""
        return False

    def keys(self) -> Sequence[Hashable]:
        """The words of the sentences. See `AnySplit.keys`."""
        return self.words

    def take(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        return type(self)(tuple(self.words[row] for row in rows), tuple(self.tags[row] for row in rows))


@dataclass(frozen=True)
class QuestionSplit:
    """Questions about contexts. Each has any number of answers in its context: (text, index of the first character)."""

    ids: tuple[str, ...]
    questions: tuple[str, ...]
    contexts: tuple[str, ...]
    answers: tuple[tuple[tuple[str, int], ...], ...]

    def __post_init__(self) -> None:
        check_lengths(self, self.ids, self.questions, self.contexts, self.answers)
        for name, context, answers in zip(self.ids, self.contexts, self.answers, strict=True):
            for text, start in answers:
                if not text or start < 0 or context[start : start + len(text)] != text:
                    given, actual = shortened(text), shortened(context[max(0, start) : max(0, start) + len(text)])
                    raise ValueError(f"question {shortened(name)}: at character {start} is not {given}, but {actual}")

    def __len__(self) -> int:
        return len(self.questions)

    @property
    def paired(self) -> bool:
        """Whether rows are pairs of texts."""
        return True

    def keys(self) -> Sequence[Hashable]:
        """The contexts. See `AnySplit.keys`."""
        return self.contexts

    def take(self, rows: Sequence[int]) -> Self:
        """These rows, in this order."""
        columns = (self.ids, self.questions, self.contexts, self.answers)
        return type(self)(*(tuple(column[row] for row in rows) for column in columns))  # type: ignore[arg-type]


def joined(first: S, second: S) -> S:
    """Concatenate two splits."""
    columns: Any = ((getattr(first, field.name), getattr(second, field.name)) for field in fields(first))  # type: ignore[arg-type]
    both = [None if one is None else one + other for one, other in columns]
    return type(first)(*both)


def check_lengths(split: object, *columns: Sequence[object]) -> None:
    """Raise ValueError unless all columns of a split have the same length."""
    sizes = [len(column) for column in columns]
    if len(set(sizes)) != 1:
        raise ValueError(f"{type(split).__name__}: columns differ in length: {sizes}")

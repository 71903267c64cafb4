"""Encoded rows in flat arrays of token ids, the order of training batches, and padded batches."""

import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

IGNORED = -100
"""The label of tokens for which nothing is predicted."""

POOL_BATCHES = 50
"""Rows are grouped by length within pools of this many batches, which reduces padding but keeps rows well mixed."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """The token ids of N rows, concatenated without padding: row `i` is `input_ids[offsets[i]:offsets[i + 1]]`.

    Attributes:
        input_ids, token_type_ids: int32 and int8, of shape (tokens,).
        offsets: int64 of shape (N + 1,).
        labels: None for text without labels. Otherwise one of: int64 (N,), class indices; float32 (N,) or (N, C); int32
            (N, 2), an answer's first and last token counted from the row's start, both 0 if it is not in the row; or,
            if `places` has the words of tokens, int32 (tokens,), class indices at the first token of each word and
            IGNORED elsewhere.
        task_type: the name of the task type (`distill.tasks.types.TASK_TYPES`).
        places: what tokens correspond to in the split. For tagged words, int32 (tokens,), the index of the word at its
            first token; for questions, int32 (tokens, 2), the start and end of the token's characters in the context;
            -1 for all other tokens.
        weights: of rows in the loss with their labels, float32 (N,), or (N, C) as their labels; None: all are 1.
        groups: of rows that belong together, int32 (N,); training batches keep them side by side. None: none do.
        sources: for questions and long texts, which may be divided into several rows, int32 (N,), their index in the
            split.

    Raises:
        ValueError: the shapes are inconsistent.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None = None
    task_type: str = "classification"
    places: np.ndarray | None = None
    sources: np.ndarray | None = None
    weights: np.ndarray | None = None
    groups: np.ndarray | None = None

    def __post_init__(self) -> None:
        tokens, offsets = self.input_ids.shape, self.offsets
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or np.any(np.diff(offsets) < 1):
            raise ValueError("Encoded: offsets must start at 0 and ascend; every row needs a token")
        if tokens != (offsets[-1],) or self.token_type_ids.shape != tokens:
            shapes = f"{tokens} input_ids, {self.token_type_ids.shape} token_type_ids"
            raise ValueError(f"Encoded: offsets end at {offsets[-1]}, which does not fit {shapes}")
        rows = len(offsets) - 1
        by_token = {"places", "labels"} if self.tagged else {"places"}
        for name in ("labels", "places", "sources", "weights", "groups"):
            length = tokens[0] if name in by_token else rows
            array = getattr(self, name)
            if array is not None and array.shape[:1] != (length,):
                sizes = f"{rows} rows of {tokens[0]} tokens"
                raise ValueError(f"Encoded: {sizes} ({self.task_type}), but {name} of shape {array.shape}")

    @property
    def tagged(self) -> bool:
        """Whether there is a label for each token instead of one for each row."""
        return self.places is not None and self.places.ndim == 1

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def examples(self) -> int:
        """The number of rows of the split, of which a question or a long text may have several rows here."""
        return len(self) if self.sources is None else int(self.sources[-1]) + 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every row: int64 of shape (N,)."""
        return np.diff(self.offsets)

    @property
    def median_length(self) -> int:
        """The median of the lengths, in tokens, rounded down."""
        return int(np.median(self.lengths))

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Tokens of these rows: int64 of shape (rows,)."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])


CHUNK = 2_000
"""The number of rows that are tokenized at a time, which bounds the memory of Python lists."""

Arrays = dict[str, np.ndarray]


def encode_sentences(
    tokenizer: Any,
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    max_length: int,
    labels: np.ndarray | None = None,
    task_type: str = "classification",
) -> Encoded:
    """Encode sentences, or pairs of sentences, truncated to `max_length` tokens, with a label each."""
    parts = []
    for start in range(0, len(texts), CHUNK):
        chunk = slice(start, start + CHUNK)
        columns = [list(texts[chunk]), *([] if pairs is None else [list(pairs[chunk])])]
        out = tokenizer(*columns, truncation=True, max_length=max_length, return_attention_mask=False)
        parts.append(flat_rows(out))
    return Encoded(**joined_rows(parts), labels=labels, task_type=task_type)


def tokenized_words(tokenizer: Any, rows: Iterable[Sequence[str]], **options: Any) -> Any:
    """A tokenizer's output for sentences of words, which get the tokens that they have in text.

    Tokens of byte-level tokenizers contain the space before a word, which many of these do not add to words.
    """
    in_text = tokenizer("a a")["input_ids"]
    alone, spaced = (tokenizer(["a", word], is_split_into_words=True)["input_ids"] for word in ("a", " a"))
    space = " " if alone != in_text == spaced else ""
    words = [[space * (place > 0) + word for place, word in enumerate(row)] for row in rows]
    return tokenizer(words, is_split_into_words=True, **options)


def flat_rows(out: Any) -> Arrays:
    """Concatenate the rows of a tokenizer's output without padding; `lengths` has the number of tokens of each."""
    types = out.get("token_type_ids") or [[0] * len(row) for row in out["input_ids"]]
    return {
        "input_ids": np.concatenate([np.asarray(row, np.int32) for row in out["input_ids"]]),
        "token_type_ids": np.concatenate([np.asarray(row, np.int8) for row in types]),
        "lengths": np.array([len(row) for row in out["input_ids"]]),
    }


def joined_rows(parts: Sequence[Arrays]) -> Any:
    """The arrays of an `Encoded` from those of its parts, which have `lengths` in place of offsets."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return arrays | {"offsets": np.concatenate([[0], np.cumsum(arrays.pop("lengths"))]).astype(np.int64)}


def joined(parts: Sequence[Encoded]) -> Encoded:
    """The rows of several splits of a task, to train on, without weights and without `sources`."""
    names = ("input_ids", "token_type_ids", "labels", "places", "groups")
    arrays = [{name: each for name in names if (each := getattr(part, name)) is not None} for part in parts]
    first = 0
    for one, part in zip(arrays, parts, strict=True):
        one["lengths"] = part.lengths
        if part.groups is not None:
            one["groups"] = part.groups + first
            first = int(one["groups"].max(initial=first)) + 1
    return Encoded(**joined_rows(arrays), task_type=parts[0].task_type)


def save_encoded(encoded: Encoded, path: Path) -> None:
    """Write an ``.npz`` file."""
    arrays = {field.name: getattr(encoded, field.name) for field in fields(encoded)}
    np.savez(path, allow_pickle=False, **{name: array for name, array in arrays.items() if array is not None})


def load_encoded(path: Path) -> Encoded:
    """Read what :func:`save_encoded` wrote. Raises ValueError, naming the file, when it is damaged."""
    try:
        # NumPy does not close a damaged file that it was given by name.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays: Any = {name: file[name] for name in file.files}
        return Encoded(**{**arrays, "task_type": str(arrays["task_type"])})
    except (KeyError, ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a readable file of encoded rows ({error})") from error


def take(encoded: Encoded, rows: np.ndarray) -> Encoded:
    """Select rows in this order; a question or long text keeps its index in the split."""
    lengths = encoded.lengths_of(rows)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    tokens = np.repeat(encoded.offsets[:-1][rows] - starts, lengths) + np.arange(ends[-1] if len(ends) else 0)
    by_token = {"input_ids", "token_type_ids", "places"}
    if encoded.tagged:
        by_token.add("labels")
    arrays: dict[str, Any] = {}
    for name in ("input_ids", "token_type_ids", "labels", "places", "sources", "weights", "groups"):
        array = getattr(encoded, name)
        if array is not None:
            arrays[name] = array[tokens if name in by_token else rows]
    return Encoded(**arrays, offsets=np.concatenate([[0], ends]).astype(np.int64), task_type=encoded.task_type)


def batches(encoded: Encoded, batch_size: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Row indices, int64 of shape (batch_size,), of exactly ``steps`` batches of rows similar in length.

    Every epoch is a new permutation. The batches are a function of the arguments, and those for fewer steps are a
    prefix of those for more steps, so candidates with different numbers of steps see the same batches first. At most
    two permutations are in memory at a time.

    Raises:
        ValueError: there are no rows, or the numbers are too small.
    """
    if batch_size < 1 or steps < 0:
        raise ValueError(f"batches: needs batch_size >= 1 and steps >= 0, not {batch_size} and {steps}")
    if not len(encoded):
        raise ValueError("batches: no rows")
    # With pools larger than an epoch, copies of a row would get into the same batch.
    in_pool = min(POOL_BATCHES, max(1, len(encoded) // batch_size))
    return islice(_pooled(encoded, batch_size, in_pool, seed), steps)


def _pooled(encoded: Encoded, batch_size: int, in_pool: int, seed: int) -> Iterator[np.ndarray]:
    """The endless batches of `batches`, with rows grouped by length within pools of `in_pool` batches."""
    epochs, rest = count(), np.empty(0, np.int64)
    for number in count():
        while len(rest) < in_pool * batch_size:
            epoch = np.random.default_rng([seed, 0, next(epochs)]).permutation(len(encoded))
            if encoded.groups is not None:
                epoch = _side_by_side(epoch, encoded.groups[epoch], np.arange(len(epoch)), np.minimum)
            rest = np.concatenate([rest, epoch]) if len(rest) else epoch
        pool, rest = rest[: in_pool * batch_size], rest[in_pool * batch_size :]
        if encoded.groups is None:
            by_length = pool[np.argsort(encoded.lengths_of(pool), kind="stable")]
        else:
            by_length = _side_by_side(pool, encoded.groups[pool], encoded.lengths_of(pool), np.maximum)
        by_length = by_length.reshape(in_pool, batch_size)
        yield from np.random.default_rng([seed, 1, number]).permutation(by_length)


def _side_by_side(rows_N: np.ndarray, groups_N: np.ndarray, values_N: np.ndarray, of_group: np.ufunc) -> np.ndarray:
    """Rows with their groups side by side, the groups in the order of the smallest or largest of their values."""
    _, groups_N = np.unique(groups_N, return_inverse=True)
    values_G = np.full(groups_N.max() + 1, values_N[0] if len(values_N) else 0)
    values_G[groups_N] = values_N
    of_group.at(values_G, groups_N, values_N)
    return rows_N[np.lexsort((groups_N, values_G[groups_N]))]


def eval_batches(encoded: Encoded, batch_size: int) -> list[np.ndarray]:
    """Row indices of batches that cover every row once, longest rows first; the last batch may be smaller.

    ``predictions[rows] = ...`` restores the order of the split.
    """
    if batch_size < 1:
        raise ValueError(f"eval_batches: needs batch_size >= 1, not {batch_size}")
    order = np.argsort(-encoded.lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def collate(encoded: Encoded, rows: np.ndarray, pad_id: int) -> dict[str, torch.Tensor]:
    """A batch of these rows as a model's input, padded on the right to the longest of them.

    int64 tensors ``input_ids``, ``attention_mask`` and ``token_type_ids`` of shape (B, T); ``rows`` of shape (B,), the
    numbers of these rows; and where there are labels, `labels` as `distill.tasks.types.base.TaskType` says, and
    `weights` and `groups` if the rows have them. Padding is ``pad_id``, masked by 0; it has no labels.
    """
    lengths = encoded.lengths_of(rows)
    mask_BT = np.arange(lengths.max()) < lengths[:, None]
    places = (encoded.offsets[rows][:, None] + np.arange(lengths.max()))[mask_BT]
    ids_BT = np.full(mask_BT.shape, pad_id, np.int64)
    ids_BT[mask_BT] = encoded.input_ids[places]
    types_BT = np.zeros(mask_BT.shape, np.int64)
    types_BT[mask_BT] = encoded.token_type_ids[places]
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT.astype(np.int64), "token_type_ids": types_BT}
    batch["rows"] = np.asarray(rows, np.int64)
    for name in ("weights", "groups"):
        if (array := getattr(encoded, name)) is not None:
            batch[name] = array[rows]
    if encoded.labels is not None:
        if encoded.tagged:
            batch["labels"] = np.full(mask_BT.shape, IGNORED, np.int64)
            batch["labels"][mask_BT] = encoded.labels[places]
        else:
            numbers = np.issubdtype(encoded.labels.dtype, np.floating)
            batch["labels"] = encoded.labels[rows].astype(np.float32 if numbers else np.int64)
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def single_rows(batch: dict[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Split a batch without labels into batches of one row without padding."""
    for row, length in enumerate(batch["attention_mask"].sum(dim=1).tolist()):
        single = {name: tensor[row : row + 1] for name, tensor in batch.items()}
        by_token = ("input_ids", "attention_mask", "token_type_ids")
        yield single | {name: single[name][:, :length] for name in by_token}


def token_frequencies(encoded: Encoded, vocabulary: int) -> torch.Tensor:
    """The number of occurrences of each token id: int64 of shape (vocabulary,)."""
    return torch.from_numpy(np.bincount(encoded.input_ids, minlength=vocabulary))


def training_batches(
    rows: Encoded, batch_size: int, steps: int, seed: int, pad_id: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The padded batches of a training run, a deterministic function of the arguments."""
    return (collate(rows, chosen, pad_id) for chosen in batches(rows, batch_size, steps, seed))

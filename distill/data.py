"""Token ids of a split in flat arrays, the order in which they are trained on, and padded batches."""

import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distill.tasks import Split

POOL_BATCHES = 50
"""Rows are grouped by length within pools of this many batches: less padding, and still well mixed."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """Token ids of N rows, joined without padding: row ``i`` is ``input_ids[offsets[i]:offsets[i + 1]]``.

    ``input_ids`` int32 and ``token_type_ids`` int8, both of shape (tokens,); ``offsets`` int64 of shape
    (N + 1,); ``labels`` int64 of shape (N,), or None for text without labels.
    """

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None = None

    def __post_init__(self) -> None:
        tokens, offsets = self.input_ids.shape, self.offsets
        if offsets.ndim != 1 or not len(offsets) or offsets[0] != 0 or np.any(np.diff(offsets) < 1):
            raise ValueError("Encoded: offsets must start at 0 and ascend; every row needs a token")
        if tokens != (offsets[-1],) or self.token_type_ids.shape != tokens:
            shapes = f"{tokens} input_ids, {self.token_type_ids.shape} token_type_ids"
            raise ValueError(f"Encoded: offsets end at {offsets[-1]}, which does not fit {shapes}")
        if self.labels is not None and self.labels.shape != (len(offsets) - 1,):
            raise ValueError(f"Encoded: {len(offsets) - 1} rows, but labels of shape {self.labels.shape}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every row: int64 of shape (N,)."""
        return np.diff(self.offsets)


def encode(tokenizer: Any, rows: Split | Sequence[str], max_length: int = 64) -> Encoded:
    """Tokenise a split (or plain texts, then without labels) once, each row cut to ``max_length`` tokens.

    ``tokenizer`` is a fast Hugging Face tokenizer. Raises ValueError for no rows, and for a ``max_length``
    that leaves no room beside the special tokens.
    """
    split = rows if isinstance(rows, Split) else Split(tuple(rows), None, (0,) * len(rows))
    pair = split.pairs is not None
    if max_length <= tokenizer.num_special_tokens_to_add(pair=pair):
        raise ValueError(f"max_length = {max_length}: no room for text beside the special tokens")
    if not len(split):
        raise ValueError("nothing to encode: no rows")
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    lengths: list[int] = []
    for start in range(0, len(split), 10_000):  # bounds the memory of Python lists
        chunk = slice(start, start + 10_000)
        second = [] if split.pairs is None else [list(split.pairs[chunk])]
        texts = [list(split.texts[chunk]), *second]
        out = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
        lengths += map(len, out["input_ids"])
        ids.append(np.concatenate([np.asarray(row, np.int32) for row in out["input_ids"]]))
        kinds = out.get("token_type_ids")
        types.append(
            np.zeros(len(ids[-1]), np.int8)
            if kinds is None
            else np.concatenate([np.asarray(row, np.int8) for row in kinds])
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    labels = np.asarray(split.labels, np.int64) if isinstance(rows, Split) else None
    return Encoded(np.concatenate(ids), np.concatenate(types), offsets, labels)


def save_encoded(encoded: Encoded, path: Path) -> None:
    """Write an ``.npz`` file."""
    arrays = {field.name: getattr(encoded, field.name) for field in fields(encoded)}
    if encoded.labels is None:
        del arrays["labels"]
    np.savez(path, allow_pickle=False, **arrays)


def load_encoded(path: Path) -> Encoded:
    """Read what :func:`save_encoded` wrote. Raises ValueError, naming the file, when it is damaged."""
    try:
        # NumPy does not close a damaged file that it was given by name.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        return Encoded(**arrays)
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: not a readable file of encoded rows ({error})") from error


def batches(encoded: Encoded, batch_size: int, steps: int, seed: int) -> list[np.ndarray]:
    """Row indices of exactly ``steps`` batches of ``batch_size`` rows, similar in length within a batch.

    Epochs follow one another, each a fresh permutation. The same arguments give the same batches, and fewer
    steps give the first ones of more steps: candidates trained for different times see the same beginning.
    """
    if batch_size < 1 or steps < 0:
        raise ValueError(f"batches: needs batch_size >= 1 and steps >= 0, not {batch_size} and {steps}")
    if not len(encoded):
        raise ValueError("batches: no rows")
    # A pool larger than an epoch would bring copies of a row together into one batch.
    in_pool = min(POOL_BATCHES, max(1, len(encoded) // batch_size))
    pools = -(-steps // in_pool)
    epochs = -(-pools * in_pool * batch_size // len(encoded))
    order = [np.random.default_rng([seed, 0, epoch]).permutation(len(encoded)) for epoch in range(epochs)]
    rows = np.concatenate(order or [np.empty(0, np.int64)])[: pools * in_pool * batch_size]
    lengths = encoded.lengths
    result: list[np.ndarray] = []
    for number, pool in enumerate(rows.reshape(pools, in_pool * batch_size)):
        by_length = pool[np.argsort(lengths[pool], kind="stable")].reshape(in_pool, batch_size)
        result += list(np.random.default_rng([seed, 1, number]).permutation(by_length))
    return result[:steps]


def eval_batches(encoded: Encoded, batch_size: int) -> list[np.ndarray]:
    """Row indices that cover every row once, the longest first; the last batch may be smaller.

    ``predictions[rows] = ...`` puts what is computed for each batch back in the order of the split.
    """
    if batch_size < 1:
        raise ValueError(f"eval_batches: needs batch_size >= 1, not {batch_size}")
    order = np.argsort(-encoded.lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def collate(encoded: Encoded, rows: np.ndarray, pad_id: int) -> dict[str, torch.Tensor]:
    """A model's input for these rows, padded on the right to the longest of them.

    int64 tensors ``input_ids``, ``attention_mask`` and ``token_type_ids`` of shape (B, T), and ``labels`` of
    shape (B,) where there are labels. Padding is ``pad_id``, masked by 0.
    """
    lengths = encoded.lengths[rows]
    mask_BT = np.arange(lengths.max()) < lengths[:, None]
    places = (encoded.offsets[:-1][rows][:, None] + np.arange(lengths.max()))[mask_BT]
    ids_BT = np.full(mask_BT.shape, pad_id, np.int64)
    ids_BT[mask_BT] = encoded.input_ids[places]
    types_BT = np.zeros(mask_BT.shape, np.int64)
    types_BT[mask_BT] = encoded.token_type_ids[places]
    batch = {"input_ids": ids_BT, "attention_mask": mask_BT.astype(np.int64), "token_type_ids": types_BT}
    if encoded.labels is not None:
        batch["labels"] = encoded.labels[rows]
    return {name: torch.from_numpy(array) for name, array in batch.items()}


def token_frequencies(encoded: Encoded, vocabulary: int) -> torch.Tensor:
    """How often each token id occurs: int64 of shape (vocabulary,)."""
    return torch.bincount(torch.from_numpy(encoded.input_ids).long(), minlength=vocabulary)


def training_batches(
    rows: Encoded, batch_size: int, steps: int, seed: int, pad_id: int
) -> Iterator[dict[str, torch.Tensor]]:
    """The batches of a training run, padded: the same for the same arguments."""
    return (collate(rows, chosen, pad_id) for chosen in batches(rows, batch_size, steps, seed))

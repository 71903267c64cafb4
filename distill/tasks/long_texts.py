"""What is read of single texts that are longer than `max_length` tokens: their beginning, both ends, or windows."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from distill.tasks.encoding import Encoded
from distill.tasks.splits import HEAD_TAIL, WINDOWS

# Rows are encoded to this length, which no text has, before they are divided.
UNTRUNCATED = 1_000_000
# "head_tail" gives a text's beginning one part in this many: 128 of 510 tokens, the best of Sun et al. (How to
# fine-tune BERT for text classification, 2019, section 5.3.1).
HEAD_PARTS = 4

Pieces = list[tuple[int, int]]


def divided(rows: Encoded, tokenizer: Any, max_length: int, stride: int, long_texts: str) -> Encoded:
    """Rows of whole texts as rows of at most `max_length` tokens, each between the text's own special tokens.

    Args:
        stride: the number of tokens that consecutive windows have in common.
        long_texts: "head_tail": the first quarter and the last three quarters of so many tokens; "windows": as many
            overlapping windows as necessary, with the text's label, and its number in `sources`.

    Raises:
        ValueError: `stride` is negative, or so large that windows would not advance.
    """
    special = tokenizer.num_special_tokens_to_add()
    room = max_length - special
    if long_texts == WINDOWS and not 0 <= stride < room:
        raise ValueError(f"stride = {stride}: must be below the {room} tokens of text of max_length = {max_length}")
    first = tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"].index(0)
    places, sources = [], []
    for row, (start, end) in enumerate(pairwise(rows.offsets.tolist())):
        content, last = (start + first, end - special + first), (end - special + first, end)
        for pieces in _pieces(*content, room, stride, long_texts):
            places.append(np.concatenate([np.arange(*piece) for piece in ((start, content[0]), *pieces, last)]))
            sources.append(row)
    tokens, lengths = np.concatenate(places), [len(each) for each in places]
    assert rows.labels is not None
    return replace(
        rows,
        input_ids=rows.input_ids[tokens],
        token_type_ids=rows.token_type_ids[tokens],
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=rows.labels[sources],
        sources=np.array(sources, np.int32) if long_texts == WINDOWS else None,
    )


def _pieces(start: int, end: int, room: int, stride: int, long_texts: str) -> Iterator[Pieces]:
    """For each row of a text whose tokens go from `start` to `end`: the ranges of tokens that the row consists of."""
    if end - start <= room:
        yield [(start, end)]
    elif long_texts == HEAD_TAIL:
        head = -(-room // HEAD_PARTS)
        yield [(start, start + head), (end - room + head, end)]
    else:
        for place in range(start, end - stride, room - stride):
            yield [(place, min(place + room, end))]


def averaged(values_N: np.ndarray, sources_N: np.ndarray | None) -> np.ndarray:
    """The mean of the values (N, ...) of each text's windows, in the texts' order; as they are without `sources`."""
    if sources_N is None:
        return values_N
    sums = np.zeros((sources_N.max() + 1, *values_N.shape[1:]), values_N.dtype)
    np.add.at(sums, sources_N, values_N)
    return np.asarray(sums / np.bincount(sources_N).reshape(-1, *[1] * (values_N.ndim - 1)).astype(values_N.dtype))

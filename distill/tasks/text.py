"""Text without labels in files that are mapped into memory, so that neither encoding it nor training on it holds all of
it in memory.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from distill.tasks.encoding import CHUNK, Encoded
from distill.tasks.types import CLASSIFICATION
from foundation.files import fingerprint

# The files of encoded text: the int32 token ids of all rows, without padding, and the int64 offsets of the rows.
IDS, OFFSETS = "input_ids.int32", "offsets.int64"
# Part of the cache keys of encoded text: increase it when the same text is encoded in another way.
FORMAT = 2


def stored_text_key(sources: Sequence[str], tokenizer: Any, max_length: int, packed: bool) -> str:
    """The cache key of encoded text.

    Args:
        sources: the keys of its sources, see `distill.tasks.readers.texts.text_key`.
    """
    # Truncation and padding are what the tokenizer was last called with.
    parts = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    side = [] if packed or tokenizer.truncation_side == "right" else [tokenizer.truncation_side]
    return fingerprint(FORMAT, list(sources), parts, max_length, packed, *side)


def save_text(paragraphs: Iterable[str], tokenizer: Any, max_length: int, folder: Path, packed: bool = False) -> None:
    """Encode text into a new folder.

    Args:
        paragraphs: as from `distill.tasks.readers.texts.read_paragraphs`; an empty one ends a document.
        max_length: the greatest number of tokens of a row, special ones included.
        packed: whether a row has as many whole paragraphs of a document as fit, and longer ones are divided. Otherwise
            every paragraph is a row, and longer ones are truncated.

    Raises:
        ValueError: `max_length` leaves no room for text.
    """
    special = tokenizer.num_special_tokens_to_add()
    room = max_length - special
    if room < 1:
        raise ValueError(f"{max_length} tokens leave no room beside {special} special ones")
    # Some tokenizers put other tokens than [CLS] and [SEP] around a sentence, or only one.
    sample = tokenizer("a", return_special_tokens_mask=True)
    first = sample["special_tokens_mask"].index(0)
    before, after = sample["input_ids"][:first], sample["input_ids"][len(sample["input_ids"]) - special + first :]
    folder.mkdir()
    end = 0
    with (folder / IDS).open("wb") as ids, (folder / OFFSETS).open("wb") as offsets:
        np.zeros(1, np.int64).tofile(offsets)
        encoded = _tokenized(paragraphs, tokenizer, None if packed else room)
        rows = _packed(encoded, room) if packed else (row for row in encoded if row)
        while chunk := list(islice(rows, CHUNK)):
            ends = end + np.cumsum([len(row) + special for row in chunk], dtype=np.int64)
            flat = chain.from_iterable((*before, *row, *after) for row in chunk)
            np.fromiter(flat, np.int32, ends[-1] - end).tofile(ids)
            ends.tofile(offsets)
            end = int(ends[-1])


def load_text(folder: Path, task_type: str = CLASSIFICATION) -> Encoded:
    """Map the text that `save_text` wrote into memory.

    Raises:
        ValueError: the files are damaged.
    """
    try:
        ids = np.memmap(folder / IDS, np.int32, "r")
        offsets = np.memmap(folder / OFFSETS, np.int64, "r")
        return Encoded(ids, np.broadcast_to(np.int8(0), ids.shape), offsets, task_type=task_type)
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder}: not a readable folder of encoded text ({error})") from error


def _tokenized(paragraphs: Iterable[str], tokenizer: Any, room: int | None) -> Iterator[list[int]]:
    """The token ids of each paragraph without special tokens, truncated to `room` tokens unless it is None; an empty
    list for an empty paragraph.
    """
    remaining = iter(paragraphs)
    while chunk := list(islice(remaining, CHUNK)):
        options = {} if room is None else {"truncation": True, "max_length": room}
        # verbose=False: it would warn of paragraphs with more tokens than the model has positions.
        yield from tokenizer(
            chunk,
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
            **options,
        )["input_ids"]


def _packed(paragraphs: Iterable[list[int]], room: int) -> Iterator[list[int]]:
    """Rows of at most `room` tokens, with whole consecutive paragraphs; a paragraph that is longer begins a row of its
    own and is divided. An empty paragraph ends a row.
    """
    row: list[int] = []
    for paragraph in paragraphs:
        if row and (not paragraph or len(row) + len(paragraph) > room):
            yield row
            row = []
        *whole, rest = (paragraph[start : start + room] for start in range(0, max(1, len(paragraph)), room))
        yield from whole
        row = row + rest
    if row:
        yield row

"""What is lost or shared when rows are encoded, in lines for the user: nothing of it happens silently."""

from typing import Any

import numpy as np

from distill.tasks.encoding import tokenized_words
from distill.tasks.splits import CUT, HEAD_TAIL, WINDOWS, AnySplit, Split, TaggedSplit

# So many rows, evenly spaced, are looked at; and from this share on unknown tokens get a line.
SAMPLE, UNKNOWN = 2000, 0.05
READ = {CUT: "cut", HEAD_TAIL: "read at both ends", WINDOWS: "read in windows"}


def notes(
    tokenizer: Any,
    train: AnySplit,
    dev: AnySplit,
    max_length: int,
    segments: int | None = None,
    long_texts: str = CUT,
) -> list[str]:
    """The lines about these rows: how many are cut, and the length that 95 % of them have; dev rows that occur in
    training; unknown tokens; and segments that the model does not tell apart.

    Args:
        segments: of how many segments the model has embeddings; None: it takes none.
        long_texts: what is read of single texts with more tokens.
    """
    result = []
    known, keys = set(train.keys()), dev.keys()
    if shared := sum(key in known for key in keys):
        result.append(f"{shared:,} of {len(dev):,} dev rows also occur among the training rows: scores are too high")
    if not isinstance(train, Split | TaggedSplit):
        return result
    ids, types = _untruncated(tokenizer, train.take(range(0, len(train), -(-len(train) // SAMPLE))))
    lengths = np.array([len(row) for row in ids])
    if (share := float((lengths > max_length).mean())) > 0:
        fits = int(np.percentile(lengths, 95, method="higher"))
        read = READ[long_texts]
        if long_texts == CUT and isinstance(train, Split) and not train.paired:
            read += " (for other ways, see long_texts)"
        result.append(
            f"{share:.1%} of the training rows have more than {max_length} tokens and are {read}; 95 % of them "
            f"have at most {fits}"
        )
    tokens = np.concatenate(ids)
    if tokenizer.unk_token_id is not None and (share := float((tokens == tokenizer.unk_token_id).mean())) > UNKNOWN:
        result.append(f"{share:.1%} of the tokens of the training rows are unknown to the tokenizer")
    if segments == 1 and any(map(any, types)):
        result.append("the rows are pairs, and the model has one segment: it does not tell first from second texts")
    return result


def _untruncated(tokenizer: Any, split: Split | TaggedSplit) -> tuple[list[list[int]], list[list[int]]]:
    """The token ids and the segments of rows as they are."""
    if isinstance(split, TaggedSplit):
        out = tokenized_words(tokenizer, split.words, truncation=False)
    else:
        out = tokenizer(*(list(texts) for texts in (split.texts, split.pairs) if texts is not None), truncation=False)
    return out["input_ids"], out.get("token_type_ids") or [[0]]

"""Copies of sentences with some words replaced: TinyBERT's data augmentation (Jiao et al., 2020, algorithm 1).

A word of one word piece is masked, and the most probable words in its place are its candidates. The candidates of a
word of several pieces are its neighbors in a word embedding such as GloVe; without one it has none. A copy replaces
each word, with a fixed probability, by one of its candidates.

As in the released code, stop words and words with anything but letters stay, candidates do not depend on what a copy
has replaced before, and one sentence of a pair is replaced at a time. Differences from it:

- The model sees the masked sentence alone, as in the algorithm; there the sentence without the mask follows it.
- Candidates are whole words of letters; there the K most probable entries count, less the insides of words.
- The rest of a sentence keeps its case and its spaces, and equal copies are kept.
- The second sentence of a pair is copied beside the first one as it was; there beside the last copy of it.
- The stop words are scikit-learn's.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tokenizers.models import WordPiece

from distill.encoders.family import family_of
from distill.encoders.parts import word_head
from distill.tasks.splits import Split
from distill.tasks.task import TaskError
from foundation.errors import continues

# So many rows are tokenized, and held with their candidates, at a time.
CHUNK = 256
# From a file of word vectors this many are read, those of the most frequent words.
VECTORS = 100_000
# With these characters the tokens of byte-level BPE and of SentencePiece begin where a word does.
BEGINNINGS = ("Ġ", "▁")


@dataclass(frozen=True)
class Word:
    """A word that may be replaced: characters `start` to `end` of its sentence, and its candidates."""

    start: int
    end: int
    candidates: tuple[str, ...]


class Neighbors:
    """Nearest words, by the cosine of their vectors.

    Args:
        vectors: word -> its vector; all of the same length, and not 0.
    """

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.words = list(vectors)
        self.places = {word: place for place, word in enumerate(self.words)}
        matrix = np.stack(list(vectors.values()))
        self.directions = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)

    def nearest(self, word: str, count: int) -> tuple[str, ...]:
        """The nearest other words, the nearest first; none if the word has no vector. If it is not in the vocabulary as
        it stands, it is looked up in lower case; neighbors of a capitalized word are capitalized.
        """
        known = next((form for form in (word, word.lower()) if form in self.places), None)
        if known is None:
            return ()
        similarities = self.directions @ self.directions[self.places[known]]
        similarities[self.places[known]] = -np.inf
        order = np.argsort(-similarities, kind="stable")[: min(count, len(self.words) - 1)]
        neighbors = (self.words[place] for place in order)
        return tuple(near.capitalize() if word.istitle() else near for near in neighbors)


def read_neighbors(path: Path) -> Neighbors:
    """Read word vectors: on every line a word and its numbers, separated by spaces, as in GloVe's files. Of the first
    `VECTORS` lines those are kept whose words have only letters.

    Raises:
        TaskError: the file cannot be read, or a line is malformed.
    """
    vectors: dict[str, np.ndarray] = {}
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(islice(lines, VECTORS), 1):
                word, *numbers = line.rstrip().split(" ")
                if word.isalpha():
                    vector = _vector(f"{path}:{number}", numbers)
                    length = len(next(iter(vectors.values()), vector))
                    if len(vector) != length:
                        raise TaskError(f"{path}:{number}: {len(vector)} numbers; the words before have {length}")
                    if vector.any():
                        vectors[word] = vector
    except OSError as error:
        raise TaskError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TaskError(f"{path}: not a UTF-8 text file") from None
    if not vectors:
        raise TaskError(f"{path}: no vectors of words")
    return Neighbors(vectors)


def _vector(where: str, numbers: Sequence[str]) -> np.ndarray:
    try:
        vector = np.array(numbers, np.float32)
    except ValueError:
        vector = np.empty(0, np.float32)
    if not len(vector) or not np.isfinite(vector).all():
        raise TaskError(f"{where}: a line must be a word and its finite numbers, separated by spaces")
    return vector


@dataclass(frozen=True)
class Augmentation:
    """What makes the copies.

    Attributes:
        model: an encoder with a masked-word head, in evaluation mode.
        tokenizer: its fast tokenizer.
        neighbors: for words of several pieces; None: these are never replaced.
        copies: N, of every sentence.
        probability: p, with which a word is replaced.
        candidates: K, of every word.
        batch_size: the number of masked sentences in a pass of the model.
    """

    model: Any
    tokenizer: Any
    neighbors: Neighbors | None = None
    copies: int = 20
    probability: float = 0.4
    candidates: int = 15
    seed: int = 0
    batch_size: int = 64

    def rows(self, split: Split) -> Iterator[tuple[str, str | None, Any]]:
        """Every row (sentence, second sentence or None, label), followed by its copies: N with another first sentence
        and, of a pair, N with another second one. They depend on the seed and the place of the row.
        """
        for start in range(0, len(split), CHUNK):
            places = range(start, min(start + CHUNK, len(split)))
            first_words = self.words([split.texts[place] for place in places])
            second_words = None if split.pairs is None else self.words([split.pairs[place] for place in places])
            for row, place in enumerate(places):
                text, label = split.texts[place], split.labels[place]
                pair = None if split.pairs is None else split.pairs[place]
                yield text, pair, label
                rng = random.Random(f"{self.seed}/{place}")
                for _ in range(self.copies):
                    yield self.copy(text, first_words[row], rng), pair, label
                if pair is not None and second_words is not None:
                    for _ in range(self.copies):
                        yield text, self.copy(pair, second_words[row], rng), label

    def copy(self, text: str, words: Sequence[Word], rng: random.Random) -> str:
        """The sentence with each of these words replaced, with probability p, by one of its candidates."""
        parts, end = [], 0
        for word in words:
            if rng.random() < self.probability:
                parts += [text[end : word.start], rng.choice(word.candidates)]
                end = word.end
        return "".join(parts) + text[end:]

    def words(self, texts: Sequence[str]) -> list[list[Word]]:
        """For each sentence the words that have candidates, from left to right. What lies beyond the positions of the
        model is left as it is.
        """
        # verbose=False: it would warn of sentences with more tokens than the model has positions.
        encoded = self.tokenizer(list(texts), verbose=False)
        longest = family_of(self.model).positions(self.model.config)
        found: list[tuple[int, int, int, tuple[str, ...] | None]] = []  # None: the model's next prediction
        masked: list[list[int]] = []
        positions: list[int] = []
        for row, text in enumerate(texts):
            ids = encoded["input_ids"][row]
            if len(ids) > longest:
                ids = [*ids[: longest - 1], ids[-1]]
            for start, end, (position, *more) in _replaceable(text, encoded[row], longest - 1):
                if not more:
                    masked.append([*ids[:position], self.tokenizer.mask_token_id, *ids[position + 1 :]])
                    positions.append(position)
                    found.append((row, start, end, None))
                elif self.neighbors is not None:
                    found.append((row, start, end, self.neighbors.nearest(text[start:end], self.candidates)))
        predicted = iter(self.predicted(masked, positions))
        words: list[list[Word]] = [[] for _ in texts]
        for row, start, end, candidates in found:
            word = Word(start, end, next(predicted) if candidates is None else candidates)
            if word.candidates:
                words[row].append(word)
        return words

    @cached_property
    def vocabulary(self) -> list[str | None]:
        """For each token id its word, or None if it is a special token, the inside of a word, or not of letters."""
        special = set(self.tokenizer.all_special_ids)
        marks_insides = isinstance(self.tokenizer.backend_tokenizer.model, WordPiece)
        result: list[str | None] = [None] * self.model.config.vocab_size
        for token, number in self.tokenizer.get_vocab().items():
            if not marks_insides:  # but the beginnings of words
                token = self.tokenizer.convert_tokens_to_string([token]).strip() if token[:1] in BEGINNINGS else ""
            if number < len(result) and number not in special and token.isalpha():
                result[number] = token
        return result

    @torch.inference_mode()
    def predicted(self, masked: Sequence[Sequence[int]], positions: Sequence[int]) -> list[tuple[str, ...]]:
        """For each sentence of token ids the K most probable words at a position, the most probable first."""
        allowed = self.vocabulary
        allowed_V = torch.tensor([word is not None for word in allowed], device=self.model.device)
        count = min(self.candidates, int(allowed_V.sum()))
        candidates: list[tuple[str, ...]] = [()] * len(masked)
        # Sentences of similar length together, so that there is little padding.
        order = sorted(range(len(masked)), key=lambda row: len(masked[row]))
        for start in range(0, len(order), self.batch_size):
            batch = order[start : start + self.batch_size]
            rows = [torch.tensor(masked[row]) for row in batch]
            ids_BT = torch.nn.utils.rnn.pad_sequence(rows, True, self.tokenizer.pad_token_id)
            lengths_B = torch.tensor([len(row) for row in rows])
            mask_BT = (torch.arange(ids_BT.shape[1]) < lengths_B[:, None]).long()
            hidden_BTD = self.model.base_model(
                input_ids=ids_BT.to(self.model.device), attention_mask=mask_BT.to(self.model.device)
            ).last_hidden_state
            # The head is the larger part of the work, so only the masked words pass through it.
            hidden_BD = hidden_BTD[torch.arange(len(rows)), torch.tensor([positions[row] for row in batch])]
            logits_BV = word_head(self.model)(hidden_BD).masked_fill(~allowed_V, -torch.inf)
            for row, best in zip(batch, logits_BV.topk(count).indices.tolist(), strict=True):
                candidates[row] = tuple(str(allowed[token]) for token in best)
        return candidates


def _replaceable(text: str, encoding: Any, end: int) -> Iterator[tuple[int, int, list[int]]]:
    """First and last character and the positions of the pieces of every word that may be replaced: of letters alone,
    no stop word, and all of its pieces before the position `end`.
    """
    pieces: dict[int, list[int]] = {}
    for position, word in enumerate(encoding.word_ids):
        if word is not None:
            pieces.setdefault(word, []).append(position)
    for positions in pieces.values():
        first, last = encoding.offsets[positions[0]][0], encoding.offsets[positions[-1]][1]
        word = text[first:last].lstrip()
        first = last - len(word)  # some tokenizers count the space before a word as part of it
        # Some tokenizers leave out the marks after a letter.
        whole = last == len(text) or not continues(text, last)
        if whole and positions[-1] < end and word.isalpha() and word.lower() not in ENGLISH_STOP_WORDS:
            yield first, last, positions

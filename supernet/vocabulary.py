"""Cutting a vocabulary: which tokens are kept, and the tokenizer and the model that have only these.

A token id is a row of the word embedding. The kept ids stay in their order and are numbered anew from 0.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel
from transformers.initialization import no_init_weights

from distill.encoders.family import family_of
from distill.tasks.encoding import Encoded
from foundation.errors import UserError, reason
from foundation.files import save_pretrained

TOKENIZER_FILE = "tokenizer.json"
# What can follow a tokenizer's model without token ids of its own.
WITHOUT_IDS = ("ByteLevel",)


class VocabularyError(UserError, ValueError):
    """A vocabulary cannot be cut, or not to so few tokens."""


def tokenizer_parts(tokenizer: Any) -> dict[str, Any]:
    """The content of a tokenizer's tokenizer.json.

    Raises:
        VocabularyError: there is none, or it has a part that cannot be rewritten.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise VocabularyError(
            f"the tokenizer, a {type(tokenizer).__name__}, has no {TOKENIZER_FILE}, and only that can be cut: give the "
            "checkpoint a fast tokenizer"
        )
    parts: dict[str, Any] = json.loads(backend.to_str())
    kind = parts["model"]["type"]
    if kind not in BASE_ALPHABET:
        raise VocabularyError(
            f"{TOKENIZER_FILE} has a model of type {kind!r}, which cannot be cut: use a tokenizer of the type "
            f"{', '.join(BASE_ALPHABET)}"
        )
    _renumbered(parts["post_processor"], None)
    return parts


def kept_ids(tokenizer: Any, frequencies: Tensor, most: int | None = None, also: Iterable[int] = ()) -> tuple[int, ...]:
    """The ids that are kept, ascending: of special and added tokens, of the tokenizer's `BASE_ALPHABET`, and of the
    tokens that occur. For BPE, the tokens from which a kept token is merged are kept, too.

    Args:
        frequencies: of every token id in a text (vocabulary,), as `distill.tasks.encoding.token_frequencies` counts.
        most: the largest number of ids. The most frequent tokens are kept, up to the first for which there is no room;
            None: all that occur.
        also: further ids that are kept, such as those that a model's configuration names.

    Raises:
        VocabularyError: the tokenizer cannot be cut, or `most` is too small for any text to be tokenized.
    """
    model, ids = tokenizer_parts(tokenizer)["model"], tokenizer.get_vocab()
    parts_of = _parts_of(model)
    kept = {*tokenizer.added_tokens_decoder, *tokenizer.all_special_ids, *also}
    names = {token_id: token for token, token_id in ids.items()}
    kept |= {ids[token] for token in BASE_ALPHABET[model["type"]](model)}
    if most is not None and most < len(kept):
        raise VocabularyError(
            f"--vocab-size {most}: special tokens and the base alphabet alone are {len(kept)}; give at least as many"
        )
    counts = frequencies.tolist()
    used = sorted((i for i, count in enumerate(counts) if count and i not in kept), key=lambda i: (-counts[i], i))
    for token_id in used:
        needed = {ids[token] for token in _with_parts(names[token_id], parts_of)} - kept
        if most is not None and len(kept) + len(needed) > most:
            break
        kept |= needed
    return tuple(sorted(kept))


def cut_tokenizer(tokenizer: Any, kept: Sequence[int], folder: Path) -> Any:
    """A tokenizer that has only the tokens with these ids, written to a folder and loaded from there.

    Args:
        kept: ids, ascending; they become the ids 0, 1, ...

    Raises:
        VocabularyError: the tokenizer cannot be cut, or what is loaded does not have these tokens under these ids.
    """
    parts, new = tokenizer_parts(tokenizer), {old: number for number, old in enumerate(kept)}
    model = parts["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [entry for token_id, entry in enumerate(model["vocab"]) if token_id in new]
        model["unk_id"] = new.get(model["unk_id"])
    else:
        model["vocab"] = {token: new[token_id] for token, token_id in model["vocab"].items() if token_id in new}
    if "merges" in model:
        model["merges"] = [
            merge for merge in model["merges"] if {*_pair(merge), _merged(model, merge)} <= model["vocab"].keys()
        ]
    parts["added_tokens"] = [token | {"id": new[token["id"]]} for token in parts["added_tokens"]]
    parts["post_processor"] = _renumbered(parts["post_processor"], new)
    save_pretrained(folder, tokenizer)
    (folder / TOKENIZER_FILE).write_text(json.dumps(parts, ensure_ascii=False), encoding="utf-8")
    try:
        cut = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # the library tokenizers has no type of its own for what it cannot read
        raise VocabularyError(f"the cut {TOKENIZER_FILE} cannot be loaded: {reason(error)}") from None
    expected = {token: new[token_id] for token, token_id in tokenizer.get_vocab().items() if token_id in new}
    if cut.get_vocab() != expected or cut("").input_ids != [new[token_id] for token_id in tokenizer("").input_ids]:
        raise VocabularyError(
            f"{TOKENIZER_FILE} cannot be cut: a {type(cut).__name__} does not keep the ids of its tokens when it is "
            "loaded; save the tokenizer as PreTrainedTokenizerFast"
        )
    return cut


def token_ids(config: Any) -> dict[str, Any]:
    """The token ids that a configuration names, such as `pad_token_id`: a number, or a list of them."""
    return {
        name: value
        for name, value in config.to_dict().items()
        if name.endswith("_token_id") and value is not None and value != []
    }


def ids_in_use(tokenizer: Any, config: Any) -> set[int]:
    """The token ids that a model's configuration names.

    Raises:
        VocabularyError: the tokenizer does not have one of them.
    """
    known, result = set(tokenizer.get_vocab().values()), set()
    for name, value in token_ids(config).items():
        numbers = set(value) if isinstance(value, list) else {value}
        if not numbers <= known:
            raise VocabularyError(
                f"config.json: {name} is {value}, which is not an id of the tokenizer: correct it, or set it to null"
            )
        result |= numbers
    return result


def cut_model(model: PreTrainedModel, kept: Sequence[int]) -> PreTrainedModel:
    """The model with only these rows of all tensors that have one for each token id: the word embedding, the output
    embedding of a masked language model with its bias, and routing tables.

    Args:
        model: an encoder or a student, with any head.
        kept: ids, ascending, among them those that its configuration names.

    Raises:
        VocabularyError: its positions depend on the id of its padding token, and that changes.
    """
    family, new = family_of(model), {old: number for number, old in enumerate(kept)}
    config = deepcopy(model.config)
    setattr(config, family.sizes["vocabulary"], len(kept))
    for name, value in token_ids(config).items():
        setattr(config, name, [new[one] for one in value] if isinstance(value, list) else new[value])
    if family.first_position != 0 and config.pad_token_id != model.config.pad_token_id:
        raise VocabularyError(
            f"the positions of a {family.model_type} depend on its pad_token_id, {model.config.pad_token_id}, which "
            f"would become {config.pad_token_id}: use a tokenizer whose first tokens are special"
        )
    pooling = {"add_pooling_layer": False} if getattr(model, "pooler", model) is None else {}
    with no_init_weights():
        cut = type(model)(config, **pooling)
    cut.tie_weights()
    weights, index = model.state_dict(), torch.tensor(kept, device=model.device)
    for name, tensor in cut.state_dict().items():
        for dimension, (before, after) in enumerate(zip(weights[name].shape, tensor.shape, strict=True)):
            if before != after:  # of two models that differ in nothing else, this is the vocabulary
                weights[name] = weights[name].index_select(dimension, index)
    cut.load_state_dict(weights, strict=True)
    return cut.train(model.training)


def tokenized_differently(before: Encoded, after: Encoded, kept: Sequence[int]) -> np.ndarray:
    """The numbers of the examples that the cut tokenizer divides into other tokens: int64 (rows,). A question is one
    example.

    Args:
        before, after: the same examples, with the ids of the whole and of the cut tokenizer.
    """
    old, ids = before.input_ids, np.asarray(kept)[after.input_ids]
    pairs = zip(_bounds(before), _bounds(after), strict=True)
    differ = (
        number
        for number, ((start, end), (new_start, new_end)) in enumerate(pairs)
        if not np.array_equal(old[start:end], ids[new_start:new_end])
    )
    return np.fromiter(differ, np.int64)


def examples_with_token(encoded: Encoded, token_id: int | None) -> set[int]:
    """The numbers of the examples that have this token."""
    if token_id is None:
        return set()
    return {number for number, (start, end) in enumerate(_bounds(encoded)) if token_id in encoded.input_ids[start:end]}


def _bounds(encoded: Encoded) -> list[tuple[int, int]]:
    """Where each example's tokens begin and end; those of a question are in consecutive rows."""
    sources = np.arange(len(encoded)) if encoded.sources is None else encoded.sources
    ends = encoded.offsets[np.searchsorted(sources, np.arange(sources[-1] + 2))].tolist()
    return list(pairwise(ends))


def _word_pieces(model: Mapping[str, Any]) -> set[str]:
    """The single characters, at the start of a word and within it, and the unknown word."""
    prefix, unknown = model["continuing_subword_prefix"], model["unk_token"]
    return {token for token in model["vocab"] if 1 in (len(token), len(token.removeprefix(prefix))) or token == unknown}


def _symbols(model: Mapping[str, Any]) -> set[str]:
    """What BPE merges first: bytes or characters, and nothing that is merged."""
    return set(model["vocab"]) - _parts_of(model).keys()


def _unigrams(model: Mapping[str, Any]) -> set[str]:
    """The single characters, the single bytes, the unknown token, and that of the lowest score, from which the unknown
    one's is computed.
    """
    byte, vocabulary, unknown = {f"<0x{number:02X}>" for number in range(256)}, model["vocab"], model["unk_id"]
    singles = {token for token, _ in vocabulary if len(token) == 1 or token in byte}
    lowest = min(vocabulary, key=lambda entry: entry[1])[0]
    return {*singles, lowest, *([] if unknown is None else [vocabulary[unknown][0]])}


# By the type of a tokenizer's model: the tokens into which it can divide any text that it can divide at all.
BASE_ALPHABET = {"WordPiece": _word_pieces, "BPE": _symbols, "Unigram": _unigrams}


def _pair(merge: Any) -> tuple[str, str]:
    """The two parts of a merge, which older files have in one string."""
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right


def _merged(model: Mapping[str, Any], merge: Any) -> str:
    """The token that a merge makes."""
    left, right = _pair(merge)
    return left + right[len(model["continuing_subword_prefix"] or "") :]


def _parts_of(model: Mapping[str, Any]) -> dict[str, set[str]]:
    """For each token that merges make, the parts from which they make it."""
    result: dict[str, set[str]] = {}
    for merge in model.get("merges", ()):
        result.setdefault(_merged(model, merge), set()).update(_pair(merge))
    return result


def _with_parts(token: str, parts_of: Mapping[str, set[str]]) -> set[str]:
    """A token and all tokens from which it can be merged."""
    found, waiting = {token}, [token]
    while waiting:
        new = parts_of.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return found


def _renumbered(part: Any, new: Mapping[int, int] | None) -> Any:
    """The post-processor of a tokenizer.json with new token ids; None: it is only checked.

    Raises:
        VocabularyError: it is of a type that may have token ids elsewhere.
    """
    if part is None or part["type"] in WITHOUT_IDS:
        return part
    number = (lambda token_id: token_id) if new is None else new.__getitem__
    match part["type"]:
        case "BertProcessing" | "RobertaProcessing":
            return part | {name: [part[name][0], number(part[name][1])] for name in ("sep", "cls")}
        case "TemplateProcessing":
            tokens = part["special_tokens"].items()
            return part | {
                "special_tokens": {name: one | {"ids": [number(old) for old in one["ids"]]} for name, one in tokens}
            }
        case "Sequence":
            return part | {"processors": [_renumbered(one, new) for one in part["processors"]]}
    raise VocabularyError(
        f"{TOKENIZER_FILE} has a post_processor of type {part['type']!r}, which cannot be cut: replace it by a "
        "TemplateProcessing"
    )

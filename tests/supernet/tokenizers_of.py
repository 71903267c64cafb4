"""Tokenizers of all kinds, trained on made-up text."""

import json
import random
from collections.abc import Callable
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import BertTokenizerFast, PreTrainedTokenizerFast, RobertaTokenizerFast

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
NAMES = {"bos": 0, "cls": 0, "pad": 1, "eos": 2, "sep": 2, "unk": 3, "mask": 4}
_SYLLABLES = ["ba", "be", "ka", "ko", "lin", "los", "mer", "mu", "ra", "ren", "ti", "to", "ün", "vi", "zo"]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Sentences whose words repeat often, in part with capitals, a comma or a number."""
    rng = random.Random(seed)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(150)]
    rows = []
    for _ in range(count):
        row = [words[int(149 * rng.random() ** 2)] for _ in range(rng.randint(2, 9))]
        row[0] = row[0].capitalize() + rng.choice(["", "", ",", " 7", " 42"])
        rows.append(" ".join(row))
    return rows


def _special() -> dict[str, str]:
    return {f"{name}_token": SPECIAL[token_id] for name, token_id in NAMES.items()}


def word_pieces() -> Any:
    """BERT's own class. It has pieces that no text uses, and a token that was added later."""
    special = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(sentences(300), trainers.WordPieceTrainer(vocab_size=400, special_tokens=special))
    result = BertTokenizerFast(vocab=tokenizer.get_vocab(with_added_tokens=False))
    result.add_tokens(["new"])
    return result


def byte_level() -> Any:
    """RoBERTa's own class."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(sentences(300), trainer)
    model = _model(tokenizer)
    return RobertaTokenizerFast(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    return dict(json.loads(tokenizer.to_str())["model"])


def words_with_ends() -> Any:
    """BPE of characters with marks at the end of a word and within it, a chain of post-processors, and a mask token
    after all pieces.
    """
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="@@", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        sentences(300),
        trainers.BpeTrainer(
            vocab_size=400, special_tokens=SPECIAL[:4], continuing_subword_prefix="@@", end_of_word_suffix="</w>"
        ),
    )
    sequence = [processors.ByteLevel(trim_offsets=False), processors.BertProcessing(("</s>", 2), ("<s>", 0))]
    tokenizer.post_processor = processors.Sequence(sequence)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_special())


def unigrams(byte_fallback: bool = False) -> Any:
    """As of XLM-RoBERTa and ALBERT: a lattice of pieces with scores."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=220, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer.train_from_iterator(sentences(300), trainer)
    if byte_fallback:
        vocab = [tuple(entry) for entry in _model(tokenizer)["vocab"]]
        vocab[5:5] = [(f"<0x{number:02X}>", -20.0) for number in range(256)]
        tokenizer.model = models.Unigram(vocab, 3, True)
    tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **_special())


KINDS: dict[str, Callable[[], Any]] = {
    "WordPiece": word_pieces,
    "byte-level BPE": byte_level,
    "BPE": words_with_ends,
    "Unigram": unigrams,
    "Unigram of bytes": lambda: unigrams(byte_fallback=True),
}

"""Cut vocabularies: what is kept, tokenizers that divide text as before, and models that compute the same."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import BertConfig, BertForMaskedLM, BertModel, BertTokenizerFast, PreTrainedTokenizerFast

from distill.tasks.encoding import Encoded, encode_sentences, token_frequencies
from distill.tasks.types import MASKED_LM, get_task_type
from search_spaces import FFN, GELU, Architecture, Experts
from supernet.build import build
from supernet.vocabulary import (
    VocabularyError,
    cut_model,
    cut_tokenizer,
    examples_with_token,
    ids_in_use,
    kept_ids,
    tokenized_differently,
    tokenizer_parts,
)
from tests import tiny
from tests.renamed import CLASSES, as_roberta
from tests.supernet.tokenizers_of import KINDS, sentences, unigrams, word_pieces
from tests.tiny import BASE, SIZES, batch, inputs, shaken

# What is used of the text on which the tokenizers are trained, and what is not.
USED, OTHER = sentences(300)[:12], sentences(300)[12:]
# Characters that the tokenizers know, in words that they do not, and some that they do not know.
ODD = ["zozozo bakrenün", "x", "b 7k", "日本 ba", "Ünün, 4242", ""]


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]()


def encoded(tokenizer: Any, rows: list[str]) -> Encoded:
    return encode_sentences(tokenizer, rows, None, max_length=1000)


def used_ids(tokenizer: Any, pieces: int | None = None) -> tuple[int, ...]:
    return kept_ids(tokenizer, token_frequencies(encoded(tokenizer, USED), len(tokenizer)), pieces)


def pieces(tokenizer: Any, text: str, pair: str | None = None) -> list[str]:
    return list(tokenizer.convert_ids_to_tokens(tokenizer(text, pair).input_ids))


def text(tokenizer: Any, row: str) -> str:
    """What the pieces of a row spell, without spaces."""
    return str(tokenizer.decode(tokenizer(row).input_ids)).replace("@@", "").replace(" ", "")


def test_text_is_divided_as_before(tokenizer: Any, tmp_path: Path) -> None:
    """And other text is spelled, if the whole tokenizer can."""
    kept = used_ids(tokenizer)
    cut = cut_tokenizer(tokenizer, kept, tmp_path)
    assert len(cut) == len(kept) < len(tokenizer)
    assert cut.convert_ids_to_tokens(range(len(cut))) == tokenizer.convert_ids_to_tokens(kept)
    for row in USED:
        assert [kept[token_id] for token_id in cut(row).input_ids] == tokenizer(row).input_ids
        assert pieces(cut, row, USED[0]) == pieces(tokenizer, row, USED[0])
    assert cut.all_special_tokens == tokenizer.all_special_tokens
    differing = 0
    for row in (*OTHER, *ODD):
        before, after = pieces(tokenizer, row), pieces(cut, row)
        assert cut.unk_token not in after or cut.unk_token in before, row
        assert text(cut, row) == text(tokenizer, row)
        differing += before != after
    assert 0 < differing < len(OTHER)
    before, after = encoded(tokenizer, [*USED, *OTHER]), encoded(cut, [*USED, *OTHER])
    assert len(tokenized_differently(before, after, kept)) == sum(
        pieces(tokenizer, row) != pieces(cut, row) for row in OTHER
    )


def test_what_loads_again_is_the_same(tokenizer: Any, tmp_path: Path) -> None:
    kept = used_ids(tokenizer)
    cut = cut_tokenizer(tokenizer, kept, tmp_path / "once")
    again = cut_tokenizer(cut, range(len(kept)), tmp_path / "twice")
    assert tokenizer_parts(again) == tokenizer_parts(cut)
    assert sorted(path.name for path in (tmp_path / "once").iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "once").iterdir())


def test_a_number_of_pieces(tokenizer: Any, tmp_path: Path) -> None:
    """Those of the smallest vocabulary are in every other one; a smaller one than that is refused."""
    nothing = kept_ids(tokenizer, torch.zeros(len(tokenizer)))
    everything = used_ids(tokenizer)
    assert set(nothing) < set(everything)
    last: set[int] = set(nothing)
    for number in range(len(nothing), len(everything) + 1):
        kept = set(used_ids(tokenizer, number))
        assert last <= kept <= set(everything) and len(kept) <= number
        last = kept
    assert last == set(everything)
    with pytest.raises(
        VocabularyError, match=rf"^--vocab-size {len(nothing) - 1}: special .* alone are {len(nothing)}; give"
    ):
        used_ids(tokenizer, len(nothing) - 1)
    cut = cut_tokenizer(tokenizer, used_ids(tokenizer, len(nothing) + 10), tmp_path)
    for row in (*USED, *OTHER):
        assert cut.unk_token not in pieces(cut, row)
    frequencies = token_frequencies(encoded(tokenizer, USED), len(tokenizer))
    frequencies[list(nothing)] = 0
    one = set(used_ids(tokenizer, len(nothing) + 1)) - set(nothing)
    if len(one) == 1:  # the most frequent piece is made of symbols
        assert frequencies[one.pop()] == frequencies.max()


def test_merges_are_consistent(tmp_path: Path) -> None:
    """All parts of what is kept are, in every way in which it can be merged; a merge that lacks a part is gone."""
    merges = [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc"), ("abc", "d"), ("c", "d"), ("d", "d"), ("cd", "d")]
    vocab = {piece: i for i, piece in enumerate(["<unk>", *"abcd", "ab", "bc", "abc", "abcd", "cd", "dd", "cdd"])}
    own: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(vocab, merges)), unk_token="<unk>")
    frequencies = torch.zeros(len(vocab))
    frequencies[vocab["abc"]] = 2
    frequencies[vocab["cdd"]] = 1
    kept = kept_ids(own, frequencies)
    assert own.convert_ids_to_tokens(kept) == ["<unk>", *"abcd", "ab", "bc", "abc", "cd", "cdd"]
    model = tokenizer_parts(cut_tokenizer(own, kept, tmp_path))["model"]
    assert [tuple(merge) for merge in model["merges"]] == [
        merge for merge in merges if merge not in (("abc", "d"), ("d", "d"))
    ]
    # "abc" needs three more pieces, for which there is no room; "cdd" is less frequent and comes after it.
    assert own.convert_ids_to_tokens(kept_ids(own, frequencies, 7)) == ["<unk>", *"abcd"]
    assert own.convert_ids_to_tokens(kept_ids(own, frequencies, 8)) == ["<unk>", *"abcd", "ab", "bc", "abc"]


def test_random_byte_pairs(tmp_path: Path) -> None:
    """Merges in random order, where a piece has several derivations: words are divided as before."""
    for seed in range(12):
        rng, vocab, merges = random.Random(seed), dict.fromkeys(["<unk>", *"abc"]), {}
        for _ in range(60):
            left, right = rng.choices(list(vocab)[1:], k=2)
            if len(left + right) <= 6:
                merges[left, right] = vocab[left + right] = None
        order = rng.sample(list(merges), len(merges))
        ids = {piece: number for number, piece in enumerate(vocab)}
        own: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE(ids, order)), unk_token="<unk>")
        rows = ["".join(rng.choices("abc", k=rng.randint(1, 12))) for _ in range(8)]
        rows_ids = own(rows).input_ids
        kept = kept_ids(own, torch.bincount(torch.tensor([*chain(*rows_ids)]), minlength=len(ids)))
        cut = cut_tokenizer(own, kept, tmp_path / str(seed))
        assert [[kept[one] for one in row] for row in cut(rows).input_ids] == rows_ids


def test_unknown_characters_keep_their_score(tmp_path: Path) -> None:
    """Unigram's score of an unknown character is computed from the lowest of all pieces: without that piece, the
    unknown one would be chosen with one more piece.
    """
    vocab = [("<unk>", 0.0), ("a", -3.0), ("b", -3.0), ("xb", -25.0), ("rare", -30.0)]
    own: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.Unigram(vocab, 0)), unk_token="<unk>")
    assert pieces(own, "axb") == ["a", "xb"]
    kept = kept_ids(own, torch.tensor([0, 1, 0, 1, 0]))
    assert pieces(cut_tokenizer(own, kept, tmp_path), "axb") == ["a", "xb"]
    assert "rare" in own.convert_ids_to_tokens(kept)


@pytest.mark.parametrize(
    "model",
    [
        models.WordPiece({"a": 0, "##a": 1, "aa": 2, "?": 3}, unk_token="?"),
        models.BPE({"a": 0, "aa": 1, "?": 2}, [("a", "a")], unk_token="?"),
        models.Unigram([("a", -2.0), ("aa", -3.0), ("???", -1.0), ("aaa", -4.0)], 2),
    ],
)
def test_an_unknown_piece_that_is_not_special(model: Any, tmp_path: Path) -> None:
    """The tokenizer's model needs it, whatever transformers knows of it. Unigram's lowest piece stays too."""
    own: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model))
    kept = kept_ids(own, torch.zeros(4))
    cut = cut_tokenizer(own, kept, tmp_path)
    assert len(cut) == len(own) - 1 and pieces(cut, "b") == pieces(own, "b") != []


def test_words_that_were_unknown(tmp_path: Path) -> None:
    """WordPiece takes the longest piece even if nothing can follow it; a word may be known without that piece."""
    own: Any = tiny.tokenizer(["a", "##b", "ab", "##bc"])
    rows = encoded(own, ["abc", "a"])
    kept = kept_ids(own, token_frequencies(rows, len(own)))
    assert own.convert_ids_to_tokens(kept) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b"]
    kept = (*kept, own.convert_tokens_to_ids("##bc"))
    after = encoded(cut_tokenizer(own, kept, tmp_path), ["abc", "a"])
    assert tokenized_differently(rows, after, kept).tolist() == [0]
    assert examples_with_token(rows, own.unk_token_id) == {0} and examples_with_token(rows, None) == set()


def test_questions_are_counted_once() -> None:
    """Their windows are compared as one."""
    ids, types = np.array([5, 6, 7, 8, 9], np.int32), np.zeros(5, np.int8)
    before = Encoded(ids, types, np.array([0, 2, 3, 5]), sources=np.array([0, 0, 1], np.int32))
    same = Encoded(ids - 5, types, np.array([0, 1, 3, 5]), sources=np.array([0, 0, 1], np.int32))
    other = replace(same, input_ids=np.array([0, 1, 2, 3, 3], np.int32))
    assert tokenized_differently(before, same, range(5, 10)).tolist() == []
    assert tokenized_differently(before, other, range(5, 10)).tolist() == [1]


def test_tokenizers_that_cannot_be_cut(tmp_path: Path) -> None:
    words: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"<unk>": 0}, "<unk>")))
    with pytest.raises(
        VocabularyError, match=r"^tokenizer.json has a model of type 'WordLevel', which cannot be cut: use"
    ):
        tokenizer_parts(words)
    with pytest.raises(VocabularyError, match=r"^the tokenizer, a object, has no tokenizer.json, and only that can be"):
        tokenizer_parts(object())

    class Backend:
        def to_str(self) -> str:
            return json.dumps(tokenizer_parts(unigrams()) | {"post_processor": {"type": "New"}})

    words = type("Words", (), {"backend_tokenizer": Backend()})()
    with pytest.raises(VocabularyError, match=r"post_processor of type 'New', which cannot be cut: replace it by a"):
        tokenizer_parts(words)


def test_an_added_token_among_the_pieces(tmp_path: Path) -> None:
    """Its id would be taken: what is loaded differs from what is expected, which is said."""
    own = word_pieces()
    with pytest.raises(VocabularyError, match="cannot be cut: a BertTokenizer does not keep the ids"):
        cut_tokenizer(own, (len(own) - 1, *range(len(own) - 1)), tmp_path)


# Ids of a text, and the ids that are kept: with the special ones 0 to 4.
KEPT = (0, 1, 2, 3, 4, 7, 11, 12, 20, 33, 49)


def both(given: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A batch of kept pieces with their old and with their new ids."""
    new = given["input_ids"] % len(KEPT)
    old = torch.tensor(KEPT)[new]
    mask = given["attention_mask"]
    return inputs(given | {"input_ids": old * mask}), inputs(given | {"input_ids": new * mask})


@pytest.mark.parametrize("name", [cls.__name__ for cls in CLASSES])
@torch.no_grad()
def test_the_same_is_computed(name: str, tmp_path: Path) -> None:
    cls = next(cls for cls in CLASSES if cls.__name__ == name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        bert = shaken(cls(BertConfig(**SIZES))).eval()
    for model in (bert, as_roberta(bert)):
        cut, (old, new) = cut_model(model, KEPT), both(batch())
        before, after = model(**old)[0], cut(**new)[0]
        if cls is BertForMaskedLM:
            before = before[..., list(KEPT)]
            assert cut.get_output_embeddings().weight is cut.get_input_embeddings().weight
        torch.testing.assert_close(after, before)
        removed = (50 - len(KEPT)) * (SIZES["hidden_size"] + (cls is BertForMaskedLM))
        assert model.num_parameters() - cut.num_parameters() == removed
        assert not cut.training and model.config.vocab_size == 50
        cut.save_pretrained(tmp_path / cut.config.model_type)
        loaded = type(cut).from_pretrained(tmp_path / cut.config.model_type).eval()
        torch.testing.assert_close(loaded(**new)[0], after, rtol=0, atol=0)


@torch.no_grad()
def test_an_output_embedding_of_its_own() -> None:
    model = shaken(BertForMaskedLM(BertConfig(**SIZES, tie_word_embeddings=False))).eval()
    assert model.get_output_embeddings().weight is not model.get_input_embeddings().weight
    cut, (old, new) = cut_model(model, KEPT), both(batch())
    torch.testing.assert_close(cut(**new).logits, model(**old).logits[..., list(KEPT)])


@pytest.mark.parametrize("embedding", [None, 7])
@torch.no_grad()
def test_students_with_experts(embedding: int | None) -> None:
    """Routing tables are cut too, so that each piece keeps its expert; and factorized embeddings."""
    base = replace(BASE, embedding=embedding)
    half = FFN(GELU, 1, Fraction(3, 8), Experts(4, shared=Fraction(1, 2), routing="balanced_hash"))
    architecture = Architecture.of_ffns(base, (half, FFN(GELU), half), attention_experts=2)
    for task_type in (get_task_type(MASKED_LM), get_task_type("classification"), None):
        model = shaken(build(architecture, task_type)).eval()
        cut, (old, new) = cut_model(model, KEPT), both(batch())
        before, after = model(**old)[0], cut(**new)[0]
        if task_type is not None and task_type.name == MASKED_LM:
            before = before[..., list(KEPT)]
        torch.testing.assert_close(after, before)
        tables = [tensor for name, tensor in model.state_dict().items() if name.endswith("router.table")]
        cut_tables = [tensor for name, tensor in cut.state_dict().items() if name.endswith("router.table")]
        assert len(tables) == 2 and len(set(tables[0].tolist())) == 4
        assert all(torch.equal(table[list(KEPT)], small) for table, small in zip(tables, cut_tables, strict=True))


def test_an_encoder_without_pooler() -> None:
    cut = cut_model(BertModel(BertConfig(**SIZES), add_pooling_layer=False), KEPT)
    assert cut.pooler is None and len(cut.get_input_embeddings().weight) == len(KEPT)


def test_ids_in_the_configuration() -> None:
    config = BertConfig(**SIZES, pad_token_id=4, bos_token_id=33, eos_token_id=[3, 49])
    model = BertModel(config)
    cut = cut_model(model, KEPT[2:])
    assert (cut.config.pad_token_id, cut.config.bos_token_id, cut.config.eos_token_id) == (2, 7, [1, 8])
    assert cut.embeddings.word_embeddings.padding_idx == 2

    own = BertTokenizerFast(vocab={piece: number for number, piece in enumerate(["[PAD]", "[UNK]", *"abcdefgh"])})
    assert ids_in_use(own, BertConfig(**SIZES, pad_token_id=4, eos_token_id=[3, 5])) == {3, 4, 5}
    with pytest.raises(
        VocabularyError, match=r"^config.json: eos_token_id is 49, which is not an id of the tokenizer: correct"
    ):
        ids_in_use(own, BertConfig(**SIZES, eos_token_id=49))


def test_positions_that_depend_on_the_padding_token() -> None:
    roberta = as_roberta(BertModel(BertConfig(**SIZES)).eval())
    roberta.config.pad_token_id = 4
    with pytest.raises(
        VocabularyError, match=r"^the positions of a roberta depend on its pad_token_id, 4, which would"
    ):
        cut_model(roberta, KEPT[1:])

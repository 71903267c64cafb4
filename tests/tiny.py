"""Tiny random BERTs, batches and architectures."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast, PreTrainedModel

from search_spaces import FFN, Architecture, Base, FFNGraph, Space

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
GEGLU = FFNGraph.parse("project(mul(gelu(expand(x)),gate(x)))")
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 20,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
# With the five special tokens these are a vocabulary of 50.
WORDS = [f"w{number}" for number in range(45)]
CLASSES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}


def bert(seed: int = 0, labels: int = 3, **changes: object) -> BertForSequenceClassification:
    """A teacher in eval mode whose parameters, including LayerNorms and biases, are all random."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(BertConfig(**{**SIZES, "num_labels": labels, **changes}))
    return shaken(model, seed).eval()


@torch.no_grad()
def shaken(model: nn.Module, seed: int = 0, scale: float = 0.2) -> nn.Module:
    """`model` with noise on every parameter, so that none is zero or one by construction."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter += scale * torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


def batch(rows: int = 4, tokens: int = 9, labels: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Sentences of different lengths: the first has no padding, and the last (of several) has one token."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.linspace(tokens, 1, rows).long()
    mask_BT = (torch.arange(tokens) < lengths[:, None]).long()
    draw = lambda high, *shape: torch.randint(0, high, shape, generator=generator)  # noqa: E731
    return {
        "input_ids": (1 + draw(49, rows, tokens)) * mask_BT,
        "attention_mask": mask_BT,
        "token_type_ids": draw(2, rows, tokens) * mask_BT,
        "labels": draw(labels, rows),
    }


def tokenizer(words: Iterable[str] = WORDS) -> BertTokenizerFast:
    """A tokenizer whose word pieces are the special tokens and these words."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    return BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)})


def saved(model: PreTrainedModel, folder: Path, words: Iterable[str] = WORDS) -> Path:
    """Save a model with a tokenizer of these words; returns the folder."""
    model.save_pretrained(folder)
    tokenizer(words).save_pretrained(folder)
    return folder


def inputs(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a batch that a model takes."""
    return {name: given[name] for name in ("input_ids", "attention_mask", "token_type_ids") if name in given}


def graphs(count: int, seed: int = 0) -> list[FFNGraph]:
    """Graphs of the space of stage 1, most of them far from the base graph."""
    space = Space(BASE, {"stack": (1,), "expansion": (Fraction(1),)}, 0, 10**9, mutation_rate=0.9)
    rng = random.Random(seed)
    drawn: list[FFNGraph] = []
    while len(drawn) < count:
        drawn += [ffn.graph for ffn in space.sample(rng).ffns]
    return drawn[:count]


def architectures(count: int, base: Base = BASE, seed: int = 0) -> Iterator[Architecture]:
    """Random architectures, including some whose inner widths are smaller than the model's width."""
    rng = random.Random(seed)
    for number in range(count):
        drawn = graphs(base.depth, seed=1000 * seed + number)
        layers = [FFN(graph, rng.randint(1, 3), Fraction(rng.randint(3, 16), 16)) for graph in drawn]
        yield Architecture.of_ffns(base, tuple(layers))


def bases(seed: int = 0) -> Iterator[Base]:
    """An endless series of random bases: factorised and plain embeddings, both forms of mismatch and of gelu."""
    rng = random.Random(seed)
    while True:
        heads = rng.choice((1, 2, 4))
        yield replace(
            BASE,
            depth=rng.randint(1, 3),
            width=heads * rng.randint(2, 8),
            heads=heads,
            inner=rng.randint(8, 64),
            vocabulary=rng.randint(10, 80),
            positions=rng.randint(5, 30),
            token_types=rng.randint(1, 3),
            embedding=rng.choice((None, rng.randint(2, 9))),
            gelu=rng.choice(("tanh", "erf")),
            mismatch=rng.choice(("narrow", "wide")),
        )

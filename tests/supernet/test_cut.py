"""A supernet that is cut from another one has its leading channels, and its layers several times."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from distill.tasks.types import TASK_TYPES
from search_spaces import GELU, Architecture
from supernet.build import build
from supernet.cut import CutError, check_cut, cut, cut_projections
from tests.tiny import BASE, batch, inputs, shaken

STACK = 2
WIDE = replace(BASE, embedding=6)


@torch.no_grad()
def logits(model: torch.nn.Module) -> Tensor:
    return model(**inputs(batch())).logits


@pytest.mark.parametrize("embedding", [None, 6])
@pytest.mark.parametrize("head", ["classification", "masked_lm", "token_classification"])
def test_cut_to_its_own_base_it_is_the_same(embedding: int | None, head: str) -> None:
    base = replace(BASE, embedding=embedding)
    wide = shaken(build(Architecture.uniform(base, stack=STACK), TASK_TYPES.get(head))).eval()
    weights = wide.state_dict()
    same = build(Architecture.uniform(base, GELU, STACK), TASK_TYPES.get(head)).eval()
    same.load_state_dict(cut(weights, base, base, same.state_dict()))
    assert torch.equal(logits(same), logits(wide))
    assert all(tensor.data_ptr() != weights[name].data_ptr() for name, tensor in same.state_dict().items())


def test_what_is_kept() -> None:
    """Every tensor against its slice, written out by the meaning of its dimensions."""
    narrow = replace(WIDE, depth=6, width=16, inner=40, embedding=4)
    weights = shaken(build(Architecture.uniform(WIDE, stack=STACK))).state_dict()
    deep = build(Architecture.uniform(narrow, GELU, STACK))
    found = cut(weights, WIDE, narrow, deep.state_dict())
    deep.load_state_dict(found)
    d, e, w = 16, 40, 4
    embeddings = "bert.embeddings."
    expected = {
        embeddings + "word_embeddings.weight": weights[embeddings + "word_embeddings.weight"][:, :w],
        embeddings + "position_embeddings.weight": weights[embeddings + "position_embeddings.weight"][:, :d],
        embeddings + "token_type_embeddings.weight": weights[embeddings + "token_type_embeddings.weight"][:, :d],
        # Of the next, this and the previous word, whose vectors are 6 wide.
        embeddings + "embedding_transformation.weight": torch.cat(
            [weights[embeddings + "embedding_transformation.weight"][:d, at : at + w] for at in (0, 6, 12)], dim=1
        ),
        embeddings + "embedding_transformation.bias": weights[embeddings + "embedding_transformation.bias"][:d],
        "bert.pooler.dense.weight": weights["bert.pooler.dense.weight"][:d, :d],
        "bert.pooler.dense.bias": weights["bert.pooler.dense.bias"][:d],
        "classifier.weight": weights["classifier.weight"][:, :d],
        "classifier.bias": weights["classifier.bias"],
        embeddings + "LayerNorm.weight": weights[embeddings + "LayerNorm.weight"][:d],
        embeddings + "LayerNorm.bias": weights[embeddings + "LayerNorm.bias"][:d],
    }
    for old in range(3):
        for new in (2 * old, 2 * old + 1):
            layer, source = (f"bert.encoder.layer.{number}." for number in (new, old))
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                name = f"attention.{part}."
                expected[f"{layer}{name}weight"] = weights[f"{source}{name}weight"][:d, :d]
                expected[f"{layer}{name}bias"] = weights[f"{source}{name}bias"][:d]
            norms = ["attention.output.LayerNorm.", *(f"ffn.{block}.LayerNorm." for block in range(STACK))]
            for name in (norm + kind for norm in norms for kind in ("weight", "bias")):
                expected[layer + name] = weights[source + name][:d]
            for name in (f"ffn.{block}." for block in range(STACK)):
                expected[f"{layer}{name}expand.weight"] = weights[f"{source}{name}expand.weight"][:e, :d]
                expected[f"{layer}{name}expand.bias"] = weights[f"{source}{name}expand.bias"][:e]
                expected[f"{layer}{name}project.weight"] = weights[f"{source}{name}project.weight"][:d, :e]
                expected[f"{layer}{name}project.bias"] = weights[f"{source}{name}project.bias"][:d]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert torch.isfinite(logits(deep.eval())).all()


def test_projections_keep_the_leading_channels_of_the_student() -> None:
    generator = torch.Generator().manual_seed(0)
    learned = {
        "projections.hidden.weight": torch.randn(48, 24, generator=generator),
        "projections.hidden.bias": torch.randn(48, generator=generator),
        "projections.other.weight": torch.randn(48, 8, generator=generator),
    }
    like = {
        "projections.hidden.weight": torch.empty(48, 16),
        "projections.hidden.bias": torch.empty(48),
        "projections.embedding.weight": torch.empty(48, 16),
        "projections.other.weight": torch.empty(48, 16),
    }
    found = cut_projections(learned, like)
    assert found.keys() == {"projections.hidden.weight", "projections.hidden.bias"}
    assert torch.equal(found["projections.hidden.weight"], learned["projections.hidden.weight"][:, :16])
    assert torch.equal(found["projections.hidden.bias"], learned["projections.hidden.bias"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 28}, "width is 28, more than the 24 channels that are cut from"),
        ({"inner": 49}, "inner is 49, more than the 48 channels"),
        ({"embedding": 7}, "embedding is 7, more than the 6 channels"),
        ({"embedding": None}, "an ordinary embedding cannot be cut from a factorized one"),
        ({"depth": 4}, "depth is 4, which is not a multiple of the 3 layers"),
        ({"depth": 1}, "depth is 1, which is not a multiple of the 3 layers"),
        ({"heads": 2}, "heads is 2, and 4 where it is cut from"),
        ({"mismatch": "wide"}, "mismatch is 'wide', and 'narrow' where"),
        ({"positions": 10}, "positions is 10, and 20"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CutError, match=message):
        check_cut(WIDE, replace(WIDE, **changes))
    with pytest.raises(CutError, match=message):
        cut({}, WIDE, replace(WIDE, **changes), {})
    check_cut(WIDE, replace(WIDE, depth=9, width=4, inner=1, embedding=1))

"""Signals without training, against their definitions."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.signals.zero_cost import block_errors, losses, observe, principal_components
from distill.tasks.types import CLASSIFICATION
from distill.training.evaluation import batch_logits
from search_spaces import GELU, Architecture, Experts
from supernet.build import build, full_architecture, load_weights
from supernet.inherit import inherit
from tests.tiny import BASE, architectures, batch, bert, inputs, shaken

FULL = full_architecture(BASE, GELU, 3)
BATCHES = [batch(4, 9, seed=1), batch(3, 6, seed=2)]


@pytest.fixture
def supernet() -> PreTrainedModel:
    return shaken(build(FULL, labels=3)).eval()


def candidate(supernet: PreTrainedModel, architecture: Architecture) -> PreTrainedModel:
    model = build(architecture, labels=3)
    load_weights(model, inherit(supernet.state_dict(), architecture))
    return model


def errors(
    supernet: PreTrainedModel, architecture: Architecture, accelerator: Accelerator
) -> tuple[float, float, float]:
    seen = observe(supernet, BATCHES, accelerator)
    return block_errors(candidate(supernet, architecture), BATCHES, seen, accelerator)


def sentences() -> list[dict[str, Tensor]]:
    """Each alone and without its padding."""
    found = []
    for given in BATCHES:
        for row, length in enumerate(given["attention_mask"].sum(dim=1).tolist()):
            alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs(given).items()}
            found.append(alone | {"labels": given["labels"][row : row + 1]})
    return found


def by_definition(supernet: PreTrainedModel, model: PreTrainedModel) -> tuple[float, float, float]:
    """The derivatives of each sentence's loss when the full model's layers move towards the candidate's, one sentence
    after the other.
    """
    layers: Any = supernet.base_model.encoder.layer
    squares, tokens, slopes = 0.0, 0, []
    for alone in sentences():
        ways_L = torch.zeros(BASE.depth, requires_grad=True)
        found: list[Tensor] = []

        def moved(place: int, ways_L: Tensor = ways_L, found: list[Tensor] = found) -> Any:
            own, full = model.base_model.encoder.layer[place], layers[place]
            full_chunk, own_chunk = type(full).feed_forward_chunk, type(own).feed_forward_chunk

            def chunk(x_BTD: Tensor) -> Tensor:
                y_BTD = full_chunk(full, x_BTD)
                # What errors of the layers below do to this layer's input is no part of its own error.
                with torch.no_grad():
                    found.append(own_chunk(own, x_BTD) - y_BTD)
                return y_BTD + ways_L[place] * found[-1]

            return chunk

        with pytest.MonkeyPatch.context() as patch:
            for place, layer in enumerate(layers):
                patch.setattr(layer, "feed_forward_chunk", moved(place))
            logits = supernet(**inputs(alone)).logits
        slopes.append(torch.autograd.grad(F.cross_entropy(logits, alone["labels"]), ways_L)[0])
        squares += sum(float(error.square().sum()) for error in found) / BASE.width
        tokens += alone["input_ids"].numel()
    slopes_NL = torch.stack(slopes).double()
    weighted, joined = (0.5 * rows.square().mean(dim=0).sum() for rows in (slopes_NL, slopes_NL.sum(dim=1)))
    return squares / tokens, float(weighted), float(joined)


@pytest.mark.parametrize("number", range(3))
def test_block_errors_are_those_of_their_definition(
    supernet: PreTrainedModel, accelerator: Accelerator, number: int
) -> None:
    *_, architecture = architectures(number + 1)
    found = errors(supernet, architecture, accelerator)
    assert min(found) > 0
    assert found == pytest.approx(by_definition(supernet, candidate(supernet, architecture).eval()), rel=1e-4)


def test_the_full_model_has_no_errors(supernet: PreTrainedModel, accelerator: Accelerator) -> None:
    assert errors(supernet, FULL, accelerator) == (0, 0, 0)


def test_experts_that_are_copies_have_the_errors_of_the_dense_layer(
    supernet: PreTrainedModel, accelerator: Accelerator
) -> None:
    dense = Architecture.uniform(BASE, expansion=Fraction(1, 2))
    copies = Experts(2, Fraction(1))
    mixture = Architecture(BASE, tuple(replace(genes, experts=copies) for genes in dense.layers))
    assert errors(supernet, mixture, accelerator) == pytest.approx(errors(supernet, dense, accelerator), rel=1e-4)


def test_observing_leaves_no_hooks_and_no_gradients(supernet: PreTrainedModel, accelerator: Accelerator) -> None:
    seen = observe(supernet, BATCHES, accelerator)
    assert [len(one) for one in seen] == [BASE.depth] * len(BATCHES)
    assert all(parameter.grad is None for parameter in supernet.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in supernet.modules())


def test_losses_are_means_over_rows(supernet: PreTrainedModel, accelerator: Accelerator) -> None:
    teacher = bert()
    predictions = batch_logits(teacher, BATCHES, accelerator=accelerator)
    logits = batch_logits(supernet, BATCHES, accelerator=accelerator)
    found = losses(logits, predictions, BATCHES, CLASSIFICATION)
    with torch.no_grad():
        both = [(supernet(**inputs(one)).logits[0], teacher(**inputs(one)).logits[0]) for one in sentences()]
    labels = [int(one["labels"]) for one in sentences()]
    hard = [-own.softmax(0)[label].log() for (own, _), label in zip(both, labels, strict=True)]
    soft = [-(target.softmax(0) * own.softmax(0).log()).sum() for own, target in both]
    assert found == pytest.approx([mean_of(hard), mean_of(soft)], rel=1e-4)


def mean_of(values: Sequence[Tensor]) -> float:
    return float(torch.stack(list(values)).mean())


def test_principal_components_are_those_of_scikit_learn(supernet: PreTrainedModel, accelerator: Accelerator) -> None:
    architecture = Architecture.uniform(BASE, expansion=Fraction(1, 4), stack=2)
    model = candidate(supernet, architecture).eval()
    outputs: dict[Any, list[Tensor]] = {}
    for layer in model.bert.encoder.layer:
        for block in layer.ffn:
            block.expand.register_forward_hook(lambda module, _, output: outputs.setdefault(module, []).append(output))
    with torch.no_grad():
        for given in BATCHES:
            model(**inputs(given))
    expected = 0
    for parts in outputs.values():
        valid = [part[given["attention_mask"].bool()] for part, given in zip(parts, BATCHES, strict=True)]
        explained = PCA().fit(torch.cat(valid).numpy()).explained_variance_ratio_.cumsum()
        expected += int((explained < 0.99).sum()) + 1
    assert principal_components(model, BATCHES, accelerator) == expected
    assert len(outputs) == 2 * BASE.depth

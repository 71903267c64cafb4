"""Importance against its definition on the weights, the sort that changes nothing, and the allocation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from distill.tasks.types import (
    CLASSIFICATION,
    IGNORED,
    QUESTION_ANSWERING,
    REGRESSION,
    TASK_TYPES,
    TOKEN_CLASSIFICATION,
)
from distill.training.teacher import set_head
from search_spaces import Architecture, FFNGraph
from supernet.build import build, config_of
from supernet.order.importance import allocate_by_importance, neuron_importance, sort_channels, summed_loss
from tests.tiny import BASE, batch, inputs, shaken


def loss(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(**inputs(given)).logits, given["labels"], reduction="sum")


def supernet(formula: str = "project(gelu(expand(x)))") -> nn.Module:
    return shaken(build(Architecture.uniform(BASE, FFNGraph.parse(formula), 2), num_labels=3)).double()


def flat(scores: list[list[Tensor]]) -> list[Tensor]:
    return [score for layer in scores for score in layer]


def by_definition(model: nn.Module, batches: list[dict[str, Tensor]]) -> list[list[Tensor]]:
    """|W1_j . dL/dW1_j + W2_j . dL/dW2_j|, and so for a gate, from the gradients of the weights, one sample at a
    time.
    """
    layers = model.eval().base_model.encoder.layer
    scores = [[torch.zeros(block.expand.out_features).double() for block in layer.ffn] for layer in layers]
    for one in batches:
        for row in range(len(one["labels"])):
            model.zero_grad()
            loss(model, {name: tensor[row : row + 1] for name, tensor in one.items()}).backward()
            for layer, sums in zip(layers, scores, strict=True):
                for block, total in zip(layer.ffn, sums, strict=True):
                    down = block.project.weight
                    score = (down * down.grad).sum(dim=0)
                    for name, up in block.named_parameters():
                        if name in ("expand.weight", "gate.weight"):
                            score = score + (up * up.grad).sum(dim=1)
                    total += score.abs().detach()
    return scores


@pytest.mark.parametrize(
    "formula",
    [
        "project(gelu(expand(x)))",
        "tanh(project(mul(expand(x),sigmoid(expand(x)))))",
        "project(mul(gelu(expand(x)),gate(x)))",
        "project(max(mul(swish(expand(x)),gate(tanh(x))),relu(gate(tanh(x)))))",
    ],
)
def test_definition(formula: str) -> None:
    model = supernet(formula)
    batches = [batch(4, 9, seed=1), batch(3, 6, seed=2), batch(1, 4, seed=3)]
    scores = neuron_importance(model, batches, loss)
    for actual, expected in zip(flat(scores), flat(by_definition(model, batches)), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_leaves_no_hooks_and_no_gradients() -> None:
    def fails(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
        raise RuntimeError("no loss today")

    model = supernet().train()
    neuron_importance(model, [batch()], loss)
    with pytest.raises(RuntimeError, match="no loss today"):
        neuron_importance(model, [batch()], fails)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("formula", ["project(gelu(expand(x)))", "project(mul(gelu(expand(x)),gate(x)))"])
@pytest.mark.parametrize("part", ["whole", "encoder"])
def test_sorting_leaves_the_function_unchanged(part: str, formula: str) -> None:
    model = supernet(formula).float().eval()
    scores = neuron_importance(model, [batch(seed=seed) for seed in range(2)], loss)
    with torch.no_grad():
        before = model(**inputs(batch(seed=9))).logits
    owner = model if part == "whole" else model.base_model
    old = {name: tensor.clone() for name, tensor in owner.state_dict().items()}
    new = sort_channels(owner.state_dict(), scores, owner.config)
    assert any(not torch.equal(old[name], new[name]) for name in old)
    assert all(torch.equal(old[name], tensor) for name, tensor in owner.state_dict().items())
    owner.load_state_dict(new)
    with torch.no_grad():
        assert (model(**inputs(batch(seed=9))).logits - before).abs().max() < 1e-5

    again = neuron_importance(model, [batch(seed=seed) for seed in range(2)], loss)
    for score, first in zip(flat(again), flat(scores), strict=True):
        torch.testing.assert_close(score, first.sort(descending=True).values, rtol=1e-3, atol=1e-5)


def test_equal_scores_keep_their_order() -> None:
    model = supernet()
    weights = dict(model.state_dict())
    same = sort_channels(weights, [[torch.zeros(48)] * 2] * 3, model.config)
    assert all(torch.equal(same[name], weights[name]) for name in weights)


def test_channels_that_are_paired_with_x_are_not_sorted() -> None:
    model = supernet("project(mul(gelu(expand(x)),x))")
    with pytest.raises(ValueError, match=r"layer 0: .* pairs inner channels with x"):
        sort_channels(model.state_dict(), [[torch.zeros(48)] * 2] * 3, model.config)


LAYERS = st.integers(1, 8).flatmap(
    lambda inner: st.lists(
        st.lists(st.integers(0, 9).map(float), min_size=inner, max_size=inner), min_size=1, max_size=4
    )
)


@given(LAYERS, st.data())
def test_allocation(values: list[list[float]], data: st.DataObject) -> None:
    least = data.draw(st.integers(0, len(values[0])))
    total = data.draw(st.integers(least * len(values), sum(map(len, values))))
    kept = allocate_by_importance([torch.tensor(layer) for layer in values], total, least)
    assert sum(kept) == total
    ordered = [sorted(layer, reverse=True) for layer in values]
    assert all(least <= count <= len(layer) for count, layer in zip(kept, ordered, strict=True))
    # No swap of a neuron that is kept by its score for one that is dropped would gain anything.
    chosen = [value for layer, count in zip(ordered, kept, strict=True) for value in layer[least:count]]
    dropped = [value for layer, count in zip(ordered, kept, strict=True) for value in layer[count:]]
    assert not chosen or not dropped or min(chosen) >= max(dropped)


def test_impossible_allocations() -> None:
    scores = [torch.rand(4), torch.rand(4)]
    for total, least in ((1, 1), (9, 1), (5, 3)):
        with pytest.raises(ValueError, match=f"cannot give {total} channels to 2 layers: between {2 * least} and 8"):
            allocate_by_importance(scores, total, least)
    with pytest.raises(ValueError, match="at least 3 channels: one has 2"):
        allocate_by_importance([torch.rand(2), torch.rand(8)], 7, 3)


def one_by_one(model: nn.Module, given: dict[str, Tensor], task_type: str) -> Tensor:
    """What the labels cost, sentence by sentence without any padding, added up from log-probabilities."""
    total = torch.zeros(())
    for row, length in enumerate(given["attention_mask"].sum(dim=1).tolist()):
        alone = {name: tensor[row : row + 1, :length] for name, tensor in inputs(given).items()}
        outputs, label = model(**alone), given["labels"][row]
        if task_type == REGRESSION:
            total = total + (outputs.logits[0, 0] - label) ** 2
        elif task_type == QUESTION_ANSWERING:
            for logits_T, place in zip((outputs.start_logits[0], outputs.end_logits[0]), label, strict=True):
                total = total - logits_T.softmax(dim=0)[place].log()
        elif task_type == CLASSIFICATION:
            total = total - outputs.logits[0].softmax(dim=0)[label].log()
        else:
            for token in range(length):
                if label[token] != IGNORED:
                    total = total - outputs.logits[0, token].softmax(dim=0)[label[token]].log()
    return total


@pytest.mark.parametrize(
    ("task_type", "labels"),
    [
        (CLASSIFICATION, torch.tensor([2, 0, 1, 1])),
        (REGRESSION, torch.tensor([0.5, -1.0, 2.0, 0.0])),
        (QUESTION_ANSWERING, torch.tensor([[3, 8], [0, 0], [1, 2], [0, 0]])),
        (TOKEN_CLASSIFICATION, torch.randint(3, (4, 9), generator=torch.Generator().manual_seed(0))),
    ],
)
def test_the_summed_loss_adds_up_samples(task_type: str, labels: Tensor) -> None:
    given = batch(4, 9)
    if task_type == TOKEN_CLASSIFICATION:
        labels = labels.masked_fill(given["attention_mask"] == 0, IGNORED)
        labels[:, 0] = IGNORED
    given = given | {"labels": labels}
    size = {REGRESSION: 1, QUESTION_ANSWERING: 2}.get(task_type, 3)
    architecture = Architecture.uniform(BASE, FFNGraph.parse("project(gelu(expand(x)))"), 1)
    like = config_of(architecture, size)
    set_head(like, [f"{number}" for number in range(size)], task_type)
    model = shaken(build(architecture, TASK_TYPES[task_type], template=like)).eval()
    expected = one_by_one(model, given, task_type)
    torch.testing.assert_close(summed_loss(model, given), expected, rtol=1e-4, atol=1e-5)
    # So importance is of samples: the whole batch at once, or each sentence for itself.
    rows = [{name: tensor[row : row + 1] for name, tensor in given.items()} for row in range(4)]
    together, apart = neuron_importance(model, [given], summed_loss), neuron_importance(model, rows, summed_loss)
    torch.testing.assert_close(flat(together), flat(apart), rtol=1e-3, atol=1e-5)

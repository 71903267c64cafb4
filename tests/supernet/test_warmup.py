"""Warming up: the loss falls, drawn graphs are what is trained, and nothing of them stays."""

import pytest
import torch
from accelerate import Accelerator
from torch import nn

from distill.objectives import efficientbert
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher
from search_spaces import FFN, Architecture, FFNGraph
from search_spaces.cost import project_width
from supernet.build import build
from supernet.warmup import warm_up
from tests.tiny import BASE, batch, bert, graphs

Program = tuple[tuple[str, tuple[int, ...]], ...]


def program(graph: FFNGraph) -> Program:
    return tuple((node.op, node.inputs) for node in graph.nodes[1:])


def programs(supernet: nn.Module) -> list[Program]:
    layers = [layer.ffn for layer in supernet.base_model.encoder.layer]
    assert all(block.steps == layer[0].steps for layer in layers for block in layer)
    return [layer[0].steps for layer in layers]


def warm(
    accelerator: Accelerator, steps: int, supernet: nn.Module | None = None, **options: object
) -> tuple[nn.Module, list[float]]:
    teacher = bert(num_hidden_layers=3)
    if supernet is None:
        torch.manual_seed(0)
        supernet = build(Architecture.uniform(BASE, stack=2), template=teacher.config)
    objective = efficientbert(supernet.config, teacher.config)
    recipe = Recipe(steps=steps, learning_rate=3e-3)
    live = LiveTeacher(teacher, objective.needs, accelerator)
    batches = [batch(8, 10, seed=seed % 4) for seed in range(steps)]
    losses = warm_up(supernet, BASE, batches, objective, recipe, teacher=live, accelerator=accelerator, **options)
    return supernet, losses


def test_reduces_the_loss(accelerator: Accelerator) -> None:
    supernet, losses = warm(accelerator, 40)
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert programs(supernet) == [program(FFNGraph.parse("project(gelu(expand(x)))"))] * 3


def test_drawn_graphs_are_trained_and_then_gone(accelerator: Accelerator) -> None:
    drawn = [[graph] * 3 for graph in graphs(200) if project_width(BASE, FFN(graph)) == BASE.inner][:6]
    rest = iter(drawn)
    recorded: list[list[Program]] = []
    supernet = build(Architecture.uniform(BASE, stack=2), num_labels=3)
    original = programs(supernet)
    warm(
        accelerator,
        5,
        supernet,
        draw_graphs=lambda: next(rest),
        after_step=lambda step, loss: recorded.append(programs(supernet)),
    )
    assert recorded == [[program(graph) for graph in layers] for layers in drawn[:5]]
    assert programs(supernet) == original

    _, plain = warm(accelerator, 5)
    rest = iter(drawn)
    _, changed = warm(accelerator, 5, draw_graphs=lambda: next(rest))
    assert plain[0] != changed[0]


def test_a_graph_that_does_not_fit_leaves_its_layer(accelerator: Accelerator) -> None:
    narrow, fits = FFNGraph.parse("project(add(expand(x),x))"), FFNGraph.parse("project(relu(expand(x)))")
    recorded: list[list[Program]] = []
    supernet = build(Architecture.uniform(BASE, stack=2), num_labels=3)
    original = programs(supernet)
    warm(
        accelerator,
        2,
        supernet,
        draw_graphs=lambda: [narrow, fits, narrow],
        after_step=lambda step, loss: recorded.append(programs(supernet)),
    )
    assert recorded == [[original[0], program(fits), original[2]]] * 2


@pytest.mark.parametrize("step", [0, 1])
def test_programs_are_restored_after_an_exception(accelerator: Accelerator, step: int) -> None:
    relu = FFNGraph.parse("project(relu(expand(x)))")
    supernet = build(Architecture.uniform(BASE, stack=2), num_labels=3)
    original = programs(supernet)
    draws = iter([[relu] * 3] * step + [[relu] * 2])
    with pytest.raises(ValueError, match="shorter"):
        warm(accelerator, 3, supernet, draw_graphs=lambda: next(draws))
    assert programs(supernet) == original

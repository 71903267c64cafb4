"""Warm-up distillation: the training of the supernet before candidates inherit from it (EfficientBERT, section 3.2)."""

from collections.abc import Callable, Iterable, Sequence

from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.objectives import Objective
from distill.objectives.outputs import Batch
from distill.training.loop import TeacherOutputs, train
from distill.training.recipe import Recipe
from search_spaces.architecture import Base, Genes
from search_spaces.cost import project_width
from search_spaces.graph import FFNGraph


def warm_up(
    supernet: PreTrainedModel,
    base: Base,
    batches: Iterable[Batch],
    objective: Objective,
    recipe: Recipe,
    *,
    teacher: TeacherOutputs,
    accelerator: Accelerator,
    draw_graphs: Callable[[], Sequence[FFNGraph]] | None = None,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train the whole supernet in place; returns the loss of every step.

    Args:
        draw_graphs: returns one graph per layer for the next step, so that the weights suit more than one activation. A
            layer keeps its own graph if the drawn one has a gate or another input width of `project`, which its weights
            do not fit. None keeps all layers' graphs.
        after_step: called with the number of finished steps and the loss of the last one.
    """
    layers = supernet.base_model.encoder.layer
    original_steps = [layer.ffn[0].steps for layer in layers]

    def set_graphs() -> None:
        if draw_graphs is None:
            return
        for layer, steps, graph in zip(layers, original_steps, draw_graphs(), strict=True):
            if project_width(base, Genes(graph)) == base.inner and not graph.gated:
                steps = tuple((node.op, node.inputs) for node in graph.nodes[1:])
            for block in layer.ffn:
                block.steps = steps

    def prepare_next_step(step: int, loss: float) -> None:
        set_graphs()
        if after_step:
            after_step(step, loss)

    try:
        set_graphs()
        return train(
            supernet,
            batches,
            objective,
            recipe,
            accelerator=accelerator,
            teacher=teacher,
            seed=seed,
            after_step=prepare_next_step,
        )
    finally:
        for layer, steps in zip(layers, original_steps, strict=True):
            for block in layer.ffn:
                block.steps = steps

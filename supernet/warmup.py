"""Warm-up distillation: the training of the supernet before candidates inherit from it (EfficientBERT, section 3.2)."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.encoders.parts import encoder_layers
from distill.objectives import Objective
from distill.objectives.outputs import Batch
from distill.training.checkpoint import Checkpoint
from distill.training.loop import TeacherOutputs, train
from distill.training.recipe import Recipe
from search_spaces.base import Base
from search_spaces.cost import project_width
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN


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
    checkpoint: Checkpoint | None = None,
) -> list[float]:
    """Train the whole supernet in place; returns the loss of every step.

    Args:
        draw_graphs: returns one graph per layer for the next step, so that the weights suit more than one activation. A
            layer keeps its own graph if the drawn one has a gate or another input width of `project`, which its weights
            do not fit. None keeps all layers' graphs.
        after_step: called with the number of finished steps and the loss of the last one.
        checkpoint: makes the warm-up resumable; `draw_graphs` must then return the same graphs after an interruption.
    """
    layers = encoder_layers(supernet)
    original_steps = [layer.ffn[0].steps for layer in layers]

    def set_graphs(graphs: Sequence[FFNGraph]) -> None:
        for layer, steps, graph in zip(layers, original_steps, graphs, strict=True):
            if project_width(base, FFN(graph)) == base.inner and not graph.gated:
                steps = tuple((node.op, node.inputs) for node in graph.nodes[1:])
            for block in layer.ffn:
                block.steps = steps

    def batches_with_graphs() -> Iterator[Batch]:
        for number, batch in enumerate(batches):
            # Drawn here, so that a resumed training, which skips its first batches, goes on with the same graphs.
            if draw_graphs is not None and number % recipe.gradient_accumulation_steps == 0:
                set_graphs(draw_graphs())
            yield batch

    try:
        return train(
            supernet,
            batches_with_graphs(),
            objective,
            recipe,
            accelerator=accelerator,
            teacher=teacher,
            seed=seed,
            after_step=after_step,
            checkpoint=checkpoint,
        )
    finally:
        for layer, steps in zip(layers, original_steps, strict=True):
            for block in layer.ffn:
                block.steps = steps

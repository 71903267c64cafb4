"""Prepares the predicted losses of narrower layers and of other activations, from which widths are allocated."""

from pathlib import Path

from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from distill.files import fingerprint
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.phases import training_phase
from nas.preparation.supernet import order_inputs
from nas.preparation.workspace import projections, student_base
from search_spaces.operations import UNARY
from supernet.build import build, full_architecture
from supernet.order.prediction import predicted_losses


def prepare_predictions(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Path | None:
    """The file with the predicted losses of the supernet in this folder; None if candidates are sliced, whose losses
    the prediction is not about.
    """
    config = context.config
    if config.supernet.inheritance == "sliced":
        return None
    base, graph = student_base(config, AutoConfig.from_pretrained(folders.teacher))
    limit = int(max(config.space.expansions) * base.inner)
    operations = sorted(UNARY)
    key = fingerprint(FORMAT, "affine without FFN", supernet.name, context.teacher_key, limit, operations, config.seed)

    def make(path: Path) -> None:
        context.on_progress("supernet: predicted losses", None)
        model = build(
            full_architecture(base, graph, max(config.space.stacks)),
            folders.task.type.head,
            template=AutoConfig.from_pretrained(supernet),
            weights=load_file(supernet / "model.safetensors"),
        ).to(context.accelerator.device)
        phase = training_phase(config, "warmup", folders)
        inputs = order_inputs(context, folders, model, phase, projections(supernet))
        losses = predicted_losses(model, inputs.batches, inputs.sampled_loss, operations, limit)
        save_file({f"{op}/{i}": loss for op, layers in losses.items() for i, loss in enumerate(layers)}, path)

    return context.create_once(context.cache / "predictions" / f"{key}.safetensors", make)

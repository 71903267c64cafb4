"""Prepares the predicted losses, from which sizes are allocated: by how much narrower layers, other activations, fewer
heads and word embeddings of lower rank raise the loss.
"""

from pathlib import Path

from safetensors.torch import save_file

from distill.tasks.encoding import token_frequencies
from foundation.files import fingerprint
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import TRAINING, Entry, Work, largest
from nas.preparation.phases import training_phase
from nas.preparation.supernet import load_supernet, order_inputs
from nas.preparation.workspace import FISHER, base_of_study, projections
from supernet.order.moments import FisherMatrices
from supernet.order.prediction import predicted_losses, predicted_losses_of_heads, predicted_losses_of_ranks

# Keys of the file, beside the names of operations: heads, and ranks of the word embedding.
HEADS, RANKS = "heads", "ranks"


def predictions_entry(context: PreparationContext, folders: TaskFolders, supernet: Path) -> Entry:
    """The predicted losses of the supernet in this folder with the context's activations."""
    config = context.config
    base, _ = base_of_study(config)
    limit, operations = int(max(config.space.expansions) * base.inner), sorted(context.activations)
    heads, ranks = config.space.varies_heads, config.space.ranks is not None

    def make(path: Path, state: Path) -> None:
        context.on_progress("supernet: predicted losses", None)
        model = load_supernet(config, folders, supernet).to(context.accelerator.device)
        phase = training_phase(config, "warmup", folders)
        inputs = order_inputs(context, folders, model, phase, projections(supernet))
        kept = supernet / FISHER
        matrices = FisherMatrices.load(kept) if kept.exists() else inputs.moments.fisher_matrices()
        losses = predicted_losses(model, inputs.batches, matrices, operations, limit)
        if heads:
            losses[HEADS] = predicted_losses_of_heads(model, inputs.batches, matrices)
        if ranks:
            frequencies = token_frequencies(folders.rows("train"), model.config.vocab_size)
            losses[RANKS] = [predicted_losses_of_ranks(model, inputs.batches, inputs.sampled_loss, frequencies)]
        save_file({f"{op}/{i}": loss for op, layers in losses.items() for i, loss in enumerate(layers)}, path)

    also = [RANKS] if ranks else []
    key = fingerprint(FORMAT, supernet.name, context.teacher_key, limit, operations, config.seed, heads, *also)
    sentences = config.warmup.importance_batches * config.warmup.batch_size
    return Entry(
        "predicted losses",
        context.cache / "predictions" / f"{key}.safetensors",
        make,
        (Work("supernet: predicted losses", largest(config), sentences, 2 * TRAINING),),
    )

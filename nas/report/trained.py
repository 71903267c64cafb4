"""What a trained student computes beside its teacher for a sentence of the dev split: the attention and the outputs of
the FFNs (EfficientBERT, figures 7 and 8). Examples and teacher are those in the cache; nothing is trained for a report.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foundation.errors import UserError
from foundation.files import read_json
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.report.figures import figure
from nas.report.page import Part, Picture, Section

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The sentence is the first one with this many tokens, which a figure can name, or else the shortest.
SHORTEST, LONGEST = 8, 16
# The quantile of the outputs at which their scale ends: a few channels are far larger than all others.
QUANTILE = 0.99


class Computed(NamedTuple):
    """What a model with L layers of width D computes for T tokens: the attention of the last layer that has heads, H of
    them, by query and key, and the output of every layer's FFN after residual connection and LayerNorm.

    Attributes:
        attending: the number of that layer, from 1; 0 if no layer has heads.
        relative: whether the attention has terms of relative positions, which are left out.
    """

    attention_HTT: np.ndarray
    outputs_LTD: np.ndarray
    attending: int
    relative: bool


def trained(checkpoint: Path) -> Section:
    """The section of a checkpoint of the final training; only the reason if something that it needs is not there."""
    title = "The trained student beside its teacher"
    try:
        tokens, models = computed(checkpoint)
    except UserError as error:
        return Section("trained", title, [f"Attention and FFN outputs are left out: {error}."])
    of = f"of teacher and student for the sentence: {' '.join(tokens)}"
    layers = ", ".join(
        f"{name}: {f'layer {one.attending} of {len(one.outputs_LTD)}' if one.attending else 'no layer has heads'}"
        for name, one in models.items()
    )
    attention = (
        f"Attention in the last layer with heads ({layers}), by head (EfficientBERT, figure 7). Each row is a token "
        f"that attends.{' Terms of relative positions are left out.' * any(one.relative for one in models.values())}"
    )
    outputs = (
        "Outputs of the last layer's FFN, after residual connection and LayerNorm (EfficientBERT, figure 8). The scale "
        f"ends at the {QUANTILE:.0%} quantile."
    )
    parts: list[Part] = [
        Picture(
            "attention", draw_attention(tokens, models), f"Attention in the last layers with heads {of}", attention
        ),
        Picture("ffn-outputs", draw_outputs(tokens, models), f"Outputs of the last layers' FFNs {of}", outputs),
    ]
    one_LTD, other_LTD = (model.outputs_LTD for model in models.values())
    if one_LTD.shape == other_LTD.shape:
        norms_LT = np.linalg.norm(one_LTD, axis=-1) * np.linalg.norm(other_LTD, axis=-1)
        cosines_L = ((one_LTD * other_LTD).sum(axis=-1) / norms_LT).mean(axis=-1)
        texts = ", ".join(f"{cosine:.3f}" for cosine in cosines_L)
        parts.append(f"Cosine similarity of FFN outputs to the teacher's, by layer, the mean over the tokens: {texts}.")
    return Section("trained", title, parts)


def computed(checkpoint: Path) -> tuple[list[str], dict[str, Computed]]:
    """The tokens of a sentence, and what the teacher and the student in `checkpoint` compute for it.

    Raises:
        UserError: the cache does not have the examples and the teacher, or a model cannot be loaded.
    """
    from distill.tasks.encoding import collate
    from distill.training.layout import METRICS_FILE
    from distill.training.progress import silence_transformers
    from distill.training.teacher import load_model
    from nas.preparation.context import preparation_context
    from nas.preparation.data import TaskFolders

    silence_transformers()
    metrics = checkpoint / METRICS_FILE
    precision = read_json(metrics).get("precision") if metrics.exists() else None
    context = preparation_context(load_config(str(checkpoint / "config.toml")), "cpu", precision=precision)
    if not context.data.exists() or not context.teacher.exists():
        raise ConfigError(f"the cache {context.cache} does not have the examples and the teacher of {checkpoint}")
    folders = TaskFolders(context.data, context.teacher)
    examples, task = folders.rows("dev"), folders.task
    fits = (examples.lengths >= SHORTEST) & (examples.lengths <= LONGEST)
    number = fits.argmax() if fits.any() else examples.lengths.argmin()
    batch = collate(examples, np.array([number]), context.tokenizer.pad_token_id)
    sources = {"teacher": context.teacher, "student": checkpoint}
    models = {name: load_model(str(source), task.labels, task.task_type).eval() for name, source in sources.items()}
    tokens = context.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    return tokens, {name: of_model(model, batch) for name, model in models.items()}


def of_model(model: Any, batch: Any) -> Computed:
    """What a model computes for a batch of one sentence without padding."""
    import torch

    from distill.encoders.family import family_of
    from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, run

    family = family_of(model)
    with torch.inference_mode():
        outputs = run(model, batch, frozenset({ATTENTION_SCORES, HIDDEN_STATES}))
        scores = {layer: each for layer, each in enumerate(outputs.attention_scores, start=1) if each.numel()}
        attending, tokens = max(scores, default=0), batch["input_ids"].shape[1]
        scores_HTT = scores[attending][0] if scores else torch.empty(0, tokens, tokens)
        return Computed(
            scores_HTT.float().softmax(dim=-1).numpy(),
            torch.cat(outputs.hidden_states[1:]).float().numpy(),
            attending,
            bool(family.relative_positions(model.config)) or family.shares_position_biases,
        )


def draw_attention(tokens: Sequence[str], models: Mapping[str, Computed]) -> "Figure":
    """A map (T, T) for each head, on one scale: a row for each model with heads."""
    models = {name: one for name, one in models.items() if one.attending}
    heads = max(len(one.attention_HTT) for one in models.values())
    drawn = figure(1.2 + 1.1 * heads, 3.2)
    axes = drawn.subplots(len(models), heads, squeeze=False)
    highest = max(one.attention_HTT.max() for one in models.values())
    for axes_of_model, (name, one) in zip(axes, models.items(), strict=True):
        for head, (axis, map_TT) in enumerate(zip(axes_of_model, one.attention_HTT, strict=False), start=1):
            image = axis.imshow(map_TT, cmap="cividis", vmin=0, vmax=highest)
            axis.set_title(f"{name}, head {head}", fontsize=6.5, loc="center", weight="normal")
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
        axes_of_model[0].set_yticks(range(len(tokens)), tokens, fontsize=5)
        for axis in axes_of_model[len(one.attention_HTT) :]:
            axis.axis("off")
    drawn.colorbar(image, ax=axes, shrink=0.6, label="attention")
    return drawn


def draw_outputs(tokens: Sequence[str], models: Mapping[str, Computed]) -> "Figure":
    """The outputs (T, D) of the models' last FFNs, on one scale."""
    drawn = figure(9, 2.0 + 0.23 * len(tokens))
    axes = drawn.subplots(len(models), 1)
    end = max(np.quantile(np.abs(one.outputs_LTD[-1]), QUANTILE) for one in models.values())
    for axis, (name, one) in zip(axes, models.items(), strict=True):
        image = axis.imshow(one.outputs_LTD[-1], cmap="cividis", aspect="auto", vmin=-end, vmax=end)
        axis.set(title=f"{name}, last layer", xlabel="channel")
        axis.set_yticks(range(len(tokens)), tokens, fontsize=6)
        axis.grid(False)
    drawn.colorbar(image, ax=axes, shrink=0.6, label="output", extend="both")
    return drawn

"""Prepares the supernet: builds it from the teacher or with random weights and warms it up by distillation, or cuts it
from a warmed-up one on another base; and sorts its inner channels and, if candidates may have fewer, its heads.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from distill.encoders.heads import heads_of
from distill.objectives.outputs import Batch, run
from distill.tasks.encoding import Encoded, single_rows
from distill.tasks.task import Task
from distill.training.checkpoint import Checkpoint
from distill.training.teacher import load_model, locate, source_fingerprint
from distill.training.teacher_outputs import LiveTeacher
from foundation.files import fingerprint, save_pretrained
from nas.config.schema import StudyConfig
from nas.preparation.context import FORMAT, PreparationContext
from nas.preparation.data import TaskFolders
from nas.preparation.entries import TRAINING, Entry, Work, largest
from nas.preparation.phases import (
    TrainingPhase,
    has_raw_teacher,
    learns_from_text,
    on_text,
    refusing_divergence,
    training_phase,
)
from nas.preparation.text import corpora_of, text_folder
from nas.preparation.workspace import (
    FISHER,
    HEADS_IN_FILE,
    IMPORTANCE,
    PROJECTIONS,
    load_teacher,
    objectives,
    student_base,
)
from nas.preparation.workspace import projections as learned_projections
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.draws import NEAR
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space
from supernet.build import added_operations, build, from_teacher, layer_output_statistics, set_dropout
from supernet.cut import cut, cut_projections
from supernet.order.importance import sort_channels, sort_heads, summed_loss
from supernet.order.moments import sampled_loss
from supernet.order.orders import ORDERS, OrderInputs
from supernet.warmup import warm_up

# The statistics of layer outputs, by which the upper blocks of a stack are initialized, are over this many batches.
STATISTICS_BATCHES = 8


def supernet_entries(context: PreparationContext, folders: TaskFolders) -> Iterator[Entry]:
    """The warmed-up supernet, with its inner channels in the study's order and their importance, after what it is made
    from. Making it raises ConfigError if the warm-up diverges.
    """
    if not is_independent_of_task(context.config):
        yield from _warmed_up("supernet", supernet_path, context, folders)
        return
    alone = TextFolders(folders.data, Path(locate(context.config.teacher)), folders.texts)
    yield from _warmed_up("pre-trained encoder", encoder_path, context, alone)
    encoder = encoder_path(context)
    yield Entry("supernet", supernet_path(context), lambda path, state: _add_head(context, folders, encoder, path))


def _warmed_up(
    what: str, path_of: Callable[[PreparationContext], Path], context: PreparationContext, folders: TaskFolders
) -> Iterator[Entry]:
    """The supernet in the folder `path_of(context)`, after the one that it is cut from."""
    source = context_of_source(context)
    given = None if source is None else path_of(source)
    if source is not None:
        yield from _warmed_up("supernet to cut from", path_of, source, folders)
    warmup, supernet = context.config.warmup, largest(context.config)
    work = [
        Work("supernet: order of its channels", supernet, warmup.importance_batches * warmup.batch_size, 2 * TRAINING)
    ]
    if source is None:
        work.insert(0, Work("supernet: warm-up", supernet, warmup, TRAINING + 1))  # a pass of the teacher
    yield Entry(
        what,
        path_of(context),
        lambda path, state: _make_supernet(context, folders, path, state, given),
        tuple(work),
        is_training=True,
    )


def context_of_source(context: PreparationContext) -> PreparationContext | None:
    """The context of the supernet that this one's is cut from; None if this one's is warmed up itself."""
    source = context.config.cut_from
    return None if source is None else replace(context, config=source)


def is_independent_of_task(config: StudyConfig) -> bool:
    """Whether the warm-up depends on no task: it is on text, from the raw teacher. Its encoder is then shared by the
    supernets of all tasks.
    """
    return learns_from_text(config, "warmup") and has_raw_teacher(config, "warmup")


def supernet_path(context: PreparationContext) -> Path:
    """The folder of the supernet in the cache, which may not exist yet."""
    if is_independent_of_task(context.config):
        key = fingerprint(FORMAT, encoder_path(context).name, context.data_key)
    else:
        key = fingerprint(FORMAT, context.teacher_key, *_warmup_key(context))
    return context.cache / "supernets" / key


def encoder_path(context: PreparationContext) -> Path:
    """The folder of the encoder in the cache that was warmed up without a task; it may not exist yet."""
    teacher = source_fingerprint(context.config.teacher)
    return context.cache / "encoders" / fingerprint(FORMAT, teacher, *_warmup_key(context))


def _warmup_key(context: PreparationContext) -> list[Any]:
    """What the warm-up and the order of the channels depend on, except for the fine-tuned teacher."""
    config = context.config
    if (source := context_of_source(context)) is not None:
        assert not isinstance(config.base, str)
        return ["cut", _warmup_key(source), config.base.model_dump()]
    if isinstance(config.base, str):
        base_key: Any = source_fingerprint(config.teacher if config.base == "teacher" else config.base)
    else:
        base_key = config.base.model_dump()
    text = None
    if config.warmup.source == "text":
        text = [text_folder(context, corpora_of(config, "warmup")).name, config.text_teacher]
    space = config.space
    drawn: list[Any] = []
    if config.warmup.graphs == "sampled":
        drawn = [space.mutation_rate, space.max_height, *([] if space.draws == NEAR else [space.draws])]
    return [
        base_key,
        config.model_dump(mode="json", include={"dropout", "warmup", "objective", "seed"}),
        context.precision,
        [config.space.mismatch, max(config.space.stacks), config.supernet.order, config.space.varies_heads],
        [*drawn, added_operations()] if drawn else None,
        text,
    ]


class TextFolders(TaskFolders):
    """The folders of a warm-up without a task: its rows are the text, its teacher is the raw one, and the model's head
    has two classes that mean nothing.
    """

    @property
    def task(self) -> Task:
        """A classification that stands for the missing task."""
        return Task("text", ("0", "1"), metrics=("accuracy",))

    def rows(self, name: str) -> Encoded:
        """The text, whatever the name of the split."""
        return self.text("warmup")


def _add_head(context: PreparationContext, folders: TaskFolders, encoder: Path, folder: Path) -> None:
    """Write a supernet with the encoder in this folder, its projections and its importance, and a new head for the
    task.
    """
    config = context.config
    torch.manual_seed(config.seed)
    template = AutoConfig.from_pretrained(folders.teacher)
    supernet = build(largest(config), folders.task.type, template=template)
    set_dropout(supernet, config.dropout)
    weights = load_file(encoder / "model.safetensors")
    prefix = "" if supernet.base_model is supernet else f"{supernet.base_model_prefix}."
    own = supernet.state_dict()
    supernet.load_state_dict(own | {name: weights[name] for name in own if name.startswith(prefix)})
    save_pretrained(folder, supernet, context.tokenizer)
    for name in (PROJECTIONS, IMPORTANCE, FISHER):
        if (encoder / name).exists():
            shutil.copyfile(encoder / name, folder / name)


def _make_supernet(
    context: PreparationContext, folders: TaskFolders, folder: Path, state: Path, source: Path | None
) -> None:
    """Write a supernet to `folder`.

    Args:
        state: the folder from which an interrupted warm-up continues.
        source: the folder of the supernet that this one is cut from; None: it is warmed up.
    """
    config = context.config
    base, graph = student_base(config, AutoConfig.from_pretrained(folders.teacher))
    phase = training_phase(config, "warmup", folders)
    if source is None:
        supernet = new_supernet(context, folders, base)
        set_dropout(supernet, config.dropout)
        projections = _warm_up(context, folders, supernet, base, graph, phase, state) if phase else {}
    else:
        supernet, projections = _cut(config, folders, source, base, phase)
    context.on_progress("supernet: order of its channels", None)
    inputs = order_inputs(context, folders, supernet, phase, projections)
    importance, order = inputs.importances[0], ORDERS[config.supernet.order]
    scores = importance if config.supernet.order == "importance" else order.channels(inputs)
    weights = sort_channels(supernet.state_dict(), scores, supernet.config)
    kept: dict[str, Tensor] = {}
    if config.space.varies_heads:
        context.on_progress("supernet: order of its heads", None)
        head_scores = order.heads(inputs)
        kept = {
            f"{HEADS_IN_FILE}{layer}": of_layer.sort(descending=True).values
            for layer, of_layer in enumerate(inputs.importances[1])
        }
        weights = sort_heads(weights, head_scores, supernet.config)
        supernet.config.kept_heads = [
            [heads[place] for place in of_layer.argsort(descending=True, stable=True).tolist()]
            for heads, of_layer in zip(heads_of(supernet.config), head_scores, strict=True)
        ]
    supernet.load_state_dict(weights)
    save_pretrained(folder, supernet, context.tokenizer)
    if projections:
        save_file(projections, folder / PROJECTIONS)
    of_lowest_blocks = {
        f"{layer}": block_scores[0].sort(descending=True).values for layer, block_scores in enumerate(importance)
    }
    save_file(of_lowest_blocks | kept, folder / IMPORTANCE)
    if config.supernet.order == "reconstruction":  # which has measured them
        inputs.moments.fisher_matrices().save(folder / FISHER)


def _cut(
    config: StudyConfig, folders: TaskFolders, source: Path, base: Base, phase: TrainingPhase | None
) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """A supernet on `base` that is cut from the one in the folder `source`, and the objective's projections, cut to its
    width. Where the wider student needed no projection, a new one is returned.
    """
    assert config.cut_from is not None
    teacher = AutoConfig.from_pretrained(folders.teacher)
    wide, _ = student_base(config.cut_from, teacher)
    torch.manual_seed(config.seed)
    supernet = build(largest(config), folders.task.type, template=AutoConfig.from_pretrained(source))
    weights = load_file(source / "model.safetensors")
    supernet.load_state_dict(cut(weights, wide, base, supernet.state_dict()))
    if phase is None:
        return supernet, {}
    expected: dict[str, Tensor] = {}
    for objective, _ in objectives(config, phase.settings, phase.recipe, supernet.config, teacher, phase.rows):
        expected |= objective.state_dict()
    return supernet, expected | cut_projections(learned_projections(source), expected)


def load_supernet(config: StudyConfig, folders: TaskFolders, supernet: Path) -> PreTrainedModel:
    """The warmed-up supernet in this folder."""
    template, weights = AutoConfig.from_pretrained(supernet), load_file(supernet / "model.safetensors")
    return build(largest(config), folders.task.type, template=template, weights=weights)


def new_supernet(context: PreparationContext, folders: TaskFolders, base: Base) -> PreTrainedModel:
    """A supernet at its starting point: a copy of the teacher or of another checkpoint, or random weights."""
    config, task = context.config, folders.task
    torch.manual_seed(config.seed)  # for the head, which another checkpoint may lack
    if not isinstance(config.base, str):
        return build(largest(config), task.type, template=AutoConfig.from_pretrained(folders.teacher))
    source = str(folders.teacher) if config.base == "teacher" else config.base
    model = load_model(source, task.labels, task.task_type)
    batches = context.batches(folders.rows("train"), config.warmup.batch_size, STATISTICS_BATCHES, config.seed)
    statistics = layer_output_statistics(model, list(batches))
    return from_teacher(model.eval(), max(config.space.stacks), statistics, base.mismatch)


def _warm_up(
    context: PreparationContext,
    folders: TaskFolders,
    supernet: PreTrainedModel,
    base: Base,
    graph: FFNGraph,
    phase: TrainingPhase,
    state: Path,
) -> dict[str, Tensor]:
    """Train the supernet in place; returns the learned projections."""
    config = context.config
    teacher_config = AutoConfig.from_pretrained(folders.teacher)
    draw_graphs = graph_draws(config, base, graph)
    projections: dict[str, Tensor] = {}
    finished_steps = 0

    def report(step: int, loss: float) -> None:
        context.on_progress("supernet: warm-up", (finished_steps + step) / phase.recipe.steps)

    with refusing_divergence("warmup"):
        for number, (objective, recipe) in enumerate(
            objectives(config, phase.settings, phase.recipe, supernet.config, teacher_config, phase.rows)
        ):
            warm_up(
                supernet,
                base,
                context.recipe_batches(phase.rows, recipe, config.seed + 1),
                objective,
                recipe,
                teacher=live_teacher(context, folders, objective.teacher_needs, phase.raw_teacher),
                accelerator=context.accelerator,
                draw_graphs=draw_graphs,
                seed=config.seed,
                after_step=report,
                checkpoint=Checkpoint(state / f"warm-up-{number}.pt"),
            )
            finished_steps += recipe.steps
            projections |= objective.state_dict()
    return projections


def order_inputs(
    context: PreparationContext,
    folders: TaskFolders,
    supernet: PreTrainedModel,
    phase: TrainingPhase | None,
    projections: dict[str, Tensor],
) -> OrderInputs:
    """What the channels of the supernet are ordered by.

    They are ordered for the loss on labels. After a warm-up on text, which leaves the head untrained, they are ordered
    for the loss of the objective's last phase, with the teacher's outputs. Every sentence then has the same weight,
    whatever its length and the other sentences of its batch.
    """
    config = context.config
    batch_size, number = config.warmup.batch_size, config.warmup.importance_batches
    if phase is None or not on_text(config, "warmup"):
        batches = context.batches(folders.rows("train"), batch_size, number, config.seed + 2)
        sampled = sampled_loss(config.seed)
        # A copy of the teacher has no loss with labels that are the teacher's own predictions.
        loss_of_labels = summed_loss if folders.task.type.pool is None else sampled
        return OrderInputs(supernet, list(batches), loss_of_labels, sampled, config.seed)
    teacher_config = AutoConfig.from_pretrained(folders.teacher)
    objective, _ = objectives(config, phase.settings, phase.recipe, supernet.config, teacher_config)[-1]
    objective.load_state_dict({name: projections[name] for name in objective.state_dict()})
    objective.to(supernet.device)
    teacher = live_teacher(context, folders, objective.teacher_needs, phase.raw_teacher)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return objective(run(model, batch, objective.needs), teacher(0, batch), batch)

    # Sentence by sentence, because the objective's losses are means over the tokens of a batch, in which long sentences
    # have more weight.
    batches = context.batches(phase.rows, batch_size, number, config.seed + 2)
    sentences = [sentence for batch in batches for sentence in single_rows(batch)]
    return OrderInputs(supernet, sentences, loss, loss, config.seed)


def live_teacher(
    context: PreparationContext, folders: TaskFolders, needs: frozenset[str], raw: bool = False
) -> LiveTeacher:
    """A teacher that runs in every step: fine-tuned on the task, or the raw one."""
    return LiveTeacher(load_teacher(context.config, folders, raw), needs, context.accelerator)


def graph_draws(config: StudyConfig, base: Base, graph: FFNGraph) -> Callable[[], list[FFNGraph]] | None:
    """A function that draws a graph for every layer from the space; None if the warm-up uses only the base graph."""
    if config.warmup.graphs == "gelu":
        return None
    full = Architecture.uniform(base, graph=graph)
    table = config.space
    space = Space(
        base,
        {"stack": (1,), "expansion": (Fraction(1),)},
        1,
        cost.params(full),
        table.mutation_rate,
        graph=graph,
        gated=graph.gated,
        max_height=table.max_height,
        draws=table.draws,
    )
    rng = random.Random(config.seed)
    return lambda: [ffn.graph for ffn in space.sample(rng).ffns]

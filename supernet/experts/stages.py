"""The stages of the command: splitting a model and training the mixture, or removing experts."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.command.rows import Rows
from distill.objectives import moebert
from distill.tasks.encoding import token_frequencies, training_batches
from distill.tasks.types import task_type_of
from distill.training.evaluation import expert_load
from distill.training.loop import train
from distill.training.recipe import Recipe, steps_of_epochs
from distill.training.teacher import load_model
from distill.training.teacher_outputs import LiveTeacher
from search_spaces.architecture import Architecture
from supernet.build import build, load_weights, set_dropout
from supernet.experts import ExpertsError
from supernet.experts.fuse import remove_experts, untouched_experts, unused_experts
from supernet.experts.split import channel_scores, mixture_architecture, split_model

# The file beside a checkpoint with its architecture, for `Architecture.load`.
ARCHITECTURE = "architecture.json"


@dataclass(frozen=True)
class Stage:
    """A model to be evaluated. `name` says what has been done to it; `note` is printed with its scores."""

    name: str
    model: PreTrainedModel
    architecture: Architecture
    note: str = ""


def split_and_train(options: argparse.Namespace, rows: Rows, accelerator: Accelerator) -> Iterator[Stage]:
    """Yield the dense model, the mixture that it is split into and, with `--steps`, the mixture after distillation.

    Raises:
        distill.training.teacher.TeacherError: the model has no head for this task, or see `mixture_architecture`.
        search_spaces.architecture.ArchitectureError: see `mixture_architecture`.
    """
    dense = load_model(options.checkpoint, rows.labels, rows.kind, new_head=False).eval()
    pad_id = dense.config.pad_token_id
    architecture = mixture_architecture(
        dense.config,
        options.experts,
        width=options.width,
        shared=None if options.split == "copy" else options.shared,
        copy=options.split == "copy",
        routing=options.routing,
        top_k=options.top_k,
        capacity=options.capacity,
        attention_experts=options.attention_experts,
        head_experts=options.head_experts,
        gate_scale=options.gate_scale,
    )
    dense_base = replace(architecture.base, gate_scale="relative")
    yield Stage("dense", dense, Architecture.uniform(dense_base, architecture.ffns[0].graph))
    batches = list(training_batches(rows.train, options.batch_size, options.importance_batches, options.seed, pad_id))
    scores = channel_scores(dense, batches, options.split, options.seed)
    frequencies = token_frequencies(rows.train, dense.config.vocab_size)
    model = split_model(dense, architecture, scores, frequencies, options.seed)
    yield Stage("split", model, architecture)
    steps = options.steps
    if options.epochs is not None:
        steps = steps_of_epochs(options.epochs, len(rows.train), options.batch_size)
    if steps:
        objective = moebert(
            model.config,
            dense.config,
            distill=options.distill,
            layers=options.layers,
            balance=options.balance,
            paper_compatible=options.paper_compatible,
        )
        recipe = Recipe(
            steps=steps,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            warmup=options.warmup,
            weight_decay=options.weight_decay,
        )
        if options.dropout is not None:
            set_dropout(model, options.dropout)
        train(
            model,
            training_batches(rows.train, options.batch_size, steps, options.seed, pad_id),
            objective,
            recipe,
            accelerator=accelerator,
            teacher=LiveTeacher(dense, objective.teacher_needs, accelerator),
            seed=options.seed,
        )
        yield Stage(f"after {steps} steps", model.eval(), architecture)


def thin_out(options: argparse.Namespace, rows: Rows, accelerator: Accelerator) -> Iterator[Stage]:
    """Yield the mixture as it is, and with fewer experts by their loads on the dev rows.

    Raises:
        ExpertsError: the checkpoint was not written by this command, or its experts cannot be removed.
        distill.training.teacher.TeacherError: the mixture has no head for this task.
    """
    folder = Path(options.checkpoint)
    if not (folder / ARCHITECTURE).exists():
        raise ExpertsError(
            f"{folder} has no {ARCHITECTURE}: --drop and --fuse need a mixture that this command has written"
        )
    architecture = Architecture.load(folder / ARCHITECTURE)
    model = load_model(options.checkpoint, rows.labels, rows.kind, new_head=False).eval()
    yield Stage("mixture", model, architecture)
    loads = expert_load(model, rows.dev_batches(model.config.pad_token_id), accelerator=accelerator)
    fuse = options.fuse is not None
    try:
        unused = unused_experts(architecture, loads, options.fuse if fuse else options.drop, options.part)
        weights, smaller = remove_experts(model.state_dict(), architecture, loads, unused, fuse)
    except ExpertsError as error:
        raise ExpertsError(f"{folder}: {error}") from None
    thinner = build(smaller, task_type_of(model), model.config.num_labels, model.config)
    load_weights(thinner, weights)
    untouched = untouched_experts(architecture, options.part)
    removed_from = "the head" if options.part == "head" else "feed-forward networks"
    note = f"only the experts of {removed_from} are removed; the {untouched} stay" if untouched else ""
    yield Stage("fused" if fuse else "dropped", thinner.eval(), smaller, note)

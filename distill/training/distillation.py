"""One student, one teacher, and an objective by its name: its phases, its projections and what else it asks for."""

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedModel

from distill.objectives import OBJECTIVES, Objective
from distill.objectives.base import check_shares
from distill.objectives.outputs import Batch
from distill.objectives.replacement import Replacement, check_places, replacing
from distill.tasks.encoding import Encoded, training_batches
from distill.tasks.types import CLASSIFICATION
from distill.training.loop import Checkpoint, TeacherOutputs, train
from distill.training.recipe import Recipe
from distill.training.teacher import LiveTeacher

# TinyBERT's two phases on a task: 10 epochs at 5e-5, then 3 at 3e-5.
INTERMEDIATE = 10 / 13
PREDICTION_RATE = 3 / 5
# Settings of theseus that are not its loss's.
REPLACEMENT = {name: inspect.signature(Replacement).parameters[name].default for name in ("start", "until")}

Settings = Mapping[str, float | int | str | bool]


@dataclass(frozen=True)
class Phase:
    """A part of the training with settings of its own."""

    settings: Settings
    recipe: Recipe


@dataclass(frozen=True)
class Saved:
    """A teacher that is not there: its configuration, and its outputs on the batches of this training."""

    config: Any
    outputs: TeacherOutputs


def defaults(name: str) -> dict[str, Any]:
    """The settings of an objective and what they are if not given."""
    parameters = inspect.signature(OBJECTIVES[name]).parameters.values()
    keywords = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.annotation in (float, int, str, bool)]
    own = {p.name: p.default for p in keywords if p.default is not p.empty}
    return own | REPLACEMENT if name == "theseus" else own


def without_labels(name: str) -> dict[str, Any]:
    """The settings with which this objective learns from text without labels and without predictions, as in the papers'
    pre-training.

    Raises:
        ValueError: it learns from nothing else.
    """
    if name in ("none", "kd", "pkd", "codir", "theseus"):
        raise ValueError(f"{name} learns from labels and predictions, which this text has not")
    own: dict[str, Any] = {key: 0.0 for key in ("labels", "prediction", "soft") if key in defaults(name)}
    return own | ({"phase": "intermediate"} if name == "tinybert" else {})


def labelled(name: str, settings: Settings) -> dict[str, Any]:
    """These settings, for rows with labels: objectives whose papers distil without learn from them too, with weight 1,
    unless the settings say otherwise. Nothing else teaches a new head.
    """
    return ({"labels": 1.0} if defaults(name).get("labels") == 0 else {}) | dict(settings)


def make(
    name: str, settings: Settings, student: Any, teacher: Any, rows: Encoded | None = None, seed: int = 0
) -> Objective:
    """The objective between models of these Hugging Face configurations.

    Args:
        settings: where `rows` have labels, as `labelled` completes them.
        teacher: None where there is none.
        rows: that will be trained on; codir remembers something of each.
        seed: of learned projections.

    Raises:
        ValueError: the objective cannot be used with these, or not with these settings.
    """
    others = REPLACEMENT if name == "theseus" else {}
    given: dict[str, Any] = {key: value for key, value in settings.items() if key not in others}
    if name == "codir":
        classes = None if rows is None or rows.kind != CLASSIFICATION or rows.labels is None else rows.labels.tolist()
        given |= {"rows": 2 if rows is None else len(rows), "labels": classes}
    if name == "theseus":
        check_shares(**{key: float(settings.get(key, value)) for key, value in REPLACEMENT.items()})
        if teacher is not None:
            check_places(student, teacher)
    if teacher is None and name not in ("none", "theseus"):
        raise ValueError(f"{name} compares with a teacher: give one, or choose the objective none")
    if rows is not None and rows.labels is not None:
        given = labelled(name, given)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        objective = OBJECTIVES[name](student, teacher, **given)
    if all(term.name == "balance" for term in objective.terms):
        raise ValueError(f"{name} has nothing to learn from: all of its weights are 0")
    return objective


def phases(name: str, settings: Settings, recipe: Recipe) -> tuple[Phase, ...]:
    """The phases of a training: two of tinybert's, if its setting `phase` does not choose one."""
    if name != "tinybert" or "phase" in settings:
        return (Phase(settings, recipe),)
    first = round(recipe.steps * INTERMEDIATE)
    rate = recipe.learning_rate * PREDICTION_RATE
    return (
        Phase({**settings, "phase": "intermediate"}, replace(recipe, steps=first)),
        Phase({**settings, "phase": "prediction"}, replace(recipe, steps=recipe.steps - first, learning_rate=rate)),
    )


def distil(
    student: PreTrainedModel,
    teacher: PreTrainedModel | None,
    rows: Encoded,
    name: str,
    settings: Settings,
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    tokenizer: Any,
    seed: int = 0,
    projections: Mapping[str, Tensor] | None = None,
    saved: Saved | None = None,
    after_step: Callable[[int, float], None] | None = None,
    keep: Path | None = None,
) -> dict[str, Tensor]:
    """Train a student in place with the objective of this name, all of its phases; returns the learned projections.

    Args:
        student: where it is a masked language model, words are masked anew in every batch, and are its labels.
        settings: of the objective; the others are its defaults.
        projections: what such a training returned, to start from.
        saved: stands in for the teacher.
        after_step: called with the number of finished steps of all phases and the loss of the last.
        keep: folder in which the state is kept every hundred steps, and from which an interrupted training goes on.

    Raises:
        distill.training.loop.Diverged: a loss is NaN or infinite.
        ValueError: the objective cannot be used with these models or rows.
    """
    learned = dict(projections or {})
    done = 0
    of_words = student.get_output_embeddings() is not None
    if of_words:
        settings = labelled(name, settings)
    for number, phase in enumerate(phases(name, settings, recipe)):
        shape = saved.config if saved else teacher and teacher.config
        objective = make(name, phase.settings, student.config, shape, rows, seed)
        own = objective.state_dict()
        objective.load_state_dict({key: learned.get(key, value) for key, value in own.items()})
        target: TeacherOutputs | None = saved.outputs if saved else None
        if target is None and teacher is not None and objective.needs_teacher:
            target = LiveTeacher(teacher, objective.teacher_needs, accelerator)
        batches: Iterable[Batch] = training_batches(
            rows, phase.recipe.batch_size, phase.recipe.steps, seed, tokenizer.pad_token_id
        )
        if of_words:
            batches = masked(batches, tokenizer, seed)
        plan = phase.recipe
        with contextlib.ExitStack() as stack:
            if name == "theseus":
                if teacher is None:
                    raise ValueError("theseus replaces the layers of a teacher: give one")
                chosen = {key: float(phase.settings.get(key, value)) for key, value in REPLACEMENT.items()}
                replacement = Replacement(student.config.num_hidden_layers, plan.steps, seed, **chosen)
                stack.enter_context(replacing(student, teacher.to(accelerator.device), replacement))
                batches = replacement.drawn(batches)
                plan = replace(plan, freeze_embeddings=True)
            before = done

            def counted(step: int, loss: float, before: int = before) -> None:
                if after_step:
                    after_step(before + step, loss)

            train(
                student,
                batches,
                objective,
                plan,
                accelerator=accelerator,
                teacher=target,
                seed=seed,
                after_step=counted,
                checkpoint=Checkpoint(keep / f"phase-{number + 1}.pt") if keep else None,
            )
        done += plan.steps
        learned |= objective.state_dict()
    return learned


def masked(batches: Iterable[Batch], tokenizer: Any, seed: int) -> Iterator[Batch]:
    """BERT's masking: 15 % of the words are labelled with what they were; of these 80 % are masked, 10 % changed."""
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15)
    for step, batch in enumerate(batches):
        special = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + step)
            ids_BT, labels_BT = collator.torch_mask_tokens(batch["input_ids"].clone(), special_tokens_mask=special)
        yield {**batch, "input_ids": ids_BT, "labels": labels_BT}

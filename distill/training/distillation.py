"""Distillation of a student with an objective of `distill.objectives.OBJECTIVES`, in one or several training phases."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import DataCollatorForLanguageModeling, PreTrainedModel

from distill.objectives import OBJECTIVES, ObjectivePhase, Settings
from distill.objectives.outputs import Batch
from distill.tasks.encoding import Encoded, training_batches
from distill.training.checkpoint import Checkpoint
from distill.training.loop import TeacherOutputs, train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher


@dataclass(frozen=True)
class SavedOutputs:
    """A substitute for a loaded teacher: its configuration, and its saved outputs on the batches of this training."""

    config: Any
    outputs: TeacherOutputs


def phase_recipes(phases: Iterable[ObjectivePhase], recipe: Recipe) -> list[tuple[ObjectivePhase, Recipe]]:
    """Each phase with its recipe. The steps of `recipe` are divided among the phases according to their fractions."""
    phases = list(phases)
    ends = [round(recipe.steps * fraction) for fraction in accumulate(phase.fraction for phase in phases)]
    ends[-1] = recipe.steps
    parts = []
    for phase, first, end in zip(phases, [0, *ends], ends, strict=False):
        rate = recipe.learning_rate * phase.learning_rate
        # Early stopping only applies to the last phase: before that, scores are meaningless as heads may be untrained.
        patience = recipe.early_stopping_patience if phase is phases[-1] else None
        phase_recipe = replace(recipe, steps=end - first, learning_rate=rate, early_stopping_patience=patience)
        parts.append((phase, phase_recipe))
    return parts


class Distilled(NamedTuple):
    """What a distillation yields besides the student.

    Attributes:
        projections: the learned projections of the objective.
        losses: the loss of every step of all phases, those before an interruption included.
    """

    projections: dict[str, Tensor]
    losses: list[float]


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
    saved_outputs: SavedOutputs | None = None,
    after_step: Callable[[int, float], None] | None = None,
    state_folder: Path | None = None,
    score: Callable[[], float] | None = None,
) -> Distilled:
    """Train a student in place with all phases of the objective `name`.

    Args:
        student: for a masked language model, words are masked randomly in every batch and become its labels.
        settings: the objective's settings that differ from its defaults.
        projections: initial values of the projections, as returned by an earlier training.
        saved_outputs: used instead of the teacher.
        after_step: called with the number of finished steps of all phases and the loss of the last step.
        state_folder: the state is saved there every hundred steps, and an interrupted training resumes from it.
        score: evaluates the student, for early stopping.

    Raises:
        distill.training.loop.Diverged: a loss is NaN or infinite.
        ValueError: the objective cannot be used with these models or rows.
    """
    objective_spec = OBJECTIVES[name]
    teacher_config = saved_outputs.config if saved_outputs else teacher and teacher.config
    predicts_words = student.get_output_embeddings() is not None
    if predicts_words:
        settings = objective_spec.settings_with_labels(settings)
    learned = dict(projections or {})
    losses: list[float] = []
    for number, (phase, phase_recipe) in enumerate(phase_recipes(objective_spec.phases(settings), recipe), start=1):
        objective = objective_spec.make(phase.settings, student.config, teacher_config, rows, seed)
        objective.load_state_dict({key: learned.get(key, value) for key, value in objective.state_dict().items()})
        outputs: TeacherOutputs | None = saved_outputs.outputs if saved_outputs else None
        if outputs is None and teacher is not None and objective.needs_teacher:
            outputs = LiveTeacher(teacher, objective.teacher_needs, accelerator)
        batches: Iterable[Batch] = training_batches(
            rows, phase_recipe.batch_size, phase_recipe.batches, seed, tokenizer.pad_token_id
        )
        if predicts_words:
            batches = masked(batches, tokenizer, seed)
        with contextlib.ExitStack() as stack:
            if objective_spec.training_context is not None:
                if teacher is None:
                    raise ValueError(f"{name} trains the student together with the teacher: give the teacher itself")
                context = objective_spec.training_context(
                    student,
                    teacher.to(accelerator.device),
                    settings={**objective_spec.defaults, **phase.settings},
                    steps=phase_recipe.batches,
                    seed=seed,
                )
                batches = stack.enter_context(context)(batches)
            losses += train(
                student,
                batches,
                objective,
                phase_recipe,
                accelerator=accelerator,
                teacher=outputs,
                seed=seed,
                after_step=_counting_from(len(losses), after_step),
                checkpoint=Checkpoint(state_folder / f"phase-{number}.pt") if state_folder else None,
                score=score,
            )
        learned |= objective.state_dict()
    return Distilled(learned, losses)


def _counting_from(first: int, after_step: Callable[[int, float], None] | None) -> Callable[[int, float], None] | None:
    """A callback that adds `first` to the number of steps and calls `after_step`."""
    if after_step is None:
        return None
    return lambda step, loss: after_step(first + step, loss)


def masked(batches: Iterable[Batch], tokenizer: Any, seed: int) -> Iterator[Batch]:
    """The batches with BERT's masking: 15 % of the tokens get themselves as labels; of these, 80 % are replaced by the
    mask token and 10 % by a random token.
    """
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=True, mlm_probability=0.15)
    for step, batch in enumerate(batches):
        special = torch.isin(batch["input_ids"], torch.tensor(tokenizer.all_special_ids))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed * 1_000_003 + step)
            ids_BT, labels_BT = collator.torch_mask_tokens(batch["input_ids"].clone(), special_tokens_mask=special)
        yield {**batch, "input_ids": ids_BT, "labels": labels_BT}

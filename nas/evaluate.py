"""One candidate to its score: inherit, distil for a few steps, measure on the search split."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedModel

from distill import metrics
from distill.data import Encoded, token_frequencies
from distill.distil import Saved, distil
from distill.evaluation import Load, evaluate, expert_load, split_batches
from distill.loop import make_accelerator
from distill.recipe import Recipe
from distill.teacher import SavedTeacher, load_model, load_tokenizer
from nas.prepare import Workspace, projections
from search_spaces.architecture import Architecture
from supernet.build import build, load_weights
from supernet.inherit import inherit

# Rows of the search split that intermediate scores, and the loads of experts, are measured on.
GLANCE = 500
EXPERT_LOAD = "expert_load"

# Called with the number of training steps so far and the score then.
Report = Callable[[int, float], None]
# Called with the same and the model as it is then.
AfterStep = Callable[[int, PreTrainedModel], None]


@dataclass(frozen=True)
class Score:
    """The task's metric on the search split, its standard error, the scores behind it by their names, and how experts
    shared the tokens of the search split's first rows.
    """

    value: float
    standard_error: float
    parts: dict[str, float]
    loads: tuple[Load, ...] = ()

    def attributes(self) -> dict[str, Any]:
        """What a trial remembers of it beside the value."""
        loads = {EXPERT_LOAD: [load.to_json() for load in self.loads]} if self.loads else {}
        return {"standard_error": self.standard_error, **self.parts, **loads}


class Evaluator:
    """What all candidates of a study need, loaded once per process."""

    def __init__(self, workspace: Workspace, device: str = "auto") -> None:
        self.workspace = workspace
        self.config = workspace.config
        self.accelerator = make_accelerator(device)
        self.weights = load_file(workspace.supernet / "model.safetensors")
        self.like = AutoConfig.from_pretrained(workspace.supernet)
        self.teacher_config = AutoConfig.from_pretrained(workspace.teacher)
        self.tokenizer = load_tokenizer(str(workspace.teacher))
        self.task = workspace.folders.task
        self.train_rows = workspace.folders.rows("train")
        self.search_rows, self.search_split = workspace.folders.rows("search"), workspace.folders.split("search")
        self.frequencies = token_frequencies(self.train_rows, self.like.vocab_size)

    def student(self, architecture: Architecture) -> PreTrainedModel:
        """The candidate with its inherited weights."""
        model = build(architecture, self.task.kind, like=self.like)
        load_weights(model, inherit(self.weights, architecture, self.frequencies))
        return model

    def train(
        self, architecture: Architecture, recipe: Recipe, seed: int, after_step: AfterStep = lambda step, model: None
    ) -> PreTrainedModel:
        """A candidate, trained. All candidates of one seed see the same batches in the same order.

        Raises:
            distill.loop.Diverged: the loss stopped being finite.
        """
        model = self.student(architecture)
        after_step(0, model)
        self.distil(model, recipe, seed, lambda step, _loss: after_step(step, model))
        return model

    def distil(
        self, model: PreTrainedModel, recipe: Recipe, seed: int, after_step: Callable[[int, float], None]
    ) -> None:
        """Train a model with the study's objective."""
        goal, saved = self.config.objective, self.saved(recipe, seed)
        distil(
            model,
            None if saved else self.teacher(),
            self.train_rows,
            goal.name,
            goal.settings(),
            recipe,
            accelerator=self.accelerator,
            tokenizer=self.tokenizer,
            seed=seed,
            projections=projections(self.workspace.supernet),
            saved=saved,
            after_step=after_step,
        )

    def saved(self, recipe: Recipe, seed: int) -> Saved | None:
        """The teacher's saved outputs, where they serve: to candidates of the study's own seed, but not to theseus."""
        own = seed == self.config.seed and recipe == self.config.candidate.build()
        if self.config.objective.name == "theseus" or not own:
            return None
        return Saved(self.teacher_config, SavedTeacher(self.workspace.outputs))

    def teacher(self) -> PreTrainedModel:
        """The teacher, fine-tuned on the task."""
        return load_model(str(self.workspace.teacher), self.task.labels, self.task.kind)

    def score(self, model: PreTrainedModel, first: int | None = None) -> metrics.Score:
        """The task's metric on the search split, or on its `first` rows."""
        pad_id = self.like.pad_token_id
        found = evaluate(
            model,
            self.search_rows,
            self.search_split,
            self.task,
            accelerator=self.accelerator,
            pad_id=pad_id,
            first=first,
        )
        return found[self.task.metrics[0]]

    def evaluate(
        self,
        architecture: Architecture,
        seed: int,
        rungs: Sequence[Fraction] = (),
        report: Report = lambda step, score: None,
    ) -> Score:
        """Train a candidate and score it on the search split; `report` gets a glance before the training, and one at
        each of `rungs`, shares of its steps.

        Raises:
            distill.loop.Diverged: the loss or the logits stopped being finite.
        """
        recipe = self.config.candidate.build()
        wanted = {0, *(int(rung * recipe.steps) for rung in rungs)} - {recipe.steps}
        glances = {}

        def glance(step: int, model: PreTrainedModel) -> None:
            if step in wanted and step not in glances:
                glances[step] = self.score(model, GLANCE).value
                report(step, glances[step])

        model = self.train(architecture, recipe, seed, glance)
        score = self.score(model)
        loads = self.loads(model, self.search_rows, GLANCE)
        return Score(score.value, score.standard_error, {"inherited": glances[0]}, loads)

    def loads(self, model: PreTrainedModel, rows: Encoded, first: int | None = None) -> tuple[Load, ...]:
        """How the model's experts share the tokens of a split, or of its `first` rows; none where it is dense."""
        batches = (batch for _, batch in split_batches(rows, self.like.pad_token_id, first))
        return tuple(expert_load(model, batches, accelerator=self.accelerator))


@lru_cache(maxsize=1)
def evaluator(workspace: Workspace, device: str) -> Evaluator:
    """The evaluator of this process; a worker keeps it from one trial to the next."""
    return Evaluator(workspace, device)

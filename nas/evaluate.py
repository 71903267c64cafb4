"""One candidate to its score: inherit, distil for a few steps, measure on the search split."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path

from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from distill.tasks import metrics
from distill.tasks.encoding import Encoded
from distill.training.distillation import Saved, distil
from distill.training.evaluation import Load, evaluate, expert_load, split_batches
from distill.training.loop import make_accelerator
from distill.training.teacher import load_model, load_tokenizer
from distill.training.teacher_outputs import SavedTeacher
from nas.preparation.phases import CANDIDATE, TrainingPhase, training_phases
from nas.preparation.workspace import Workspace, projections, raw_teacher
from search_spaces.architecture import Architecture
from supernet.build import build, load_weights
from supernet.inherit import inherit

# Rows of the search split that intermediate scores, and the loads of experts, are measured on.
INTERMEDIATE_ROWS = 500

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


class Evaluator:
    """What all candidates of a study need, loaded once per process."""

    def __init__(self, workspace: Workspace, device: str = "auto", accelerator: Accelerator | None = None) -> None:
        self.workspace = workspace
        self.config = workspace.config
        self.accelerator = accelerator or make_accelerator(device)
        self.weights = load_file(workspace.supernet / "model.safetensors")
        self.like = AutoConfig.from_pretrained(workspace.supernet)
        self.teacher_config = AutoConfig.from_pretrained(workspace.teacher)
        self.tokenizer = load_tokenizer(str(workspace.teacher))
        self.task = workspace.folders.task
        self.search_rows, self.search_split = workspace.folders.rows("search"), workspace.folders.split("search")
        self.frequencies = workspace.frequencies()

    def student(self, architecture: Architecture) -> PreTrainedModel:
        """The candidate with its inherited weights."""
        model = build(architecture, self.task.kind, like=self.like)
        load_weights(model, inherit(self.weights, architecture, self.frequencies, self.config.seed))
        return model

    @cached_property
    def training_phases(self) -> tuple[TrainingPhase, ...]:
        """What every candidate goes through."""
        return training_phases(self.config, CANDIDATE, self.workspace.folders)

    def train(
        self,
        architecture: Architecture,
        plan: Sequence[TrainingPhase],
        seed: int,
        after_step: AfterStep = lambda step, model: None,
    ) -> PreTrainedModel:
        """A candidate, trained. All candidates of one seed see the same batches in the same order.

        Args:
            after_step: called before and after every step of the last training.

        Raises:
            distill.training.loop.Diverged: the loss stopped being finite.
        """
        model = self.student(architecture)
        learned = projections(self.workspace.supernet)
        for found in plan[:-1]:
            learned = self.distil(model, found, seed, learned)
        after_step(0, model)
        for found in plan[-1:]:
            self.distil(model, found, seed, learned, lambda step, loss: after_step(step, model))
        return model

    def distil(
        self,
        model: PreTrainedModel,
        found: TrainingPhase,
        seed: int,
        learned: Mapping[str, Tensor],
        after_step: Callable[[int, float], None] | None = None,
        keep: Path | None = None,
    ) -> dict[str, Tensor]:
        """One training of a model by the study's objective; takes and returns its learned projections."""
        saved = self.saved(found, seed)
        return distil(
            model,
            None if saved else self.teacher(found.raw),
            found.rows,
            self.config.objective.name,
            found.settings,
            found.recipe,
            accelerator=self.accelerator,
            tokenizer=self.tokenizer,
            seed=seed,
            projections=learned,
            saved=saved,
            after_step=after_step,
            keep=keep,
            score=lambda: self.score(model).value,
        )

    def saved(self, found: TrainingPhase, seed: int) -> Saved | None:
        """The teacher's saved outputs, where they serve: to candidates of the study's own seed."""
        kept = dict(self.workspace.outputs).get(found.table)
        own = seed == self.config.seed and any(found is one for one in self.training_phases)
        return Saved(self.teacher_config, SavedTeacher(kept)) if kept and own else None

    def teacher(self, raw: bool = False) -> PreTrainedModel:
        """The teacher, fine-tuned on the task, or as it was before."""
        if raw:
            return raw_teacher(self.config, self.task)
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
        """Train a candidate and score it on the search split; `report` gets a glance before the training on the task,
        and one at each of `rungs`, shares of its steps.

        Raises:
            distill.training.loop.Diverged: the loss or the logits stopped being finite.
        """
        steps = self.training_phases[-1].recipe.steps if self.training_phases else 0
        wanted = {0} | ({int(rung * steps) for rung in rungs} - {steps})
        glances = {}

        def glance(step: int, model: PreTrainedModel) -> None:
            if step in wanted and step not in glances:
                glances[step] = self.score(model, INTERMEDIATE_ROWS).value
                report(step, glances[step])

        model = self.train(architecture, self.training_phases, seed, glance)
        score = self.score(model)
        loads = self.loads(model, self.search_rows, INTERMEDIATE_ROWS)
        return Score(score.value, score.standard_error, {"inherited": glances[0]}, loads)

    def loads(self, model: PreTrainedModel, rows: Encoded, first: int | None = None) -> tuple[Load, ...]:
        """How the model's experts share the tokens of a split, or of its `first` rows; none where it is dense."""
        batches = (batch for _, batch in split_batches(rows, self.like.pad_token_id, first))
        return tuple(expert_load(model, batches, accelerator=self.accelerator))


@lru_cache(maxsize=1)
def evaluator(workspace: Workspace, device: str) -> Evaluator:
    """The evaluator of this process; a worker keeps it from one trial to the next."""
    return Evaluator(workspace, device)

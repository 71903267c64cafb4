"""Estimates how long a search takes, from its multiply-accumulates and the measured speed of this machine."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from distill.training.loop import make_accelerator
from distill.training.recipe import MixedPrecision
from nas.config.load import load_config
from nas.config.recipes import RecipeTable
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.preparation.workspace import base_of_study
from nas.progress import Part
from nas.stages import BEFORE
from nas.study import ledger
from nas.study.attributes import DUPLICATE_OF
from nas.study.folder import Folder
from nas.study.names import existing_studies
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.errors import UserError
from search_spaces.graph import FFNGraph
from supernet.one_shot import DRAWN_IN_SANDWICH

# A training step computes about as much as this many forward passes.
FORWARD_PASSES_OF_A_STEP = 3
# Seconds of a trial outside its training and evaluation.
OVERHEAD = 0.3
# What is assumed where rows have not been read yet: how many the search split has, and the share of `max_length` that
# a sentence fills on average.
SEARCH_ROWS, FILLED = 2_000, 0.5
# With a share to keep, the search trains the best baseline within about so many budgets first.
BUDGETS_TRIED = 5
# Sentences of the pass by which the machine's speed is measured.
SENTENCES = 32


@dataclass(frozen=True)
class Speed:
    """Multiply-accumulates per second of a forward pass of the base model, with all processors."""

    macs: float


def measure_speed(base: Base, graph: FFNGraph, tokens: int, device: str, mixed_precision: MixedPrecision) -> Speed:
    """Measure the speed of this machine by forward passes of the base model with random weights."""
    from supernet.build import build

    accelerator = make_accelerator(device, mixed_precision)
    architecture = Architecture.uniform(base, graph)
    with torch.random.fork_rng(devices=[]):
        model = build(architecture).eval().to(accelerator.device)
        tokens_BT = torch.randint(1, base.vocabulary, (SENTENCES, tokens), device=accelerator.device)
    seconds = []
    with torch.inference_mode(), accelerator.autocast():
        for _ in range(4):
            begun = time.perf_counter()
            model(input_ids=tokens_BT).logits.sum().item()
            seconds.append(time.perf_counter() - begun)
    return Speed(SENTENCES * cost.macs(architecture, tokens) / median(seconds[1:]))


@dataclass(frozen=True)
class Estimator:
    """Estimates the parts of a search.

    Attributes:
        speed: of this machine.
        rows: the number of training rows; None if they have not been read.
        search_rows: the number of rows of the search split.
        tokens: of a sentence, on average.
        student: an architecture of the size of the candidates.
    """

    config: StudyConfig
    speed: Speed
    student: Architecture
    rows: int | None = None
    search_rows: int = SEARCH_ROWS
    tokens: int = 0

    @property
    def _tokens(self) -> int:
        return self.tokens or max(1, round(FILLED * self.config.max_length))

    def _seconds(self, architecture: Architecture, sentences: float, passes: float = 1) -> float:
        """Seconds of so many forward passes of the sentences."""
        return passes * sentences * cost.macs(architecture, self._tokens) / self.speed.macs

    def sentences(self, table: RecipeTable | None) -> float:
        """The sentences of all batches of a training; 0 if there is none, or if the rows are not known."""
        if table is None or (table.steps is None and self.rows is None):
            return 0
        recipe = table.build(max(1, round(table.share * (self.rows or 0))))
        return recipe.steps * recipe.batch_size * recipe.gradient_accumulation_steps

    def preparation(self) -> list[Part]:
        """The parts of the preparation that take long, as if nothing were in the cache."""
        config = self.config
        base, graph = self._supernet()
        largest = Architecture.uniform(base, graph, max(config.space.stacks))
        batches = config.warmup.importance_batches * config.warmup.batch_size
        warmup = self.sentences(config.warmup)
        warmed = Architecture.uniform(*base_of_study(config.cut_from or config), max(config.space.stacks))
        parts = [
            Part("teacher: fine-tuning", 1, self._train(largest, self.sentences(config.finetune))),
            Part("supernet: warm-up", 1, self._train(warmed, warmup) + self._seconds(warmed, warmup)),
            Part("supernet: order of its channels", 1, 2 * self._train(largest, batches)),
        ]
        if config.supernet.inheritance == "compensated":
            parts.append(Part("supernet: predicted losses", 1, 2 * self._train(largest, batches)))
        outputs = self.sentences(config.candidate) + self.sentences(config.candidate_pretrain)
        return [*parts, Part("teacher: outputs for the candidates", 1, self._seconds(largest, outputs))]

    def stages(self, stages: Sequence[str]) -> list[Part]:
        """The parts of these stages: their trials, and the confirmations after them."""
        parts = []
        if self.config.keep is not None:
            tried = BUDGETS_TRIED * self.config.stage1.confirm_seeds
            parts.append(Part("confirmation", tried, self.training()))
        for stage in stages:
            table = self.config.stage(stage)
            if table.evaluation == "one_shot":
                base, graph = self._supernet()
                largest = Architecture.uniform(base, graph, max(self.config.space.stacks))
                shared = self.sentences(self.config.sharing) + self.sentences(self.config.sharing_pretrain)
                sharing = self.config.sharing
                shared *= len(sharing.widths) or (2 + DRAWN_IN_SANDWICH if sharing.sandwich else 1)
                parts.append(Part("one-shot supernet: training", 1, self._train(largest, shared)))
            parts.append(Part(f"stage-{stage}", table.trials, self.trial(table, stage)))
            parts.append(Part(f"confirmation of stage {stage}", confirmations_of(table, stage), self.training()))
        return parts

    def trial(self, table: StageTable, stage: str) -> float:
        """Seconds of one trial of a stage."""
        tasks = len(self.config.tasks) if stage == "3" else 1
        if table.evaluation == "trained":
            return self.training()
        rows = table.rows if table.evaluation == "untrained" else self.config.sharing.rows
        scoring = self._seconds(self.student, min(rows or self.search_rows, self.search_rows))
        if self.config.supernet.inheritance == "compensated" and table.evaluation == "untrained":
            scoring += self._seconds(self.student, self.config.supernet.calibration_rows, 2)
        return OVERHEAD + tasks * scoring

    def training(self) -> float:
        """Seconds of the training and the evaluation of one candidate."""
        sentences = self.sentences(self.config.candidate) + self.sentences(self.config.candidate_pretrain)
        return OVERHEAD + self._train(self.student, sentences) + self._seconds(self.student, self.search_rows)

    def _train(self, architecture: Architecture, sentences: float) -> float:
        return self._seconds(architecture, sentences, FORWARD_PASSES_OF_A_STEP)

    def _supernet(self) -> tuple[Base, FFNGraph]:
        return base_of_study(self.config)


def confirmations_of(table: StageTable, stage: str) -> int:
    """The most trainings by which the finalists of a stage are confirmed: of its best candidates, of the best baseline,
    and in later stages of the architecture that it refines.
    """
    return (table.confirm + 1 + (stage in BEFORE)) * table.confirm_seeds


def by_earlier_trials(
    parts: Sequence[Part], out: Path, config: StudyConfig, workers: int
) -> tuple[list[Part], dict[str, int]]:
    """The parts with the seconds that trials of earlier studies in the folder `out` took, where there are such trials;
    and the numbers of these trials by the names of the parts.
    """
    seconds: dict[str, list[float]] = {}
    for name, taken in earlier_trials(out, config):
        seconds.setdefault(name, []).append(taken)
    known = {part.what: seconds[name] for part in parts if (name := part.what.partition(" ")[0]) in seconds}
    replaced = [
        replace(part, seconds=median(known[part.what]) / workers) if part.what in known else part for part in parts
    ]
    return replaced, {what: len(taken) for what, taken in known.items()}


def earlier_trials(out: Path, config: StudyConfig) -> Iterator[tuple[str, float]]:
    """For each complete trial of the studies in `out` with the same teacher, data and trainings its study, such as
    "stage-1", and its seconds.
    """
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        folder = Folder(path)
        if not (folder.config.is_file() and (path / "study.db").is_file()):
            continue
        try:
            if alike(load_config(str(folder.config))) != alike(config):
                continue
            studies = existing_studies(folder)
        except UserError:
            continue  # not a study that could say how long trials take
        for name, study in studies.items():
            for trial in ledger.scored(study):
                if "seconds" in trial.user_attrs and DUPLICATE_OF not in trial.user_attrs:
                    yield name, trial.user_attrs["seconds"]


def alike(config: StudyConfig) -> dict[str, Any]:
    """What two configurations must have in common for their trials to take roughly equally long."""
    stages = {f"stage{stage}" for stage in "123"}
    result = config.model_dump(
        mode="json",
        include={"teacher", "base", "tasks", "data", "rows", "max_length", "candidate", "supernet", "sharing"},
    )
    evaluations = config.model_dump(mode="json", include={name: {"evaluation", "rows"} for name in stages})
    return result | evaluations


def expected_parts(config: StudyConfig, stages: Sequence[str]) -> list[Part]:
    """The parts of a search, in order; only the proportions of their seconds mean something, as the speed of this
    machine has not been measured.
    """
    base, graph = base_of_study(config)
    student = Architecture.uniform(base, graph, expansion=config.space.uniform or max(config.space.expansions))
    estimator = Estimator(config, Speed(1e10), student)
    return [*estimator.preparation(), *estimator.stages(stages)]

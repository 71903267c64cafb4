"""Estimates how long a search takes, from its multiply-accumulates and the measured speed of this machine."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from distill.tasks.encoding import load_encoded
from distill.training.loop import make_accelerator
from distill.training.recipe import MixedPrecision
from foundation.errors import UserError
from nas.config.load import load_config
from nas.config.recipes import RecipeTable
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.evaluation.modes import MODES
from nas.planning.stages import BEFORE
from nas.preparation.entries import TRAINING, Entry, Work
from nas.preparation.workspace import base_of_study
from nas.search.progress import Part
from nas.study import ledger
from nas.study.attributes import DUPLICATE_OF
from nas.study.folder import Folder
from nas.study.names import existing_studies
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from supernet.build import build

# Seconds of a trial outside its training and evaluation.
OVERHEAD = 0.3
# What is assumed until the data set is read: how many examples the search split has, and the fraction of `max_length`
# that a sentence fills on average.
SEARCH_ROWS, FILLED = 2_000, 0.5
# To keep a part of the teacher's score, the search first trains the best baseline within about so many budgets.
BUDGETS_TRIED = 5
# Sentences of the pass by which the machine's speed is measured.
SENTENCES = 32


def measure_speed(base: Base, graph: FFNGraph, tokens: int, device: str, mixed_precision: MixedPrecision) -> float:
    """The multiply-accumulates per second of this machine in forward passes of the base model with random weights."""
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
    return SENTENCES * cost.macs(architecture, tokens) / median(seconds[1:])


@dataclass(frozen=True)
class Sizes:
    """How much data a study has.

    Attributes:
        tokens: of a sentence, on average.
        train: the number of training examples; None if they have not been read.
        search: the number of examples of the search split.
    """

    tokens: int
    train: int | None = None
    search: int = SEARCH_ROWS

    @classmethod
    def of(cls, config: StudyConfig, data: Path) -> "Sizes":
        """Those of the encoded examples in a folder of the cache, or assumptions if it does not exist."""
        if not data.exists():
            return cls(max(1, round(FILLED * config.max_length)))
        train, search = (load_encoded(data / f"{name}.npz") for name in ("train", "search"))
        return cls(round(float(train.lengths.mean())), len(train), len(search))


@dataclass(frozen=True)
class Estimator:
    """Estimates the parts of a search.

    Attributes:
        macs_per_second: of this machine.
        student: an architecture of the size of the candidates.
    """

    config: StudyConfig
    sizes: Sizes
    macs_per_second: float
    student: Architecture

    def seconds(self, work: Iterable[Work]) -> float:
        """Seconds that this computation takes."""
        return (
            sum(
                each.passes * self._sentences(each.sentences) * cost.macs(each.architecture, self.sizes.tokens)
                for each in work
            )
            / self.macs_per_second
        )

    def _sentences(self, number: float | RecipeTable | None) -> float:
        """A number of sentences; of a training 0 if it depends on the number of examples and that is not known."""
        if not isinstance(number, RecipeTable):
            return number or 0
        if number.steps is None and self.sizes.train is None:
            return 0
        recipe = number.build(max(1, round(number.fraction * (self.sizes.train or 0))))
        return recipe.steps * recipe.batch_size * recipe.gradient_accumulation_steps

    def parts(self, work: Iterable[Work]) -> list[Part]:
        """The parts of a search that this computation is."""
        return [Part(each.what, 1, self.seconds([each])) for each in work]

    def preparation(self, entries: Iterable[Entry]) -> list[Part]:
        """The parts of the preparation that makes those of the entries that are not in the cache."""
        return self.parts(work for entry in entries if not entry.exists for work in entry.work)

    def stages(self, stages: Sequence[str]) -> list[Part]:
        """The parts of these stages: their trials, and the confirmations after them."""
        parts = []
        if self.config.keep is not None:
            tried = BUDGETS_TRIED * self.config.stage1.confirm_seeds
            parts.append(Part("confirmation", tried, self.training()))
        for stage in stages:
            table = self.config.stage(stage)
            parts += self.parts(MODES[table.evaluation].work(self.config))
            parts.append(Part(f"stage-{stage}", table.trials, self.trial(table, stage)))
            parts.append(Part(f"confirmation of stage {stage}", confirmations_of(table, stage), self.training()))
        return parts

    def trial(self, table: StageTable, stage: str) -> float:
        """Seconds of one trial of a stage."""
        mode, tasks = MODES[table.evaluation], len(self.config.tasks) if stage == "3" else 1
        if mode.trains:
            return self.training()
        scored = min(mode.scored_on(self.config, table) or self.sizes.search, self.sizes.search)
        work = [Work("scoring", self.student, scored)]
        if mode.inheritance(self.config) == "compensated":
            work.append(Work("compensation", self.student, self.config.supernet.calibration_rows, 2))
        return OVERHEAD + tasks * self.seconds(work)

    def training(self) -> float:
        """Seconds of the training and the evaluation of one candidate."""
        tables = (self.config.candidate_pretrain, self.config.candidate)
        work = [Work("training", self.student, table, TRAINING) for table in tables]
        return OVERHEAD + self.seconds([*work, Work("scoring", self.student, self.sizes.search)])


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
        include={"teacher", "base", "tasks", "data", "rows", "max_length", "candidate", "supernet", "one_shot"},
    )
    evaluations = config.model_dump(mode="json", include={name: {"evaluation", "rows"} for name in stages})
    return result | evaluations


def expected_parts(config: StudyConfig, entries: Iterable[Entry], stages: Sequence[str], data: Path) -> list[Part]:
    """The parts of a search, in order. Only the proportions of their seconds mean something, as the speed of this
    machine has not been measured.

    Args:
        data: the folder of the encoded examples.
    """
    base, graph = base_of_study(config)
    student = Architecture.uniform(base, graph, expansion=config.space.uniform or max(config.space.expansions))
    estimator = Estimator(config, Sizes.of(config, data), 1e10, student)
    return [*estimator.preparation(entries), *estimator.stages(stages)]

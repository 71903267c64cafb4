"""Estimates how long a search takes, from its multiply-accumulates and the measured speed of this machine."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import PretrainedConfig

from distill.tasks.encoding import load_encoded
from distill.tasks.task import TaskData
from distill.tasks.types import encode
from distill.training.loop import make_accelerator
from distill.training.recipe import MixedPrecision
from nas.config.recipes import RecipeTable
from nas.config.schema import StudyConfig
from nas.config.stages import StageTable
from nas.config.values import parse_latency
from nas.evaluation.modes import MODES
from nas.latency.onnx_table import LAYERS, LAYERS_OF_WIDTH
from nas.planning.budget import base_model, closed_limits, largest_uniform
from nas.preparation.entries import TRAINING, Entry, Work, teacher_of
from nas.preparation.workspace import base_of_study
from nas.search.progress import BUDGET, Part
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.cost import CLASSIFIER
from search_spaces.graph import FFNGraph
from supernet.build import build

# Seconds of a trial outside its training and evaluation, and of starting the workers of a study.
OVERHEAD, START = 0.3, 12.0
# Seconds of measuring a latency table for each layer of its reference models, by the runtime.
LATENCY = {"torch": 0.3, "onnx": 1.2, "onnx-int8": 1.7}
# What is assumed until the data set is read: how many examples the search split has, and the fraction of `max_length`
# that a sentence fills on average.
SEARCH_ROWS, FILLED = 2_000, 1 / 3
# The rows that are encoded to count tokens, and the number of classes of a model whose size is estimated.
SAMPLE, CLASSES = 500, 2
# To keep a part of the teacher's score, the search first trains the best baseline within about this many budgets.
BUDGETS_TRIED = 5
# Sentences of the pass by which the machine's speed is measured.
SENTENCES = 32


def measure_speed(
    base: Base, graph: FFNGraph, teacher: PretrainedConfig, tokens: int, device: str, mixed_precision: MixedPrecision
) -> float:
    """The multiply-accumulates per second of this machine in forward passes of the base model with random weights."""
    accelerator = make_accelerator(device, mixed_precision)
    architecture = Architecture.uniform(base, graph)
    with torch.random.fork_rng(devices=[]):
        model = build(architecture, template=teacher).eval().to(accelerator.device)
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
        train: the number of encoded training rows; None if they have not been read.
        search: the number of encoded rows of the search split.
        windows: encoded rows of a text or question, on average.
    """

    tokens: int
    train: int | None = None
    search: int = SEARCH_ROWS
    windows: float = 1.0

    @classmethod
    def of(cls, config: StudyConfig, data: Path, rows: TaskData[Any] | None = None, tokenizer: Any = None) -> "Sizes":
        """Those of the encoded examples in a folder of the cache. If it does not exist, those of the `rows`, some of
        which are encoded; without them, assumptions.
        """
        if not data.exists():
            if rows is None:
                return cls(max(1, round(FILLED * config.row_length)))
            some = rows.train.take(range(0, len(rows.train), -(-len(rows.train) // SAMPLE)))
            kind, long_texts = rows.task.task_type, config.long_texts
            encoded = encode(tokenizer, some, config.row_length, task_type=kind, long_texts=long_texts)
            each = len(encoded) / len(some)
            train, search = (round(each * len(split)) for split in (rows.train, rows.search))
            return cls(round(float(encoded.lengths.mean())), train, search, each)
        training, held_out = (load_encoded(data / f"{name}.npz") for name in ("train", "search"))
        windows = 1.0 if held_out.sources is None else len(held_out) / len(np.unique(held_out.sources))
        return cls(round(float(training.lengths.mean())), len(training), len(held_out), windows)


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

    def parts(self, entries: Iterable[Entry], stages: Sequence[str], measured: bool = True) -> list[Part]:
        """The parts of a search, in order: making those of the entries that are not in the cache, and then for each
        stage its trials and the confirmation of its finalists.

        Args:
            measured: whether the latency table is in the cache, if one is needed.
        """
        parts = self._single(work for entry in entries if not entry.exists for work in entry.work)
        confirmation = self.training(self.sizes.search, taught=True)
        if not measured:
            layers = max(LAYERS, LAYERS_OF_WIDTH * len(self.config.space.expansions))
            parts.append(Part("latency table", 1, layers * LATENCY[self.config.deployment.runtime]))
        if self.config.keep is not None:
            confirmed = BUDGETS_TRIED * self.config.stage1.confirm_seeds
            parts.append(Part(BUDGET, confirmed, confirmation, START * (confirmed > 0)))
        for stage in stages:
            table = self.config.stage(stage)
            # At most the best candidates, the best baseline, and global importance; the architecture that a later stage
            # refines has been confirmed before.
            confirmed = (table.confirm + (2 if stage == stages[0] else 1)) * table.confirm_seeds
            parts += self._single(MODES[table.evaluation].work(self.config))
            parts.append(Part(f"stage {stage}", table.trials, self.trial(table, stage), START))
            parts.append(Part(f"confirmation of stage {stage}", confirmed, confirmation, START * (confirmed > 0)))
        return parts

    def trial(self, table: StageTable, stage: str) -> float:
        """Seconds of one trial of a stage."""
        mode, tasks = MODES[table.evaluation], len(self.config.scored_tasks(stage))
        if mode.trains:
            part = 1 if table.search_fraction is None else table.search_fraction
            rows = self.sizes.search + (self.sizes.train or 0)
            return self.training(min(self.sizes.search, max(1, round(part * rows))))
        texts = mode.examples(self.config, table)
        scored = self.sizes.search if texts is None else min(round(texts * self.sizes.windows), self.sizes.search)
        work = [Work("scoring", self.student, scored)]
        if mode.inheritance(self.config) == "compensated":
            work.append(Work("compensation", self.student, self.config.supernet.calibration_rows, 2))
        return OVERHEAD + tasks * self.seconds(work)

    def training(self, scored: int, taught: bool = False) -> float:
        """Seconds of the training of one candidate and its evaluation on so many rows.

        Args:
            taught: whether the teacher runs in every step, as its outputs are not saved for fresh seeds.
        """
        tables = (self.config.candidate_pretrain, self.config.candidate)
        work = [Work("training", self.student, table, TRAINING) for table in tables]
        if taught:
            work += [Work("teacher", teacher_of(self.config), table) for table in tables]
        return OVERHEAD + self.seconds([*work, Work("scoring", self.student, scored)])

    def seconds(self, work: Iterable[Work]) -> float:
        macs = sum(
            each.passes * self._sentences(each.sentences) * cost.macs(each.architecture, self.sizes.tokens)
            for each in work
        )
        return macs / self.macs_per_second

    def _single(self, work: Iterable[Work]) -> list[Part]:
        """A part of its own for each computation."""
        return [Part(each.what, 1, self.seconds([each])) for each in work]

    def _sentences(self, number: float | RecipeTable | None) -> float:
        """A number of sentences; of a training 0 if it depends on the number of examples and that is not known."""
        if not isinstance(number, RecipeTable):
            return number or 0
        if number.steps is None and self.sizes.train is None:
            return 0
        recipe = number.build(max(1, round(number.fraction * (self.sizes.train or 0))))
        return recipe.steps * recipe.batch_size * recipe.gradient_accumulation_steps


def expected_parts(config: StudyConfig, entries: Iterable[Entry], stages: Sequence[str], data: Path) -> list[Part]:
    """The parts of a search, in order. Only the proportions of their seconds are meaningful, as the speed of this
    machine has not been measured.

    Args:
        data: the folder of the encoded examples.
    """
    return Estimator(config, Sizes.of(config, data), 5e10, usual_candidate(config)).parts(entries, stages)


def usual_candidate(config: StudyConfig) -> Architecture:
    """The uniform slice within the budget, as far as that is known before anything is measured: a limit on the latency
    that is relative to the teacher's counts as one on the MACs.
    """
    space, (base, graph) = config.space, base_of_study(config)
    widest = Architecture.uniform(base, graph, expansion=space.uniform or max(space.expansions))
    macs = [] if space.max_macs is None else [space.max_macs]
    if space.max_latency is not None and (limit := parse_latency(space.max_latency)).relative:
        macs.append(int(limit.value * cost.macs(teacher_of(config))))
    limited = config.with_table("space", max_macs=min(macs, default=None))
    limits, most = closed_limits(limited, base, CLASSES, CLASSIFIER), space.max_params or cost.params(widest, CLASSES)
    whole, least = base_model(config, base, graph), min(1, *space.stacks)
    return largest_uniform(whole, CLASSES, most, limits, CLASSIFIER, least, space.varies_heads)

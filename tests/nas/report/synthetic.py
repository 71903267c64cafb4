"""Studies with invented scores, written by the ledger as a search writes them."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import optuna

from distill.tasks.metrics import CLASS_ACCURACY
from nas.config.load import load_config
from nas.planning.finalists import confirmations, finalists, summary
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, ROWS, TEACHER, score_attribute
from nas.study.contributions import encode
from nas.study.folder import Folder
from nas.study.names import CONFIRMATION, REFERENCE
from search_spaces import DENSE, FFN, Architecture, Base, Experts, Space, cost
from search_spaces.equivalence import function_key
from search_spaces.graph import GELU
from search_spaces.spaces import GRAPHS, SIZES

BASE = Base(depth=6, width=48, heads=4, inner=192, vocabulary=500, positions=64)
EXPANSIONS = tuple(Fraction(1, part) for part in (24, 12, 8, 6, 4, 3, 2))
SLICE = Architecture.uniform(BASE, expansion=Fraction(1, 4))
# As many inner neurons as the slice, more of them in the lower layers.
SLOPE = Architecture.of_ffns(BASE, tuple(FFN(GELU, 1, Fraction(width, 192)) for width in (96, 72, 48, 36, 24, 12)))
LARGEST = cost.params(SLICE, 2)
SPACE = Space(
    BASE,
    {"stack": (0, 1, 2), "expansion": EXPANSIONS},
    LARGEST - 12_000,
    LARGEST + 200,
    mutation_rate=0.4,
    num_labels=2,
)
SPLIT = Experts(4, Fraction(2, 3), "token_gate")
ROW_COUNT = 400
TASK = "word_order"


def worth(architecture: Architecture) -> float:
    """The invented true score: lower layers need more neurons, and tanh is bad."""
    worths = []
    for layer, ffn in enumerate(architecture.ffns):
        size = ffn.stack * ffn.inner(BASE) / 192
        penalty = 0.2 if "tanh" in str(ffn.graph) else 0.0
        worths.append((6 - layer) * (size**0.5 - penalty))
    return 0.6 + 0.012 * sum(worths)


def write(
    path: Path,
    trials: int = 40,
    goals: Sequence[str] = ("score",),
    stages: Sequence[str] = ("1",),
    experts: bool = False,
    unfinished: bool = False,
    sampler: str = "random",
    rows_of_confirmations: bool = True,
    config: str = "demo-ffn",
) -> Path:
    """Write a study's folder.

    Args:
        goals: of all stages; with "fidelity" the trials have the task's metric as an attribute.
        experts: whether the space has layers of experts.
        unfinished: the last stage is interrupted: it has no best.json, and a trial that was running.
    """
    folder = Folder(path)
    folder.create(load_config(config, {"tasks": [TASK]}))
    rng = random.Random(0)
    winner = None
    for stage in stages:
        space = (
            replace(SPACE, genes={**SPACE.genes, "experts": (DENSE, SPLIT)}, max_params=LARGEST + 60_000)
            if experts
            else SPACE
        )
        if winner is not None:
            vary = frozenset({GRAPHS}) if stage == "2" else frozenset({SIZES})
            space = replace(space, start=winner, vary=vary, min_params=1)
        folder.stage(stage).mkdir()
        study = ledger.open_study(folder.storage, f"{path.name}/stage-{stage}", SAMPLERS[sampler](space, 0), goals)
        study.set_user_attr(TEACHER, {"task": TASK, "score": 0.875})
        if winner is None and trials:
            _refer(folder, space, goals)
        _search(study, space, trials, sampler, winner, rng)
        if unfinished and stage == stages[-1]:
            ledger.ask(study, space, sampler)
        else:
            winner = _confirm(folder, stage, study, space, rng, rows_of_confirmations)
    return path


def _refer(folder: Folder, space: Space, goals: Sequence[str]) -> None:
    """Evaluate the base model in the study of reference models."""
    study = ledger.open_study(folder.storage, f"{folder.path.name}/{REFERENCE}", goals=goals)
    ledger.enqueue(study, space, Architecture.uniform(BASE), "base model")
    _, architecture = ledger.ask(study, space, "")
    further = {"standard_error": 0.01, "seconds": 1.25, score_attribute(TASK): worth(architecture) - 0.1}
    ledger.complete(study, 0, worth(architecture), further)


def _search(
    study: optuna.Study, space: Space, trials: int, sampler: str, winner: Architecture | None, rng: random.Random
) -> None:
    """Run the trials of a stage, some of which are pruned or fail."""
    baselines = [(SLICE, "uniform slice", None), (SLOPE, "global importance", None)]
    if winner is not None:
        baselines = [(winner, "winner so far", None)]
    ledger.enqueue_missing(study, space, baselines)
    while ledger.counted(study) < trials:
        trial, architecture = ledger.ask(study, space, sampler)
        if ledger.resolve_duplicate(study, trial.number):
            continue
        score = worth(architecture) + rng.gauss(0, 0.01)
        if trial.number > 5 and trial.number % 17 == 0:
            ledger.fail(study, trial.number, "diverged: the loss is <nan> at step 3")
        elif trial.number > 5 and trial.number % 11 == 0:
            ledger.report(study, trial.number, 30, score - 0.05)
            ledger.prune(study, trial.number, 30, {"seconds": 0.5})
        else:
            loads = [{"layer": 0, "part": "ffn", "shares": [0.4, 0.3, 0.2, 0.1]}] if architecture.has_experts else None
            further = {"standard_error": 0.01, "seconds": 1.25, score_attribute(TASK): score - 0.1}
            ledger.complete(study, trial.number, score, further | ({EXPERT_LOAD: loads} if loads else {}))


def _confirm(
    folder: Folder, stage: str, study: optuna.Study, space: Space, rng: random.Random, with_rows: bool
) -> Architecture:
    """Confirm the finalists with two seeds and write best.json, as the search does; returns the winner."""
    ranked = finalists(study, 3)
    confirmation = ledger.open_study(folder.storage, f"{folder.path.name}/{CONFIRMATION}")
    wanted = [
        (ledger.architecture_of(trial), f"stage-{stage} trial {trial.number}", seed)
        for seed in (1, 2)
        for trial in ranked
    ]
    ledger.enqueue_missing(confirmation, space, wanted, vary=frozenset({GRAPHS, SIZES}))
    while ledger.waiting(confirmation):
        trial, architecture = ledger.ask(confirmation, space, "confirmation")
        if ledger.resolve_duplicate(confirmation, trial.number):
            continue
        right = np.array([rng.random() < worth(architecture) for _ in range(ROW_COUNT)], float)
        rows = {ROWS: encode(right)} if with_rows else {}
        ledger.complete(confirmation, trial.number, right.mean(), {"standard_error": 0.02, "seconds": 20.0, **rows})
    functions = [function_key(ledger.architecture_of(trial)) for trial in ranked]
    best = summary(ranked, confirmations(confirmation, functions, (1, 2)), study, CLASS_ACCURACY)
    folder.best(stage).write_text(json.dumps(best))
    winner = Architecture.from_json(best["winner"]["architecture"])
    winner.save(folder.architecture)
    return winner

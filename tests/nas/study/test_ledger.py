"""Optuna studies: asking for trials, recording results, and resuming after an interruption."""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from distill.tasks.types import TASK_TYPES
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import attribute
from nas.study.storage import sqlite_url
from search_spaces import Architecture, Base, PredictionHead, Space, cost
from tests.tiny import architectures

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
MIDDLE = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 3)
EXPANSIONS = (Fraction(1), Fraction(1, 2), Fraction(1, 4))
SPACE = Space(BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, MIDDLE - 2000, MIDDLE, mutation_rate=0.5)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


@pytest.fixture
def study(url: str) -> Iterator[optuna.Study]:
    study = ledger.open_study(url, "stage-1", SAMPLERS["random"](SPACE, 0))
    yield study
    close(study)


def close(study: optuna.Study) -> None:
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def memory(sampler: str = "random", seed: int = 0) -> optuna.Study:
    return optuna.create_study(direction="maximize", sampler=SAMPLERS[sampler](SPACE, seed))


def ask(study: optuna.Study) -> tuple[int, Architecture]:
    trial, architecture = ledger.ask(study, SPACE, "random")
    return trial.number, architecture


def test_enqueued_architectures_come_first_and_whole(study: optuna.Study) -> None:
    """This includes architectures that are not in the space, such as the base model."""
    queue = list(architectures(3, BASE))
    for number, architecture in enumerate(queue):
        ledger.enqueue(study, SPACE, architecture, f"baseline {number}", seed=5 if number else None)
    assert [ask(study)[1] for _ in queue] == queue
    number, drawn = ask(study)
    trials = study.get_trials()
    assert [trial.user_attrs[ledger.ORIGIN] for trial in trials] == [*(f"baseline {i}" for i in range(3)), "random"]
    assert [trial.user_attrs.get(ledger.SEED) for trial in trials] == [None, 5, 5, None]
    for trial, architecture in zip(trials, [*queue, drawn], strict=True):
        assert ledger.architecture_of(trial) == architecture
        assert json.loads(attribute(trial, "architecture")) == architecture.to_json()
        assert trial.user_attrs["params"] == cost.params(architecture, 3)
        assert trial.user_attrs["params_active"] == cost.params_active(architecture, 3)
        assert trial.user_attrs["macs"] == cost.macs(architecture, num_labels=3)


@pytest.mark.parametrize("head", [kind.head for kind in TASK_TYPES.values()], ids=TASK_TYPES)
def test_costs_are_those_of_the_model_with_its_head(study: optuna.Study, head: cost.HeadCost) -> None:
    less = cost.head_params(BASE, PredictionHead(), 3) - cost.head_params(BASE, PredictionHead(), 3, head)
    space = replace(SPACE, head=head, min_params=SPACE.min_params - less, max_params=SPACE.max_params - less)
    trial, architecture = ledger.ask(study, space, "random")
    facts = trial.user_attrs
    assert facts["params"] == cost.params(architecture, 3, head) <= space.max_params
    assert facts["params_active"] == cost.params_active(architecture, 3, head)
    assert facts["macs"] == cost.macs(architecture, num_labels=3, head=head)
    assert facts[ledger.WITHIN_BUDGET]


def test_ends_of_a_trial(study: optuna.Study, url: str) -> None:
    for _ in range(4):
        ask(study)
    ledger.report(study, 0, 0, 0.5)
    ledger.report(study, 0, 30, 0.6)
    ledger.complete(study, 0, 0.7, {"standard_error": 0.01})
    ledger.fail(study, 1, "diverged: the loss is nan at step 3")
    other = ledger.open_study(url, "stage-1")
    trials = other.get_trials()
    close(other)
    complete, running, failed = TrialState.COMPLETE, TrialState.RUNNING, TrialState.FAIL
    assert [trial.state for trial in trials] == [complete, failed, running, running]
    assert trials[0].value == 0.7
    assert trials[0].intermediate_values == {0: 0.5, 30: 0.6}
    assert trials[0].user_attrs["standard_error"] == 0.01
    assert trials[1].value is None
    assert trials[1].user_attrs[ledger.FAILURE] == "diverged: the loss is nan at step 3"
    assert [trial.number for trial in ledger.finished(study)] == [0, 1]
    assert [trial.number for trial in ledger.scored(study)] == [0]


def test_running_trials_are_requeued_after_a_kill(study: optuna.Study) -> None:
    special = next(architectures(1, BASE))
    ledger.enqueue(study, SPACE, special, "base model", seed=3)
    asked = [ask(study)[1] for _ in range(4)]
    ledger.complete(study, 1, 0.5, {})
    assert ledger.requeue_unfinished(study) == 3
    before = study.get_trials()
    assert [trial.number for trial in ledger.waiting(study)] == [0, 2, 3]
    assert [ask(study) for _ in range(3)] == [(0, asked[0]), (2, asked[2]), (3, asked[3])]
    trials = study.get_trials()
    assert [trial.user_attrs for trial in trials] == [trial.user_attrs for trial in before]
    assert [trial.params for trial in trials] == [trial.params for trial in before]
    assert trials[0].user_attrs[ledger.SEED] == 3
    assert [trial.number for trial in ledger.finished(study)] == [1]
    assert ledger.requeue_unfinished(study) == 3
    assert ledger.requeue_unfinished(study) == 0


def test_an_interrupted_sequence_of_draws_is_the_uninterrupted_one(study: optuna.Study) -> None:
    """Whatever was running at each interruption, every architecture is finished exactly once."""
    whole = memory()
    expected = [ask(whole)[1] for _ in range(30)]
    rng = random.Random(0)
    finished: list[Architecture] = []
    running: dict[int, Architecture] = {}
    while len(finished) < 30:
        while len(running) < min(3, 30 - len(finished)):
            number, architecture = ask(study)
            running[number] = architecture
        if rng.random() < 0.3:
            assert ledger.requeue_unfinished(study) == len(running)
            running = {}
        else:
            number = rng.choice(list(running))
            if rng.random() < 0.2:
                ledger.fail(study, number, "diverged")
            else:
                ledger.complete(study, number, rng.random(), {})
            finished.append(running.pop(number))
    assert sorted(map(repr, finished)) == sorted(map(repr, expected))
    assert len(ledger.finished(study)) == 30

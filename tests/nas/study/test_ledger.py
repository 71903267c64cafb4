"""Optuna studies: asking for trials, recording results, and resuming after an interruption."""

import json
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
from search_spaces import Architecture, PredictionHead, Space, cost
from tests.tiny import BASE, architectures

MIDDLE = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 3)
EXPANSIONS = (Fraction(1), Fraction(1, 2), Fraction(1, 4))
SPACE = Space(BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, MIDDLE - 2000, MIDDLE, mutation_rate=0.5)
WAITING, RUNNING, COMPLETE = TrialState.WAITING, TrialState.RUNNING, TrialState.COMPLETE
PRUNED, FAIL = TrialState.PRUNED, TrialState.FAIL


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


@pytest.fixture
def study(url: str) -> optuna.Study:
    return ledger.open_study(url, "stage-1", SAMPLERS["random"](SPACE, 0))


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
    ledger.prune(study, 2, 30, {"standard_error": 0.02})
    trials = ledger.open_study(url, "stage-1").get_trials()
    assert [trial.state for trial in trials] == [COMPLETE, FAIL, PRUNED, RUNNING]
    assert trials[0].value == 0.7
    assert trials[0].intermediate_values == {0: 0.5, 30: 0.6}
    assert trials[0].user_attrs["standard_error"] == 0.01
    assert trials[1].value is None
    assert trials[1].user_attrs[ledger.FAILURE] == "diverged: the loss is nan at step 3"
    assert {"rung": 30, "standard_error": 0.02}.items() <= trials[2].user_attrs.items()
    assert [trial.number for trial in ledger.finished(study)] == [0, 1, 2]
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


def written(*rows: tuple[TrialState, str, dict[str, object]]) -> optuna.Study:
    """A study of trials in these states, whose architectures compute these functions; with further attributes."""
    study = memory()
    drawn = list(architectures(len(rows), BASE))
    for (state, function, attributes), architecture in zip(rows, drawn, strict=True):
        study.add_trial(
            optuna.create_trial(
                state=state,
                value=0.5 if state == COMPLETE else None,
                user_attrs=attributes,
                system_attrs={"function": function, "architecture": json.dumps(architecture.to_json())},
            )
        )
    return study


def test_which_of_ten_trials_are_duplicates() -> None:
    """Of the first that computes the same with the same seed, was asked for, and is no duplicate itself."""
    study = written(
        (COMPLETE, "a", {"within_budget": True, "attempt": 2}),
        (WAITING, "b", {}),
        (RUNNING, "b", {"duplicate_of": 1}),
        (COMPLETE, "c", {"seed": 1, "within_budget": False}),
        (FAIL, "d", {"failure": "diverged"}),
        (RUNNING, "e", {}),
        (PRUNED, "f", {"rung": 30}),
        (RUNNING, "c", {"seed": 1}),
        (RUNNING, "c", {"seed": 2}),
        (RUNNING, "a", {}),
    )
    assert ledger.trailing_duplicates(study) == 0 and ledger.counted(study) == 8
    assert [trial.number for trial in ledger.running(study)] == [5, 7, 8, 9]
    assert [trial.number for trial in ledger.finished(study)] == [0, 3, 4, 6]
    assert [trial.number for trial in ledger.ranked(study)] == [0]
    assert [ledger.resolve_duplicate(study, number) for number in range(10)] == [False] * 7 + [True, False, True]
    assert [trial.user_attrs.get("duplicate_of") for trial in study.trials[7:]] == [3, None, 0]
    assert [trial.state for trial in study.trials[7:]] == [COMPLETE, RUNNING, COMPLETE]
    assert study.trials[9].user_attrs == {"within_budget": True, "duplicate_of": 0}  # and its own first attempt
    assert ledger.trailing_duplicates(study) == 1 and ledger.counted(study) == 6
    assert [seen.key for seen in ledger.history(study)] == [*"abcdefc"]
    assert [seen.values for seen in ledger.history(study)] == [(0.5,), None, (0.5,), None, None, None, None]
    for function, state, attributes in (("d", FAIL, {"failure": "diverged"}), ("f", PRUNED, {"rung": 30})):
        study.add_trial(optuna.create_trial(state=RUNNING, system_attrs={"function": function}))
        number = len(study.trials) - 1
        assert ledger.resolve_duplicate(study, number)
        assert study.trials[number].state == state and attributes.items() <= study.trials[number].user_attrs.items()
    assert ledger.trailing_duplicates(study) == 3
    # What a duplicate will get is not known before the trial that it waits for.
    study.add_trial(optuna.create_trial(state=RUNNING, system_attrs={"function": "b"}))
    assert not ledger.resolve_duplicate(study, 12)
    # The duplicate of a trial that runs gets its result when that ends.
    study.add_trial(optuna.create_trial(state=RUNNING, system_attrs={"function": "e"}))
    assert ledger.resolve_duplicate(study, 13) and study.trials[13].state == RUNNING
    ledger.complete(study, 5, 0.75, {})
    assert (study.trials[13].state, study.trials[13].value) == (COMPLETE, 0.75)
    # Or when the study is resumed, should the process have died in between.
    waits = optuna.create_trial(state=RUNNING, user_attrs={"duplicate_of": 3}, system_attrs={"function": "c"})
    study.add_trial(waits)
    assert ledger.requeue_unfinished(study) == 2 and study.trials[14].state == COMPLETE


@pytest.mark.parametrize(
    ("own", "others", "fraction", "pruned"),
    [
        (0.3, (0.1, 0.2, 0.4, 0.5, 0.6), 0.5, True),  # worse than three of five, not than three of six
        (0.3, (0.1, 0.2, 0.3, 0.5, 0.6), 0.5, False),  # as good as one of them is not worse
        (0.3, (0.1, 0.2, 0.25, 0.4, 0.5, 0.6), 0.5, False),  # half of them is not more than half
        (0.3, (0.4, 0.5, 0.6, 0.7, 0.8), 0.25, True),
        (0.3, (0.4, 0.5, 0.6, 0.7), 0.25, False),  # too few to be judged by
        (0.3, (0.1, 0.5, 0.6, 0.7, 0.8), 0.25, True),
        (0.3, (0.1, 0.2, 0.6, 0.7, 0.8), 0.25, False),
        (0.3, (0.4, 0.5, 0.6, 0.7, 0.8), 0.0, False),
    ],
)
def test_who_is_pruned_at_a_rung(own: float, others: tuple[float, ...], fraction: float, pruned: bool) -> None:
    study = memory()
    # Neither those that have not reached the rung, nor duplicates, count.
    scores = [(score, {}) for score in others] + [(0.9, {"duplicate_of": 0}), (None, {})]
    for score, attributes in [*scores, (own, {})]:
        values = {} if score is None else {30: score}
        hidden = {"choices": {"layer1/size": 0.5}}
        study.add_trial(
            optuna.create_trial(
                state=RUNNING, intermediate_values={0: 0.1, **values}, user_attrs=attributes, system_attrs=hidden
            )
        )
    assert ledger.should_prune(study, len(scores), 30, fraction) == pruned
    study.add_trial(optuna.create_trial(state=RUNNING, intermediate_values={30: own}))
    assert not ledger.should_prune(study, len(scores) + 1, 30, fraction)  # nobody proposed it: it is a baseline


def test_what_is_enqueued_already_is_not_missing() -> None:
    study, (one, other) = memory(), architectures(2, BASE)
    wanted = [(one, "base model", None), (one, "base model", 1), (other, "uniform slice", 1), (other, "random", 2)]
    ledger.enqueue_missing(study, SPACE, wanted[1:3])
    assert ledger.enqueue_missing(study, SPACE, wanted) == 2
    found = [(trial.user_attrs["origin"], trial.user_attrs.get("seed")) for trial in study.trials]
    assert found == [("base model", 1), ("uniform slice", 1), ("base model", None), ("random", 2)]

"""The Optuna studies of a search: the one record that everything else is derived from.

There is one study a stage, named `stage-1` and so on. A trial that ends badly never has a score: it is FAIL with the
attribute `failure`. A trial that was stopped early is PRUNED with its `rung`. A duplicate, which computes what an
earlier trial computed, has that trial's score, and its number as the attribute `twin`. A trial that is cut short,
because its worker or the whole search was killed, is WAITING again: it keeps its number and what was drawn, and is the
next to be asked for.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nas.study.attributes import (
    ARCHITECTURE,
    ATTEMPT,
    CHOICES,
    CONSTRAINTS,
    DUPLICATE_OF,
    FAILURE,
    FUNCTION,
    GOALS,
    IN_BUDGET,
    ORIGIN,
    RUNG,
    SEED,
    choices_of,
    constraints,
    described,
)
from nas.study.parameters import Parameters
from nas.study.storage import open_storage
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# How often a candidate is run whose worker is lost each time: it may be what kills its workers.
MAX_ATTEMPTS = 3
# Other trials that must have reached a rung before a trial is pruned there.
MIN_TRIALS_AT_RUNG = 5


def open_study(
    url: str, name: str, sampler: BaseSampler | None = None, goals: Sequence[str] = ("score",)
) -> optuna.Study:
    """The study `name` in the storage `url`, made if absent. The first goal is the score, to be maximised; another one
    is a cost, by the name of its attribute.

    Raises:
        StorageError: there is no such storage.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=open_storage(url),
        study_name=name,
        sampler=sampler,
        pruner=optuna.pruners.NopPruner(),
        directions=[StudyDirection.MAXIMIZE, *(StudyDirection.MINIMIZE for _ in goals[1:])],
        load_if_exists=True,
    )
    if GOALS not in study.user_attrs:
        study.set_user_attr(GOALS, list(goals))
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(study.user_attrs[GOALS])
    return study


def enqueue(
    study: optuna.Study, parameters: Parameters, architecture: Architecture, origin: str, seed: int | None = None
) -> None:
    """Add a waiting trial of an architecture, which is asked for before the sampler's proposals."""
    attributes: dict[str, Any] = {ARCHITECTURE: json.dumps(architecture.to_json()), ORIGIN: origin}
    if seed is not None:
        attributes[SEED] = seed
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=parameters.values(architecture),
            distributions=parameters.distributions,
            user_attrs=attributes,
        )
    )


def enqueue_missing(
    study: optuna.Study, parameters: Parameters, wanted: Sequence[tuple[Architecture, str, int | None]]
) -> int:
    """Enqueue each (architecture, origin, seed) whose origin and seed the study does not have. Returns how many.

    A search that was killed in between enqueues the rest when it is resumed.
    """
    known = {(trial.user_attrs.get(ORIGIN), trial.user_attrs.get(SEED)) for trial in study.get_trials(deepcopy=False)}
    missing = [row for row in wanted if row[1:] not in known]
    for row in missing:
        enqueue(study, parameters, *row)
    return len(missing)


class _Draft:
    """The choices of a space that a study's sampler makes for a trial, but for those that were fixed before."""

    def __init__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.study = study
        self.trial = trial
        fixed = trial.system_attrs.get("fixed_params", {})
        self.choices: dict[str, str | float] = choices_of(trial.user_attrs, trial.params | fixed)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self._suggest(name, CategoricalDistribution(choices))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self._suggest(name, FloatDistribution(low, high))

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self.choices:
            self.choices[name] = self.study.sampler.sample_independent(self.study, self.trial, name, distribution)
        return self.choices[name]


def ask(study: optuna.Study, space: Space, origin: str, labels: int) -> tuple[FrozenTrial, Architecture]:
    """The next trial: a waiting one, or a proposal of the sampler; what is known of it is written down."""
    if waiting(study):
        number = study.ask().number
        architecture = _complete_waiting(study, number, space, origin, labels)
    else:
        # The trial is drawn before it is written down, in one piece: a kill leaves it whole or not at all.
        trial = optuna.create_trial(state=TrialState.RUNNING)
        number = trial.number = len(study.get_trials(deepcopy=False))
        study.sampler.before_trial(study, trial)
        draft = _Draft(study, trial)
        architecture = space.suggest(draft)
        parameters = Parameters.of(space)
        study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params=parameters.values(architecture),
                distributions=parameters.distributions,
                user_attrs=described(architecture, space, labels) | {ORIGIN: origin, CHOICES: draft.choices},
                system_attrs={CONSTRAINTS: constraints(architecture, space)},
            )
        )
    return study.get_trials(deepcopy=False)[number], architecture


def _complete_waiting(study: optuna.Study, number: int, space: Space, origin: str, labels: int) -> Architecture:
    """Write down what is not yet known of a trial that was enqueued or re-queued; returns its architecture."""
    trial = study.get_trials(deepcopy=False)[number]
    missing: dict[str, Any] = {ORIGIN: origin}
    if ARCHITECTURE in trial.user_attrs:
        architecture = _parsed(trial.user_attrs[ARCHITECTURE])
    else:  # `Study.enqueue_trial` with some choices of the space, or none
        draft = _Draft(study, trial)
        architecture = space.suggest(draft)
        missing[CHOICES] = draft.choices
        parameters = Parameters.of(space)
        for name, value in parameters.values(architecture).items():
            distribution = parameters.distributions[name]
            internal = distribution.to_internal_repr(value)
            study._storage.set_trial_param(trial._trial_id, name, internal, distribution)
    missing |= described(architecture, space, labels)
    _set(study, number, {key: value for key, value in missing.items() if key not in trial.user_attrs})
    if CONSTRAINTS not in trial.system_attrs:
        study._storage.set_trial_system_attr(trial._trial_id, CONSTRAINTS, constraints(architecture, space))
    return architecture


def resolve_duplicate(study: optuna.Study, number: int) -> bool:
    """Whether a trial is a duplicate: an earlier one computes the same with the same seed.

    A duplicate gets the result of that trial; where that is still running, when it ends.
    """
    trials = study.get_trials(deepcopy=False)
    attributes = trials[number].user_attrs
    for earlier in trials[:number]:
        if (
            earlier.user_attrs.get(FUNCTION) == attributes[FUNCTION]
            and earlier.user_attrs.get(SEED) == attributes.get(SEED)
            and DUPLICATE_OF not in earlier.user_attrs
            and earlier.state != TrialState.WAITING
        ):
            _set(study, number, {DUPLICATE_OF: earlier.number})
            if earlier.state.is_finished():
                _copy_result(study, earlier, number)
            return True
    return False


def _copy_result(study: optuna.Study, earlier: FrozenTrial, number: int) -> None:
    known = study.get_trials(deepcopy=False)[number].user_attrs.keys() | {CHOICES}
    _set(study, number, {key: value for key, value in earlier.user_attrs.items() if key not in known})
    _end(study, number, earlier.state, earlier.values if earlier.state == TrialState.COMPLETE else None)


def _end(study: optuna.Study, number: int, state: TrialState, values: Sequence[float] | None = None) -> None:
    """Write down the end of a trial, and copy its result to the duplicates that wait for it."""
    # Not by `Study.tell`, which reads the trial twice more.
    study._storage.set_trial_state_values(_trial_id(study, number), state, values)
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state == TrialState.RUNNING and trial.user_attrs.get(DUPLICATE_OF) == number:
            _copy_result(study, trials[number], trial.number)


def complete(study: optuna.Study, number: int, score: float, attributes: Mapping[str, Any]) -> None:
    """Record a finished trial with its score, and with its cost where that is the study's second goal."""
    known = study.get_trials(deepcopy=False)[number].user_attrs
    _set(study, number, attributes)
    costs = [known[goal] for goal in study.user_attrs.get(GOALS, ["score"])[1:]]
    _end(study, number, TrialState.COMPLETE, [score, *costs])


def fail(study: optuna.Study, number: int, reason: str) -> None:
    """Record a trial that has no score, and why."""
    _set(study, number, {FAILURE: reason})
    _end(study, number, TrialState.FAIL)


def prune(study: optuna.Study, number: int, step: int, attributes: Mapping[str, Any]) -> None:
    """Record a trial that was stopped after `step` training steps, at which its score was reported."""
    _set(study, number, {RUNG: step, **attributes})
    _end(study, number, TrialState.PRUNED)


def requeue_lost(study: optuna.Study, number: int) -> None:
    """Record that the worker of a trial was lost, and re-queue the trial unless that happened too often."""
    attempt = study.get_trials(deepcopy=False)[number].user_attrs.get(ATTEMPT, 1)
    if attempt >= MAX_ATTEMPTS:
        fail(study, number, f"the worker was lost {attempt} times")
    else:
        _set(study, number, {ATTEMPT: attempt + 1})
        _requeue(study, number)


def report(study: optuna.Study, number: int, step: int, score: float) -> None:
    """Record the intermediate value of a trial after `step` training steps."""
    # Not by `Trial.report`, which keeps what an earlier attempt reported.
    study._storage.set_trial_intermediate_value(_trial_id(study, number), step, score)


def _trial_id(study: optuna.Study, number: int) -> int:
    return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)


def _set(study: optuna.Study, number: int, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        study._storage.set_trial_user_attr(_trial_id(study, number), key, value)


def _requeue(study: optuna.Study, number: int) -> None:
    # One write: whenever the process dies, the trial is there, once, and in its place before later ones.
    study._storage.set_trial_state_values(_trial_id(study, number), TrialState.WAITING)


def requeue_unfinished(study: optuna.Study) -> int:
    """After a process died: re-queue the trials that it left RUNNING, but for duplicates, which get their results or
    wait for them. Returns how many.
    """
    unfinished = running(study)
    for trial in unfinished:
        _requeue(study, trial.number)
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state == TrialState.RUNNING and trials[trial.user_attrs[DUPLICATE_OF]].state.is_finished():
            _copy_result(study, trials[trial.user_attrs[DUPLICATE_OF]], trial.number)
    return len(unfinished)


def waiting(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were enqueued or re-queued and wait to be asked for."""
    return study.get_trials(deepcopy=False, states=(TrialState.WAITING,))


def running(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are being evaluated."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in trials if DUPLICATE_OF not in trial.user_attrs]


def should_prune(study: optuna.Study, number: int, step: int, share: float) -> bool:
    """Whether a trial's intermediate value after `step` training steps is among the lowest `share` of all trials that
    reached that step.

    Enqueued trials, which are there for comparison, are never pruned, nor is any trial before `MIN_TRIALS_AT_RUNG`
    others reached the step.
    """
    trials = study.get_trials(deepcopy=False)
    if not share or not choices_of(trials[number].user_attrs, trials[number].params):
        return False
    others = [
        trial.intermediate_values[step]
        for trial in trials
        if step in trial.intermediate_values and trial.number != number and DUPLICATE_OF not in trial.user_attrs
    ]
    better = sum(value > trials[number].intermediate_values[step] for value in others)
    return len(others) >= MIN_TRIALS_AT_RUNG and better > (1 - share) * len(others)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were evaluated and need not run again: with a score, pruned, or with a failure of their own."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    return [trial for trial in trials if DUPLICATE_OF not in trial.user_attrs]


def counted(study: optuna.Study) -> int:
    """How many trials are `running` or `finished`."""
    trials = study.get_trials(deepcopy=False)
    return sum(trial.state != TrialState.WAITING and DUPLICATE_OF not in trial.user_attrs for trial in trials)


def trailing_duplicates(study: optuna.Study) -> int:
    """How many of the latest trials, one after the other, are duplicates."""
    trials = study.get_trials(deepcopy=False)
    return sum(1 for _ in takewhile(lambda trial: DUPLICATE_OF in trial.user_attrs, reversed(trials)))


@dataclass(frozen=True)
class Observation:
    """What samplers know of a trial that is running or has ended.

    `values` are the score, to be maximised, and the cost that is a study's second goal, to be minimised; None unless
    the trial is COMPLETE.
    """

    architecture: Architecture
    key: str
    state: TrialState
    values: tuple[float, ...] | None


def history(study: optuna.Study) -> list[Observation]:
    """All trials that were asked for, in order, without duplicates."""
    return [
        Observation(
            _parsed(trial.user_attrs[ARCHITECTURE]),
            trial.user_attrs[FUNCTION],
            trial.state,
            tuple(trial.values) if trial.state == TrialState.COMPLETE else None,
        )
        for trial in study.get_trials(deepcopy=False)
        if FUNCTION in trial.user_attrs and DUPLICATE_OF not in trial.user_attrs
    ]


def scored(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score, in order of their numbers."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score whose architecture keeps the budget, the best score first."""
    trials = [trial for trial in scored(study) if trial.user_attrs[IN_BUDGET]]
    return sorted(trials, key=lambda trial: (-trial.values[0], trial.number))


def architecture_of(trial: FrozenTrial) -> Architecture:
    """The architecture that a trial evaluated."""
    return _parsed(trial.user_attrs[ARCHITECTURE])


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> Architecture:
    return Architecture.from_json(json.loads(text))

"""Reads and writes the Optuna studies of a search, from which everything else can be derived.

There is one study per stage (`nas.study.names`). A trial that failed is FAIL, with the attribute `failure` and
without a score. A pruned trial is PRUNED, with the attribute `rung`. A duplicate, which computes the same function as
an earlier trial, has that trial's score, and its number as the attribute `duplicate_of`. A trial that is interrupted
because its worker or the whole search was killed is re-queued: it becomes WAITING, keeps its number and its
architecture, and is asked for next.
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
    FOR_PROGRAMS,
    FUNCTION,
    GOALS,
    ORIGIN,
    RUNG,
    SEED,
    WITHIN_BUDGET,
    attribute,
    goals_of,
)
from nas.study.description import Parameters, architecture_attributes, choices_of, constraints, identity
from nas.study.storage import open_storage, storage_of, trial_id
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# After this many attempts a candidate whose worker is lost every time fails, as it may be what kills its workers.
MAX_ATTEMPTS = 3
# No trial is pruned at a rung before this many other trials have reached it.
MIN_TRIALS_AT_RUNG = 5


def open_study(
    url: str, name: str, sampler: BaseSampler | None = None, goals: Sequence[str] = ("score",), new: bool = False
) -> optuna.Study:
    """Open the study `name` in the storage `url`, or create it.

    Args:
        goals: the names of the objectives: the score, which is maximized, and possibly the attribute of a cost, which
            is minimized.
        new: whether the study must not exist.

    Raises:
        StorageError: the storage cannot be opened.
        optuna.exceptions.DuplicatedStudyError: the study exists, but is to be new.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=open_storage(url),
        study_name=name,
        sampler=sampler,
        pruner=optuna.pruners.NopPruner(),
        directions=[StudyDirection.MAXIMIZE, *(StudyDirection.MINIMIZE for _ in goals[1:])],
        load_if_exists=not new,
    )
    if GOALS not in study.user_attrs:
        study.set_user_attr(GOALS, list(goals))
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            study.set_metric_names(study.user_attrs[GOALS])
    return study


def enqueue(
    study: optuna.Study,
    space: Space,
    architecture: Architecture,
    origin: str,
    seed: int | None = None,
    vary: frozenset[str] | None = None,
) -> None:
    """Enqueue an architecture as a waiting trial, which `ask` returns before any proposal of the sampler.

    Args:
        vary: see `Parameters.of`.
    """
    parameters = Parameters.of(space, vary)
    study.add_trial(
        optuna.create_trial(
            state=TrialState.WAITING,
            params=parameters.values(architecture),
            distributions=parameters.distributions,
            user_attrs={ORIGIN: origin} | ({} if seed is None else {SEED: seed}),
            system_attrs={ARCHITECTURE: json.dumps(architecture.to_json())},
        )
    )


def enqueue_missing(
    study: optuna.Study,
    space: Space,
    wanted: Sequence[tuple[Architecture, str, int | None]],
    vary: frozenset[str] | None = None,
) -> int:
    """Enqueue each (architecture, origin, seed) unless the study has a trial of this origin and seed; returns how many
    were enqueued. A search that was killed in the middle of this enqueues the rest when it is resumed.
    """
    known = {(trial.user_attrs.get(ORIGIN), trial.user_attrs.get(SEED)) for trial in study.get_trials(deepcopy=False)}
    missing = [entry for entry in wanted if entry[1:] not in known]
    for entry in missing:
        enqueue(study, space, *entry, vary)
    return len(missing)


class _Draft:
    """The choices of the space that the study's sampler makes for a new trial."""

    def __init__(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self.study = study
        self.trial = trial
        self.choices: dict[str, str | float] = {}

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self._suggest(name, CategoricalDistribution(choices))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self._suggest(name, FloatDistribution(low, high))

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        if name not in self.choices:
            self.choices[name] = self.study.sampler.sample_independent(self.study, self.trial, name, distribution)
        return self.choices[name]


def ask(study: optuna.Study, space: Space, origin: str) -> tuple[FrozenTrial, Architecture]:
    """The next trial and its architecture: a waiting trial, or else a proposal of the sampler. Its attributes are
    recorded in the study.
    """
    if waiting(study):
        number = study.ask().number
        # Record the attributes of a trial that was enqueued, unless it was re-queued and has them.
        trial = study.get_trials(deepcopy=False)[number]
        architecture = architecture_of(trial)
        wanted = architecture_attributes(architecture, space) | identity(architecture)
        wanted[CONSTRAINTS] = constraints(architecture, space)
        _set(study, number, {key: value for key, value in wanted.items() if attribute(trial, key) is None})
    else:
        # The trial is sampled first and then recorded in one write, so that a kill leaves it complete or absent.
        trial = optuna.create_trial(state=TrialState.RUNNING)
        number = trial.number = len(study.get_trials(deepcopy=False))
        study.sampler.before_trial(study, trial)
        draft = _Draft(study, trial)
        architecture = space.suggest(draft)
        parameters = Parameters.of(space)
        hidden = {CHOICES: draft.choices, CONSTRAINTS: constraints(architecture, space)}
        study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params=parameters.values(architecture),
                distributions=parameters.distributions,
                user_attrs=architecture_attributes(architecture, space) | {ORIGIN: origin},
                system_attrs=identity(architecture) | hidden,
            )
        )
    return study.get_trials(deepcopy=False)[number], architecture


def resolve_duplicate(study: optuna.Study, number: int) -> bool:
    """Whether a trial is a duplicate, which means that an earlier one computes the same function with the same seed.

    A duplicate gets the result of the earlier trial, at once or, if that is still running, when it ends.
    """
    trials = study.get_trials(deepcopy=False)
    function, seed = attribute(trials[number], FUNCTION), trials[number].user_attrs.get(SEED)
    for earlier in trials[:number]:
        if (
            attribute(earlier, FUNCTION) == function
            and earlier.user_attrs.get(SEED) == seed
            and DUPLICATE_OF not in earlier.user_attrs
            and earlier.state != TrialState.WAITING
        ):
            _set(study, number, {DUPLICATE_OF: earlier.number})
            if earlier.state.is_finished():
                _copy_result(study, earlier, number)
            return True
    return False


def _copy_result(study: optuna.Study, earlier: FrozenTrial, number: int) -> None:
    trial = study.get_trials(deepcopy=False)[number]
    # What was drawn, and how many workers the earlier trial lost, is not a result.
    copied = {key: attribute(earlier, key) for key in (earlier.user_attrs.keys() | FOR_PROGRAMS) - {CHOICES, ATTEMPT}}
    missing = {key: value for key, value in copied.items() if attribute(trial, key) is None and value is not None}
    _set(study, number, missing)
    _end(study, number, earlier.state, earlier.values if earlier.state == TrialState.COMPLETE else None)


def _end(study: optuna.Study, number: int, state: TrialState, values: Sequence[float] | None = None) -> None:
    """Record the end of a trial, and copy its result to the duplicates that wait for it."""
    # `Study.tell` is not used because it reads the trial twice more.
    storage_of(study).set_trial_state_values(trial_id(study, number), state, values)
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state == TrialState.RUNNING and trial.user_attrs.get(DUPLICATE_OF) == number:
            _copy_result(study, trials[number], trial.number)


def complete(study: optuna.Study, number: int, score: float, attributes: Mapping[str, Any]) -> None:
    """Record a trial as complete with its score and, if the study has a second goal, its cost."""
    known = study.get_trials(deepcopy=False)[number].user_attrs
    _set(study, number, attributes)
    costs = [known[goal] for goal in goals_of(study)[1:]]
    _end(study, number, TrialState.COMPLETE, [score, *costs])


def fail(study: optuna.Study, number: int, reason: str) -> None:
    _set(study, number, {FAILURE: reason})
    _end(study, number, TrialState.FAIL)


def prune(study: optuna.Study, number: int, step: int, attributes: Mapping[str, Any]) -> None:
    """Record a trial as pruned after `step` training steps, for which an intermediate score was reported."""
    _set(study, number, {RUNG: step, **attributes})
    _end(study, number, TrialState.PRUNED)


def requeue_lost(study: optuna.Study, number: int) -> None:
    """Record that the worker of a trial was lost, and re-queue the trial, or fail it after `MAX_ATTEMPTS` attempts."""
    attempt = study.get_trials(deepcopy=False)[number].user_attrs.get(ATTEMPT, 1)
    if attempt >= MAX_ATTEMPTS:
        fail(study, number, f"the worker was lost {attempt} times")
    else:
        _set(study, number, {ATTEMPT: attempt + 1})
        _requeue(study, number)


def report(study: optuna.Study, number: int, step: int, score: float) -> None:
    """Record the intermediate value of a trial after `step` training steps."""
    # `Trial.report` is not used because it keeps the values that an earlier attempt reported.
    storage_of(study).set_trial_intermediate_value(trial_id(study, number), step, score)


def _set(study: optuna.Study, number: int, attributes: Mapping[str, Any]) -> None:
    storage, own = storage_of(study), trial_id(study, number)
    for key, value in attributes.items():
        if key in FOR_PROGRAMS:
            storage.set_trial_system_attr(own, key, value)
        else:
            storage.set_trial_user_attr(own, key, value)


def _requeue(study: optuna.Study, number: int) -> None:
    # In a single write, so that whenever the process dies the trial exists once and keeps its number.
    storage_of(study).set_trial_state_values(trial_id(study, number), TrialState.WAITING)


def requeue_unfinished(study: optuna.Study) -> int:
    """Re-queue the trials that a killed process left RUNNING; returns how many. Duplicates are not re-queued: they get
    the results that they were waiting for, or keep waiting.
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
    """The trials that were enqueued or re-queued and have not been asked for yet."""
    return study.get_trials(deepcopy=False, states=(TrialState.WAITING,))


def running(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that are being evaluated, without duplicates."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in trials if DUPLICATE_OF not in trial.user_attrs]


def should_prune(study: optuna.Study, number: int, step: int, fraction: float) -> bool:
    """Whether the intermediate value of a trial after `step` training steps is among the lowest `fraction` of all
    trials that reached this step.

    Enqueued trials are never pruned because they are baselines, and no trial is pruned before `MIN_TRIALS_AT_RUNG`
    others have reached the step.
    """
    trials = study.get_trials(deepcopy=False)
    if not fraction or not choices_of(trials[number]):
        return False
    others = [
        trial.intermediate_values[step]
        for trial in trials
        if step in trial.intermediate_values and trial.number != number and DUPLICATE_OF not in trial.user_attrs
    ]
    better = sum(value > trials[number].intermediate_values[step] for value in others)
    return len(others) >= MIN_TRIALS_AT_RUNG and better > (1 - fraction) * len(others)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have ended (complete, pruned or failed), without duplicates."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    return [trial for trial in trials if DUPLICATE_OF not in trial.user_attrs]


def counted(study: optuna.Study) -> int:
    """The number of trials that are `running` or `finished`."""
    trials = study.get_trials(deepcopy=False)
    return sum(trial.state != TrialState.WAITING and DUPLICATE_OF not in trial.user_attrs for trial in trials)


def trailing_duplicates(study: optuna.Study) -> int:
    """The number of consecutive duplicates at the end of the study."""
    trials = study.get_trials(deepcopy=False)
    return sum(1 for _ in takewhile(lambda trial: DUPLICATE_OF in trial.user_attrs, reversed(trials)))


@dataclass(frozen=True)
class Observation:
    """What samplers know about a trial that is running or has ended.

    Attributes:
        key: the fingerprint of the function that the architecture computes.
        values: the score, which is maximized, and if the study has a second goal the cost, which is minimized; None
            unless the trial is COMPLETE.
    """

    architecture: Architecture
    key: str
    state: TrialState
    values: tuple[float, ...] | None


def history(study: optuna.Study) -> list[Observation]:
    """The observations of all trials that were asked for, in order, without duplicates."""
    return [
        Observation(
            architecture_of(trial),
            attribute(trial, FUNCTION),
            trial.state,
            tuple(trial.values) if trial.state == TrialState.COMPLETE else None,
        )
        for trial in study.get_trials(deepcopy=False)
        if attribute(trial, FUNCTION) is not None and DUPLICATE_OF not in trial.user_attrs
    ]


def scored(study: optuna.Study) -> list[FrozenTrial]:
    """The trials with a score, in the order of their numbers."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """The trials with a score whose architecture is within the budget, the best score first."""
    trials = [trial for trial in scored(study) if trial.user_attrs[WITHIN_BUDGET]]
    return sorted(trials, key=lambda trial: (-trial.values[0], trial.number))


def architecture_of(trial: FrozenTrial) -> Architecture:
    return _parsed(attribute(trial, ARCHITECTURE))


@lru_cache(maxsize=100_000)
def _parsed(text: str) -> Architecture:
    return Architecture.from_json(json.loads(text))

"""The Optuna studies of a search: the one record that everything else is derived from.

One study a stage, named `stage-1` and so on. A trial that ends badly never carries a score: it is FAIL with the
attribute `failure`. One that was stopped early is PRUNED with its `rung`. One that computes what an earlier trial
computed has that trial's score, and its number as `twin`. One that is cut short, because its worker or the whole search
was killed, is WAITING again: it keeps its number and what was drawn, and is the next to be asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from nas.study.storage import open_storage
from search_spaces import cost
from search_spaces.architecture import DENSE, Architecture
from search_spaces.equivalence import function_key
from search_spaces.formula import layers_latex
from search_spaces.spaces import Space

ARCHITECTURE, ORIGIN, SEED, FAILURE, IN_BOX = "architecture", "origin", "seed", "failure", "in_box"
FUNCTION, TWIN, RUNG, ATTEMPT, GOALS = "function", "twin", "rung", "attempt", "goals"
EXPERT_LOAD = "expert_load"
# How often a candidate is run whose worker is lost each time: it may be what kills its workers.
ATTEMPTS = 3
# Trials at a rung from which on later ones are compared with them.
CROWD = 5


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
    return study


def enqueue(study: optuna.Study, architecture: Architecture, origin: str, seed: int | None = None) -> None:
    """Put an architecture of given genes in line, before what the sampler proposes."""
    attributes: dict[str, Any] = {ARCHITECTURE: json.dumps(architecture.to_json()), ORIGIN: origin}
    if seed is not None:
        attributes[SEED] = seed
    study.enqueue_trial({}, user_attrs=attributes)


def enqueue_missing(study: optuna.Study, wanted: Sequence[tuple[Architecture, str, int | None]]) -> int:
    """Enqueue each (architecture, origin, seed) whose origin and seed the study does not have. Returns how many.

    A search that was killed in between lines up the rest when it is resumed.
    """
    there = {(t.user_attrs.get(ORIGIN), t.user_attrs.get(SEED)) for t in study.get_trials(deepcopy=False)}
    missing = [row for row in wanted if row[1:] not in there]
    for row in missing:
        enqueue(study, *row)
    return len(missing)


class _Draft:
    """A trial whose choices are drawn before it is written down, in one piece: a kill leaves it whole or not at all."""

    def __init__(self, study: optuna.Study) -> None:
        self.study = study
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}
        self.trial = optuna.create_trial(state=TrialState.RUNNING)
        self.trial.number = len(study.get_trials(deepcopy=False))
        study.sampler.before_trial(study, self.trial)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        return self._suggest(name, CategoricalDistribution(choices))

    def suggest_float(self, name: str, low: float, high: float) -> float:
        return self._suggest(name, FloatDistribution(low, high))

    def _suggest(self, name: str, distribution: BaseDistribution) -> Any:
        self.params[name] = self.study.sampler.sample_independent(self.study, self.trial, name, distribution)
        self.distributions[name] = distribution
        return self.params[name]

    def write(self, attributes: Mapping[str, Any]) -> None:
        """Make it the study's next trial, running."""
        self.study.add_trial(
            optuna.create_trial(
                state=TrialState.RUNNING,
                params=self.params,
                distributions=self.distributions,
                user_attrs=dict(attributes),
            )
        )


def ask(study: optuna.Study, space: Space, origin: str, labels: int) -> tuple[FrozenTrial, Architecture]:
    """The next trial: what is in line, or a proposal of the sampler; its costs become attributes."""
    if waiting(study):
        trial = study.ask()
        number, given = trial.number, trial.user_attrs
        architecture = _parsed(given[ARCHITECTURE]) if ARCHITECTURE in given else space.suggest(trial)
        missing = _described(architecture, space, labels) | {ORIGIN: origin}
        _set(study, number, {key: value for key, value in missing.items() if key not in given})
    else:
        draft = _Draft(study)
        number, architecture = draft.trial.number, space.suggest(draft)
        draft.write(_described(architecture, space, labels) | {ORIGIN: origin})
    return study.get_trials(deepcopy=False)[number], architecture


def _described(architecture: Architecture, space: Space, labels: int) -> dict[str, Any]:
    """What a trial's attributes say of its architecture."""
    return {
        ARCHITECTURE: json.dumps(architecture.to_json()),
        IN_BOX: space.keeps_budget(architecture),
        FUNCTION: function_key(architecture),
        "formula": formula(architecture),
        "latex": layers_latex(architecture),
        "params": cost.params(architecture, labels, space.head),
        "params_active": cost.params_active(architecture, labels, space.head),
        "macs": cost.macs(architecture, labels=labels, head=space.head),
    } | {limit.name: limit.total(architecture) for limit in space.limits}


def replay(study: optuna.Study, number: int) -> bool:
    """Give a trial the result of an earlier one that computes the same with the same seed, if there is one.

    Where that one is still running the trial waits for it and gets its result when it ends.
    """
    trials = study.get_trials(deepcopy=False)
    own = trials[number].user_attrs
    for earlier in trials[:number]:
        there = earlier.user_attrs
        if (
            there.get(FUNCTION) == own[FUNCTION]
            and there.get(SEED) == own.get(SEED)
            and TWIN not in there
            and earlier.state != TrialState.WAITING
        ):
            _set(study, number, {TWIN: earlier.number})
            if earlier.state.is_finished():
                _copy_result(study, earlier, number)
            return True
    return False


def _copy_result(study: optuna.Study, earlier: FrozenTrial, number: int) -> None:
    own = study.get_trials(deepcopy=False)[number].user_attrs
    _set(study, number, {key: value for key, value in earlier.user_attrs.items() if key not in own})
    _end(study, number, earlier.state, earlier.values if earlier.state == TrialState.COMPLETE else None)


def _end(study: optuna.Study, number: int, state: TrialState, values: Sequence[float] | None = None) -> None:
    """Write down the end of a trial, and give its result to those that wait for it."""
    # Not by `Study.tell`, which reads the trial twice more.
    study._storage.set_trial_state_values(_trial_id(study, number), state, values)
    trials = study.get_trials(deepcopy=False)
    for trial in trials:
        if trial.state == TrialState.RUNNING and trial.user_attrs.get(TWIN) == number:
            _copy_result(study, trials[number], trial.number)


def score_of(name: str) -> str:
    """The attribute of one of the scores behind a trial's own: a task may have any name, that of a cost too."""
    return f"score/{name}"


def formula(architecture: Architecture) -> str:
    """The layers in short: stack x inner width, experts where there are any, and graph."""
    parts = []
    for genes in architecture.layers:
        size = f"{genes.stack}×{genes.inner(architecture.base)}"
        size += f" ({genes.experts})" if genes.experts != DENSE else ""
        parts.append(f"{size} {genes.graph}")
    return "; ".join(parts)


def complete(study: optuna.Study, number: int, score: float, attributes: Mapping[str, Any]) -> None:
    """Record a finished trial with its score, and with its cost where that is the study's second goal."""
    own = study.get_trials(deepcopy=False)[number].user_attrs
    _set(study, number, attributes)
    costs = [own[goal] for goal in study.user_attrs.get(GOALS, ["score"])[1:]]
    _end(study, number, TrialState.COMPLETE, [score, *costs])


def fail(study: optuna.Study, number: int, reason: str) -> None:
    """Record a trial that has no score, and why."""
    _set(study, number, {FAILURE: reason})
    _end(study, number, TrialState.FAIL)


def stop(study: optuna.Study, number: int, step: int, attributes: Mapping[str, Any]) -> None:
    """Record a trial that was stopped after `step` training steps, at which its score was reported."""
    _set(study, number, {RUNG: step, **attributes})
    _end(study, number, TrialState.PRUNED)


def lose(study: optuna.Study, number: int) -> None:
    """Record that the worker of a trial is gone, and put the trial in line again unless that happened too often."""
    attempt = study.get_trials(deepcopy=False)[number].user_attrs.get(ATTEMPT, 1)
    if attempt >= ATTEMPTS:
        fail(study, number, f"the worker was lost {attempt} times")
    else:
        _set(study, number, {ATTEMPT: attempt + 1})
        _put_back(study, number)


def report(study: optuna.Study, number: int, step: int, score: float) -> None:
    """Record the score after `step` training steps of a trial that goes on."""
    # Not by `Trial.report`, which keeps what an earlier attempt reported.
    study._storage.set_trial_intermediate_value(_trial_id(study, number), step, score)


def _trial_id(study: optuna.Study, number: int) -> int:
    return study._storage.get_trial_id_from_study_id_trial_number(study._study_id, number)


def _set(study: optuna.Study, number: int, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        study._storage.set_trial_user_attr(_trial_id(study, number), key, value)


def _put_back(study: optuna.Study, number: int) -> None:
    # One write: whenever the process dies, the trial is there, once, and in its place before later ones.
    study._storage.set_trial_state_values(_trial_id(study, number), TrialState.WAITING)


def requeue_unfinished(study: optuna.Study) -> int:
    """After a process died: trials left RUNNING are put in line again, but for twins, which get their results or wait
    for them. Returns how many.
    """
    left = running(study)
    for trial in left:
        _put_back(study, trial.number)
    trials = study.get_trials(deepcopy=False)
    for twin in trials:
        if twin.state == TrialState.RUNNING and trials[twin.user_attrs[TWIN]].state.is_finished():
            _copy_result(study, trials[twin.user_attrs[TWIN]], twin.number)
    return len(left)


def waiting(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were put in line and wait to be asked for."""
    return study.get_trials(deepcopy=False, states=(TrialState.WAITING,))


def running(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are being evaluated."""
    alive = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [trial for trial in alive if TWIN not in trial.user_attrs]


def is_hopeless(study: optuna.Study, number: int, step: int, share: float) -> bool:
    """Whether a trial's score after `step` training steps is among the lowest `share` of all trials that got there.

    Never for what was put in line as it is, for comparison, nor before `CROWD` other trials got there.
    """
    trials = study.get_trials(deepcopy=False)
    if not share or not trials[number].params:
        return False
    others = [
        trial.intermediate_values[step]
        for trial in trials
        if step in trial.intermediate_values and trial.number != number and TWIN not in trial.user_attrs
    ]
    better = sum(value > trials[number].intermediate_values[step] for value in others)
    return len(others) >= CROWD and better > (1 - share) * len(others)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that were evaluated and need not run again: with a score, stopped, or with a failure of their own."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))
    return [trial for trial in ended if TWIN not in trial.user_attrs]


def counted(study: optuna.Study) -> int:
    """How many trials are `running` or `finished`."""
    trials = study.get_trials(deepcopy=False)
    return sum(trial.state != TrialState.WAITING and TWIN not in trial.user_attrs for trial in trials)


@dataclass(frozen=True)
class Observation:
    """What samplers know of a trial that runs or has ended.

    `values` are the score, to be maximised, and what else the study is for; None unless the trial is COMPLETE.
    """

    architecture: Architecture
    key: str
    state: TrialState
    values: tuple[float, ...] | None


def history(study: optuna.Study) -> list[Observation]:
    """All trials that were asked for, in order, without repeats."""
    return [
        Observation(
            _parsed(trial.user_attrs[ARCHITECTURE]),
            trial.user_attrs[FUNCTION],
            trial.state,
            tuple(trial.values) if trial.state == TrialState.COMPLETE else None,
        )
        for trial in study.get_trials(deepcopy=False)
        if FUNCTION in trial.user_attrs and TWIN not in trial.user_attrs
    ]


def scored(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score, in order of their numbers."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score whose architecture keeps the budget, the best score first."""
    inside = [trial for trial in scored(study) if trial.user_attrs[IN_BOX]]
    return sorted(inside, key=lambda trial: (-trial.values[0], trial.number))


def architecture_of(trial: FrozenTrial) -> Architecture:
    """The architecture that a trial evaluated."""
    return _parsed(trial.user_attrs[ARCHITECTURE])


@lru_cache(maxsize=10_000)
def _parsed(text: str) -> Architecture:
    return Architecture.from_json(json.loads(text))

"""The Optuna studies of a search: the one record that everything else is derived from.

One study a stage, named `stage-1` and so on. A trial that ends early or badly never carries a score: it is FAIL with
the attribute `failure`, and so is a trial that was running when its process died.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

INTERRUPTED = "interrupted"
ARCHITECTURE, ORIGIN, SEED, FAILURE, IN_BOX = "architecture", "origin", "seed", "failure", "in_box"


class StorageError(ValueError):
    """The storage of the studies cannot be opened."""


def sqlite_url(path: Path) -> str:
    """The storage URL of a database file."""
    return f"sqlite:///{path.resolve()}"


def open_study(url: str, name: str, sampler: BaseSampler | None = None) -> optuna.Study:
    """The study `name` in the storage `url`, made if absent; scores are maximised.

    Raises:
        StorageError: there is no such storage.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    connect = {"timeout": 60} if url.startswith("sqlite") else {}
    try:
        storage = RDBStorage(url, engine_kwargs={"connect_args": connect})
    except (SQLAlchemyError, ImportError, ValueError) as error:  # ValueError: a port that is no number
        raise StorageError(f"cannot open the storage {url!r}: {str(error).splitlines()[0]}") from None
    return optuna.create_study(
        storage=storage,
        study_name=name,
        sampler=sampler,
        pruner=optuna.pruners.NopPruner(),
        direction="maximize",
        load_if_exists=True,
    )


def enqueue(study: optuna.Study, architecture: Architecture, origin: str, seed: int | None = None) -> None:
    """Put an architecture of given genes in line, before what the sampler proposes."""
    attributes: dict[str, Any] = {ARCHITECTURE: json.dumps(architecture.to_json()), ORIGIN: origin}
    if seed is not None:
        attributes[SEED] = seed
    study.enqueue_trial({}, user_attrs=attributes)


def line_up(study: optuna.Study, wanted: Sequence[tuple[Architecture, str, int | None]]) -> int:
    """Enqueue each (architecture, origin, seed) whose origin and seed the study does not have. Returns how many.

    A search that was killed in between lines up the rest when it is resumed.
    """
    there = {(t.user_attrs.get(ORIGIN), t.user_attrs.get(SEED)) for t in study.get_trials(deepcopy=False)}
    missing = [row for row in wanted if row[1:] not in there]
    for row in missing:
        enqueue(study, *row)
    return len(missing)


def ask(study: optuna.Study, space: Space, origin: str, labels: int) -> tuple[optuna.Trial, Architecture]:
    """The next trial: what is in line, or a draw from the space; its costs become attributes."""
    trial = study.ask()
    text = trial.user_attrs.get(ARCHITECTURE)
    architecture = Architecture.from_json(json.loads(text)) if text else space.suggest(trial)
    params = cost.params(architecture, labels)
    attributes = {
        ARCHITECTURE: json.dumps(architecture.to_json()),
        ORIGIN: trial.user_attrs.get(ORIGIN, origin),
        IN_BOX: space.min_params <= params <= space.max_params,
        "formula": formula(architecture),
        "params": params,
        "params_active": cost.params_active(architecture, labels),
        "macs": cost.macs(architecture, labels=labels),
    }
    for key, value in attributes.items():
        trial.set_user_attr(key, value)
    return trial, architecture


def formula(architecture: Architecture) -> str:
    """The layers in short: stack x inner width and graph, equal neighbours once."""
    parts = []
    for genes in architecture.layers:
        size = f"{genes.stack}×{genes.inner(architecture.base)}"
        parts.append(f"{size} {genes.graph}")
    return "; ".join(parts)


def complete(study: optuna.Study, number: int, score: float, attributes: Mapping[str, Any]) -> None:
    """Record a finished trial with its score."""
    _set(study, number, attributes)
    study.tell(number, score)


def fail(study: optuna.Study, number: int, reason: str) -> None:
    """Record a trial that has no score, and why."""
    _set(study, number, {FAILURE: reason})
    study.tell(number, state=TrialState.FAIL)


def report(study: optuna.Study, number: int, step: int, score: float) -> None:
    """Record the score after `step` training steps of a trial that goes on."""
    _live(study, number).report(score, step)


def _live(study: optuna.Study, number: int) -> optuna.Trial:
    storage = study._storage
    return optuna.Trial(study, storage.get_trial_id_from_study_id_trial_number(study._study_id, number))


def _set(study: optuna.Study, number: int, attributes: Mapping[str, Any]) -> None:
    trial = _live(study, number)
    for key, value in attributes.items():
        trial.set_user_attr(key, value)


def settle(study: optuna.Study) -> int:
    """After a process died: trials left RUNNING become FAIL and are put in line again. Returns how many."""
    left = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in left:
        fail(study, trial.number, INTERRUPTED)
        # A draw is made again from its parameters, so that samplers see them; other architectures are kept whole.
        keys = (ORIGIN, SEED) if trial.params else (ARCHITECTURE, ORIGIN, SEED)
        kept = {key: trial.user_attrs[key] for key in keys if key in trial.user_attrs}
        study.enqueue_trial(trial.params, user_attrs=kept)
    return len(left)


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that need not run again: with a score, or with a failure of their own."""
    ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    return [trial for trial in ended if trial.user_attrs.get(FAILURE) != INTERRUPTED]


def draw_index(study: optuna.Study, trial: FrozenTrial) -> int:
    """The trial's number had no trial been interrupted: what a sampler derives its random state from."""
    failed = study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    return trial.number - sum(other.user_attrs.get(FAILURE) == INTERRUPTED for other in failed)


def scored(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score, in order of their numbers."""
    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


def ranked(study: optuna.Study) -> list[FrozenTrial]:
    """Trials with a score whose architecture lies in the parameter box, the best first."""
    inside = [trial for trial in scored(study) if trial.user_attrs[IN_BOX]]
    return sorted(inside, key=lambda trial: (-(trial.value or 0.0), trial.number))


def architecture_of(trial: FrozenTrial) -> Architecture:
    """The architecture that a trial evaluated."""
    return Architecture.from_json(json.loads(trial.user_attrs[ARCHITECTURE]))

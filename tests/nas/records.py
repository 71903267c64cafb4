"""What a search records, for tests that compare searches."""

from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial

from foundation.files import SUMS_PREFIX
from nas.study import ledger
from nas.study.names import CONFIRMATION
from tests.nas.tiny_study import states, trials_of

STUDIES = ("stage-1", "stage-2", "stage-3", CONFIRMATION)


def facts(trial: FrozenTrial) -> tuple[Any, ...]:
    """Everything that is recorded of a trial, except for its times and how often its worker was killed."""
    attributes = {key: value for key, value in trial.user_attrs.items() if key not in ("seconds", ledger.ATTEMPT)}
    hidden = {key: value for key, value in trial.system_attrs.items() if not key.startswith("artifacts:")}
    values, parts = trial.values, trial.intermediate_values
    return trial.number, trial.state, values, trial.params, attributes, hidden, parts


def results(folder: Path) -> dict[str, Any]:
    """Everything that a search records in its folder."""
    ledgers = {name: list(map(facts, trials_of(folder, name))) for name in STUDIES if states(folder, name)}
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".json", ".toml"))
    return ledgers | {str(path.relative_to(folder)): path.read_text() for path in files}


def content(folder: Path) -> dict[str, bytes]:
    """The bytes of all files that are not checksums, which have times."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(SUMS_PREFIX))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def lost_before(folder: Path) -> bool:
    """Whether an unfinished trial has lost a worker before: it fails if that happens a third time."""
    trials = [trial for name in STUDIES if states(folder, name) for trial in trials_of(folder, name)]
    return any(ledger.ATTEMPT in trial.user_attrs for trial in trials if not trial.state.is_finished())

"""Studies of version 0.1, whose parameters are the choices of the space, can be read and resumed; those of a later
version of Optuna are refused.
"""

import shutil
import sqlite3
from pathlib import Path

import optuna
import pytest

from distill.tasks.metrics import CLASS_ACCURACY
from nas.finalists import confirmations, finalists, lead_line, summary
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import attribute
from nas.study.description import Parameters, choices_of
from nas.study.storage import StorageError, open_storage, sqlite_url
from search_spaces.spaces import Space


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A copy of the database that version 0.1 wrote for the demo's three stages."""
    shutil.copy(Path(__file__).parent / "fixtures" / "version_0_1.db", tmp_path / "study.db")
    return sqlite_url(tmp_path / "study.db")


@pytest.mark.parametrize(("stage", "expected"), [("1", [2, 4, 1]), ("2", [4, 0]), ("3", [0, 1])])
def test_finalists_are_those_of_the_old_version(stage: str, expected: list[int], url: str) -> None:
    study = ledger.open_study(url, f"stage-{stage}")
    assert [trial.number for trial in finalists(study, len(expected))][: len(expected)] == expected
    assert study.metric_names == ["score"]
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("stage", ["1", "2", "3"])
def test_leads_of_confirmations_without_rows_are_not_known(stage: str, url: str) -> None:
    study, confirmation = (ledger.open_study(url, name) for name in (f"stage-{stage}", "confirmation"))
    ranked = finalists(study, 2)
    best = summary(
        ranked,
        confirmations(confirmation, [attribute(trial, ledger.FUNCTION) for trial in ranked], [1, 2]),
        study,
        CLASS_ACCURACY,
    )
    confirmed = [row for row in best["finalists"] if len(row["confirmed_scores"]) == 2]
    assert best["winner"] in confirmed and len(confirmed) >= 2
    assert [row["lead"] for row in best["finalists"]] == [None] * len(ranked)
    assert lead_line(best["winner"]) is None
    for opened in (study, confirmation):
        opened._storage._backend.engine.dispose()  # type: ignore[attr-defined]


def test_a_study_of_a_later_optuna_is_refused(tmp_path: Path, url: str) -> None:
    database = sqlite3.connect(tmp_path / "study.db")
    database.execute("UPDATE version_info SET schema_version = 99, library_version = '9.0'")
    database.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
    database.commit()
    database.close()
    with pytest.raises(StorageError, match=r"^cannot open .*study.db': .*set up by optuna 9.0.*updating") as refusal:
        open_storage(url)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "nsga2"])
def test_a_search_goes_on(sampler: str, url: str) -> None:
    """New trials have the new parameters, and the choices of old trials are still available."""
    study = ledger.open_study(url, "stage-1")
    drawn = [trial for trial in study.trials if trial.params]
    baselines = [trial for trial in study.trials if not trial.params]
    assert drawn and baselines
    assert [choices_of(trial) for trial in drawn] == [trial.params for trial in drawn]
    assert not any(choices_of(trial) for trial in baselines)
    architectures = [ledger.architecture_of(trial) for trial in drawn]
    base, layers = architectures[0].base, [genes for one in architectures for genes in one.layers]
    stacks = tuple(sorted({genes.stack for genes in layers}))
    space = Space(base, stacks, tuple(sorted({genes.expansion for genes in layers})), 1, 10**9, labels=2)
    study.sampler = SAMPLERS[sampler](space, 0)
    count = len(study.trials)
    for number in range(count, count + 8):
        trial, architecture = ledger.ask(study, space, sampler, 2)
        assert trial.number == number and architecture in space
        assert trial.params == Parameters.of(space).values(architecture)
        ledger.complete(study, number, 0.5 + number / 100, {"standard_error": 0.01})
    assert len(ledger.history(study)) >= count
    assert isinstance(study.best_trial, optuna.trial.FrozenTrial)
    study._storage._backend.engine.dispose()  # type: ignore[attr-defined]

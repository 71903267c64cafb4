"""The study of version 0.1.0 can be read and resumed; those of a later version of Optuna are refused."""

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import pytest
from optuna.trial import FrozenTrial

from distill.tasks.metrics import CLASS_ACCURACY
from nas.planning.finalists import confirmations, finalists, summary
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import attribute
from nas.study.description import Parameters, choices_of
from nas.study.storage import StorageError, open_storage, sqlite_url
from search_spaces.spaces import Space
from tests.nas.study.test_ledger import close


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A copy of the database that version 0.1.0 wrote for three stages of the tiny study."""
    shutil.copy(Path(__file__).parent / "fixtures" / "0.1.0.db", tmp_path / "study.db")
    return sqlite_url(tmp_path / "study.db")


@pytest.fixture
def opened(url: str) -> Iterator[Callable[[str], optuna.Study]]:
    studies: list[optuna.Study] = []

    def open_study(name: str) -> optuna.Study:
        studies.append(ledger.open_study(url, f"s/{name}"))
        return studies[-1]

    yield open_study
    for study in studies:
        close(study)


# The finalists and the winner that version 0.1.0 wrote to best.json.
@pytest.mark.parametrize(
    ("stage", "count", "expected", "winner"), [("1", 2, [1, 4], 4), ("2", 1, [1, 0], 0), ("3", 1, [4, 0], 0)]
)
def test_finalists_are_those_of_the_old_version(
    stage: str, count: int, expected: list[int], winner: int, opened: Callable[[str], optuna.Study]
) -> None:
    study, confirmation = opened(f"stage-{stage}"), opened("confirmation")
    ranked = finalists(study, count)
    assert [trial.number for trial in ranked] == expected
    assert study.metric_names == ["score"]
    confirmed = confirmations(confirmation, [attribute(trial, ledger.FUNCTION) for trial in ranked], [1, 2])
    best = summary(ranked, confirmed, study, CLASS_ACCURACY)
    assert best["winner"]["trial"] == winner and len(best["winner"]["confirmed_scores"]) == 2
    assert best["winner"]["lead"]["standard_error"] is not None


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
def test_a_search_goes_on(sampler: str, opened: Callable[[str], optuna.Study]) -> None:
    study = opened("stage-1")
    assert any(map(choices_of, study.trials)) and not all(map(choices_of, study.trials))
    architectures = [ledger.architecture_of(trial) for trial in study.trials]
    base, layers = architectures[0].base, [genes for one in architectures for genes in one.ffns]
    stacks = tuple(sorted({genes.stack for genes in layers}))
    space = Space(
        base, {"stack": stacks, "expansion": tuple(sorted({genes.expansion for genes in layers}))}, 1, 10**9, labels=3
    )
    study.sampler = SAMPLERS[sampler](space, 0)
    count = len(study.trials)
    for number in range(count, count + 8):
        trial, architecture = ledger.ask(study, space, sampler, 3)
        assert trial.number == number and architecture in space
        assert trial.params == Parameters.of(space).values(architecture)
        ledger.complete(study, number, 0.5 + number / 100, {"standard_error": 0.01})
    assert len(ledger.history(study)) >= count
    assert isinstance(study.best_trial, FrozenTrial)

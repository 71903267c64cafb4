"""Studies of version 0.1 and those of a later version of Optuna are refused in one line."""

import sqlite3
from pathlib import Path

import optuna
import pytest

from nas.study.folder import Folder
from nas.study.names import existing_studies
from nas.study.storage import StorageError, open_storage, sqlite_url


def test_a_study_of_version_0_1_is_refused(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    study = optuna.create_study(storage=open_storage(url), study_name="demo/stage-1", direction="maximize")
    study.add_trial(optuna.create_trial(value=0.5, user_attrs={"in_box": True, "origin": "random"}))
    with pytest.raises(StorageError) as refusal:
        existing_studies(Folder(tmp_path))
    assert str(refusal.value) == f"{tmp_path} has a study of version 0.1: search anew with another --study"


def test_a_study_of_a_later_optuna_is_refused(tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    optuna.create_study(storage=open_storage(url), study_name="demo/stage-1")
    database = sqlite3.connect(tmp_path / "study.db")
    database.execute("UPDATE version_info SET schema_version = 99, library_version = '9.0'")
    database.execute("UPDATE alembic_version SET version_num = 'v9.0.0.a'")
    database.commit()
    database.close()
    with pytest.raises(StorageError, match=r"^cannot open .*study.db': .*set up by optuna 9.0.*updating") as refusal:
        open_storage(url)
    assert "\n" not in str(refusal.value)

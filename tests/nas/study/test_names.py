"""The names of a search's studies: in its own database and in one that several searches share."""

from pathlib import Path

import pytest

from nas.study import ledger
from nas.study.names import CONFIRMATION, existing_studies, prefix_of
from nas.study.storage import sqlite_url
from tests.nas.study.test_ledger import close


@pytest.fixture
def url(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "study.db")


def make(url: str, *names: str) -> None:
    for name in names:
        close(ledger.open_study(url, name))


def test_a_new_search_gives_its_name(url: str) -> None:
    assert prefix_of(url, "demo", shared=False) == prefix_of(url, "demo", shared=True) == "demo/"
    assert existing_studies(url, "demo", shared=False) == {}


@pytest.mark.parametrize("prefix", ["", "demo/", "old.name/"])
def test_a_database_of_its_own_may_have_been_renamed(prefix: str, url: str) -> None:
    make(url, "somebody's", f"{prefix}{CONFIRMATION}", f"{prefix}stage-1")
    assert prefix_of(url, "demo", shared=False) == prefix
    found = existing_studies(url, "demo", shared=False)
    assert {name: study.study_name for name, study in found.items()} == {
        "stage-1": f"{prefix}stage-1",
        CONFIRMATION: f"{prefix}{CONFIRMATION}",
    }


def test_searches_in_a_shared_database_are_kept_apart(url: str) -> None:
    make(url, "a/stage-1", "b/stage-1", "b/stage-2")
    assert prefix_of(url, "c", shared=True) == "c/"
    assert [*existing_studies(url, "a", shared=True)] == ["stage-1"]
    assert [*existing_studies(url, "b", shared=True)] == ["stage-1", "stage-2"]
    assert existing_studies(url, "c", shared=True) == {}

"""The names of a search's studies: in its own database and in one that several searches share."""

from pathlib import Path

import pytest
from optuna.exceptions import DuplicatedStudyError

from nas.__main__ import main as overview
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.pick import main as pick
from nas.planning.stages import Plan
from nas.report.command import main as report
from nas.search.command import main as nas_search
from nas.search.run import SearchRun
from nas.study import ledger
from nas.study.folder import Folder
from nas.study.names import CONFIRMATION, existing_studies, prefix_of
from nas.study.storage import StorageError, kept_url, sqlite_url
from tests.commands import Refused
from tests.nas.samplers.test_samplers import SPACE


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "demo").mkdir()
    return Folder(tmp_path / "demo")


@pytest.fixture
def shared(tmp_path: Path) -> str:
    return sqlite_url(tmp_path / "shared.db")


def make(url: str, *names: str) -> None:
    for name in names:
        ledger.open_study(url, name)


def test_a_new_search_gives_its_name(folder: Folder, shared: str) -> None:
    assert prefix_of(folder) == prefix_of(folder, folder.storage) == prefix_of(folder, shared) == "demo/"
    for url in (folder.storage, shared):
        with pytest.raises(StorageError, match="there is no file"):
            existing_studies(folder, url)
    assert [path.name for path in folder.path.parent.rglob("*")] == ["demo"]
    make(shared, "a/stage-1")
    assert existing_studies(folder, shared) == {}


@pytest.mark.parametrize("prefix", ["demo/", "old.name/"])
def test_a_database_of_its_own_may_have_been_renamed(prefix: str, folder: Folder) -> None:
    make(folder.storage, "somebody's", f"{prefix}{CONFIRMATION}", f"{prefix}stage-1")
    assert prefix_of(folder) == prefix_of(folder, folder.storage) == prefix
    found = existing_studies(folder)
    assert {name: study.study_name for name, study in found.items()} == {
        "stage-1": f"{prefix}stage-1",
        CONFIRMATION: f"{prefix}{CONFIRMATION}",
    }


def test_searches_in_a_shared_database_are_kept_apart(folder: Folder, shared: str, tmp_path: Path) -> None:
    make(shared, "a/stage-1", "demo/stage-1", "demo/stage-2")
    assert prefix_of(folder, shared) == "demo/"
    assert [*existing_studies(folder, shared)] == ["stage-1", "stage-2"]
    assert [*existing_studies(Folder(tmp_path / "a"), shared)] == ["stage-1"]
    assert existing_studies(Folder(tmp_path / "c"), shared) == {}


def test_a_new_search_whose_name_is_taken_in_a_shared_database(shared: str, tmp_path: Path) -> None:
    """The first of two searches with the same name in different folders has the studies."""
    config = load_config("demo-ffn")
    first = Plan("1", config.stage1, SPACE, ())
    mine, other = (SearchRun(config=config, path=tmp_path / out / "demo", storage=shared) for out in ("a", "b"))
    for search in (mine, other):
        search.claim()  # nobody has begun yet
    mine.claim(first)
    mine.folder.create(config)
    for plan in (None, first):
        with pytest.raises(ConfigError, match="--storage already has the study demo, of a search with another --out"):
            other.claim(plan)
        mine.claim(plan)
    assert [*existing_studies(mine.folder, shared)] == ["stage-1"]
    SearchRun(config=config, path=tmp_path / "b" / "another", storage=shared).claim(first)


def test_a_study_in_another_storage_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    """Whatever stage is run or read, without its storage or with a mistyped one."""
    monkeypatch.chdir(tmp_path)
    url, config = "sqlite:///shared.db", load_config("demo-ffn")
    first = Plan("1", config.stage1, SPACE, ())
    running = SearchRun(config=config, path=tmp_path / "demo", storage=url)
    running.claim(first)
    running.folder.create(config, storage=url)
    running.begin(first)
    SearchRun(config=config, path=tmp_path / "demo", storage=url, resume=True).check()
    there = sqlite_url(tmp_path / "shared.db")
    known = f"demo has no study.db: it was searched with --storage {there}: give that URL"
    make("sqlite:///other.db", "other/stage-1")
    files = sorted(tmp_path.rglob("*"))
    searches = [
        (nas_search, "--study", "demo", "--out", ".", "--stage", *words) for words in (("1", "--resume"), ("2",))
    ]
    for main, *words in (*searches, (pick, "demo"), (report, "demo")):
        assert known in refused(main, *words)
        assert "there is no file typo.db" in refused(main, *words, "--storage", "sqlite:///typo.db")
        wrong = refused(main, *words, "--storage", "sqlite:///other.db")
        assert f"there is no study demo/stage-1, nor of another stage; the search began with --storage {there}" in wrong
    assert sorted(tmp_path.rglob("*")) == files
    assert overview(["--out", "."]) == 0


def test_urls_that_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert kept_url("sqlite:///a b.db?timeout=5") == f"{sqlite_url(tmp_path / 'a b.db')}?timeout=5"
    assert kept_url("postgresql+psycopg://u:secret@h:1/d") == "postgresql+psycopg://u:***@h:1/d"
    assert kept_url("postgresql://u@h/d?password=secret") == "postgresql://u@h/d"
    folder = Folder(tmp_path / "s")
    for url, elsewhere in (("sqlite:///s/study.db", None), ("sqlite:///s/b.db", sqlite_url(tmp_path / "s" / "b.db"))):
        folder.create(load_config("demo-ffn"), storage=url)
        assert folder.elsewhere == elsewhere


def test_only_one_of_two_searches_that_begin_together_has_the_studies(shared: str) -> None:
    ledger.open_study(shared, "demo/stage-1", new=True)
    with pytest.raises(DuplicatedStudyError):
        ledger.open_study(shared, "demo/stage-1", new=True)

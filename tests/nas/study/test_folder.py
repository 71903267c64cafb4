"""Which stages may run in a study's folder."""

from pathlib import Path

import pytest

from foundation.errors import UserError
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation.data import contents_of
from nas.study.folder import Folder
from search_spaces import PUBLISHED, Architecture

DEMO = load_config("demo-ffn")


def test_a_study_is_made_and_gone_on_with(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out" / "s")
    with pytest.raises(ConfigError, match="nothing to resume"):
        folder.check(DEMO, ["1"], resume=True)
    folder.check(DEMO, ["1"], resume=False)
    assert not folder.path.exists()
    folder.create(DEMO)
    assert load_config(str(folder.config)) == DEMO
    # Killed before its first stage began, it may start or go on.
    folder.check(DEMO, ["1"], resume=True)
    folder.check(DEMO, ["1"], resume=False)
    folder.begin("1", DEMO, None)
    folder.check(DEMO, ["1"], resume=True)
    for stages in (["1"], ["1", "2", "3"]):
        with pytest.raises(ConfigError, match="already has stage 1: continue it with --resume"):
            folder.check(DEMO, stages, resume=False)
    folder.config.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"config\.toml: is not UTF-8"):
        folder.check(DEMO, ["1"], resume=True)


def test_what_a_stage_spends_is_free_until_it_begins(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "s")
    folder.create(DEMO)
    folder.begin("1", DEMO, None)
    later = load_config("demo-ffn", {"stage2.trials": 7, "one_shot.steps": 9})
    folder.check(later, ["2"], resume=False)
    folder.begin("2", later, PUBLISHED["base"])
    assert load_config(str(folder.config)) == later
    assert Architecture.load(folder.start("2")) == PUBLISHED["base"]
    with pytest.raises(ConfigError, match=r"configuration \(stage2.trials is 7 there and 30 here\)"):
        folder.check(DEMO, ["3"], resume=False)
    for changes in ({"stage1.trials": 7}, {"space.stacks": [1, 2, 3]}, {"seed": 4}):
        with pytest.raises(ConfigError, match=f"configuration .{next(iter(changes))} is "):
            folder.check(load_config("demo-ffn", {"stage2.trials": 7} | changes), ["3"], resume=False)


def test_folders_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ConfigError, match="is not a study's folder"):
        Folder(tmp_path / "photos").check(DEMO, ["1"], resume=False)
    with pytest.raises(ConfigError, match="is not a study's folder"):
        Folder(tmp_path / "photos" / "cat.jpg").check(DEMO, ["1"], resume=False)
    with pytest.raises(ConfigError, match=r"cat.jpg/s: .*[Nn]ot a directory"):
        Folder(tmp_path / "photos" / "cat.jpg" / "s").create(DEMO)


def test_a_study_goes_on_with_the_same_files_only(tmp_path: Path) -> None:
    rows, teacher, folder = tmp_path / "rows.tsv", tmp_path / "teacher", Folder(tmp_path / "s")
    teacher.mkdir()
    for file in (rows, teacher / "config.json"):
        file.write_text("before")
    text = tmp_path / "text"
    (text / "inner").mkdir(parents=True)
    (text / "inner" / "a.txt").write_text("before")
    table = {"train": str(rows), "dev": str(rows)}
    config = load_config(
        "demo-ffn", {"tasks": ["mine"], "rows": {"mine": table}, "teacher": str(teacher), "corpus": [str(text)]}
    )
    folder.create(config, contents_of(config))
    folder.check_contents(contents_of(config))
    for file, named in ((rows, rows), (teacher / "config.json", teacher), (text / "inner" / "a.txt", text)):
        file.write_text("after")
        with pytest.raises(UserError, match=f"^{named} is not what it was when the study .*s began"):
            folder.check_contents(contents_of(config))
        file.write_text("before")
    folder.check_contents(contents_of(config))


def test_a_stage_goes_on_with_more_trials(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "s")
    folder.create(DEMO)
    folder.begin("1", DEMO, None)
    more, fewer = (load_config("demo-ffn", {"stage1.trials": DEMO.stage1.trials + change}) for change in (5, -5))
    folder.check(more, ["1"], resume=True)
    with pytest.raises(ConfigError, match=r"stage1\.trials is"):
        folder.check(fewer, ["1"], resume=True)

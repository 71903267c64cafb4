"""The folder that a command writes at its end: whole, or as it was."""

import os
from pathlib import Path

import pytest

from distill.command.folder import check_new, write_new
from foundation.errors import UserError


def write(folder: Path) -> None:
    (folder / "one").write_text("1")
    (folder / "two").write_text("2")


def interrupted(folder: Path) -> None:
    (folder / "one").write_text("1")
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["new", "deep/new", "empty", "link"])
def test_an_interrupted_command_can_be_started_again(kind: str, tmp_path: Path) -> None:
    out = tmp_path / kind
    (tmp_path / "empty").mkdir()
    if kind == "link":
        out.symlink_to(tmp_path / "empty")
    with pytest.raises(KeyboardInterrupt):
        write_new(out, interrupted)
    check_new(out)
    write_new(out, write)
    assert sorted(file.name for file in out.iterdir()) == ["one", "two"]
    assert not list(out.parent.glob(".*"))
    (tmp_path / "other").mkdir()
    assert out.stat().st_mode == (tmp_path / "other").stat().st_mode
    with pytest.raises(UserError, match="exists and is not empty: choose another folder"):
        check_new(out)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out, reason in ((tmp_path / "file" / "out", "File exists"), (tmp_path / ("x" * 300), "File name too long")):
        with pytest.raises(UserError, match=f"^--out {out}: {reason}$"):
            write_new(out, write)
    assert os.listdir(tmp_path) == ["file"]

"""`python -m nas` lists the commands and the studies with their states."""

import os
import re
import shutil
from pathlib import Path

import pytest

from foundation.checksums import create_once
from nas.__main__ import commands, main
from nas.config.load import load_config
from nas.report.overview import state_of, studies
from nas.study import ledger
from nas.study.folder import Folder
from nas.study.names import existing_studies


def test_every_command_has_a_line() -> None:
    found = commands()
    assert {"python -m nas.search", "python -m nas.pick", "python -m nas.inspect", "python -m distill"} <= found.keys()
    assert {"python train_final.py", "python -m supernet.student", "python -m supernet.experts"} <= found.keys()
    assert "python -m distill.augment" in found
    assert all(len(line) > 20 for line in found.values())
    assert "python -m nas.search.pipeline" not in found and "python -m nas.overview" not in found


def test_states(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished stage, then the same study while it runs and after an interruption."""
    folder, out = Folder(copied), copied.parent
    (stage,) = state_of(folder).stages
    assert (stage.state, stage.count) == ("done", "6 of 6")
    assert stage.best.startswith("confirmed score 0.") and "(trial " in stage.best
    folder.best("1").unlink()
    (stage,) = state_of(folder).stages
    best = ledger.ranked(existing_studies(folder)["stage-1"])[0]
    assert (stage.state, stage.best) == ("interrupted", f"score {best.values[0]:.4f} (trial {best.number})")
    with folder.lock():
        assert state_of(folder).state == "running"
    assert main(["--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"{copied.name} +1 +interrupted +6 of 6 +score 0", printed)
    assert f"--stage 1 --study {copied.name} --out {out} --resume" in printed


def test_trials_that_are_not_there(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are in another storage."""
    folder, out = Folder(copied), copied.parent
    (copied / "study.db").unlink()
    assert state_of(folder).state == "done"
    folder.best("1").unlink()
    with folder.lock():
        assert state_of(folder).state == "running"
    assert main(["--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(rf"{copied.name} +1 +unknown +no trial in study.db", printed)
    again = f"--study {copied.name} --out {out} --resume --storage"
    assert f"{again} URL\n" in printed
    folder.create(load_config(str(folder.config)), storage="postgresql://u:secret@h/d")
    assert main(["--out", str(out)]) == 0
    assert f"{again} 'postgresql://u:***@h/d'\n" in capsys.readouterr().out


def test_checkpoints_are_no_studies(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    for name in ("config.toml", "metrics.json"):
        (tmp_path / "final" / name).touch()
    assert list(studies(tmp_path)) == []


def test_the_cache_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path))
    path = create_once(tmp_path / "teachers" / "one", lambda draft: draft.write_text("weights"))
    assert main(["--verify"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: 1 entries, as they were written\n"
    status = path.stat()
    path.write_text("WEIGHTS")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert main(["--verify"]) == 2
    assert re.fullmatch(r"nas: .*one is damaged .*: remove it, .*anew\n", capsys.readouterr().err)


def test_folders_that_cannot_be_read(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = copied.parent
    for name in ("broken-config", "broken-database"):
        shutil.copytree(copied, out / name)
    (out / "broken-config" / "config.toml").write_text("seed = nothing")
    (out / "broken-database" / "study.db").write_text("not a database " * 100)
    (out / "something-else").mkdir()
    found = {study.folder.name: study for study in studies(out)}
    assert found.keys() == {copied.name, "broken-config", "broken-database"}
    assert "not TOML" in found["broken-config"].reason
    assert "cannot open the storage" in found["broken-database"].reason
    assert main(["--out", str(out)]) == 0
    assert "not TOML" in capsys.readouterr().out


def test_no_studies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for out in (tmp_path, tmp_path / "missing"):
        assert main(["--out", str(out)]) == 0
        assert f"no studies in {out}" in capsys.readouterr().out

"""A disk that is full while a search or a final training writes to it: one line says so, and nothing is lost."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from foundation.files import DRAFT_PREFIX
from tests import requirements
from tests.nas.tiny_study import TinyStudy, states, trials_of
from tests.trust_counts import Cases

FULL_DISK_MESSAGE = re.compile("no space left|disk is full|MB free; make room")


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Callable[[int], None]]:
    """Mount a file system of this many kilobytes on the folder; yields what enlarges it."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k,mode=700", "tmpfs", str(folder)]
    requirements.succeeds(mount, "file systems of a given size, which root may mount")
    try:
        yield lambda more: subprocess.run(["mount", "-o", f"remount,size={more}k", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def results(folder: Path) -> list[Any]:
    """What is recorded of the trials that have ended; nothing may be there yet."""
    if not states(folder):
        return []
    return [(trial.number, trial.state, trial.values) for trial in trials_of(folder) if trial.state.is_finished()]


def kilobytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) // 1024


def fits(study: TinyStudy, command: Sequence[object], counts: Cases) -> bool:
    """Whether a command has room for everything that it writes; otherwise it says so in one line."""
    result = study.run(*command)
    if result.returncode == 0:
        assert result.stderr == ""
        return True
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2 and FULL_DISK_MESSAGE.search(line), line
    counts["full disk"] += 1
    return False


@pytest.mark.slow
@pytest.mark.trust
@pytest.mark.parametrize("place", ["cache", "results"])
def test_a_search(
    place: str, shared_study: TinyStudy, searched: Path, tmp_path: Path, cases: Callable[..., Cases]
) -> None:
    """A search on a disk that is too small, and becomes larger from one attempt to the next."""
    counts = cases(sample=2, full=30)
    study = TinyStudy(tmp_path, tmp_path / "cache")
    needed = kilobytes({"cache": shared_study.cache, "results": searched}[place])
    folder, before, resume = tmp_path / "results" / "s", list[Any](), list[str]()
    command = study.search(tmp_path / "results", "--study", "s", preset=shared_study.preset)
    with small_disk(tmp_path / place, needed) as enlarge:
        shutil.copytree(shared_study.cache / "corpora", study.cache / "corpora")
        corpora = kilobytes(study.cache) if place == "cache" else 0
        steps = counts.wanted + 1
        sizes = (corpora + (needed - corpora) * number**3 // steps**3 for number in range(1, steps))
        for size in (*sizes, 4 * needed + 2000):
            enlarge(size)
            if fits(study, [*command, *resume], counts):
                break
            resume = ["--resume"] if (folder / "config.toml").exists() else []
            after = results(folder)
            assert after[: len(before)] == before
            before = after
        assert results(folder) == results(searched)
        assert not list(tmp_path.rglob(f"{DRAFT_PREFIX}*"))
    assert counts["full disk"]


@pytest.mark.slow
@pytest.mark.trust
def test_a_final_training(tiny_study: TinyStudy, searched: Path, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """A final training on a disk that is too small, and becomes larger from one attempt to the next."""
    counts = cases(sample=2, full=30)
    command = ["train_final.py", searched / "architecture.json", "--steps", "130", "--out"]
    assert tiny_study.run(*command, tmp_path / "whole").returncode == 0
    out, needed = tmp_path / "disk" / "final", 3 * kilobytes(tmp_path / "whole")  # with states and drafts
    resume = list[str]()
    with small_disk(out.parent, 64) as enlarge:
        for size in (*(64 + needed * number // counts.wanted for number in range(counts.wanted)), 4 * needed + 2000):
            enlarge(size)
            if fits(tiny_study, [*command, out, *resume], counts):
                break
            assert not (out / "metrics.json").exists()
            resume = ["--resume"] if (out / "state").exists() else []
        assert not list(out.rglob(f"{DRAFT_PREFIX}*")) and not (out / "state").exists()
        for name in ("model.safetensors", "architecture.json", "config.json"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert counts["full disk"]

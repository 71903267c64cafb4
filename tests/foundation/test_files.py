"""Files that appear whole or not at all, and content keys."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from transformers import BertTokenizerFast

from foundation.checksums import DamagedError, create_once, sums_file
from foundation.files import (
    DRAFT_PREFIX,
    LOCK_FILE,
    SCRATCH_PREFIX,
    CacheError,
    cache_folder,
    fingerprint,
    save_pretrained,
    scratch_folder,
    state_of,
    write_atomically,
    write_text,
)


def test_keep_writes_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    assert create_once(path, lambda draft: draft.write_text("first") and None) == path
    create_once(path, lambda draft: pytest.fail("it is there already"))
    assert path.read_text() == "first"
    assert set(path.parent.iterdir()) == {path, sums_file(path)}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b"[" * 10**5, b'{"": "0"}', b'{"": [1]}', b'{"a": [1, 2, ""]}']
)
def test_an_entry_whose_checksums_are_damaged(tmp_path: Path, content: bytes) -> None:
    path = create_once(tmp_path / "entry", lambda draft: draft.write_text("whole"))
    sums_file(path).write_bytes(content)
    message = f"the checksums of {path} ({sums_file(path)}) are damaged: remove {path}, and the same"
    if content.startswith(b'{"a'):
        message = f"{path} is damaged (it is not as it was written): remove it, and the same command makes it anew"
    with pytest.raises(DamagedError, match=re.escape(message)):
        create_once(path, lambda draft: pytest.fail("it is there already"))
    sums_file(path).unlink()
    sums_file(path).mkdir()
    with pytest.raises(DamagedError, match="cannot be read"):
        create_once(path, lambda draft: pytest.fail("it is there already"))


@pytest.mark.parametrize("folder", [False, True])
def test_keep_leaves_nothing_of_a_failed_writer(tmp_path: Path, folder: bool) -> None:
    path = tmp_path / "kept"

    def fails(draft: Path) -> None:
        if folder:
            draft.mkdir()
            draft = draft / "part"
        draft.write_text("half")
        assert not path.exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create_once(path, fails)
    assert not list(tmp_path.iterdir())


def test_keep_respects_who_was_faster(tmp_path: Path) -> None:
    path = tmp_path / "kept"

    def write(draft: Path) -> None:
        path.write_text("theirs")
        draft.write_text("ours")

    create_once(path, write)
    assert path.read_text() == "theirs"


def test_keep_respects_who_was_faster_by_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one's folder appears between the look for it and the move."""
    path = tmp_path / "kept"

    def moved_late(draft: Path, place: Path) -> None:
        path.mkdir()
        (path / "theirs").touch()
        os.rename(draft, place)

    monkeypatch.setattr(os, "replace", moved_late)
    write_atomically(path, lambda draft: draft.mkdir(), keep_existing=True)
    assert [file.name for file in path.iterdir()] == ["theirs"]
    path.joinpath("theirs").unlink()
    path.rmdir()
    with pytest.raises(OSError, match="empty"):
        write_atomically(path, lambda draft: draft.mkdir())


HOLDER = """
import sys, time
from pathlib import Path
from foundation.files import scratch_folder

with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "file").write_text("half")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """And no others: neither those of a process that is alive, nor what a link of that name leads to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    parent = tmp_path / "temporary"
    parent.mkdir()
    (parent / f"{SCRATCH_PREFIX}link").symlink_to(elsewhere)
    command = [sys.executable, "-c", HOLDER, str(parent)]
    folder = Path(__file__).parents[2]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as killed,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as alive,
    ):
        assert killed.stdout is not None and alive.stdout is not None
        left, kept = (Path(process.stdout.readline().strip()) for process in (killed, alive) if process.stdout)
        killed.kill()
        killed.wait()
        with scratch_folder(parent) as own:
            assert not left.exists() and (kept / "deep" / "file").read_text() == "half"
            assert [file.name for file in own.iterdir()] == [LOCK_FILE]
        assert not own.exists()
        alive.kill()
    assert elsewhere.exists() and not list(elsewhere.iterdir())


def test_state_is_kept_until_the_work_is_done(tmp_path: Path) -> None:
    result = tmp_path / "deep" / "result"
    with pytest.raises(KeyboardInterrupt), state_of(result) as state:
        (state / "half").write_text("done")
        raise KeyboardInterrupt
    with state_of(result) as again:
        assert again == state and (again / "half").read_text() == "done"
        with state_of(result) as of_another_process:
            assert of_another_process != state and not list(of_another_process.iterdir())
        assert not of_another_process.exists()
        # Files that are being written beside it do not remove it.
        write_text(result, "whole")
    assert list(result.parent.iterdir()) == [result]


def test_no_state_is_kept_of_work_that_saved_none(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), state_of(tmp_path / "result") as state:
        assert [file.name for file in state.iterdir()] == [LOCK_FILE]
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


HAMMER = """
import sys
from pathlib import Path
from foundation.checksums import create_once
from foundation.files import state_of, write_text

folder, own = Path(sys.argv[1]), sys.argv[2]
for number in range(120):
    write_text(folder / own, f"{own} {number}")
    kept = create_once(folder / f"{number}", lambda draft: draft.write_text(own))
    assert kept.read_text() in "abcd"
    with state_of(folder / "shared") as state:
        assert not (state / "state").exists()
        (state / "state").write_text(own)
        assert (state / "state").read_text() == own
        (state / "state").unlink()
"""


def test_many_processes_fill_one_folder(tmp_path: Path) -> None:
    """Each of them removes drafts that are left over, and none those that another one has just begun."""
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    started = [
        subprocess.Popen([*command, own], stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for own in "abcd"
    ]
    errors = [process.communicate()[1] for process in started]
    assert errors == ["", "", "", ""]
    kept = [f"{number}" for number in range(120)]
    sums = {sums_file(tmp_path / name).name for name in kept}
    assert {file.name for file in tmp_path.iterdir()} == {*"abcd", *kept, *sums}
    assert all((tmp_path / own).read_text() == f"{own} 119" for own in "abcd")


def test_a_draft_whose_writer_was_killed_before_it_locked_it(tmp_path: Path) -> None:
    left = tmp_path / f"{DRAFT_PREFIX}left"
    left.mkdir()
    write_text(tmp_path / "next", "whole")
    assert list(tmp_path.iterdir()) == [tmp_path / "next"]


def test_fingerprints_tell_parts_apart(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    assert fingerprint(tmp_path / "a", 1, {"b": 2, "a": 1}) == fingerprint(tmp_path / "a", 1, {"a": 1, "b": 2})
    others = [fingerprint("ab", "c"), fingerprint("a", "bc"), fingerprint("abc"), fingerprint(tmp_path / "a")]
    assert len(set(others)) == 4


def test_a_tokenizer_is_saved_alike_whatever_it_was_called_with(tmp_path: Path) -> None:
    """A command that is continued finds rows in the cache that an uninterrupted one has encoded itself."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "word"])}
    for name in ("unused", "used"):
        tokenizer = BertTokenizerFast(vocab=vocabulary)
        if name == "used":
            tokenizer(["word word", "word"], truncation=True, max_length=3, padding=True)
        save_pretrained(tmp_path / name, tokenizer)
    unused, used = (
        {file.name: file.read_text() for file in (tmp_path / name).iterdir()} for name in ("unused", "used")
    )
    assert unused == used and "tokenizer.json" in used


def test_replacing_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_text(path, "one")
    write_text(path, "zwei ß")
    assert path.read_text(encoding="utf-8") == "zwei ß"

    def fail(draft: Path) -> None:
        draft.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text(encoding="utf-8") == "zwei ß"
    assert list(path.parent.iterdir()) == [path]


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FFN_NAS_CACHE")
    assert cache_folder().name in ("ffn-nas", "Cache")


@pytest.mark.parametrize(
    "cache",
    [
        pytest.param(f"/proc/{name}", marks=pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc"))
        for name in ("ffn-nas", "deep/ffn-nas")
    ]
    + ["cache"],
)
def test_a_cache_that_cannot_be_written_to(cache: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also because there is a file in the place of a folder in it."""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "texts").touch()
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path / cache))
    path = cache_folder() / "texts" / "entry"

    def with_state() -> None:
        with state_of(path):
            pytest.fail("it cannot be made")

    message = f"^the cache {tmp_path / cache} cannot be written to .*: set FFN_NAS_CACHE to a folder of your own$"
    for attempt in (with_state, lambda: write_text(path, "a"), lambda: create_once(path, Path.touch)):
        with pytest.raises(CacheError, match=message):
            attempt()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o007, 0o660)])
def test_files_have_ordinary_modes(tmp_path: Path, umask: int, mode: int) -> None:
    """Also those that a library writes through a temporary file, which only its owner may read."""

    def write(folder: Path) -> None:
        (folder / "sub").mkdir(parents=True)
        for file in (folder / "weights", folder / "sub" / "more"):
            descriptor, name = tempfile.mkstemp(dir=folder)
            os.close(descriptor)
            os.replace(name, file)

    previous = os.umask(umask)
    try:
        write_atomically(tmp_path / "folder", write)
        write_text(tmp_path / "file", "text")
    finally:
        os.umask(previous)
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 3
    assert {file.stat().st_mode & 0o777 for file in files} == {mode}

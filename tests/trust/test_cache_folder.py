"""Who can write to the cache folder, links in it, and entries that were damaged on the disk."""

import os
import stat
from pathlib import Path

import pytest

from foundation import checksums, files
from foundation.checksums import DamagedError, create_once, refuse_earlier_format, sums_file, verify_cache
from foundation.files import SUMS_PREFIX, CacheError, cache_folder, state_of, write_text
from tests import requirements


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("FFN_NAS_CACHE", str(folder))
    return folder


def test_it_is_created_for_its_owner_alone(cache: Path) -> None:
    assert cache_folder() == cache and not cache.exists()
    create_once(cache / "texts" / "one", lambda draft: draft.write_text("text"))
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_the_state_of_a_training_creates_it_so_too(cache: Path) -> None:
    with state_of(cache / "teachers" / "one"):
        assert stat.S_IMODE(cache.stat().st_mode) == 0o700


def test_everybody_may_write_to_it(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(CacheError, match=r"can be written by everybody.*chmod o-w"):
        cache_folder()
    cache.chmod(0o775)  # shared with a group on purpose
    assert cache_folder() == cache


@pytest.mark.parametrize(
    ("mode", "group", "refused"), [(0o755, 4321, True), (0o775, 4321, True), (0o775, 1234, False), (0o755, 1234, True)]
)
def test_it_belongs_to_another_user(
    mode: int, group: int, refused: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen by the user 1234 with the group 1234. A folder that is shared with this group is accepted."""
    if os.geteuid() != 0:
        requirements.missing("needs root, who alone can give a folder to another user")
    cache.mkdir(parents=True)
    cache.chmod(mode)
    os.chown(cache, 4321, group)
    assert cache_folder() == cache  # root may use anybody's
    for name in ("geteuid", "getegid"):
        monkeypatch.setattr(files.os, name, lambda: 1234)
    monkeypatch.setattr(files.os, "getgroups", lambda: [])
    if refused:
        with pytest.raises(CacheError, match=r"belongs to another user"):
            cache_folder()
    else:
        assert cache_folder() == cache


def test_it_is_no_folder(cache: Path) -> None:
    write_text(cache, "a file")
    with pytest.raises(CacheError, match=r"is not a folder"):
        cache_folder()


def test_links_in_it_overwrite_nothing_elsewhere(cache: Path, tmp_path: Path) -> None:
    """Links in place of an entry, of the state of a training, of a draft, and of checksums."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("precious")
    (elsewhere / "one.pt").write_text("precious")
    folder = cache / "teachers"
    folder.mkdir(parents=True)
    (folder / ".unfinished-x").symlink_to(elsewhere)
    (folder / ".state-one").symlink_to(elsewhere)
    (folder / "file").symlink_to(elsewhere / "nothing")
    (folder / f"{SUMS_PREFIX}file.json").symlink_to(elsewhere / "file")
    create_once(folder / "file", lambda draft: draft.write_text("ours"))
    assert not (folder / "file").is_symlink() and (folder / "file").read_text() == "ours"
    with (
        pytest.raises(CacheError, match=r"\.state-one is a link to another folder: remove it"),
        state_of(folder / "one"),
    ):
        pass
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"file": "precious", "one.pt": "precious"}


def test_damage_is_noticed(cache: Path) -> None:
    def write(draft: Path) -> None:
        (draft / "inner").mkdir(parents=True)
        (draft / "inner" / "weights").write_bytes(bytes(1000))
        (draft / "config.json").write_text("{}")

    path = create_once(cache / "teachers" / "one", write)
    assert create_once(path, pytest.fail) == path
    weights = path / "inner" / "weights"
    content = bytearray(1000)
    content[500] = 1  # a single bit, of the same size
    before = weights.stat()
    weights.write_bytes(content)
    remedy = "as it was written.*: remove it, and the same command makes it anew"
    with pytest.raises(DamagedError, match=rf"teachers/one is damaged .inner/weights in it is not {remedy}"):
        create_once(path, pytest.fail)
    # With the time of before only hashes tell.
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert create_once(path, pytest.fail) == path
    with pytest.raises(DamagedError, match=rf"teachers/one is damaged .inner/weights in it is not {remedy}"):
        verify_cache(cache)
    weights.write_bytes(bytes(1000))
    assert create_once(path, pytest.fail) == path
    assert verify_cache(cache) == 1
    (path / "more").touch()
    with pytest.raises(DamagedError, match=r"more in it"):
        create_once(path, pytest.fail)


def test_a_copy_of_the_cache_is_hashed_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = create_once(cache / "teachers" / "one", lambda draft: draft.write_text("weights"))
    os.utime(path, ns=(0, 0))
    create_once(path, pytest.fail)
    monkeypatch.setattr(checksums.hashlib, "file_digest", pytest.fail)
    assert create_once(path, pytest.fail) == path


def test_a_cache_of_version_0_1(cache: Path) -> None:
    write_text(cache / "teachers" / ".sums-one.json", "{}")
    for use in (refuse_earlier_format, verify_cache):
        with pytest.raises(
            CacheError, match=rf"^the cache {cache} was made by version 0\.1: remove it, or set FFN_NAS"
        ):
            use(cache)


def test_an_entry_whose_writer_was_killed(cache: Path) -> None:
    """It has no checksums; they are recorded when it is first used."""
    path = cache / "one"
    write_text(path, "first")
    assert not sums_file(path).exists()
    create_once(path, pytest.fail)
    path.write_text("other")
    with pytest.raises(DamagedError):
        create_once(path, pytest.fail)

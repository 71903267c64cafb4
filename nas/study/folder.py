"""The folder of a study, `results/<study>/`: its files, its lock, and checks whether a stage may be run there."""

import contextlib
import fcntl
import json
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distill.command.folder import check_contents
from foundation.errors import UserError
from foundation.files import DiskFullError, fingerprint, is_disk_full, read_json, write_text
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.study.storage import kept_url, sqlite_url
from search_spaces.architecture import Architecture

STAGES = ("1", "2", "3")


class StudyInUse(UserError, ValueError):
    """Another process is running the study."""


@dataclass(frozen=True)
class Folder:
    """The folder of a study."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def storage(self) -> str:
        return sqlite_url(self.path / "study.db")

    @property
    def elsewhere(self) -> str | None:
        """The URL of the storage that was given to the search, without its password; None: study.db in the folder."""
        file = self._storage_file
        return file.read_text(encoding="utf-8", errors="replace").strip() if file.is_file() else None

    @property
    def architecture(self) -> Path:
        """The winner of the latest stage."""
        return self.path / "architecture.json"

    @property
    def contents(self) -> Path:
        """Hashes of the files that the search reads."""
        return self.path / "contents.json"

    @property
    def budget(self) -> Path:
        """The budget that `keep` has found."""
        return self.path / "budget.json"

    @property
    def artifacts(self) -> Path:
        """The drawings of the trials, for the dashboard's `--artifact-dir`."""
        return self.path / "artifacts"

    def dashboard(self, storage: str) -> str:
        """The command that shows the studies in this storage."""
        return shlex.join(("optuna-dashboard", storage, "--artifact-dir", str(self.artifacts)))

    def searched(self, config: StudyConfig, preset: str | None = None) -> dict[str, str]:
        """With what the architectures of this study were searched, for files that are moved elsewhere."""
        named = {"study": self.path.resolve().name, "teacher": config.teacher, "tasks": ",".join(config.tasks)}
        return named | ({"preset": preset} if preset else {}) | {"config": fingerprint(config.to_toml())}

    def stage(self, stage: str) -> Path:
        """The folder of a stage, which exists once the stage has begun."""
        return self.path / f"stage-{stage}"

    def start(self, stage: str) -> Path:
        """The architecture that a stage refines."""
        return self.stage(stage) / "start.json"

    def best(self, stage: str) -> Path:
        """The winner and the finalists of a stage; the file exists once the stage has ended."""
        return self.stage(stage) / "best.json"

    def outcome(self, stage: str) -> dict[str, Any] | None:
        """The content of a stage's `best.json`; None before the stage has ended.

        Raises:
            UserError: it cannot be read, or has no winner.
        """
        file = self.best(stage)
        if not file.exists():
            return None
        best = read_json(file)
        if not isinstance(best, dict) or not isinstance(best.get("winner"), dict) or "trial" not in best["winner"]:
            raise ConfigError(f"{file} is not the best.json of a stage: it has no winner")
        return best

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock by which only one process at a time runs the study; it is released when that process ends,
        however it ends. Processes that the holder starts, such as Ray's, do not inherit it.

        Raises:
            StudyInUse: another process holds it.
            ConfigError: the file of the lock cannot be opened.
            DiskFullError: there is no space left for its one line.
        """
        with self._opened_lock("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise StudyInUse(
                    f"study {self.path} is already being run by {file.read() or 'another process'}: wait until it has "
                    "ended, or choose another --study"
                ) from None
            file.truncate(0)
            holder = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
            try:
                os.write(file.fileno(), holder.encode())
            except OSError as error:
                if is_disk_full(error):
                    raise DiskFullError(f"{self._lock_file}: there is no space left on this disk") from error
                raise
            yield

    def is_running(self) -> bool:
        """Whether a process holds the lock.

        Raises:
            ConfigError: the file of the lock cannot be read.
        """
        if not self._lock_file.exists():
            return False
        with self._opened_lock("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def _lock_file(self) -> Path:
        return self.path / "lock"

    @property
    def _storage_file(self) -> Path:
        return self.path / "storage.txt"

    def _opened_lock(self, mode: str) -> Any:
        try:
            return self._lock_file.open(mode, encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{self._lock_file} cannot be opened ({error.strerror}): remove it if no search is running"
            ) from None

    def check(self, config: StudyConfig, stages: Sequence[str], resume: bool) -> None:
        """Check that these stages may be started or resumed in this folder.

        Raises:
            ConfigError: the folder belongs to another configuration, has one of the stages without `resume`, or is not
                the folder of a study.
        """
        if not self.config.exists():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ConfigError(f"{self.path} is not a study's folder: it has no config.toml; choose another --study")
            if resume:
                raise ConfigError(f"nothing to resume: there is no {self.config}")
            return
        begun = [stage for stage in STAGES if self.stage(stage).exists()]
        # The tables of stages that have not begun may still be changed.
        stored, wanted = (self._begun(version, begun) for version in (load_config(str(self.config)), config))
        for stage in begun if resume else ():  # which may have more trials than it had
            table, other = stored[f"stage{stage}"], wanted[f"stage{stage}"]
            table["trials"] = max(table["trials"], other["trials"])
        if stored != wanted:
            raise ConfigError(
                f"{self.path} was created with another configuration ({_difference(stored, wanted)}): "
                "choose another --study, or give the options it was created with"
            )
        again = [stage for stage in stages if stage in begun]
        if again and not resume:
            raise ConfigError(
                f"{self.path} already has stage {again[0]}: continue it with --resume, or choose another --study"
            )

    def check_contents(self, contents: dict[str, str]) -> None:
        """Check that the files which the search reads are those it began with. Raises UserError."""
        if self.contents.exists():
            check_contents(f"the study {self.path}", read_json(self.contents), contents)

    def create(self, config: StudyConfig, contents: dict[str, str] | None = None, storage: str | None = None) -> None:
        """Create the folder with the configuration and, if they are given, the hashes of the files that the search
        reads, unless they exist; and with the URL of its storage, if that is elsewhere.

        Raises:
            ConfigError: it cannot be created.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        if not self.config.exists():
            write_text(self.config, config.to_toml())
        if contents is not None and not self.contents.exists():
            write_text(self.contents, json.dumps(contents, indent=2) + "\n")
        if storage is not None and kept_url(storage) not in (self.storage, self.elsewhere):
            write_text(self._storage_file, kept_url(storage) + "\n")

    def begin(self, stage: str, config: StudyConfig, start: Architecture | None) -> None:
        """Record the configuration, that the stage has begun, and the architecture that it refines."""
        write_text(self.config, config.to_toml())
        self.stage(stage).mkdir(exist_ok=True)
        if start:
            start.save(self.start(stage))

    def _begun(self, config: StudyConfig, begun: Sequence[str]) -> dict[str, Any]:
        tables = config.model_dump(mode="json")
        idle = {f"stage{stage}" for stage in STAGES if stage not in begun}
        idle |= {"one_shot"} if "3" not in begun else set()
        return {name: table for name, table in tables.items() if name not in idle}


def _difference(stored: dict[str, Any], wanted: dict[str, Any]) -> str:
    """A description of the first value in which two configurations differ."""

    def flat(value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key in value for k, v in flat(value[key], f"{place}.{key}".lstrip(".")).items()}
        return {place: value}

    left, right = flat(stored, ""), flat(wanted, "")
    place = next(key for key in left | right if left.get(key) != right.get(key))
    return f"{place} is {left.get(place)!r} there and {right.get(place)!r} here"

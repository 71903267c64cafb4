"""The folder `--out` of a command: checked before the work, written as a whole after it, or resumed with the same
options and the same content of the files that the run reads.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import files_of_model, fingerprint, write_atomically

# The key of the contents of files among the recorded options.
CONTENTS = "contents"


def check_new(out: Path, otherwise: str = "") -> None:
    """Raise UserError unless `--out` is new, or an empty folder; the message ends in what else can be done."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is not a folder")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"--out {out} exists and is not empty: choose another folder{otherwise}")


def make(out: Path) -> None:
    """Make the folder `--out` with its parents, unless it is there. Raises UserError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror or error}") from None


def write_new(out: Path, write: Callable[[Path], object]) -> None:
    """Write the folder `--out` atomically: `write` fills another one, which then takes its place. An interrupted
    command leaves nothing in it, so the same command can be started again.

    Raises:
        UserError: it cannot be written.
        foundation.files.DiskFullError: there is no space left.
    """

    def fill(draft: Path) -> None:
        draft.mkdir()
        write(draft)

    try:
        write_atomically(out.resolve(), fill)
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"--out {out}: {error.strerror or error}") from error


def check_resumed(out: Path, file: Path, recorded: dict[str, Any], contents: Mapping[str, str]) -> None:
    """Raise UserError unless the file in `--out` has these options and contents; the folder itself may be another."""
    if not file.exists():
        raise UserError(f"--out {out} has nothing to resume: there is no {file.name}")
    try:
        stored = dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"--resume: {file} cannot be read ({error}); choose another --out") from None
    for name, value in recorded.items():
        if name != "out" and stored.get(name) != value:
            flag = f"--{name.replace('_', '-')}"
            raise UserError(f"--resume: {flag} was {stored.get(name)!r}, not {value!r}")
    check_contents(f"--out {out}", stored.get(CONTENTS, {}), contents)


def contents(files: Iterable[str | Path], models: Iterable[str] = ()) -> dict[str, str]:
    """By path, a hash of each of these that is here: of a file, of the texts below a folder, or of a model's folder.
    What comes from the hub has no path.
    """
    parts = {path: [path] if path.is_file() else sorted(path.rglob("*.txt")) for path in map(Path, files)}
    parts |= {folder: files_of_model(folder) for folder in map(Path, models)}
    return {str(path.resolve()): fingerprint([one.name for one in of], *of) for path, of in parts.items() if of}


def contents_of(options: Any) -> dict[str, str]:
    """As `contents`, of the files and models that the options of a command name."""
    from distill.tasks.readers import reader_of  # imports torch, which takes seconds

    given = vars(options)
    files = [given[name] for name in ("train", "dev") if given.get(name) is not None]
    files += given.get("corpus") or ()
    if options.data is not None:
        sources = reader_of(options.task).sources(options.task, options.data)
        files += [source for source in sources if isinstance(source, Path)]
    models = [given[name] for name in ("teacher", "student", "checkpoint") if given.get(name) is not None]
    return contents(files, map(str, [*models, *given.get("assistant", ())]))


def check_contents(place: str, stored: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise UserError if a file is not what it was; those that only one of the two has are not compared.

    Args:
        place: what began with the stored ones, for the message.
    """
    for path, content in now.items():
        if stored.get(path, content) != content:
            raise UserError(
                f"{path} is not what it was when {place} began: put the old content back, or start anew in another "
                "folder"
            )

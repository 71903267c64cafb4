"""The folder `--out` of a command: checked before the work, written as a whole after it, or resumed."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distill.command.contents import check_contents
from foundation.errors import UserError
from foundation.files import write_atomically

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

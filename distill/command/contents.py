"""What is in the files that a run reads, so that it is resumed with the same ones only."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foundation.errors import UserError
from foundation.files import files_of_model, fingerprint


def contents(files: Iterable[str | Path], models: Iterable[str] = ()) -> dict[str, str]:
    """By path, a hash of each of these that is here: of a file, of the texts below a folder, or of a model's folder.
    What comes from the hub has no path.
    """
    hashes = {}
    for path in map(Path, files):
        parts = [path] if path.is_file() else sorted(path.rglob("*.txt"))
        if parts:
            hashes[str(path.resolve())] = fingerprint([part.name for part in parts], *parts)
    for folder in map(Path, models):
        if parts := files_of_model(folder):
            hashes[str(folder.resolve())] = fingerprint([part.name for part in parts], *parts)
    return hashes


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

"""The output folder of a final training."""

from pathlib import Path

from distill.command.folder import check_new, make
from distill.training.layout import METRICS_FILE, STATE


def make_folder(out: Path, resume: bool) -> None:
    """Make the output folder.

    Raises:
        UserError: it cannot be made, or holds files that must not be overwritten.
    """
    begun = (out / STATE).exists()
    if not (resume and begun):
        check_new(out, "; --resume continues the training in it" if begun else "")
    make(out)


def make_folder_of_tasks(out: Path, resume: bool) -> None:
    """Make the folder of several tasks. Raises as `make_folder`."""
    begun = any((folder / name).exists() for folder in out.glob("*") for name in (METRICS_FILE, STATE))
    if not (resume and begun):
        make_folder(out, resume=False)

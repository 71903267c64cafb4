"""A copy of the project as a user checks it out, for tests that build or install the package."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("foundation", "search_spaces", "distill", "supernet", "nas")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "train_final.py")


def copy_to(folder: Path) -> Path:
    """Copy the packages and the files needed to install them into a new folder; returns the folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder

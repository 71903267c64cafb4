"""A copy of what a user checks out, for tests that build or install the package."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("search_spaces", "distill", "supernet", "nas")
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "train_final.py")


def copy_to(folder: Path) -> Path:
    """Copy the packages and the files that installing them takes into a new folder; returns it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder

"""The files of this checkout: their syntax trees, and a copy of the project as a user checks it out."""

import ast
import shutil
from functools import cache
from pathlib import Path

from foundation.packages import PACKAGES

ROOT = Path(__file__).resolve().parents[1]
FILES = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "train_final.py")


def sources(*places: str) -> list[Path]:
    """The Python files in these folders of the checkout; a place can also be a file."""
    return [file for place in places for file in (sorted((ROOT / place).rglob("*.py")) or [ROOT / place])]


@cache
def tree(file: Path) -> ast.Module:
    """The syntax tree of a file. Tests share it, so they must not change it."""
    return ast.parse(file.read_text(encoding="utf-8"))


def copy_to(folder: Path) -> Path:
    """Copy the packages and the files needed to install them into a new folder; returns the folder."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    return folder

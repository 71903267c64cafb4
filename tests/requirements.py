"""Optional requirements of tests: a test without them is skipped, or fails where everything must be tested."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import pytest

# Set in CI, where a test that is skipped for want of a program would never run at all.
REQUIRE_ALL = "FFN_NAS_REQUIRE_ALL"
# The folder of the public data sets in their official layouts.
DATA = "FFN_NAS_TEST_DATA"
# Debian installs the PostgreSQL server's programs outside the search path.
DEBIAN_POSTGRESQL = Path("/usr/lib/postgresql")


def module(name: str, extra: str) -> None:
    """Skip or fail the test if the module is not installed; `extra` is the extra of this package that contains it."""
    if find_spec(name) is None:
        missing(f"needs the module {name}: install the extra {extra}")


def program(*names: str) -> str:
    """The path of the first of these programs that is installed; if there is none, the test is skipped or fails."""
    for name in names:
        path = shutil.which(name) or next(map(str, sorted(DEBIAN_POSTGRESQL.glob(f"*/bin/{name}"), reverse=True)), None)
        if path is not None:
            return path
    missing(f"needs the program {' or '.join(names)}: install it")


def data() -> Path:
    """The folder of the public data sets; if there is none, the test is skipped or fails."""
    folder = Path(os.environ.get(DATA) or os.devnull)
    if not folder.is_dir():
        missing(f"needs the public data sets: set {DATA} to their folder")
    return folder


def succeeds(command: Sequence[str], what: str) -> None:
    """Run a command that fetches something; if it fails, the test is skipped or fails."""
    finished = subprocess.run(command, capture_output=True, text=True)
    if finished.returncode != 0:
        missing(f"needs {what}: {(finished.stderr.strip().splitlines() or ['no message'])[-1]}")


def everything() -> bool:
    """Whether everything must be tested."""
    return os.environ.get(REQUIRE_ALL, "0") not in ("", "0")


def missing(reason: str) -> NoReturn:
    """Skip or fail the test for this reason."""
    if everything():
        pytest.fail(f"{reason} (a failure because {REQUIRE_ALL} is set)", pytrace=False)
    pytest.skip(reason)

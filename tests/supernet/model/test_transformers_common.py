"""The common model tests of transformers, run over our classes."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import transformers

from tests import requirements

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution of the installed transformers, whose wheel has no tests."""
    folder = tmp_path_factory.mktemp("transformers")
    package = f"transformers=={transformers.__version__}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers", package]
    requirements.succeeds([*command, "--dest", str(folder)], f"the source distribution of {package}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        # The argument `filter` is not in every version of Python 3.11.
        files.extraction_filter = getattr(tarfile, "data_filter", None)
        files.extractall(folder)
    unpacked = folder / archive.name.removesuffix(".tar.gz")
    # Not distributed; a test of configurations looks for it.
    (unpacked / "tests" / "__init__.py").touch()
    return unpacked


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "dense", "gate", "hash"])
def test_common_model_tests(source: Path, kind: str) -> None:
    """All that run for BERT run for ours and pass: the control tells what a version of transformers skips."""
    tests = f"{Path(__file__).with_name('transformers_common.py')}::{kind.capitalize()}Test"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "-W", "ignore", tests]
    finished = subprocess.run(
        [*command, "-p", "no:cacheprovider"],
        env={**os.environ, "TRANSFORMERS_SOURCE": str(source), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-1000:]
    passed = re.search(r"(\d+) passed", finished.stdout)
    assert passed is not None and int(passed[1]) >= 100, finished.stdout[-1000:]

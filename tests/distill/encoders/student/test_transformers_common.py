"""The common model tests of transformers, run over our classes."""

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
import transformers

from tests import requirements

ROOT = Path(__file__).parents[4]


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


# The types beside BERT for which they run here, of each kind one; results/versions.md has all.
OTHERS = ("distilbert", "mpnet", "modernbert", "albert")
# What our classes skip of what runs for the types themselves; the reasons of those of "hash" are in
# transformers_common.py.
SKIPPED = {
    "hash": {"test_inputs_embeds_matches_input_ids", "test_load_with_mismatched_shapes"},
    "modernbert": {"test_can_init_all_missing_weights"},  # which transformers runs for some of its own types
}


def passed(source: Path, model_type: str, kind: str, report: Path) -> set[str]:
    """The names of the common tests that pass for the students of this kind and type; none may fail."""
    tests = f"{Path(__file__).with_name('transformers_common.py')}::{kind.capitalize()}Test"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(ROOT), "-W", "ignore", tests]
    finished = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--junitxml={report}"],
        env={**os.environ, "TRANSFORMERS_SOURCE": str(source), "MODEL_TYPE": model_type, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stdout[-5000:] + finished.stderr[-1000:]
    return {case.attrib["name"] for case in ElementTree.parse(report).iter("testcase") if not len(case)}


@pytest.fixture(scope="session")
def control(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], set[str]]:
    """What passes for the models of a type itself, which tells what this version of transformers skips."""

    @cache
    def of(model_type: str) -> set[str]:
        return passed(source, model_type, "own", tmp_path_factory.mktemp("own") / "report.xml")

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "kind"),
    [*(("bert", kind) for kind in ("dense", "gate", "hash")), *((name, "dense") for name in OTHERS)],
)
def test_common_model_tests(
    source: Path, control: Callable[[str], set[str]], model_type: str, kind: str, tmp_path: Path
) -> None:
    """All common tests that pass for a type pass for its students, but for those in `SKIPPED`."""
    expected = control(model_type)
    assert len(expected) >= 70
    skipped = SKIPPED.get(kind, set()) | SKIPPED.get(model_type, set())
    assert expected - passed(source, model_type, kind, tmp_path / "report.xml") == skipped

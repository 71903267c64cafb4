"""The way from text to export that nothing disturbs, with which tests compare the ways that they disturb."""

import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.nas import rows
from tests.nas.tiny_study import TinyStudy
from tests.trust.way import Way, undisturbed


@dataclass(frozen=True)
class Undisturbed:
    """What an undisturbed way leaves.

    Attributes:
        temporary: the folder for temporary files of all processes.
        seconds: how long each phase takes, and the time before a command works.
        of_libraries: what libraries leave among the temporary files in any case.
    """

    preset: Path
    temporary: Path
    seconds: dict[str, float]
    outcome: dict[str, Any]
    of_libraries: frozenset[Path]

    def temporary_files(self) -> list[Path]:
        """The temporary files that are left, without those of libraries."""
        return [path for path in self.temporary.iterdir() if path not in self.of_libraries]


@pytest.fixture(scope="session")
def whole_way(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    """One undisturbed way, with rows and text of its own, and trainings that are long enough to have a state from which
    they continue.
    """
    folder = tmp_path_factory.mktemp("way")
    text = folder / "text.txt"
    text.write_text("\n\n".join(sentence for sentence, _ in rows.sentences()))
    given = tomllib.loads(shared_study.preset.read_text())
    longer = {name: given[name] | {"steps": steps} for name, steps in (("pretrain", 110), ("final", 130))}
    longer["warmup"] = given["warmup"] | {"steps": 150, "source": "text"}
    preset = rows.study(shared_study, folder / "study", "rows", corpus=[str(text)], **longer)
    # A short path, as the paths of Ray's sockets must be.
    temporary = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(temporary))
        way = Way(folder / "whole", preset)
        seconds = undisturbed(way, folder / "said.txt")
        of_libraries = frozenset(temporary.iterdir())
        assert of_libraries <= {temporary / ".ses"}  # of onnxruntime
        yield Undisturbed(preset, temporary, seconds, way.outcome(), of_libraries)
    shutil.rmtree(temporary)

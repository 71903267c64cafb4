"""Students of earlier versions are read (studies: tests/nas/study). The cache of an earlier version is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from distill.training.teacher import TeacherError
from nas.export.checkpoint import load_checkpoint
from search_spaces import Architecture
from tests.golden.artefacts import EXPECTED, HERE, STUDENT
from tests.tiny import batch, inputs

VERSIONS = sorted(HERE.glob("artefacts-*"))


def expected_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / EXPECTED).read_text(encoding="utf-8"))
    return content


@pytest.mark.parametrize("folder", VERSIONS, ids=lambda folder: folder.name)
def test_a_student_gives_the_same_logits(folder: Path) -> None:
    checkpoint = load_checkpoint(folder / STUDENT)
    assert checkpoint.architecture == Architecture.load(folder / STUDENT / "architecture.json")
    with torch.no_grad():
        logits = checkpoint.model(**inputs(batch(4, 9))).logits
    torch.testing.assert_close(logits, torch.tensor(expected_of(folder)["student"]), rtol=1e-4, atol=1e-5)
    assert checkpoint.tokenizer.decode(checkpoint.tokenizer("word3 word7")["input_ids"]) == "[CLS] word3 word7 [SEP]"


def test_a_student_of_a_later_version_is_refused(tmp_path: Path) -> None:
    shutil.copytree(VERSIONS[-1] / STUDENT, tmp_path / "student")
    file = tmp_path / "student" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"ffn_version": 2}))
    with pytest.raises(
        TeacherError, match=r"cannot be read: config.json: ffn_version: 2 is unknown; the newest known one is 1$"
    ):
        load_checkpoint(tmp_path / "student")

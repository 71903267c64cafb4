"""The script in examples/ runs from another folder and with an empty cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import ROOT


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, ROOT / "examples" / "search_own_rows.py", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | {"FFN_NAS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    # What the script itself loads with transformers has a progress bar.
    said = [line for line in re.split(r"[\r\n]+", result.stderr) if line and not line.startswith("Loading weights")]
    assert (result.returncode, said) == (0, [])
    assert "is answered by" in result.stdout
    assert (tmp_path / "out" / "tickets" / "final" / "model.safetensors").exists()

"""The scripts in examples/ run from another folder and with an empty cache."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
# What each script prints at its end, and the checkpoint that it leaves.
SCRIPTS = {
    "search_own_rows": ("is answered by", "tickets/final"),
    "distil": ("of its accuracy", "student"),
    "experts": ("mixture: experts of layer 6 ffn: ", "mixture"),
}


def test_every_script_is_run() -> None:
    scripts = {path.stem for path in EXAMPLES.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert scripts == set(SCRIPTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example(name: str, tmp_path: Path) -> None:
    ending, checkpoint = SCRIPTS[name]
    result = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", "--out", "out"],
        cwd=tmp_path,
        env=os.environ | {"FFN_NAS_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
    )
    # What the script itself loads with transformers has a progress bar.
    said = [line for line in re.split(r"[\r\n]+", result.stderr) if line and not line.startswith("Loading weights")]
    assert (result.returncode, said) == (0, [])
    assert ending in result.stdout
    assert (tmp_path / "out" / checkpoint / "model.safetensors").exists()

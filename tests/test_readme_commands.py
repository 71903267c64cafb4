"""The README's first commands in a fresh virtual environment, one after the other, as a user copies them.

Reduced: the search takes its preset from a file that extends the README's `demo` with few steps and trials, and the
final training takes the study's configuration. Text, teacher, tasks, space and commands are the README's.
"""

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

from tests.checkout import ROOT, copy_to

REDUCED = """\
extends = "demo"
finetune = {steps = 20}
warmup = {steps = 4, importance_batches = 4}
candidate = {steps = 6}
one_shot = {steps = 10}
pretrain = {steps = 5}
final = {steps = 10}
stage1 = {trials = 4, confirm = 1, confirm_seeds = 1}
stage2 = {trials = 3, confirm = 1, confirm_seeds = 1}
stage3 = {trials = 5, confirm = 1, confirm_seeds = 1}
"""

pytestmark = pytest.mark.slow


def blocks(language: str = "") -> list[str]:
    """The fenced code blocks in this language of the section "Run it"."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Run it\n")[1].split("\n## ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", section, re.M | re.S)


def test_the_first_commands(tmp_path: Path) -> None:
    checkout, environment = copy_to(tmp_path / "checkout"), tmp_path / "environment"
    (checkout / "reduced.toml").write_text(REDUCED)
    venv.create(environment, with_pip=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    variables |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "FFN_NAS_CACHE": str(tmp_path / "cache")}

    def run(line: str) -> str:
        result = subprocess.run(line, shell=True, cwd=checkout, env=variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    first, final, *_ = blocks()
    install, search = first.strip().split(" && ")
    run(install)
    where = run("python -c 'import nas, sys; print(nas.__file__, sys.prefix)'")
    assert str(environment) in where
    output = run(f"{search} --preset reduced.toml --study demo")
    assert " 5/5 " in output  # the candidates of stage 3
    assert "next: ffn-train-final results/demo/architecture.json" in output
    assert "wrote results/demo/final" in run(final)
    (snippet,) = blocks("python")
    run(f"python - <<'END'\n{snippet}\nprint(model.config.model_type, len(tokenizer))\nEND")

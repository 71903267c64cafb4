"""The README, docs/command-line.md and CONTRIBUTING.md name options, tasks, modules, files and figures that exist."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from distill.__main__ import parser as distill_parser
from distill.objectives import OBJECTIVES, losses
from distill.objectives.outputs import run
from distill.tasks.readers import conll, glue, squad
from distill.tasks.readers import embedded as demo
from nas.final.command import parser as final_parser
from nas.search import parser
from search_spaces import PUBLISHED, cost
from supernet.experts import command as experts
from tests.tiny import batch, bert

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
# Options that every command has and the README does not list.
ALWAYS = {"-h", "--help", "--version"}


def test_the_search_has_the_options_that_are_listed() -> None:
    listed = README.split("    python -m nas.search --stage {")[1].split("\n\n")[0]
    options = {option for action in parser()._actions for option in action.option_strings}
    found = set(re.findall(r"--[a-z-]+", listed)) | {"--stage"} | ALWAYS
    assert found <= options
    assert options - found <= set(re.findall(r"--[a-z-]+", GUIDE))


def test_supernet_experts_has_the_options_that_are_listed() -> None:
    listed = README.split("    python -m supernet.experts CHECKPOINT")[1].split("\n\n")[0]
    options = {option for action in experts.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", listed)) | ALWAYS == options


def test_the_other_commands_have_the_options_that_are_listed() -> None:
    commands = {"python -m distill --student CHECKPOINT": distill_parser, "python train_final.py ARCH": final_parser}
    for start, its_parser in commands.items():
        listed = README.split("    " + start)[1].split("\n\n")[0] + start
        options = {option for action in its_parser()._actions for option in action.option_strings}
        found = set(re.findall(r"--[a-z-]+", listed)) | ALWAYS
        assert found <= options
        assert options - found <= set(re.findall(r"--[a-z-]+", GUIDE))


def test_tasks_and_objectives_are_listed() -> None:
    tasks = README.split("### Tasks\n")[1].split("### ")[0]
    known = {task for reader in (demo, glue, squad, conll) for task in reader.TASKS}
    assert known <= set(re.findall(r"`(\w+)`", tasks))
    objectives = README.split("### Objectives\n")[1].split("```")[0]
    assert set(re.findall(r"^\| `(\w+)`", objectives, re.M)) | {"minilmv2"} == set(OBJECTIVES)


def test_the_recipe_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distill.objectives.OBJECTIVES", dict(OBJECTIVES))
    names: dict[str, Any] = {}
    exec(README.split("```python\n")[-1].split("```")[0], names)
    student, teacher = bert(hidden_size=16), bert(num_hidden_layers=4)
    objective = names["last_states"](student.config, teacher.config, hidden=0.5)
    inputs = batch()
    s, t = run(student, inputs, objective.needs), run(teacher, inputs, objective.teacher_needs)
    state = objective.projections["hidden"](s.hidden_states[2])
    expected = (
        F.cross_entropy(s.logits, inputs["labels"])
        + losses.symmetric_kl(s.logits, t.logits)
        + 0.5 * losses.hidden_mse(state, t.hidden_states[4], inputs["attention_mask"])
    )
    torch.testing.assert_close(objective(s, t, inputs), expected)


def test_modules_and_files_exist() -> None:
    for module in set(re.findall(r"python -m ([a-z_.]+)", README)):
        assert find_spec(module), module
    for path in re.findall(r"\]\(([^#)][^)]*)\)", README):
        assert (ROOT / path).exists(), path


def test_the_published_counts() -> None:
    rows = dict(re.findall(r"^\| (`[^|]+) \| ([0-9.]+) M \|", README, re.M))
    listed = {name: millions for names, millions in rows.items() for name in re.findall("`([^`]+)`", names)}
    ours = {name for name in PUBLISHED if name.startswith(("base", "stage", "efficientbert"))}
    assert set(listed) == ours
    assert listed == {name: f"{cost.params_published(PUBLISHED[name]) / 1e6:.3f}" for name in listed}


def test_the_test_command_is_what_ci_runs() -> None:
    command = re.search(r"pip install (-c constraints.txt -e \"\.\[demo,test\]\") && (python -m pytest)", README)
    assert command is not None
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(part in script for part in command.groups())


def test_contributing_names_files_and_tables_that_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for path in re.findall(r"`([\w.-]+/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    rows = re.findall(r"^\|[^|]*\| (.*?) \| (.*?) \|", text, re.M)
    checked = 0
    for where, table in rows:
        files = [ROOT / path for path in re.findall(r"`([\w./-]+\.py)`", f"{table} {where}")]
        for name in re.findall(r"`([A-Z_]+)`", table):
            sources = [path.read_text(encoding="utf-8") for path in files]
            folders = [ROOT / path / "__init__.py" for path in re.findall(r"`([\w/]+)`", where) if "." not in path]
            sources += [path.read_text(encoding="utf-8") for path in folders if path.exists()]
            assert any(re.search(rf"^{name}\b.*=", source, re.M) for source in sources), name
            checked += 1
    assert checked >= 6

"""The README says what is there."""

import re
from importlib.util import find_spec
from pathlib import Path

from nas.search import parser
from search_spaces import PUBLISHED, cost
from supernet import experts

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_search_has_the_options_that_are_listed() -> None:
    listed = README.split("    python -m nas.search --stage {")[1].split("\n\n")[0]
    options = {option for action in parser()._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", listed)) | {"--stage", "-h", "--help"} == options


def test_supernet_experts_has_the_options_that_are_listed() -> None:
    listed = README.split("    python -m supernet.experts CHECKPOINT")[1].split("\n\n")[0]
    options = {option for action in experts.parser()._actions for option in action.option_strings}
    assert set(re.findall(r"--[a-z-]+", listed)) | {"-h", "--help"} == options


def test_modules_and_files_exist() -> None:
    for module in set(re.findall(r"python -m ([a-z_.]+)", README)) - {"benchmarks."}:
        assert find_spec(module), module
    listed = README.split("python -m benchmarks.NAME: ")[1].split("\n\n")[0]
    for name in re.split(r",\s+", listed):
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name
    for path in re.findall(r"\]\(([^)]+)\)", README):
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

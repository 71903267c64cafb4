"""The README, the guides and CONTRIBUTING.md name options, tasks, modules, files and figures that exist."""

import re
from importlib.util import find_spec
from pathlib import Path

from distill.__main__ import parser as distill_parser
from distill.augment import parser as augment_parser
from distill.objectives import OBJECTIVES
from distill.tasks.readers import conll, glue, squad
from distill.tasks.readers import embedded as demo
from nas import pick
from nas.final.command import parser as final_parser
from nas.search.options import parser
from search_spaces import PUBLISHED, cost
from supernet import cut_vocabulary, prune, student
from supernet.experts import command as experts

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))


def guide(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def test_options_exist() -> None:
    """Every option in a command of a page is one of that command."""
    parsers = {
        "nas.search": parser,
        "nas.pick": pick.parser,
        "train_final.py": final_parser,
        "distill": distill_parser,
        "distill.augment": augment_parser,
        "supernet.student": student.parser,
        "supernet.prune": prune.parser,
        "supernet.cut_vocabulary": cut_vocabulary.parser,
        "supernet.experts": experts.parser,
    }
    checked = 0
    for path in PAGES:
        for command, rest in re.findall(r"python (?:-m )?([\w.]+)(.*)", path.read_text(encoding="utf-8")):
            if command in parsers:
                known = {option for action in parsers[command]()._actions for option in action.option_strings}
                named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest.partition("`")[0]))
                assert named <= known, f"{path.name}: {command} has no {named - known}"
                checked += len(named)
    assert checked > 20


def test_tasks_and_objectives_are_listed() -> None:
    known = {task for reader in (demo, glue, squad, conll) for task in reader.TASKS}
    assert known <= set(re.findall(r"`(\w+)`", guide("own_data")))
    objectives = guide("distillation").split("## Objectives\n")[1].split("\n#")[0]
    assert set(re.findall(r"^\| `(\w+)`", objectives, re.M)) | {"minilmv2"} == set(OBJECTIVES)


def test_modules_and_files_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for module in set(re.findall(r"python -m ([a-z_.]+)", text)):
            assert find_spec(module), module
        for path in re.findall(r"\]\(([^#):][^):#]*)(?:#[^)]*)?\)", text):
            assert (page.parent / path).exists(), f"{page.name}: {path}"


def test_the_published_counts() -> None:
    rows = dict(re.findall(r"^\| (`[^|]+) \| ([0-9.]+) M \|", guide("architectures"), re.M))
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

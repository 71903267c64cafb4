"""Every benchmark is listed, and every listed one has help and options of its own."""

import re
import subprocess
import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import CATALOGUE, main
from tests.checkout import ROOT


def test_the_catalogue_has_all_benchmarks() -> None:
    files = (ROOT / "benchmarks").glob("*.py")
    runnable = {path.stem for path in files if re.search(r"^def add_options\(", path.read_text(), re.MULTILINE)}
    assert set(CATALOGUE) == runnable


def test_the_list_has_a_line_for_each_and_imports_no_torch() -> None:
    program = "import sys; from benchmarks.__main__ import main; main(['--list']); sys.exit('torch' in sys.modules)"
    listed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    lines = listed.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    for line, (summary, duration) in zip(lines, CATALOGUE.values(), strict=True):
        assert line.endswith(f"{summary} ({duration})")


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_listed_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: python -m benchmarks {name} ")
    assert "--json" in printed


def test_a_name_that_is_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe"]) == 2
    assert "there is no benchmark 'recipe'; did you mean 'recipes'? (see --list)" in capsys.readouterr().err


def test_a_mistake_in_the_options_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "missing.toml"
    assert main(["leads", "--preset", str(missing)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"python -m benchmarks leads: {missing}: ")


def test_commands_in_the_documents_name_benchmarks_and_their_options() -> None:
    """But for those that were run in another commit, such as `40aa845$ python -m benchmarks teachers`."""
    documents = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "results").glob("*.md")]
    for document in documents:
        text = re.sub(r"\b[0-9a-f]{7}\$ .*", "", document.read_text(encoding="utf-8"))
        for command in re.findall(r"python -m benchmarks ([a-z][^`\n]*(?:\n {8,}[^`\n]+)*)", text):
            name, *words = command.split()
            assert name in CATALOGUE, f"{document.name}: {command}"
            parser = ArgumentParser()
            import_module(f"benchmarks.{name}").add_options(parser)
            known = {"--json", *(option for action in parser._actions for option in action.option_strings)}
            assert set(re.findall(r"--[a-z-]+", " ".join(words))) <= known, f"{document.name}: {command}"

"""The code that lands in an exported folder imports Python's standard library, torch and transformers alone."""

import ast
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from search_spaces import Architecture, Experts
from supernet.build import build
from tests.tiny import BASE

MIXTURE = Architecture.uniform(BASE, expansion=Fraction(1, 4), experts=Experts(2))
ALLOWED = {"torch", "transformers"}
# Parts of the standard library that reach beyond the process.
FORBIDDEN = {"ctypes", "http", "importlib", "os", "pathlib", "pickle", "shutil", "socket", "subprocess", "urllib"}


def imported(source: str) -> Iterator[str]:
    """The top-level packages that a module imports, other than its own folder's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]


def test_what_is_found() -> None:
    assert set(imported("import a.b\nfrom .c import d\ndef f():\n    from e.f import g\n")) == {"a", "e"}


@pytest.mark.parametrize("architecture", [Architecture.uniform(BASE), MIXTURE])
def test_the_code_of_a_checkpoint(architecture: Architecture, tmp_path: Path) -> None:
    build(architecture).save_pretrained(tmp_path)
    sources = {path.name: path.read_text() for path in tmp_path.rglob("*.py")}
    assert {"modeling_nas_bert.py", "configuration.py", "ffn.py"} <= set(sources)
    for name, source in sources.items():
        found = set(imported(source))
        assert found <= ALLOWED | set(sys.stdlib_module_names) - FORBIDDEN, name
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)}
        assert not calls & {"eval", "exec", "compile", "open", "__import__"}, name

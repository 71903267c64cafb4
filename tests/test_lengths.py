"""Files and functions are short enough to be read in one sitting."""

import ast
from pathlib import Path

import pytest

from tests.test_private_names import SOURCES

PROJECT = Path(__file__).parents[1]
MAX_LINES, MAX_LINES_OF_FUNCTION = 400, 80


@pytest.mark.parametrize("source", [*SOURCES, "docs", "examples", "requirements"])
def test_lengths(source: str) -> None:
    files = sorted((PROJECT / source).rglob("*.py")) or [PROJECT / source]
    for file in files:
        text = file.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        assert lines <= MAX_LINES, f"{file} has {lines} lines, which is more than {MAX_LINES}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MAX_LINES_OF_FUNCTION, f"{file}: {node.name} has {lines} lines"

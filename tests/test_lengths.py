"""Files and functions are short enough to be read in one sitting."""

import ast
from pathlib import Path

import pytest

from tests.test_private_names import SOURCES

PROJECT = Path(__file__).parents[1]
LINES, LINES_OF_A_FUNCTION = 400, 80


@pytest.mark.parametrize("source", SOURCES)
def test_lengths(source: str) -> None:
    files = sorted((PROJECT / source).rglob("*.py")) or [PROJECT / source]
    for file in files:
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= LINES, file
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < LINES_OF_A_FUNCTION, f"{file}: {node.name}"

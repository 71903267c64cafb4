"""Files and functions are short enough to be read in one sitting."""

import ast

from tests.checkout import PACKAGES, sources, tree

MAX_LINES, MAX_LINES_OF_FUNCTION = 400, 80


def test_lengths() -> None:
    for file in sources(*PACKAGES, "benchmarks", "train_final.py", "docs", "examples", "requirements"):
        lines = len(file.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_LINES, f"{file} has {lines} lines, which is more than {MAX_LINES}"
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1
                assert lines <= MAX_LINES_OF_FUNCTION, f"{file}: {node.name} has {lines} lines"

"""Every module has a docstring, and docstrings only describe parameters that exist."""

import ast
import inspect
import re
from collections.abc import Iterator

from tests.checkout import PACKAGES, sources, tree

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(node: ast.AST) -> Iterator[Definition]:
    """Functions, classes and methods, except for those defined inside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child
            if isinstance(child, ast.ClassDef):
                yield from definitions(child)


def documented(docstring: str) -> set[str]:
    """The names in the section "Args"; several may share a line."""
    section = re.search(r"^Args:\n((?:    .*\n|\n)+)", inspect.cleandoc(docstring) + "\n", re.M)
    lines = re.findall(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):", section[1], re.M) if section else []
    return {name.lstrip("*") for line in lines for name in line.split(", ")}


def parameters(node: Definition) -> set[str]:
    """The names of a function's parameters, or of those of a class's constructor."""
    if isinstance(node, ast.ClassDef):
        fields = {
            entry.target.id
            for entry in node.body
            if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
        }
        makers = [entry for entry in node.body if isinstance(entry, ast.FunctionDef) and entry.name == "__init__"]
        return fields.union(*map(parameters, makers))
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {argument.arg for argument in (*named, arguments.vararg, arguments.kwarg) if argument is not None}


def test_documented_parameters_exist() -> None:
    for path in sources(*PACKAGES):
        assert ast.get_docstring(tree(path)) or path.name == "__main__.py", path
        for node in definitions(tree(path)):
            unknown = documented(ast.get_docstring(node) or "") - parameters(node)
            assert not unknown, f"{path}: the docstring of {node.name} explains {', '.join(sorted(unknown))}"


def test_the_check_itself() -> None:
    docstring = (
        "Add.\n\nArgs:\n    a, c: numbers,\n        such as 1.\n    rest: more of them.\n\nRaises:\n    E: never."
    )
    assert documented(docstring) == {"a", "c", "rest"}
    (node,) = definitions(ast.parse("def add(a, *rest, b=1): pass"))
    assert parameters(node) == {"a", "rest", "b"}

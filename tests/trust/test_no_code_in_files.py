"""The sources call none of the known functions that run code from what they read."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import PACKAGES, ROOT

SOURCES = [
    *(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")),
    ROOT / "train_final.py",
]
# Modules whose readers run code from what they read.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy"}
# What the sources may import from those modules all the same.
HARMLESS = {("pickle", "UnpicklingError")}
# Readers that unpickle a file, run code in it, or open other files that it names, by the ends of their full names.
UNSAFE_CALLS = {
    "torch.export.load",
    "torch.jit.load",
    "aoti_load_package",
    "load_checkpoint_in_model",
    "load_checkpoint_and_dispatch",
    "read_pickle",
    "CmaEsSampler",
    "JournalStorage",
}
UNSAFE_BUILTINS = {"eval", "exec", "compile", "__import__"}
# Functions that are safe with this argument alone.
REQUIRED = {"torch.load": ("weights_only", True), "numpy.load": ("allow_pickle", False)}


def imported(tree: ast.AST) -> dict[str, str]:
    """The full names of what a module imports under other names."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def findings(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a module that execute what they read, and what is wrong there."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (node.lineno, f"import {alias.name}")
                for alias in node.names
                if alias.name.partition(".")[0] in UNSAFE_MODULES
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in UNSAFE_MODULES:
            for alias in node.names:
                if (node.module, alias.name) not in HARMLESS:
                    yield node.lineno, f"from {node.module} import {alias.name}"
        elif isinstance(node, ast.Call):
            first, dot, rest = ast.unparse(node.func).partition(".")
            called = names.get(first, first) + dot + rest
            given = {word.arg: word.value for word in node.keywords}
            if called in UNSAFE_BUILTINS or called in ("os.system", "os.popen"):
                yield node.lineno, called
            yield from ((node.lineno, name) for name in UNSAFE_CALLS if f".{called}".endswith(f".{name}"))
            if called in REQUIRED:
                name, value = REQUIRED[called]
                argument = given.get(name)
                if not isinstance(argument, ast.Constant) or argument.value is not value:
                    yield node.lineno, f"{called} without {name}={value}"
            for name in ("shell", "trust_remote_code"):
                argument = given.get(name)
                if argument is not None and not (isinstance(argument, ast.Constant) and argument.value is False):
                    yield node.lineno, f"{called} with {name}"


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import pickle", "import pickle"),
        ("from joblib import load", "from joblib import load"),
        ("from pickle import UnpicklingError", None),
        ("eval('1')", "eval"),
        ("model.eval()", None),
        ("torch.load(path)", "torch.load without weights_only=True"),
        ("torch.load(path, weights_only=False)", "torch.load without weights_only=True"),
        ("torch.load(path, weights_only=True)", None),
        ("torch.export.load(path)", "torch.export.load"),
        ("optuna.samplers.CmaEsSampler()", "CmaEsSampler"),
        ("from torch import load as read; read(path)", "torch.load without weights_only=True"),
        ("from torch.jit import load; load(path)", "torch.jit.load"),
        ("import numpy as np; np.load(path)", "numpy.load without allow_pickle=False"),
        ("subprocess.run(line, shell=True)", "subprocess.run with shell"),
        (
            "AutoModel.from_pretrained(path, trust_remote_code=trust)",
            "AutoModel.from_pretrained with trust_remote_code",
        ),
        ("AutoModel.from_pretrained(path, trust_remote_code=False)", None),
    ],
)
def test_what_is_found(source: str, wrong: str | None) -> None:
    assert [found for _, found in findings(source)] == ([] if wrong is None else [wrong])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module(path: Path) -> None:
    assert not list(findings(path.read_text(encoding="utf-8")))

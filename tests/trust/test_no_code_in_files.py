"""The sources call none of the known functions that run code from what they read, and those that are saved with a
checkpoint import Python's standard library, torch and transformers alone.
"""

import ast
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from search_spaces import Architecture, Experts
from supernet.build import build
from tests.checkout import PACKAGES, sources, tree
from tests.tiny import BASE

# Modules whose readers run code from what they read.
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy"}
# What the sources may import from those modules all the same.
HARMLESS = {"pickle.UnpicklingError", "joblib.Parallel", "joblib.cpu_count", "joblib.delayed", "joblib.parallel_config"}
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


# Parts of the standard library that reach beyond the process.
REACHING = {"ctypes", "http", "importlib", "os", "pathlib", "pickle", "shutil", "socket", "subprocess", "urllib"}


def imported(module: ast.AST) -> dict[str, str]:
    """The full names of what a module imports, by the names that they have there; a dot begins those of its folder."""
    names = {}
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            names |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
    return names


def findings(module: ast.AST) -> Iterator[tuple[int, str]]:
    """The lines of a module that execute what they read, and what is wrong there; line 0 for its imports."""
    names = imported(module)
    yield from (
        (0, f"import of {name}")
        for name in names.values()
        if name.partition(".")[0] in UNSAFE_MODULES and name not in HARMLESS
    )
    for node in ast.walk(module):
        if isinstance(node, ast.Call):
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
        ("import pickle", "import of pickle"),
        ("from joblib import load", "import of joblib.load"),
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
    assert [finding for _, finding in findings(ast.parse(source))] == ([] if wrong is None else [wrong])


def test_the_sources() -> None:
    for path in sources(*PACKAGES, "train_final.py"):
        assert not list(findings(tree(path))), path


@pytest.mark.parametrize("experts", [Experts(), Experts(2)])
def test_the_code_of_a_checkpoint(experts: Experts, tmp_path: Path) -> None:
    build(Architecture.uniform(BASE, expansion=Fraction(1, 4), experts=experts)).save_pretrained(tmp_path)
    files = {path.name: path for path in tmp_path.rglob("*.py")}
    assert {"modeling_nas_bert.py", "configuration.py", "ffn.py"} <= set(files)
    allowed = {"", "torch", "transformers"} | set(sys.stdlib_module_names) - REACHING
    for path in files.values():
        assert {name.partition(".")[0] for name in imported(tree(path)).values()} <= allowed, path
        assert not list(findings(tree(path))) and "open(" not in path.read_text(encoding="utf-8"), path

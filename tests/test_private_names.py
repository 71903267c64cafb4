"""What the project uses of other libraries that has no public name: any release may change it, so the list is short.

A name that is used in another file, or a new one, fails the test: use what is public, or add it here together with the
test that notices when it changes. A name that is used no more is removed. Tests are not looked at.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.checkout import PACKAGES, ROOT, sources, tree

# By file: the names, and the tests that notice when they change (FOLDER, FILE or FILE::TEST).
ATTENTION, WEIGHTS = {"_attn_implementation"}, {"_init_weights"}
PRIVATE: dict[str, tuple[set[str], str]] = {
    # argparse
    "distill/cli.py": ({"_ActionsContainer"}, "tests/distill/test_cli.py"),
    # Optuna
    "nas/study/storage.py": (
        {"optuna.storages._rdb", "_get_prepared_new_trial", "_get_trials", "_storage", "_study_id"},
        "tests/nas/study/test_storage.py",
    ),
    "nas/samplers/nsga2.py": (
        {"optuna.samplers.nsgaii._elite_population_selection_strategy"},
        "tests/nas/samplers/test_samplers.py",
    ),
    # Ray
    "nas/workers/cluster.py": (
        {"ray._private", "ray.air.execution._internal", "_actor_task_failed"},
        "tests/nas/workers/test_cluster.py "
        "tests/nas/workers/test_runner.py::test_a_candidate_without_memory_fails_at_once",
    ),
    # torch
    "distill/objectives/base.py": ({"_apply"}, "tests/distill/objectives/test_microbert.py"),
    "distill/encoders/student/expert_linear.py": (
        {"_linear_pointwise"},
        "tests/distill/encoders/student/test_expert_linear.py",
    ),
    # transformers
    "distill/objectives/outputs.py": (ATTENTION, "tests/distill/objectives/test_outputs.py"),
    "distill/objectives/theseus.py": (ATTENTION, "tests/distill/objectives/test_theseus.py"),
    "distill/training/loop.py": (ATTENTION, "tests/distill/training/test_loop.py"),
    "nas/onnx/model.py": (ATTENTION, "tests/nas/onnx/test_onnx.py"),
    "supernet/one_shot.py": (ATTENTION, "tests/supernet/test_one_shot.py"),
    "distill/encoders/student/attention.py": (ATTENTION, "tests/distill/encoders/student/test_experts_in_model.py"),
    "distill/encoders/student/modeling_nas_bert.py": (
        WEIGHTS,
        "tests/distill/encoders/student/test_modeling_nas_bert.py",
    ),
    "distill/encoders/student/student.py": (WEIGHTS, "tests/distill/encoders/student/test_modeling_nas_bert.py"),
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(tree: ast.AST) -> Iterator[str]:
    """All names that a file assigns or defines: functions, classes, variables, attributes (of any object). So a foreign
    name that is spelled like one of these is not noticed.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def foreign(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """The private names of other libraries that a file uses.

    Args:
        own: the private names that the project defines; of these, only what is called of `super()` is foreign.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if any(is_private(part) for part in node.module.split(".")):
                yield node.module
            else:
                yield from (f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            yield from (name for name in names if any(map(is_private, name.split("."))))
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            of = node.value.func if isinstance(node.value, ast.Call) else None
            if node.attr not in own or (isinstance(of, ast.Name) and of.id == "super"):
                yield node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            name = node.args[1]
            if isinstance(name, ast.Constant) and is_private(name.value):
                yield name.value


def test_no_others_are_used() -> None:
    files = sources(*PACKAGES, "benchmarks", "train_final.py")
    own = {name for file in files for name in defined(tree(file)) if is_private(name)}
    used = {file.relative_to(ROOT).as_posix(): set(foreign(tree(file), own)) for file in files}
    listed = {file: names for file, (names, _) in PRIVATE.items()}
    assert {file: names for file, names in used.items() if names} == listed


def test_the_tests_that_notice_are_there() -> None:
    for _, noticed in PRIVATE.values():
        for one in noticed.split():
            path, _, test = one.partition("::")
            assert (ROOT / path).exists(), one
            assert not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), one


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch._dynamo", {"torch._dynamo"}),
        ("from ray._private import x", {"ray._private"}),
        ("from optuna import _x, y", {"optuna._x"}),
        ("study._storage.close()", {"_storage"}),
        ("getattr(torch, '_C')", {"_C"}),
        ("super()._own()", {"_own"}),
        ("self._own(model.__dict__)", set()),
    ],
)
def test_what_is_found(source: str, expected: set[str]) -> None:
    assert set(foreign(ast.parse(source), {"_own"})) == expected

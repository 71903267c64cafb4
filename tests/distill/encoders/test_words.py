"""Only distill/encoders and distill/encoders/student name the parts of encoders: all other code asks the family."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from distill.encoders.student.families import FAMILIES
from distill.objectives import OBJECTIVES
from tests.checkout import ROOT

PACKAGES = ("foundation", "search_spaces", "distill", "supernet", "nas", "benchmarks")
ANATOMISTS = "distill/encoders"
# The dotted paths of all families.
PATHS = {
    path
    for family in FAMILIES.values()
    for path in vars(family).values()
    if isinstance(path, str) and "." in path and family.students_of is None
}
WORDS = (
    *(
        "encoder.layer",
        ".bert.",
        ".roberta.",
        "intermediate.dense",
        "output.dense",
        "attention.self",
        "output.LayerNorm",
        "cls.predictions",
        "lm_head.",
        "sa_layer_norm",
    ),
    *PATHS,
    *("intermediate_size", "max_position_embeddings", "type_vocab_size", "hidden_act", "hidden_dropout_prob"),
    *("attention_probs_dropout_prob", "classifier_dropout", "layer_norm_eps"),
)


def files() -> list[Path]:
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    return [path for path in found if not path.relative_to(ROOT).as_posix().startswith(ANATOMISTS)]


def named(path: Path) -> Iterator[str]:
    """The words of encoders in the code and the strings of a file, but for docstrings, comments and the arguments of
    transformers' own configurations.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("Config"):
            node.keywords = []
        if isinstance(node, ast.Constant) and node.value in set(FAMILIES) - set(OBJECTIVES):
            yield str(node.value)
    code = ast.unparse(tree)
    yield from (word for word in WORDS if word in code)


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_ask_the_family(path: Path) -> None:
    assert list(named(path)) == []

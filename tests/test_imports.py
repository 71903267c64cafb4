"""Imports have no cycles and go in one direction between packages and subpackages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

from tests.checkout import PACKAGES, ROOT, sources, tree

# Modules that are on another floor than the rest of their package, which therefore count as rooms of their own.
APART = {
    "supernet.experts.routers",
    "nas.study.contributions",
    "nas.study.folder",
    "nas.study.names",
}


def modules() -> dict[str, Path]:
    """The file of every module of the packages, of the benchmarks and of `train_final`, by its name."""
    files = sources(*PACKAGES, "benchmarks", "train_final.py")
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imported(name: str, node: ast.AST, known: set[str]) -> Iterator[str]:
    """The known modules that a module imports anywhere, in functions, for type annotations and by name, too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from named(name, child, known)
        else:
            yield from imported(name, child, known)


def named(name: str, node: ast.Import | ast.ImportFrom, known: set[str]) -> set[str]:
    """The known modules that a single import statement names."""
    if isinstance(node, ast.Import):
        return known & {alias.name for alias in node.names}
    # Modules that ship in a checkpoint import each other relatively.
    source = ".".join([*name.split(".")[: -node.level], str(node.module)]) if node.level else str(node.module)
    submodules = (f"{source}.{alias.name}" for alias in node.names)
    return known & {submodule if submodule in known else source for submodule in submodules}


def imported_by_name(module: ast.Module, known: set[str]) -> set[str]:
    """The known modules whose names are strings in a module that imports modules by their names."""
    nodes = list(ast.walk(module))
    if not any(isinstance(node, ast.alias) and node.name in ("importlib", "import_module") for node in nodes):
        return set()
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)} & known


@pytest.fixture(scope="module")
def graph() -> networkx.DiGraph:
    files = modules()
    result = networkx.DiGraph()
    result.add_nodes_from(files)
    for name, path in files.items():
        others = {*imported(name, tree(path), set(files)), *imported_by_name(tree(path), set(files))}
        result.add_edges_from((name, other) for other in others)
    assert len(result) > 80 and result.number_of_edges() > 200
    return result


def test_every_folder_is_a_package() -> None:
    """A wheel would lack one without `__init__.py`, which a checkout imports all the same."""
    files = set(sources(*PACKAGES))
    assert {path.parent / "__init__.py" for path in files} <= files


def test_no_module_imports_itself_through_others(graph: networkx.DiGraph) -> None:
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(graph) if len(circle) > 1]
    assert circles == []


def test_no_room_imports_itself_through_others(graph: networkx.DiGraph) -> None:
    """A room is a subpackage, or a module beside the subpackages."""
    packages = {name for name, path in modules().items() if path.name == "__init__.py"}

    def room(name: str) -> str:
        subpackage = ".".join(name.split(".")[:2])
        return subpackage if subpackage in packages and name not in APART else name

    rooms = networkx.DiGraph((room(one), room(other)) for one, other in graph.edges if room(one) != room(other))
    circles = [sorted(circle) for circle in networkx.strongly_connected_components(rooms) if len(circle) > 1]
    assert circles == []


# The packages, and the rooms of distill, from the lowest to the highest: each imports itself and what is below it.
FLOORS = (
    "foundation",
    "search_spaces",
    "distill.encoders",
    "distill.tasks",
    "distill.cpu",
    "distill.objectives",
    "distill.training",
    "distill",
    "supernet",
    "nas",
    "train_final",
)


def inside(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize(
    ("importer", "allowed"),
    [
        *((floor, FLOORS[: place + 1]) for place, floor in enumerate(FLOORS)),
        ("distill.cpu", ("distill.cpu",)),
        # What ships in a checkpoint has nothing but itself and its libraries.
        ("distill.encoders.student", ("distill.encoders.student",)),
    ],
)
def test_imports_go_one_way(graph: networkx.DiGraph, importer: str, allowed: tuple[str, ...]) -> None:
    assert not [edge for edge in graph.edges if inside(edge[0], importer) and not inside(edge[1], *allowed)]

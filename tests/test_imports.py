"""Imports have no cycles and go in one direction between packages and subpackages."""

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

PROJECT = Path(__file__).parents[1]
PACKAGES = ("foundation", "search_spaces", "distill", "supernet", "nas")
# Modules that are on another floor than the rest of their package, which therefore count as rooms of their own.
APART = {
    "supernet.experts.channels",
    "supernet.experts.routers",
    "nas.study.contributions",
    "nas.study.folder",
    "nas.study.names",
}


def modules() -> dict[str, Path]:
    """The file of every module of the packages and of `train_final`, by its name."""
    files = [path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")]
    names = {
        ".".join(path.relative_to(PROJECT).with_suffix("").parts).removesuffix(".__init__"): path for path in files
    }
    return names | {"train_final": PROJECT / "train_final.py"}


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


def imported_by_name(tree: ast.Module, known: set[str]) -> set[str]:
    """The known modules whose names are strings in a module that imports modules by their names."""
    nodes = list(ast.walk(tree))
    if not any(isinstance(node, ast.alias) and node.name in ("importlib", "import_module") for node in nodes):
        return set()
    return {str(node.value) for node in nodes if isinstance(node, ast.Constant)} & known


@pytest.fixture(scope="module")
def graph() -> networkx.DiGraph:
    files = modules()
    result = networkx.DiGraph()
    result.add_nodes_from(files)
    for name, path in files.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        others = {*imported(name, tree, set(files)), *imported_by_name(tree, set(files))}
        result.add_edges_from((name, other) for other in others)
    assert len(result) > 80 and result.number_of_edges() > 200
    return result


def test_every_folder_is_a_package() -> None:
    """A wheel would lack one without `__init__.py`, which a checkout imports all the same."""
    files = {path for package in PACKAGES for path in (PROJECT / package).rglob("*.py")}
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


@pytest.mark.parametrize(
    ("importer", "allowed"),
    [
        ("foundation", ("foundation",)),
        ("search_spaces", ("foundation", "search_spaces")),
        ("distill", ("foundation", "search_spaces", "distill")),
        ("supernet", ("foundation", "search_spaces", "distill", "supernet")),
        ("nas", PACKAGES),
        # The rooms of distill, from the lowest to the highest.
        ("distill.cpu", ("distill.cpu",)),
        ("distill.encoders", ("foundation", "search_spaces", "distill.encoders")),
        ("distill.tasks", ("foundation", "search_spaces", "distill.encoders", "distill.tasks")),
        (
            "distill.objectives",
            ("foundation", "search_spaces", "distill.cpu", "distill.encoders", "distill.tasks", "distill.objectives"),
        ),
        (
            "distill.training",
            (
                "foundation",
                "search_spaces",
                "distill.cpu",
                "distill.encoders",
                "distill.tasks",
                "distill.objectives",
                "distill.training",
            ),
        ),
        # What ships in a checkpoint has nothing but itself and its libraries.
        ("distill.encoders.student", ("distill.encoders.student",)),
    ],
)
def test_imports_go_one_way(graph: networkx.DiGraph, importer: str, allowed: tuple[str, ...]) -> None:
    def inside(name: str, packages: tuple[str, ...]) -> bool:
        return any(name == package or name.startswith(f"{package}.") for package in packages)

    found = [(name, other) for name, other in graph.edges if inside(name, (importer,)) and not inside(other, allowed)]
    assert found == []


def test_no_package_imports_the_script(graph: networkx.DiGraph) -> None:
    assert graph.in_degree("train_final") == 0

"""Graphs as trees of limited height: which ones there are, how they are spelled, and how many."""

import itertools
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import optuna
import pytest

from search_spaces import FFNGraph, Space, neighbourhood
from search_spaces.equivalence import fingerprint
from search_spaces.grammar import choices_of, count_graphs, suggest_graph
from search_spaces.operations import BINARY, UNARY
from search_spaces.published import PUBLISHED
from search_spaces.spaces import GRAPHS, SpaceError
from search_spaces.spelling import RandomTrial
from search_spaces.terms import MAX_TERMS
from search_spaces.trees import suggest_tree
from tests.search_spaces.small_spaces import HIGH, LOW, kinds_of_space
from tests.search_spaces.strategies import small_space

# A tree of EfficientBERT's released code: an operation with its arguments; "1" and "2" are the two linear maps.
Tree = tuple
X: Tree = ("x",)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One activation and one binary operation, with which all choices can be made one after the other."""
    for module in ("trees", "spelling"):
        monkeypatch.setattr(f"search_spaces.{module}.UNARY", ("gelu",))
    monkeypatch.setattr("search_spaces.trees.BINARY", ("add",))


class Given:
    """Makes the given choices first, and then the first of every further parameter."""

    def __init__(self, given: Sequence[int]) -> None:
        self.given, self.sizes = given, list[int]()
        self.made: dict[str, str] = {}

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        assert name not in self.made and len(set(choices)) == len(choices)
        place = len(self.sizes)
        self.sizes.append(len(choices))
        self.made[name] = choices[self.given[place] if place < len(self.given) else 0]
        return self.made[name]

    def suggest_float(self, name: str, low: float, high: float) -> float:
        raise AssertionError


def height_of(formula: str) -> int:
    """The height of a formula as a tree."""
    depth = highest = 0
    for character in formula:
        depth += (character == "(") - (character == ")")
        highest = max(highest, depth)
    return highest


def every_formula(gated: bool, height: int) -> Iterator[tuple[str, dict[str, str]]]:
    """All formulas, each with its choices."""
    given: list[int] | None = []
    while given is not None:
        trial = Given(given)
        yield suggest_tree(trial, "a", "gelu", gated, height), trial.made
        made = given + [0] * (len(trial.sizes) - len(given))
        while made and made[-1] == trial.sizes[len(made) - 1] - 1:
            made.pop()
        given = [*made[:-1], made[-1] + 1] if made else None


@pytest.mark.parametrize(("gated", "height"), [(False, 3), (False, 4), (False, 5), (True, 3), (True, 4)])
def test_every_graph_is_counted_and_spelled_once(few: None, gated: bool, height: int) -> None:
    found = list(every_formula(gated, height))
    assert count_graphs("gelu", gated, height) == len(found) == len({formula for formula, _ in found})
    for formula, made in found if len(found) < 1000 else random.Random(0).sample(found, 1000):
        assert height_of(formula) <= height
        graph = FFNGraph.parse(formula)
        assert choices_of(graph, "a", gated, height) == made
        lower = choices_of(graph, "a", gated, height - 1) if height > 3 else None
        assert (lower is not None) == (height_of(formula) < height)


@cache
def released(height: int) -> frozenset[Tree]:
    """All trees of at most this height that keep the rules of the released code for parts of a tree."""
    if not height:
        return frozenset({X})
    smaller = released(height - 1)
    found = {X}
    for tree in smaller:
        found |= {("gelu", tree)} if tree[0] != "gelu" else set()
        for linear in ("1", "2"):
            if tree[0] not in "12" and linear not in maps(tree):
                found.add((linear, tree))
    for a, b in itertools.product(smaller, repeat=2):
        if not set(maps(a)) & set(maps(b)) and (a != b or "," in text(a)):
            found.add(("add", a, b))
    return frozenset(tree for tree in found if keeps_order(tree))


@cache
def maps(tree: Tree) -> str:
    """The linear maps of a tree in the order of their names."""
    return "".join(sorted((tree[0] if tree[0] in "12" else "") + "".join(map(maps, tree[1:]))))


@cache
def text(tree: Tree) -> str:
    op = {"1": "expand", "2": "project"}.get(tree[0], tree[0])
    return f"{op}({','.join(map(text, tree[1:]))})" if tree[1:] else op


def keeps_order(tree: Tree) -> bool:
    """The second map is applied after the first one: not under it, and not beside it."""
    if tree[0] == "1":
        return "2" not in maps(tree)
    if tree[0] == "2":
        return "1" in maps(tree)
    return all("1" in maps(part) or "2" not in maps(part) for part in tree[1:])


def sorted_arguments(tree: Tree) -> Tree:
    return (tree[0], *sorted(map(sorted_arguments, tree[1:]), key=text))


def read(formula: str) -> Tree:
    """The tree of a formula."""
    tokens = re.findall(r"[a-z]+|[(),]", formula)

    def term() -> Tree:
        op = tokens.pop(0)
        parts = []
        if tokens and tokens[0] == "(":
            while tokens.pop(0) != ")":
                parts.append(term())
        return ({"expand": "1", "project": "2"}.get(op, op), *parts)

    return term()


@pytest.mark.parametrize("height", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_all_released_trees_can_be_expressed(few: None, height: int) -> None:
    """Up to the order of arguments; and the others are those that use the input of a segment several times."""
    wanted = {sorted_arguments(tree) for tree in released(height) if maps(tree) == "12"}
    assert len(wanted) > 20 and max(height_of(text(tree)) for tree in wanted) == height
    assert any("add(add(" in text(tree) for tree in wanted)
    formulas = [formula for formula, _ in every_formula(False, height)]
    once = {
        sorted_arguments(read(formula))
        for formula in formulas
        if formula.count("expand") == formula.count("project") == 1
    }
    # `mid` is not empty in ours, and neither is it in theirs, as no linear map is applied to another.
    assert once == wanted


@pytest.mark.parametrize(
    "text",
    [
        "project(gelu(expand(mul(add(x,tanh(x)),x))))",
        "project(add(mul(expand(x),x),gelu(x)))",
        "project(mul(expand(x),add(x,tanh(x))))",
        "add(max(project(gelu(expand(x))),x),mul(x,sigmoid(x)))",
        "project(mul(mul(expand(x),x),mul(expand(x),x)))",
        *sorted({str(ffn.graph) for ffn in PUBLISHED["efficientbert"].ffns}),
    ],
)
def test_graphs_that_are_reached(text: str) -> None:
    graph = FFNGraph.parse(text)
    choices = choices_of(graph, "a", False, 7)
    assert choices is not None
    assert suggest_graph(optuna.trial.FixedTrial(choices), "a", "gelu", False, 7) == graph
    assert choices_of(graph, "a", True, 7) is not None
    nested = re.search(r"(add|mul|max)\(.*(add|mul|max)\(", text) is not None
    assert (choices_of(graph, "a", False) is None) == nested


@pytest.mark.parametrize(
    "text",
    [
        "project(expand(x))",
        "project(gelu(tanh(expand(x))))",
        "gelu(tanh(project(gelu(expand(x)))))",
        "project(add(mul(x,expand(x)),relu(x)))",  # what contains the input comes first
        "project(add(expand(x),expand(x)))",
        "project(add(expand(x),add(x,x)))",
        "project(add(expand(x),add(tanh(relu(x)),x)))",
        "project(gelu(expand(add(x,add(x,add(x,add(x,add(x,tanh(x)))))))))",  # too high
    ],
)
def test_graphs_that_are_not(text: str) -> None:
    assert choices_of(FFNGraph.parse(text), "a", False, 7) is None


def test_without_a_height_nothing_is_nested() -> None:
    """The numbers of graphs and the names of the parameters are those of the grammar without nesting."""
    assert (count_graphs("gelu", False), count_graphs("gelu", True)) == (14_506_400_704, 21_247_007_680)
    names: set[str] = set()
    space = small_space(LOW, HIGH, mutation_rate=0.9)
    for seed in range(100):
        names |= space.choices(space.sample(random.Random(seed))).keys()
    places = {name.partition("/")[2] for name in names if name.startswith("layer1/")}
    nots = [f"right/own-not-{activation}" for activation in ("plain", *UNARY)]
    own = {f"{segment}/{part}" for segment in ("pre", "mid", "post") for part in ("op", "left", "outer", *nots)}
    others = {f"{segment}/right/{part}" for segment in ("mid", "post") for part in ("own-x", "own-x-pre", "x", "pre")}
    assert places <= own | others | {"size"} and len(places) > 30


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("height", [3, 4, 5, 7])
@pytest.mark.parametrize("kind", ["both", "limited", "both, no FFN"])
def test_samples_are_members(kind: str, height: int, gated: bool) -> None:
    space = replace(kinds_of_space(gated)[kind], max_height=height)
    same: dict[str, Sequence[str]] = {}

    class Recorded(optuna.trial.FixedTrial):
        def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
            assert same.setdefault(name, choices) == choices
            return super().suggest_categorical(name, choices)

    heights = set()
    for seed in range(40):
        architecture = space.sample(random.Random(seed))
        assert architecture in space
        choices = space.choices(architecture)
        assert space.suggest(Recorded(choices)) == architecture
        heights |= {height_of(str(ffn.graph)) for ffn in architecture.ffns}
    assert heights <= set(range(3, height + 1)) and max(heights) == height


class Largest(Given):
    """Makes a binary operation wherever one is possible, every second one a product."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(())
        self.rng = rng

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> str:
        super().suggest_categorical(name, choices)
        if "mul" in choices and self.rng.random() < 0.5:
            return "mul"
        return self.rng.choice([choice for choice in choices if choice in BINARY] or choices)


@pytest.mark.parametrize("gated", [False, True])
def test_the_largest_graphs_are_valid(gated: bool) -> None:
    """With binary operations wherever there is room, graphs are far larger than a study's, and yet graphs that can be
    told apart: they keep to the limits of `FFNGraph`, and their outputs are finite.
    """
    space = replace(small_space(1, 10**9), max_height=7, gated=gated)
    rng = random.Random(0)
    sizes = []
    for _ in range(150):
        graph = space.suggest_graph(Largest(rng), "a")
        assert choices_of(graph, "a", gated, 7) is not None
        fingerprint(graph, space.base, 24)
        sizes.append(len(graph.nodes))
    assert max(sizes) > 25


@pytest.mark.parametrize("gated", [False, True])
def test_every_rate_draws_graphs(gated: bool) -> None:
    """No draw is refused, whatever the rate: at 1, one of a hundred has more than 64 nodes."""
    sizes = []
    for rate in (0.0, 0.1, 0.5, 0.9, 1.0):
        space = replace(small_space(1, 10**9), max_height=7, gated=gated, mutation_rate=rate)
        rng = random.Random(0)
        sizes += [len(space.suggest_graph(RandomTrial(space.draw, rng), "a").nodes) for _ in range(2_000)]
    assert 64 < max(sizes) < MAX_TERMS


@pytest.mark.parametrize("kind", ["both", "graphs", "graphs, no FFN"])
def test_neighbours(kind: str) -> None:
    """A step changes the graph of one layer, adds at most one binary operation, and leads to deep trees."""
    space = replace(kinds_of_space()[kind], max_height=7)
    operations: dict[bool, int] = defaultdict(int)
    for seed in range(10):
        rng = random.Random(seed)
        architecture = space.sample(rng)
        for neighbour in itertools.islice(neighbourhood.neighbours(space, architecture, rng), 40):
            assert neighbour in space and neighbour != architecture
            pairs = zip(architecture.ffns, neighbour.ffns, strict=True)
            changed = [(a.graph, b.graph) for a, b in pairs if a.stack and b.stack and a.graph != b.graph]
            assert len(changed) <= 1
            for before, after in changed:
                assert binaries(after) - binaries(before) <= 1
                operations[nested(after) and not nested(before)] += 1
    assert operations[True] and operations[False]


def binaries(graph: FFNGraph) -> int:
    return sum(node.op in BINARY for node in graph.nodes)


def nested(graph: FFNGraph) -> bool:
    return choices_of(graph, "a", False) is None


def test_a_height_that_is_not_possible() -> None:
    for height in (2, 8):
        with pytest.raises(SpaceError, match=f"max_height: must be from 3 to 7, not {height}"):
            replace(small_space(LOW, HIGH), max_height=height)


def test_a_start_with_nested_operations() -> None:
    """A later stage draws near it."""
    space: Space = replace(small_space(1, 10**9, mutation_rate=0.0), max_height=7)
    graph = FFNGraph.parse("project(gelu(expand(mul(add(x,tanh(x)),x))))")
    start = replace(space.sample(random.Random(0)))
    start = start.with_ffns(tuple(replace(ffn, graph=graph) for ffn in start.ffns))
    later = replace(space, start=start, vary=frozenset({GRAPHS}))
    assert later.sample(random.Random(1)) == start and start in later
    plain = replace(later, max_height=None)
    assert start not in plain and str(plain.start_graphs[0]) == "project(gelu(expand(x)))"

"""Spaces in which layers may have no FFN."""

import random
from dataclasses import replace

import optuna
import pytest

from search_spaces import DENSE, FFN, GELU, Architecture, Attention, Experts, Layer, SpaceError, cost, neighbourhood
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import ROUTED, members, of_genes, without_ffn
from tests.search_spaces.strategies import small_space


def test_no_ffn_is_one_of_the_sizes() -> None:
    for experts in ((DENSE,), ROUTED, ROUTED[:1]):
        space = of_genes(small_space(1, 10**9, experts=experts), stack=(2, 0, 1))
        none = Layer(Attention(space.base.heads), FFN(stack=0))
        assert [layer for layer in space.sizes if not layer.ffn.stack] == [none]
        assert set(space.sizes) == {none, *of_genes(space, stack=(1, 2)).sizes}
        assert space.size_count() == len(space.sizes) ** 3 == len(members(space, [GELU] * 3))
        assert space.options(0, GELU)[0] == none
    with pytest.raises(SpaceError, match="no combination is valid; with 1/4, 5 experts"):
        of_genes(small_space(1, 10**9), stack=(0, 1), experts=(Experts(5),))


def test_no_ffn_anywhere() -> None:
    """It is a member, an inverse, and a start from which only the sizes can change."""
    space = of_genes(small_space(1, 10**9), stack=(0, 1))
    empty = Architecture.uniform(space.base, stack=0)
    assert space.suggest(optuna.trial.FixedTrial(space.choices(empty))) == empty
    fixed = cost.params(empty)
    alone = replace(space, max_params=fixed)
    assert alone.size_count() == 1
    assert alone.sample(random.Random(0)) == empty
    graphs = replace(space, start=empty, vary=frozenset({GRAPHS}))
    assert graphs.sample(random.Random(0)) == empty
    assert graphs.choices(empty) == {}
    assert list(neighbourhood.neighbours(graphs, empty, random.Random(0))) == []
    assert Architecture.uniform(space.base) not in graphs
    sizes = replace(space, start=empty, vary=frozenset({SIZES}))
    assert len({*neighbourhood.neighbours(sizes, empty, random.Random(0))}) == 3 * 3


def test_the_latency_decides_for_no_ffn() -> None:
    """A narrow FFN takes nearly as long as a wide one, so that a layer without one pays for two with one."""
    of_layer = lambda base, layer: layer.ffn.stack * (50 + layer.ffn.inner(base))  # noqa: E731
    latency = Limit("latency", 100, of_layer, 100 + 2 * (50 + 48))
    space = of_genes(replace(small_space(1, 10**9), limits=(latency,)), stack=(0, 1))
    wide = Architecture.uniform(space.base)
    assert wide not in space
    assert without_ffn(wide, 1) in space
    best = max((space.sample(random.Random(seed)) for seed in range(300)), key=cost.params)
    assert sorted(ffn.inner(space.base) for ffn in best.ffns) == [0, 48, 48]
    with pytest.raises(SpaceError, match=r"max_latency = 0\.11 ms: no architecture .*; the least is 0\.286 ms; raise"):
        replace(space, genes={**space.genes, "stack": (1,)}, limits=(replace(latency, maximum=110),))
    assert replace(space, limits=(replace(latency, maximum=110),)).size_count() == 1

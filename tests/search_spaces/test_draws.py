"""How often random graphs are drawn, against what EfficientBERT's released code draws."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from search_spaces import FFN, Architecture, FFNGraph
from search_spaces.draws import RELEASED
from search_spaces.graph import GELU, base_graph
from search_spaces.spaces import GRAPHS
from tests.search_spaces.strategies import small_space
from tests.search_spaces.test_trees import height_of

SPACE = replace(small_space(1, 10**9), max_height=7, draws=RELEASED)


def test_as_often_as_the_released_code() -> None:
    """Its own functions drew 3,000 trees in stage 1: 6.0 % were the one they started from, and 231, 2,594 and 160 had
    the heights 3, 4 and 5.
    """
    rng = random.Random(0)
    drawn = [ffn.graph for _ in range(1_000) for ffn in SPACE.sample(rng).ffns]
    assert drawn.count(GELU) / len(drawn) == pytest.approx(0.06, abs=0.02)
    heights = Counter(height_of(str(graph)) for graph in drawn)
    for height, count in ((3, 231), (4, 2594), (5, 160)):
        assert heights[height] / len(drawn) == pytest.approx(count / 3000, abs=0.02)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("height", [None, 3, 7])
def test_draws_are_members(gated: bool, height: int | None) -> None:
    """Also with another base graph; the activation stays where a binary operation is added. A gate has height 4."""
    space = replace(SPACE, graph=base_graph("tanh", gated and height != 3), gated=gated, max_height=height)
    rng = random.Random(1)
    for _ in range(200):
        architecture = space.sample(rng)
        assert architecture in space
        for ffn in architecture.ffns:
            assert height == 3 or not re.search(r"project\((add|mul|max)\(expand\(x\),x\)\)", str(ffn.graph))


def test_stage_2_draws_near_its_start_or_the_base_graph() -> None:
    """As in the released code, whose stage 2 starts from the winner and its twin of base graphs."""
    first = FFNGraph.parse("tanh(project(mul(gelu(expand(x)),x)))")
    start = Architecture.of_ffns(SPACE.base, [FFN(first)] * SPACE.base.depth)
    space = replace(SPACE, start=start, vary=frozenset({GRAPHS}))
    rng = random.Random(2)
    drawn = [ffn.graph for _ in range(500) for ffn in space.sample(rng).ffns]
    unchanged = [drawn.count(graph) / len(drawn) for graph in (first, GELU)]
    assert unchanged == pytest.approx([0.035, 0.035], abs=0.015)
    with_product = sum("mul(gelu(expand(" in str(graph) for graph in drawn) / len(drawn)
    assert 0.2 < with_product < 0.5

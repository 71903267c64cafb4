"""The places of the nodes in drawings of architectures."""

import io
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from matplotlib.image import imread

from nas.report.figures.drawing import HEIGHT, architecture, placed
from search_spaces import PUBLISHED, Architecture, Base, Experts, FFNGraph, Genes
from search_spaces.graph import GELU

GRAPHS = [
    "project(gelu(expand(x)))",
    "project(mul(gelu(expand(x)),gate(x)))",
    "add(max(x,tanh(x)),project(gelu(mul(expand(max(x,tanh(x))),x))))",
    "mul(project(relu(expand(x))),project(relu(expand(x))))",
    "gelu(project(gelu(mul(gelu(expand(gelu(max(x,swish(x))))),relu(x)))))",
]


@pytest.mark.parametrize("formula", GRAPHS)
def test_nodes_have_places_of_their_own_and_edges_lead_to_the_right(formula: str) -> None:
    graph = FFNGraph.parse(formula)
    row = placed(graph)
    assert row.places.keys() == set(range(len(graph.nodes)))
    for (x0, y0), (x1, y1) in combinations(row.places.values(), 2):
        assert x0 != x1 or abs(y0 - y1) >= HEIGHT
    for source, target in graph.digraph.edges:
        distance = row.places[target][0] - row.places[source][0]
        assert distance >= 1
        assert ((source, target) in row.skips) == (distance > 1)
    assert max(abs(y) for _, y in row.places.values()) + HEIGHT / 2 < row.height / 2


@pytest.mark.parametrize(
    "drawn",
    [
        PUBLISHED["efficientbert"],
        PUBLISHED["bert-large"],
        Architecture(
            Base(depth=3, width=24, heads=4, inner=48, attention_experts=2),
            (Genes(GELU, 0), Genes(FFNGraph.parse(GRAPHS[2]), 2, Fraction(1, 2), Experts(4, Fraction(2, 3))), Genes()),
        ),
    ],
)
def test_it_is_drawn(drawn: Architecture) -> None:
    stored = io.BytesIO()
    architecture(drawn).savefig(stored, format="png", dpi=50)
    image = imread(io.BytesIO(stored.getvalue()))[..., :3]
    # Every layer has something in it.
    rows = (image.min(axis=(1, 2)) < 0.5).astype(int)
    assert rows.sum() > 10 * drawn.base.depth
    assert np.unique(image.reshape(-1, 3), axis=0).shape[0] > 10

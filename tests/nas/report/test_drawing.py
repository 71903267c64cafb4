"""The drawings of architectures for the dashboard."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta

from nas.report.drawing import COLUMN, HEIGHT, LEFT, add_drawing, layout, svg
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.storage import open_storage, sqlite_url
from search_spaces import FFN, Architecture, Attention, Experts, FFNGraph, Layer
from tests.nas.study.test_ledger import BASE, SPACE

SVG = "{http://www.w3.org/2000/svg}"
GRAPHS = (
    "project(gelu(expand(x)))",
    "project(mul(expand(max(x,tanh(x))),x))",
    "add(project(mul(gelu(expand(x)),gate(x))),x)",
    "project(mul(tanh(expand(x)),tanh(expand(x))))",
)


def drawn(*layers: FFN) -> ElementTree.Element:
    return ElementTree.fromstring(svg(Architecture.of_ffns(BASE, layers)))


def texts(picture: ElementTree.Element) -> list[str]:
    return [text.text or "" for text in picture.iter(f"{SVG}text")]


@pytest.mark.parametrize("formula", GRAPHS)
def test_every_node_and_every_edge_is_drawn(formula: str) -> None:
    graph = FFNGraph.parse(formula)
    picture = drawn(FFN(graph, 2, Fraction(1, 4)), FFN(stack=0), FFN(stack=0))
    named = [text.split()[0] for text in texts(picture)]
    assert all(named.count(op) >= [node.op for node in graph.nodes].count(op) for op in {n.op for n in graph.nodes})
    edges = [path for path in picture.iter(f"{SVG}path") if "marker-end" in path.attrib]
    assert len(edges) == len(graph.digraph.edges)
    assert "2 blocks × 12 wide" in texts(picture) and texts(picture).count("no FFN") == 2
    assert ("both" in texts(picture)) == (formula == GRAPHS[3])


@pytest.mark.parametrize("formula", GRAPHS)
def test_nodes_have_places_of_their_own_and_edges_lead_to_the_right(formula: str) -> None:
    graph = FFNGraph.parse(formula)
    places, height = layout(graph)
    assert places.keys() == set(range(len(graph.nodes)))
    for (x0, y0), (x1, y1) in combinations(places.values(), 2):
        assert abs(x0 - x1) >= COLUMN or abs(y0 - y1) >= HEIGHT
    assert all(places[target][0] > places[source][0] for source, target in graph.digraph.edges)
    assert max(abs(y) for _, y in places.values()) + HEIGHT / 2 <= height / 2


def test_everything_is_inside(tmp_path: Path) -> None:
    genes = [FFN(FFNGraph.parse(formula), 1, Fraction(1, 4)) for formula in GRAPHS[1:]]
    picture = drawn(*genes)
    width, height = int(picture.attrib["width"]), int(picture.attrib["height"])
    boxes = [box for box in picture.iter(f"{SVG}rect") if "x" in box.attrib]
    assert boxes
    for box in boxes:
        assert 0 <= int(box.attrib["x"]) <= int(box.attrib["x"]) + int(box.attrib["width"]) <= width
        assert 0 <= int(box.attrib["y"]) <= int(box.attrib["y"]) + int(box.attrib["height"]) <= height


def test_experts_are_named() -> None:
    experts = Experts(2, Fraction(1, 2), "hash")
    picture = drawn(FFN(expansion=Fraction(1, 2), experts=experts), FFN(stack=0), FFN(stack=0))
    assert f"experts: {experts}" in texts(picture)
    plain = Architecture.of_ffns(BASE, (FFN(), FFN(stack=0), FFN()))
    wide = ElementTree.fromstring(svg(Architecture.of_ffns(BASE, plain.ffns, attention_experts=4)))
    assert texts(wide) == ["4 experts in attention", *texts(ElementTree.fromstring(svg(plain)))]
    assert int(wide.attrib["height"]) > int(ElementTree.fromstring(svg(plain)).attrib["height"])


def test_heads_and_layers_left_out_are_named() -> None:
    base = replace(BASE, heads=12)
    narrow = FFN(stack=2, expansion=Fraction(1, 4))
    layers = (Layer(Attention(12), narrow), Layer(Attention(1), narrow), Layer(Attention(0), narrow))
    picture = ElementTree.fromstring(svg(Architecture(base, layers)))
    sizes = [text for text in texts(picture) if "wide" in text]
    assert sizes == [f"{heads}2 blocks × 12 wide" for heads in ("", "1 of 12 heads, ", "0 of 12 heads, ")]
    none = FFN(stack=0)
    empty = ElementTree.fromstring(svg(Architecture(base, tuple(Layer(Attention(n), none) for n in (12, 3, 0)))))
    numbers = [f"layer {number}" for number in (1, 2, 3)]
    assert texts(empty) == [*chain(*zip(numbers, ("no FFN", "3 of 12 heads, no FFN", "left out"), strict=True))]
    assert int(empty.attrib["width"]) >= LEFT, "labels are seen though no graph is drawn"


def test_a_trial_has_one_drawing(tmp_path: Path) -> None:
    url, folder = sqlite_url(tmp_path / "study.db"), tmp_path / "artifacts"
    study = ledger.open_study(url, "s/stage-1", SAMPLERS["random"](SPACE, 0))
    ledger.enqueue(study, SPACE, Architecture.uniform(BASE), "base model")
    for _ in range(2):  # it is lost and runs again
        trial, architecture = ledger.ask(study, SPACE, "random")
        add_drawing(study, trial.number, folder)
        ledger.requeue_unfinished(study)
    (artifact,) = get_all_artifact_meta(study.get_trials()[0], storage=open_storage(url))
    assert (artifact.filename, artifact.mimetype) == ("architecture.svg", "image/svg+xml")
    with FileSystemArtifactStore(folder).open_reader(artifact.artifact_id) as file:
        assert file.read().decode() == svg(architecture)
    assert len(list(folder.iterdir())) == 1

"""Architectures as values and as files."""

import copy
import json
import pickle
import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces import (
    DENSE,
    FFN,
    GELU,
    PUBLISHED,
    Architecture,
    ArchitectureError,
    Attention,
    Base,
    Embedding,
    Experts,
    FFNGraph,
    Layer,
    PredictionHead,
)
from tests.search_spaces.strategies import architectures

SMALL = Architecture.uniform(Base(depth=4, width=12, heads=3, inner=24), expansion=Fraction(1, 8))


@given(architectures())
def test_json_round_trip(architecture: Architecture) -> None:
    text = json.dumps(architecture.to_json(), allow_nan=False)
    again = Architecture.from_json(json.loads(text))
    assert again == architecture
    assert hash(again) == hash(architecture)
    assert json.dumps(again.to_json()) == text


@pytest.mark.parametrize("name", PUBLISHED)
def test_file_round_trip(name: str, tmp_path: Path) -> None:
    path = tmp_path / "architecture.json"
    PUBLISHED[name].save(path)
    assert Architecture.load(path) == PUBLISHED[name]
    first = path.read_bytes()
    Architecture.load(path).save(path)
    assert path.read_bytes() == first
    assert list(tmp_path.iterdir()) == [path]


def test_schema() -> None:
    value = SMALL.to_json()
    assert value["version"] == 2
    ffn = {"graph": "project(gelu(expand(x)))", "stack": 1, "expansion": "1/8"}
    assert value["layers"] == [{"attention": {"heads": SMALL.base.heads}, "ffn": ffn}] * 4
    assert value["base"]["embedding"] is None and value["head"] == {"experts": 1}
    several = replace(SMALL, layers=(Layer(Attention(1)), Layer(Attention(SMALL.base.heads, 2)), *SMALL.layers[2:]))
    attentions = [layer["attention"] for layer in several.to_json()["layers"]]
    assert attentions[:3] == [{"heads": 1}, {"heads": SMALL.base.heads, "experts": 2}, {"heads": SMALL.base.heads}]
    assert Architecture.from_json(several.to_json()) == several


def test_the_rank_of_the_word_embedding() -> None:
    assert "embedding" not in SMALL.to_json() and SMALL.embedding == Embedding()
    document = SMALL.to_json() | {"embedding": {"rank": 8}}
    low = Architecture.from_json(document)
    assert low == replace(SMALL, embedding=Embedding(8)) != SMALL and low.to_json() == document
    assert low.with_ffns(low.ffns).with_heads([1] * 4).embedding == Embedding(8)
    assert low.transferred(replace(SMALL.base, depth=8)).embedding == Embedding(8)
    assert pickle.loads(pickle.dumps(low)) == low
    with pytest.raises(ArchitectureError, match=r"^embedding\.rank: 8 is not below base\.width \(8\)$"):
        low.transferred(replace(SMALL.base, width=8, heads=2))
    with pytest.raises(ArchitectureError, match=r"^embedding\.rank: base\.embedding already factorizes the word embed"):
        replace(low, base=replace(SMALL.base, embedding=4))


def test_version_1() -> None:
    """A layer was its FFN, and the base had the numbers of experts of attention and head."""
    base = {"depth": 2, "width": 12, "heads": 3, "inner": 24}
    layers = [{"graph": "project(relu(expand(x)))", "expansion": "1/2", "experts": {"count": 2}}, {"stack": 0}]
    document = {"version": 1, "base": base, "layers": layers}
    ffns = (FFN(FFNGraph.parse("project(relu(expand(x)))"), 1, Fraction(1, 2), Experts(2)), FFN(stack=0))
    expected = Architecture.of_ffns(Base(2, 12, 3, 24), ffns)
    assert Architecture.from_json(document) == expected
    document["base"] = {**base, "attention_experts": 2, "head_experts": 4}
    several = Architecture.of_ffns(Base(2, 12, 3, 24), ffns, attention_experts=2, head_experts=4)
    assert Architecture.from_json(document) == several
    assert [layer.attention for layer in several.layers] == [Attention(3, 2)] * 2 and several.head == PredictionHead(4)
    for changed, message in (
        ({"base": {**base, "attention_experts": 0}}, "base.attention_experts: must be from 1 to 64, not 0"),
        ({"base": {**base, "dropout": 0.1}}, "base: unknown key 'dropout'; known are depth, "),
        ({"layers": [{"graph": "x", "width": 3}, layers[1]]}, "layers[0]: unknown key 'width'; known are graph, "),
        ({"version": 2}, "base: unknown key 'attention_experts'"),
        ({"version": 2, "base": base}, "layers[0]: unknown key 'graph'; known are ffn, attention"),
    ):
        with pytest.raises(ArchitectureError) as error:
            Architecture.from_json({**document, **changed})
        assert str(error.value).startswith(message)


def test_no_ffn_is_one_value(tmp_path: Path) -> None:
    none = FFN(stack=0)
    tanh = FFNGraph.parse("tanh(project(relu(expand(x))))")
    assert FFN(tanh, 0, Fraction(1, 3), Experts(4)) == none == replace(none, graph=tanh, expansion=Fraction(1, 2))
    assert (none.graph, none.expansion, none.experts, none.inner(SMALL.base)) == (GELU, 1, DENSE, 0)
    assert none != FFN() == FFN(GELU)
    value = SMALL.to_json()
    value["layers"][2]["ffn"] = {"graph": str(tanh), "stack": 0, "expansion": "1/5", "experts": {"count": 4}}
    architecture = Architecture.from_json(value)
    assert architecture == Architecture.of_ffns(SMALL.base, (*SMALL.ffns[:2], none, SMALL.ffns[3]))
    assert architecture.to_json()["layers"][2]["ffn"] == {"stack": 0}
    architecture.save(tmp_path / "architecture.json")
    assert Architecture.load(tmp_path / "architecture.json") == architecture
    assert not Architecture.uniform(SMALL.base, tanh, 0, 1, Experts(4)).has_experts
    # Where the base is so narrow that the other layers' expansions leave no channel.
    assert Architecture.uniform(replace(SMALL.base, inner=1), stack=0).ffns == (none,) * 4
    assert len({*architecture.transferred(replace(SMALL.base, depth=8)).ffns[4:6]}) == 1
    own = {"gate_scale": "probability", "capacity_per": "batch", "attention_capacity": Fraction(5, 4)}
    base = replace(architecture.base, **own)
    mixture = Architecture.of_ffns(base, architecture.ffns, attention_experts=2, head_experts=3)
    deep = mixture.transferred(replace(SMALL.base, depth=8, width=24, heads=4))
    assert deep.base == replace(SMALL.base, depth=8, width=24, heads=4, **own)
    assert {layer.attention for layer in deep.layers} == {Attention(4, 2)} and deep.head == PredictionHead(3)


def test_inner_width_is_rounded_down() -> None:
    base = Base(depth=1, width=10, heads=2, inner=10)
    assert [FFN(GELU, 1, Fraction(1, n)).inner(base) for n in (1, 2, 3, 4)] == [10, 5, 3, 2]


# A place, a value that cannot be there, and what the message says after the place.
FAULTS: list[tuple[str, object, str]] = [
    ("version", 3, ": 3 is unknown; supported are 1 and 2"),
    ("version", True, ": True is unknown"),
    ("version", None, ": None is unknown"),
    ("base", [], ": must be a JSON object, not []"),
    ("base.width", True, ": must be a whole number, not True"),
    ("base.width", 12.0, ": must be a whole number, not 12.0"),
    ("base.width", "12", ": must be a whole number, not '12'"),
    ("base.width", float("nan"), ": must be a whole number, not nan"),
    ("base.width", float("inf"), ": must be a whole number, not inf"),
    ("base.width", 0, ": must be from 1 to 65,536, not 0"),
    ("base.width", 10**30, ": must be from 1 to 65,536, not 1000"),
    ("base.depth", 10**9, ": must be from 1 to 256"),
    ("base.heads", 5, ": 5 heads do not divide the width 12"),
    ("base.inner", -1, ": must be from 1"),
    ("base.embedding", 0, ": must be from 1"),
    ("embedding", 64, ": must be a JSON object, not 64"),
    ("embedding", {"rang": 64}, ": unknown key 'rang'"),
    ("embedding", {"rank": 0}, ".rank: must be from 1 to 65,536, not 0"),
    ("embedding", {"rank": 12}, ".rank: 12 is not below base.width (12)"),
    ("base.gelu", "exact", ": must be 'tanh' or 'erf', not 'exact'"),
    ("base.mismatch", ["wide"], ": must be 'narrow' or 'wide', not ['wide']"),
    ("layers", {}, ": must be a list, not {}"),
    ("layers", [], ": 0 given, but base.depth is 4"),
    ("layers.2", 7, ": must be a JSON object, not 7"),
    ("base.gate_scale", "plain", ": must be 'relative' or 'probability', not 'plain'"),
    ("base.capacity_per", "corpus", ": must be 'sentence' or 'batch', not 'corpus'"),
    ("base.attention_capacity", "x", ": must be a fraction such as \"1/8\", not 'x'"),
    ("base.attention_capacity", 0, ": must be above 0, not 0"),
    ("base.gate_jitter", 1, ": must be a number from 0 to below 1, not 1"),
    ("base.gate_jitter", True, ": must be a number from 0 to below 1, not True"),
    ("base.gate_jitter", "0.1", ": must be a number from 0 to below 1, not '0.1'"),
    ("layers.2.attention", 7, ": must be a JSON object, not 7"),
    ("layers.2.attention.heads", 99, ": 99 is more than base.heads ("),
    ("layers.2.attention.heads", -1, ": must be from 0 to"),
    ("layers.2.attention", {"heads": 0, "experts": 2}, ".experts: attention with 2 experts needs all"),
    ("layers.2.attention.experts", 0, ": must be from 1 to 64, not 0"),
    ("head.experts", 0, ": must be from 1 to 64, not 0"),
    ("head", 4, ": must be a JSON object, not 4"),
    ("layers.2.ffn.experts", 7, ": must be a JSON object, not 7"),
    ("layers.2.ffn.experts", {}, ": the key 'count' is missing"),
    ("layers.2.ffn.experts", {"count": 4, "sharde": 1}, ": unknown key 'sharde'; did you mean 'shared'?"),
    ("layers.2.ffn.experts", {"count": 0}, ".count: must be from 1 to 64, not 0"),
    ("layers.2.ffn.experts", {"count": True}, ".count: must be a whole number, not True"),
    ("layers.2.ffn.experts", {"count": 4, "shared": "5/4"}, ".shared: must be from 0 to 1, not 5/4"),
    ("layers.2.ffn.experts", {"count": 4, "shared": "s"}, '.shared: must be a fraction such as "1/8"'),
    ("layers.2.ffn.experts", {"count": 4, "top_k": 5}, ".top_k: 5 is more than experts.count (4)"),
    ("layers.2.ffn.experts", {"count": 4, "top_k": None}, ".top_k: must be a whole number, not None"),
    ("layers.2.ffn.experts", {"count": 4, "capacity": 0}, ".capacity: must be above 0, not 0"),
    ("layers.2.ffn.experts", {"count": 4, "capacity": None}, ".capacity: must be a fraction"),
    ("layers.2.ffn.experts", {"count": 4, "routing": 7}, ".routing: unknown routing 7; known are hash, "),
    ("layers.2.ffn.experts", {"count": 4, "routing": "hsh"}, ".routing: unknown routing 'hsh'; did you mean 'hash'?"),
    (
        "layers.2.ffn.experts",
        {"count": 2, "routing": "sentence_gate", "capacity": 1.25},
        ".capacity: 'sentence_gate' routes whole sentences, which have no capacity; leave it out",
    ),
    (
        "layers.2.ffn.experts",
        {"count": 1, "routing": "token_gate"},
        ": with count = 1 the layer is dense; leave out the other settings",
    ),
    # SMALL has 3 of 24 inner channels.
    (
        "layers.2.ffn.experts",
        {"count": 9},
        ": 9 experts that share 0 of 24 channels have at most 0 + (24 - 0) // 9 = 2 channels each, not 3; lower the "
        "expansion, or share more",
    ),
    (
        "layers.2.ffn.experts",
        {"count": 32, "shared": "2/3"},
        ": 32 experts that share 2 of 24 channels have at most 2 + (24 - 2) // 32 = 2 channels each, not 3",
    ),
    ("layers.3.ffn.graph", "project(gleu(expand(x)))", ": unknown operation 'gleu'; did you mean 'gelu'?"),
    ("layers.3.ffn.graph", 5, ": must be a formula, not 5"),
    ("layers.1.ffn.stack", -1, ": must be from 0 to 16, not -1"),
    ("layers.1.ffn.stack", 17, ": must be from 0 to 16, not 17"),
    ("layers.1.ffn.stack", False, ": must be a whole number, not False"),
    ("layers.1.ffn", {"stack": 1}, ": the key 'graph' is missing"),
    ("layers.1.ffn", {"stack": 0, "graph": "gleu(x)"}, ".graph: unknown operation 'gleu'; did you mean 'gelu'?"),
    ("layers.1.ffn", {"stack": 0, "width": 3}, ": unknown key 'width'; known are graph, stack, expansion, exp"),
    ("layers.1.ffn.stack", None, ": must be a whole number, not None"),
    ("layers.1.ffn.expansion", 0, ": must be above 0 and at most 1, not 0"),
    ("layers.1.ffn.expansion", "9/8", ": must be above 0 and at most 1, not 9/8"),
    ("layers.1.ffn.expansion", "-1/2", ": must be a fraction such as \"1/8\", not '-1/2'"),
    ("layers.1.ffn.expansion", "1/0", ": '1/0' divides by zero"),
    ("layers.1.ffn.expansion", "1/25", ": 1/25 of the inner width 24 leaves no channel"),
    ("layers.1.ffn.expansion", float("nan"), ": must be a fraction"),
    ("layers.1.ffn.expansion", True, ": must be a fraction"),
    ("layers.1.ffn.expansion", "1e999999999", ": must be a fraction"),
    ("layers.1.ffn.expansion", "1/" + "9" * 5000, ": must be a fraction"),
]
# The same, where the message names another place.
FAULTS_ELSEWHERE: list[tuple[str, object, str]] = [
    ("surprise", 1, "unknown key 'surprise'; known are version, base, layers, head"),
    ("layer", [], "unknown key 'layer'; did you mean 'layers'?"),
    ("base.detph", 3, "base: unknown key 'detph'; did you mean 'depth'?"),
    ("base.depth", 5, "layers: 4 given, but base.depth is 5"),
    ("layers.2.attention.size", 4, "layers[2].attention: unknown key 'size'; known are heads, experts"),
]


def named(place: str) -> str:
    """A place as messages name it."""
    return re.sub(r"\.(\d+)", r"[\1]", place)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [*((place, value, named(place) + message) for place, value, message in FAULTS), *FAULTS_ELSEWHERE],
)
def test_faults_name_their_place(place: str, value: object, message: str) -> None:
    document: Any = copy.deepcopy(SMALL.to_json())
    *parents, last = place.split(".")
    target = document
    for key in parents:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[int(last) if isinstance(target, list) else last] = value
    with pytest.raises(ArchitectureError) as error:
        Architecture.from_json(document)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 200


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 40), st.integers(1, 40))
def test_experts_need_channels_to_differ_in(inner: int, count: int, shared: int, own: int) -> None:
    """Cutting a list of channels in the way that the genes describe gives every expert its width, or an error."""
    own, shared = min(own, inner), min(shared, own, inner)
    rest = range(shared, inner)
    cuts = [(*range(shared), *rest[expert::count])[:own] for expert in range(count)]
    base = Base(depth=1, width=6, heads=2, inner=inner)
    genes = FFN(GELU, 1, Fraction(own, inner), DENSE if count == 1 else Experts(count, Fraction(shared, own)))
    assert genes.inner(base) == own
    assert genes.shared_channels(base) == (shared if count > 1 else 0)
    if all(len(cut) == own for cut in cuts):
        Architecture.of_ffns(base, (genes,))
    else:
        assert min(map(len, cuts)) == genes.max_inner(base)
        with pytest.raises(ArchitectureError, match=r"lower the expansion, or share more"):
            Architecture.of_ffns(base, (genes,))


def test_the_splits_of_the_papers() -> None:
    base = PUBLISHED["bert-base"].base
    genes = PUBLISHED["moebert"].ffns[0]
    assert (genes.inner(base), genes.shared_channels(base), genes.max_inner(base)) == (768, 512, 1152)
    copies = PUBLISHED["minimoe-3l-384h"].ffns[0]
    assert copies.shared_channels(PUBLISHED["minimoe-3l-384h"].base) == 4 * 384


def test_experts_as_text() -> None:
    assert [str(layer.experts) for layer in (PUBLISHED["bert-base"].ffns[0], PUBLISHED["moebert"].ffns[0])] == [
        "dense",
        "4 hash, shared 2/3",
    ]
    routed = Experts(8, Fraction(1), "token_gate", 2, Fraction(5, 4))
    assert str(routed) == "8 token_gate, shared 1, top 2, capacity 5/4"
    assert routed.to_json() == {"count": 8, "shared": "1", "routing": "token_gate", "top_k": 2, "capacity": "5/4"}
    assert Experts.from_json({"count": 8, "shared": 1, "routing": "token_gate", "top_k": 2, "capacity": 1.25}) == routed
    assert Experts.from_json(DENSE.to_json()) == DENSE == Experts.from_json({"count": 1})


@pytest.mark.parametrize("changes", [{"shared": 0.5}, {"shared": True}, {"capacity": 1.25}, {"capacity": "5/4"}])
def test_experts_check_their_fractions(changes: dict[str, Any]) -> None:
    with pytest.raises(ArchitectureError, match=rf"^experts\.{next(iter(changes))}: must be a Fraction"):
        Experts(4, **changes)


@pytest.mark.parametrize("place", ["version", "base", "base.heads"])
def test_missing_keys(place: str) -> None:
    document: Any = copy.deepcopy(SMALL.to_json())
    *parents, last = place.split(".")
    del (document["base"] if parents else document)[last]
    with pytest.raises(ArchitectureError, match=f"^{[*parents, 'the architecture'][0]}: the key '{last}' is"):
        Architecture.from_json(document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not JSON: Expecting value"),
        (b"{", "not JSON: "),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"layers": ' * 50_000, "not an architecture" if sys.version_info < (3, 14) else "not JSON"),
        (b"[" * 900 + b"]" * 900, "the architecture: must be a JSON object"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b" " * 1_000_001, "larger than 1,000,000 bytes"),
        (b'{"version": 1, "version": 2}', "the key 'version' occurs twice"),
        (b'{"version": NaN}', "NaN is not a number in JSON"),
        (b'{"version": -Infinity}', "-Infinity is not a number in JSON"),
        (b'{"version": ' + b"9" * 5000 + b"}", "not JSON: "),
        (b'"project(gelu(expand(x)))"', "the architecture: must be a JSON object"),
        (b'{"\\ud800": 1}', "unknown key '\\ud800'"),
    ],
)
def test_faulty_files(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(ArchitectureError) as error:
        Architecture.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"missing\.json: no such file"):
        Architecture.load(tmp_path / "missing.json")
    with pytest.raises(ArchitectureError, match="is a directory"):
        Architecture.load(tmp_path)


@pytest.mark.parametrize("expansion", [0.5, "1/2", True, Fraction(0), Fraction(3, 2)])
def test_genes_check_their_expansion(expansion: Any) -> None:
    with pytest.raises(ArchitectureError, match=r"^expansion: "):
        FFN(GELU, 1, expansion)


def test_the_number_of_layers_is_checked() -> None:
    with pytest.raises(ArchitectureError, match=r"layers: 3 given, but base\.depth is 4"):
        Architecture.of_ffns(SMALL.base, SMALL.ffns[:3])


def test_which_architectures_have_experts() -> None:
    base = PUBLISHED["efficientbert"].base
    dense = Architecture.uniform(base)
    assert not dense.has_experts
    mixture = replace(dense.ffns[-1], expansion=Fraction(1, 4), experts=Experts(2, routing="hash"))
    assert Architecture.of_ffns(base, (*dense.ffns[:-1], mixture)).has_experts
    for name in ("attention_experts", "head_experts"):
        assert Architecture.uniform(base, **{name: 2}).has_experts

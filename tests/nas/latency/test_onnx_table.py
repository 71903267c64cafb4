"""Latency tables of models in onnxruntime: what parts consist of, and the regression that finds the steps' times."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BertConfig

import nas.latency.onnx_table
from nas.latency.measure import latency_table, measure_whole
from nas.latency.onnx import INT8, ModelPart, exported, onnx_latencies, onnx_parts, undisturbed
from nas.latency.onnx_table import dense_steps, equations, merged, onnx_table, solution
from nas.latency.references import mixed_references, small_model
from nas.latency.settings import TableSettings
from nas.latency.steps import step_names
from nas.latency.table import LatencyTable
from nas.latency.whole import Latency, TooBusy
from search_spaces import FFN, GELU, Architecture, Experts
from search_spaces.layer import Attention, Embedding, Layer
from supernet.build import base_of_teacher
from tests import requirements
from tests.renamed import of_every_kind
from tests.search_spaces.strategies import graphs
from tests.tiny import BASE, GEGLU, SIZES, bert

requirements.module("onnxruntime", "onnx")

WIDTHS = (12, 48)  # the model is 24 wide
HEADS = (0, 1, 4)
RANKS = (4, 9, 20)
SETTINGS = TableSettings(
    base_model=Architecture.uniform(BASE),
    teacher=BertConfig(**SIZES),
    inner_widths=WIDTHS,
    heads=HEADS,
    ranks=RANKS,
    batch=1,
    tokens=6,
    device="cpu",
    runtime="onnx",
)

SCALE, OVERHEAD, NODES = 0.9, 2.5, 7  # of a runtime that is made up, and nodes of each of its parts
BESIDE = {"embeddings": 31.0, "mask": 17.0, "head": 23.0}


def true_times(mismatch: str) -> dict[str, float]:
    """Microseconds of all attentions and steps: any for a map of a width, a line in the channels for an operation."""
    result = {f"attention {heads}": 40.0 + 30 * heads for heads in HEADS}
    operations = ["gelu", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "swish", "add", "mul", "max"]
    for name in dense_steps(replace(BASE, mismatch=mismatch), (12, 24, 48)):
        op, *widths = name.split()
        channels = [int(width) for width in widths]
        if op in ("expand", "gate", "project"):
            result[name] = 10 + channels[0] ** 1.3 + 5 * (op == "project")
        elif op == "norm":
            result[name] = 90.0
        else:
            result[name] = 3 + operations.index(op) + 0.1 * min(channels) * (1 + operations.index(op) % 3)
            result[name] += (4 + 0.3 * (max if mismatch == "wide" else min)(channels)) * (len(channels) - 1)
    return result


def true_parts(architecture: Architecture, times: Mapping[str, float]) -> list[float]:
    """Microseconds of the parts of a model that takes these times."""
    rank = architecture.embedding.rank
    masked, result = False, [BESIDE["embeddings"] + (0 if rank is None else 6 + 1.5 * rank)]
    for layer in architecture.layers:
        result.append(times[f"attention {layer.attention.heads}"])
        if layer.attention.heads and not masked:
            result[-1] += BESIDE["mask"]
            masked = True
        names = step_names(layer.ffn.graph, architecture.base, layer.ffn.inner(architecture.base))
        result += layer.ffn.stack * [times["norm"] + sum(times[name] for name in names)]
    return [*result, BESIDE["head"]]


@pytest.fixture(scope="module", params=["narrow", "wide"])
def fitted_table(request: pytest.FixtureRequest) -> Iterator[tuple[LatencyTable, Mapping[str, float], Any]]:
    """A table of models that take the `true_times`, these times, and the base."""
    base, times = replace(BASE, mismatch=request.param), true_times(request.param)
    models: dict[Path, list[float]] = {}

    def pretend(architecture: Architecture, template: Any) -> Architecture:
        return architecture

    def export(given: Iterable[Any], runtime: str, folder: Path, processes: int) -> Iterator[Path]:
        teacher = [100.0, 200, 300]
        for number, model in enumerate(given):
            path = folder / f"{number}"
            models[path] = true_parts(model, times) if isinstance(model, Architecture) else teacher
            yield path

    def measure(files: Mapping[str, Path], batch: int, tokens: int) -> dict[str, tuple[Latency, list[ModelPart]]]:
        return {
            name: (
                Latency(0, 0, 0, quiet=sum(models[path]) / 1e6),
                [ModelPart((time + OVERHEAD * NODES) / SCALE, NODES) for time in models[path]],
            )
            for name, path in files.items()
        }

    with pytest.MonkeyPatch.context() as patch:
        module = nas.latency.onnx_table
        for name, function in {"exported": export, "small_model": pretend, "onnx_parts": measure}.items():
            patch.setattr(module, name, function)
        settings = replace(SETTINGS, base_model=Architecture.uniform(base))
        yield onnx_table(settings, lambda what, fraction: None), times, base


LAYERS = st.tuples(st.sampled_from(HEADS), graphs(), st.integers(1, 3), st.sampled_from(WIDTHS))


@settings(deadline=None)
@given(st.lists(LAYERS, min_size=3, max_size=3), st.sampled_from((None, 4, 7, 9, 20)))
def test_the_table_of_models_that_take_known_times(fitted_table: Any, drawn: list[Any], rank: int | None) -> None:
    table, times, base = fitted_table
    layers = (
        Layer(Attention(heads), FFN(graph, stack, Fraction(inner, base.inner))) for heads, graph, stack, inner in drawn
    )
    architecture = Architecture(base, tuple(layers), embedding=Embedding(rank))
    expected = sum(true_parts(architecture, times))
    if not any(heads for heads, *_ in drawn):
        expected += BESIDE["mask"]  # the table counts it in all models
    assert table.total(architecture) == pytest.approx(expected, rel=1e-4, abs=4)


def test_what_is_beside_layers(fitted_table: Any) -> None:
    table, times, _ = fitted_table
    assert (table.runtime, table.teacher) == ("onnx", 600)
    assert table.fixed == pytest.approx(sum(BESIDE.values()), abs=1)
    for heads in HEADS:
        assert table.attention(Attention(heads)) == pytest.approx(times[f"attention {heads}"], abs=1)


def test_the_overhead_of_profiles() -> None:
    times = [[100.0, 50], [20, 30, 40], [5, 5, 300]]
    counts = [[4, 9], [30, 2, 8], [1, 1, 12]]
    models = [
        [ModelPart((time + 2 * nodes) / 1.1, nodes) for time, nodes in zip(*pair, strict=True)]
        for pair in zip(times, counts, strict=True)
    ]
    for found, expected in zip(undisturbed(models, [*map(sum, times)]), times, strict=True):
        assert found == pytest.approx(expected)
    # A part whose nodes take less than their recording takes a little.
    (first, *_), *_ = undisturbed([[ModelPart(1, 10), *models[0]], *models[1:]], [*map(sum, times)])
    assert first == 1
    with pytest.raises(TooBusy, match="do not grow with the size"):
        undisturbed([[ModelPart(10, 5)], [ModelPart(100, 1)]], [100, 1])


def test_times_that_solve_equations() -> None:
    rng = np.random.default_rng(0)
    times = {"a": 3.0, "b": 0.5, "c": 1000.0, "none": 0.0}
    equations = []
    for _ in range(9):
        factors = {name: int(rng.integers(1, 4)) for name in times if rng.random() < 0.8} | {"a": 1}
        equations.append((factors, sum(times[name] * factor for name, factor in factors.items())))
    assert solution(equations) == pytest.approx(times, rel=3e-3, abs=1e-3)
    # What the equations leave open is shared, and no time is negative.
    assert solution([({"a": 1, "b": 1}, 4.0)]) == pytest.approx({"a": 2, "b": 2}, rel=1e-6)
    assert min(solution([({"a": 1}, 2.0), ({"a": 1, "b": 1}, 1.0)]).values()) == 0


def test_references_with_every_step() -> None:
    base_model = Architecture.uniform(BASE)
    found = mixed_references(base_model, (12, 24, 48), HEADS, 31)
    layers = [layer for architecture in found for layer in architecture.layers]
    assert len(layers) == 31 and {len(architecture.layers) for architecture in found} == {3, 1}
    steps = {name for layer in layers for name in step_names(layer.ffn.graph, BASE, layer.ffn.inner(BASE))}
    operations = {name.split()[0] for name in steps}
    assert operations == {name.split()[0] for name in dense_steps(BASE, (12, 24, 48))} - {"norm"}
    for counts in (
        Counter(layer.attention.heads for layer in layers),
        Counter(layer.ffn.inner(BASE) for layer in layers),
    ):
        assert len(counts) == 3 and max(counts.values()) - min(counts.values()) <= 1


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An int8 model with layers of one and two blocks and without heads, and one that is left out."""
    some, folder = FFN(expansion=Fraction(1, 4)), tmp_path_factory.mktemp("onnx")
    layers = (Layer(Attention(2), replace(some, stack=2)), Layer(Attention(0), FFN(stack=0)), Layer(Attention(0), some))
    return next(exported([small_model(Architecture(BASE, layers), None)], INT8, folder))


def test_the_parts_of_a_model(path: Path) -> None:
    assert [each.name for each in path.parent.iterdir()] == ["0-int8.onnx"]
    ((latency, found),) = onnx_parts({"model": path}, batch=2, tokens=5, rounds=3).values()
    assert 0 < latency.quiet < 60
    # The embeddings, the first layer's attention and its two blocks, the last layer's attention and block, the head.
    assert len(found) == 1 + 3 + 0 + 2 + 1
    assert all(part.microseconds > 0 and part.nodes > 0 for part in found)
    assert found[2].nodes == found[3].nodes and found[4].nodes < found[1].nodes


def test_quartiles_of_onnx_models(path: Path) -> None:
    found = onnx_latencies({"one": path, "two": path}, batch=1, tokens=5, rounds=4)
    assert list(found) == ["one", "two"]
    for latency in found.values():
        assert 0 < latency.lower <= latency.median <= latency.upper < 60 and 0 < latency.quiet < 60


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"experts": (Experts(2),)}, "experts: onnx has no latency table of experts"),
        ({"base_model": Architecture.uniform(BASE, head_experts=2)}, "experts: onnx has no latency table of experts"),
        ({"device": "cuda"}, "device: onnx runs on the cpu, not on cuda"),
    ],
)
def test_what_onnx_has_no_table_of(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        onnx_table(replace(SETTINGS, **changes), lambda what, fraction: None)


@pytest.mark.slow
@pytest.mark.parametrize("runtime", ["onnx", "onnx-int8"])
def test_a_measured_table(runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nas.latency.onnx_table, "LAYERS", 18)
    monkeypatch.setattr(nas.latency.onnx_table, "LAYERS_OF_WIDTH", 1)
    told: list[str] = []
    # In a batch of one the models of this test take less time than recording it does.
    settings = replace(SETTINGS, runtime=runtime, batch=32)

    def table() -> LatencyTable:
        return latency_table(settings, tmp_path, lambda what, fraction: told.append(what))

    try:
        found = table()
    except TooBusy as error:  # the runtime that is made up has exact figures
        requirements.missing(f"needs a machine that is not busy: {error}")
    assert f"latency: {runtime} models" in told
    told.clear()
    assert table() == found == LatencyTable.from_json(json.loads(json.dumps(found.to_json()))) and not told
    architectures = {"base": Architecture.uniform(BASE), "gated": Architecture.uniform(BASE, GEGLU, 2, Fraction(1, 4))}
    architectures["low"] = replace(architectures["base"], embedding=Embedding(4))
    measured = measure_whole(architectures, found, "cpu", SETTINGS.teacher, rounds=3, also_teacher=True)
    assert list(measured) == ["base", "gated", "low", "teacher"]
    assert measured["teacher"].predicted == found.teacher > 0
    for name, architecture in architectures.items():
        assert measured[name].predicted == found.total(architecture) > found.fixed
        assert 0 < measured[name].whole.quiet < 60
    assert found.total(Architecture.uniform(BASE, GELU, 3)) >= found.total(architectures["base"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pre-norm", "megatron-bert", "modernbert", "eurobert"])
def test_the_parts_of_models_with_their_layer_norms_first(name: str, tmp_path: Path) -> None:
    """onnxruntime runs as many as there are equations, also without heads or FFNs."""
    config = of_every_kind(bert())[name].config
    base, graph = base_of_teacher(config)
    without_ffn, ffn = FFN(stack=0), FFN(graph)
    architectures = {
        "no heads first": Architecture(base, (Layer(Attention(0), ffn), Layer(Attention(2), without_ffn))),
        "no heads after no FFN": Architecture(base, (Layer(Attention(2), without_ffn), Layer(Attention(0), ffn))),
    }
    models = [small_model(one, config) for one in architectures.values()]
    files = dict(zip(architectures, exported(models, "onnx", tmp_path), strict=True))
    for key, (_, parts) in onnx_parts(files, 1, 8, 3).items():
        times = merged(base, [part.nodes for part in parts])
        assert sum(number for _, number in equations(architectures[key], times)) == sum(part.nodes for part in parts)

"""Latency tables are measured once per device; their sums are whole microseconds."""

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import BertConfig

import nas.latency.steps
import nas.latency.torch_table
from distill.encoders.student import ffn
from distill.encoders.student.embedding import LowRankEmbedding
from nas.config.values import parse_latency
from nas.latency.measure import latency_table, measure_whole
from nas.latency.settings import TableSettings
from nas.latency.table import LatencyTable
from nas.latency.torch_table import fitted
from nas.latency.whole import Latency, TooBusy, latencies, summary
from search_spaces import DENSE, FFN, GELU, Architecture, Base, Experts, FFNGraph
from search_spaces.layer import Attention, Embedding, Layer
from search_spaces.operations import UNARY, Operation
from supernet.build import build
from tests.search_spaces.strategies import graphs
from tests.tiny import BASE, GEGLU, SIZES, batch, bert

WIDTHS = (12, 24, 48)  # below the model's width, equal to it, above it
EXPANSIONS = tuple(Fraction(width, BASE.inner) for width in WIDTHS)

HASH, GATE = Experts(2, Fraction(1, 2)), Experts(4, Fraction(1), "token_gate", top_k=2)

Measure = Callable[..., LatencyTable]


def test_quartiles_of_every_model() -> None:
    models: dict[str, nn.Module] = {"one": bert(), "two": bert(num_hidden_layers=1).train()}
    found = latencies(models, batch(), rounds=5)
    assert list(found) == ["one", "two"]
    for latency in found.values():
        assert 0 < latency.lower <= latency.median <= latency.upper < 60
        assert 0 < latency.quiet < 60
    modules = [module for model in models.values() for module in model.modules()]
    assert not any(module.training or module._forward_pre_hooks for module in modules)


def test_quiet_where_every_pass_is_interrupted() -> None:
    # Pieces of 1, 2 and 3 seconds; in every pass another one takes 10 more.
    pieces = [(11, 2, 3), (1, 12, 3), (1, 2, 13)] * 3
    passes = [list(accumulate(pass_, initial=5)) for pass_ in pieces]
    assert summary(passes) == Latency(lower=16, median=16, upper=16, quiet=6)


def test_the_fit_to_whole_models() -> None:
    sums = [100, 200, 400, 300], [50, 10, 20, 90]
    whole = [1.1 * one + 2.5 * other + 1000 for one, other in zip(*sums, strict=True)]
    assert fitted(sums, whole) == pytest.approx((1.1, 2.5, 1000))
    for whole in ([3.0, 2, 1, 2], [100, 2000, 9000, 5000]):  # a factor below 0, and a constant below 0
        with pytest.raises(TooBusy, match="do not grow with the size"):
            fitted(sums, whole)
    # The relative errors of three models that no line predicts are orthogonal to the columns.
    sums, whole = np.array([1.0, 10, 5]), np.array([2.0, 12, 9])
    factor, constant = fitted([sums.tolist()], whole.tolist())
    errors = (factor * sums + constant) / whole - 1
    assert np.abs(errors).max() > 0.01
    assert np.array([sums, np.ones(3)]) / whole @ errors == pytest.approx([0, 0], abs=1e-12)


SETTINGS = TableSettings(
    base_model=Architecture.uniform(BASE),
    teacher=BertConfig(**SIZES),
    inner_widths=WIDTHS,
    heads=(BASE.heads,),
    batch=1,
    tokens=6,
    device="cpu",
)


@pytest.fixture(scope="module")
def measure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """`latency_table` of the tiny base, with some settings changed. All calls share one cache and run fewer rounds."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nas.latency.steps, "STEP_ROUNDS", 5)
        yield lambda **changes: latency_table(replace(SETTINGS, **changes), cache)


@pytest.fixture(scope="module")
def table(measure: Measure) -> LatencyTable:
    return measure()


def test_settings_that_change_latencies_have_tables_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(**changes: object) -> Path:
        return replace(SETTINGS, **changes).path(tmp_path)  # type: ignore[arg-type]

    def of_base(**changes: object) -> Path:
        return path(base_model=Architecture.uniform(replace(BASE, **changes)))  # type: ignore[arg-type]

    usual = path()
    others = [
        of_base(depth=2),
        of_base(capacity_per="batch"),
        path(base_model=Architecture.uniform(BASE, attention_experts=2)),
        path(base_model=Architecture.uniform(BASE, head_experts=2)),
        path(teacher=BertConfig(**{**SIZES, "num_hidden_layers": 1})),
        path(inner_widths=(12, 24)),
        path(batch=2),
        path(tokens=7),
        path(experts=(HASH,)),
        path(heads=(0, 4)),
        path(ranks=(8,)),
        path(ranks=(8, 16)),
        path(runtime="onnx"),
        path(runtime="onnx-int8"),
        path(threads=999),
    ]
    # What gates multiply by and the noise of training do not change how long they take.
    threads = torch.get_num_threads()
    for same in (
        of_base(gate_scale="probability"),
        of_base(gate_jitter=0.2),
        path(experts=(DENSE,)),
        path(heads=(4, 4)),
        path(ranks=()),
        path(threads=threads),
    ):
        assert same == usual
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1000)
    assert len({usual, *others, path()}) == len(others) + 2


def priced(base: Base = BASE) -> LatencyTable:
    """A table of all steps at `WIDTHS` in which different sums of a few steps have different values."""
    names = ["norm", *(f"{op} {width}" for op in ("expand", "gate", "project", "gelu", *ffn.UNARY) for width in WIDTHS)]
    names += [f"attention {heads}" for heads in (0, 1, 4)]
    pairs = [(12,), (24,), (48,), (12, 24), (24, 48)]
    names += [f"{op} {' '.join(map(str, pair))}" for op in ffn.BINARY for pair in pairs]
    return LatencyTable("torch", 1, 1, 6, 500, 4000, tuple((name, 1000 * 7**place) for place, name in enumerate(names)))


class Watch(TorchFunctionMode):
    """Records the steps that a block really executes, by their names in a latency table."""

    OPS = {ffn.F.gelu: "gelu"} | {function: op for op, function in ffn.UNARY.items()}

    def __init__(self, block: ffn.FFNBlock) -> None:
        super().__init__()
        maps = (name for name in ("expand", "gate", "project") if hasattr(block, name))
        self.linear = {getattr(block, name).weight: name for name in maps}
        self.steps: list[str] = []

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is ffn.F.linear:
            op = self.linear[arguments[1]]
            self.steps.append(f"{op} {arguments[1].shape[1 if op == 'project' else 0]}")
        elif function is ffn.F.layer_norm:
            self.steps.append("norm")
        elif function in self.OPS:
            self.steps.append(f"{self.OPS[function]} {arguments[0].shape[-1]}")
        return function(*arguments, **(keywords or {}))


@settings(deadline=None)
@given(graphs(), st.sampled_from(EXPANSIONS), st.sampled_from(("narrow", "wide")))
def test_a_layer_costs_the_steps_it_takes(graph: FFNGraph, expansion: Fraction, mismatch: str) -> None:
    base = replace(BASE, depth=1, mismatch=mismatch)
    genes = FFN(graph, expansion=expansion)
    block = build(Architecture.of_ffns(base, (genes,))).bert.encoder.layer[0].ffn[0]
    watch = Watch(block)

    def combine(op: str, a: Tensor, b: Tensor, mismatch: str) -> Tensor:
        watch.steps.append(" ".join([op, *map(str, sorted({a.shape[-1], b.shape[-1]}))]))
        return original(op, a, b, mismatch)

    original, ffn.combine = ffn.combine, combine
    try:
        with watch:
            block(torch.randn(1, 2, base.width))
    finally:
        ffn.combine = original
    price = dict(priced().steps)
    assert priced().ffn(base, genes) == sum(price[step] for step in watch.steps) // 1000


@pytest.mark.parametrize("mismatch", ["narrow", "wide"])
def test_a_measured_table_knows_all_graphs(measure: Measure, mismatch: str) -> None:
    # The inner width of none of the blocks is the model's own, which values of the graph have all the same.
    base = replace(BASE, mismatch=mismatch)
    table = measure(base_model=Architecture.uniform(base), inner_widths=(12, 48), batch=2, tokens=7)
    assert (table.batch, table.tokens) == (2, 7)

    @settings(deadline=None)
    @given(graphs(), st.sampled_from((12, 48)))
    def known(graph: FFNGraph, inner: int) -> None:
        time = table.ffn(base, FFN(graph, expansion=Fraction(inner, base.inner)))
        assert isinstance(time, int)
        assert time > 0

    known()


def test_a_model_as_wide_as_no_block(measure: Measure) -> None:
    base = Base(depth=1, width=24, heads=2, inner=8, vocabulary=50, positions=20, embedding=8)
    table = measure(base_model=Architecture.uniform(base), inner_widths=(8,), heads=(2,))
    assert table.total(Architecture.uniform(base, GEGLU, stack=3)) > table.fixed


def test_totals_add_up_in_whole_microseconds(table: LatencyTable) -> None:
    layers = (FFN(GELU, 2, Fraction(1, 4)), FFN(GEGLU), FFN(FFNGraph.parse("max(x,project(relu(expand(x))))")))
    attentions = 3 * table.attention(Attention(BASE.heads))
    ffns = sum(table.ffn(BASE, genes) for genes in layers)
    assert table.total(Architecture.of_ffns(BASE, layers)) == table.fixed + attentions + ffns
    values = (table.fixed, table.teacher, *dict(table.steps).values())
    assert all(isinstance(value, int) and value > 0 for value in values)
    for stack in (2, 3, 4):
        blocks = stack * table.ffn(BASE, FFN(GEGLU))
        assert abs(table.ffn(BASE, FFN(GEGLU, stack)) - blocks) <= stack / 2


def test_a_layer_that_is_left_out_takes_no_time() -> None:
    table = priced()
    assert table.ffn(replace(BASE, inner=10**6), FFN(stack=0)) == 0  # of no width, so of none beyond the table
    nothing, some = Attention(0), FFN(expansion=EXPANSIONS[0])
    assert table.layer(BASE, Layer(nothing, FFN(stack=0))) == 0
    assert table.layer(BASE, Layer(nothing, some)) == table.attention(nothing) + table.ffn(BASE, some)
    assert table.attention(nothing) == dict(table.steps)["attention 0"] // 1000 > 0
    layers = (Layer(nothing, FFN(stack=0)), Layer(Attention(4), some), Layer(nothing, some))
    found = table.total(Architecture(BASE, layers))
    assert found == table.fixed + table.attention(Attention(4)) + table.attention(nothing) + 2 * table.ffn(BASE, some)


def test_heads_between_those_of_the_table_lie_on_a_line() -> None:
    table = priced()
    one, two, four = (table.attention(Attention(heads)) for heads in (1, 2, 4))
    assert 3 * two == pytest.approx(2 * one + four, rel=1e-12)
    with pytest.raises(ValueError, match="an attention with 5 heads: the latency table ends at 4"):
        table.attention(Attention(5))
    without = replace(table, steps=tuple(step for step in table.steps if step[0] != "attention 0"))
    assert without.attention(Attention(0)) == one  # as a bound


@pytest.mark.parametrize(
    ("heads", "measured"),
    [
        ([12], [12]),
        ([0], [0]),
        ([12, 0, 4, 4], [0, 4, 12]),
        (range(7), [0, 1, 2, 3, 4, 5, 6]),
        (range(13), [0, 1, 3, 5, 8, 10, 12]),
        (range(1, 17), [1, 4, 7, 10, 13, 16]),
    ],
)
def test_a_few_numbers_of_heads_are_measured(heads: Sequence[int], measured: list[int]) -> None:
    assert replace(SETTINGS, heads=heads).measured_heads == measured
    assert replace(SETTINGS, ranks=sorted({*heads} - {0})).measured_ranks == [size for size in measured if size]


def test_ranks_between_those_of_the_table_lie_on_a_line() -> None:
    table = replace(priced(), steps=(*priced().steps, ("rank 4", 3_000_000), ("rank 16", 9_000_000)))
    assert [table.embedding(Embedding(rank)) for rank in (None, 1, 4, 10, 16)] == [0, 3000, 3000, 6000, 9000]
    whole = Architecture.uniform(BASE)
    assert table.total(replace(whole, embedding=Embedding(10))) == table.total(whole) + 6000
    with pytest.raises(ValueError, match=r"an embedding of rank 17: the latency table has the ranks \[4, 16\]"):
        table.embedding(Embedding(17))
    with pytest.raises(ValueError, match=r"an embedding of rank 4: the latency table has the ranks \[\]"):
        priced().embedding(Embedding(4))


def test_every_rank_and_number_of_heads_has_its_time(measure: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are measured in models of other ranks than those to which the table is fitted."""

    def of_whole_words(models: Mapping[str, nn.Module], *arguments: Any) -> dict[str, Latency]:
        parts = [part for model in models.values() for part in model.modules()]
        assert any(isinstance(part, nn.Embedding) for part in parts)
        assert not any(isinstance(part, LowRankEmbedding) for part in parts)
        return latencies(models, *arguments)

    monkeypatch.setattr(nas.latency.torch_table, "latencies", of_whole_words)
    table = measure(ranks=(4, 16, 4), heads=(0, 1, 4))
    assert [name for name, _ in table.steps if "rank" in name] == ["rank 4", "rank 16"]
    attentions = [name for name, _ in table.steps if "attention" in name]
    assert sorted(attentions) == ["attention 0", "attention 1", "attention 4"]
    assert all(time > 0 or ("rank" in name and time == 0) for name, time in table.steps)
    layers = tuple(Layer(Attention(heads), FFN(expansion=EXPANSIONS[0])) for heads in (0, 2, 4))
    low = Architecture(BASE, layers, embedding=Embedding(9))
    (measured,) = measure_whole({"low": low}, table, "cpu", SETTINGS.teacher, rounds=3).values()
    assert measured.predicted == table.total(replace(low, embedding=Embedding())) + table.embedding(low.embedding)
    assert measured.predicted > table.fixed


def test_json_and_pickle_give_the_same_table(table: LatencyTable) -> None:
    assert LatencyTable.from_json(json.loads(json.dumps(table.to_json()))) == table
    assert pickle.loads(pickle.dumps(table)) == table
    assert hash(replace(table)) == hash(table)


def test_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nas.latency.steps, "STEP_ROUNDS", 5)
    told: list[str] = []

    def fresh(settings: TableSettings) -> LatencyTable:
        return latency_table(settings, tmp_path, lambda what, fraction: told.append(what))

    torch.manual_seed(3)
    first = fresh(SETTINGS)
    (path,) = (tmp_path / "latencies").glob("[!.]*")
    assert told
    drawn = torch.rand(3)
    written = path.stat().st_mtime_ns, path.read_bytes()
    told.clear()
    teacher = BertConfig(**SIZES)
    teacher._name_or_path = "elsewhere"
    torch.manual_seed(3)
    assert fresh(replace(SETTINGS, inner_widths=(48, 12, 24, 12), teacher=teacher)) == first
    assert not told
    assert (path.stat().st_mtime_ns, path.read_bytes()) == written
    assert torch.equal(torch.rand(3), drawn)


def test_operations_that_are_added_are_measured(
    measure: Measure, table: LatencyTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(UNARY, "square", Operation("a**2", np.square))
    monkeypatch.setitem(ffn.UNARY, "square", torch.square)
    squared = FFN(FFNGraph.parse("project(square(expand(x)))"), expansion=Fraction(1, 2))
    assert measure().ffn(BASE, squared) > 0
    with pytest.raises(ValueError, match="'square 24' is not in the latency table"):
        table.ffn(BASE, squared)


def test_what_a_table_does_not_know() -> None:
    with pytest.raises(ValueError, match="the latency table ends at "):
        priced().ffn(replace(BASE, inner=96), FFN(GELU))
    with pytest.raises(ValueError, match="26 wide: 'max 12 26' is not in the latency table"):
        graph = FFNGraph.parse("project(max(expand(x),x))")
        priced().ffn(replace(BASE, width=26, heads=2), FFN(graph, expansion=EXPANSIONS[0]))


def test_widths_between_those_of_the_table_lie_on_a_line() -> None:
    table = priced()
    low, high = (FFN(GELU, 2, expansion) for expansion in EXPANSIONS[:2])
    ends = [table.ffn(BASE, genes) for genes in (low, high)]
    widths = [genes.inner(BASE) for genes in (low, high)]
    for inner in range(widths[0], widths[1] + 1):
        share = (inner - widths[0]) / (widths[1] - widths[0])
        expected = ends[0] + share * (ends[1] - ends[0])
        assert table.ffn(BASE, FFN(GELU, 2, Fraction(inner, BASE.inner))) == pytest.approx(expected, abs=1.01)
    # Below the smallest, that one is the bound.
    assert table.ffn(BASE, FFN(GELU, 2, Fraction(1, BASE.inner))) == ends[0]


def test_more_tokens_than_positions(measure: Measure) -> None:
    with pytest.raises(ValueError, match="20 positions, not 21"):
        measure(tokens=21)


def test_whole_models_next_to_the_table(table: LatencyTable) -> None:
    architectures = {"base": Architecture.uniform(BASE), "gated": Architecture.uniform(BASE, GEGLU, 2, EXPANSIONS[0])}
    torch.manual_seed(3)
    found = measure_whole(architectures, table, "cpu", SETTINGS.teacher, rounds=3)
    drawn = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(3), drawn)
    assert list(found) == ["base", "gated"]
    for name, measured in found.items():
        assert measured.predicted == table.total(architectures[name])
        assert 0 < measured.whole.lower <= measured.whole.median <= measured.whole.upper < 60


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [
        ("12ms", 12_000),
        ("0.012s", 12_000),
        ("1.2345ms", 1_234),
        ("12 ms", 12_000),
        ("0.25x", 1_000),
        ("1/4x", 1_000),
        ("0.33333x", 1_333),
        ("1x", 4_000),
    ],
)
def test_limits(text: str, microseconds: int) -> None:
    assert parse_latency(text).microseconds(priced().teacher) == microseconds


@pytest.mark.parametrize(
    "text", ["", "0x", "0.0ms", "-1ms", "nan ms", "12", "1e400ms", "0.25", "ms", "1/0x", "12MS", "٣ms", 99 * "9" + "s"]
)
def test_what_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError, match=r"'12ms' or '0\.012s', or .* '0\.25x', not '"):
        parse_latency(text)


def test_experts_are_measured_too(measure: Measure) -> None:
    table = measure(experts=(DENSE, HASH, GATE, replace(HASH, shared=Fraction(0))))
    names = [name for name, _ in table.steps if "," in name]
    kinds = ["2 hash top 1", "4 token_gate top 2"]
    maps = [f"{op} {width}" for op in ("expand", "gate", "project") for width in WIDTHS]
    assert sorted(names) == sorted(f"{step}, {kind}" for step in (*maps, "route", "send") for kind in kinds)
    assert all(time > 0 for name, time in table.steps)
    for experts in (HASH, GATE):
        assert table.total(Architecture.uniform(BASE, expansion=Fraction(1, 4), experts=experts)) > table.fixed
    with pytest.raises(ValueError, match=r"'.*2 balanced_hash top 1' is not in the latency table"):
        table.total(Architecture.uniform(BASE, expansion=Fraction(1, 4), experts=Experts(2, routing="balanced_hash")))


def test_a_hash_is_asked_once_a_layer_and_a_gate_in_every_block() -> None:
    own = ("expand 12", "project 12", "route", "send")
    kinds = [f"{step}, {kind}" for kind in ("2 hash top 1", "4 token_gate top 2") for step in own]
    steps = tuple((name, 1000 * 7**place) for place, name in enumerate(["norm", "expand 12", "gelu 12", *kinds]))
    table = LatencyTable("torch", 1, 1, 6, 500, 4000, steps)
    cost = dict(table.steps)

    def blocks(experts: Experts, stack: int) -> int:
        return 1000 * table.ffn(BASE, FFN(GELU, stack, Fraction(1, 4), experts))

    for experts, kind, rows in ((HASH, "2 hash top 1", 1), (GATE, "4 token_gate top 2", 2)):
        block = cost["norm"] + rows * cost["gelu 12"]
        block += sum(cost[f"{step}, {kind}"] for step in ("expand 12", "project 12", "send"))
        route = cost[f"route, {kind}"]
        for stack in (1, 3):
            assert blocks(experts, stack) == stack * block + (stack if experts.gated else 1) * route

"""The budget of a search: bounds on parameters, limits on other costs, and the baselines that fit."""

import random
from bisect import bisect_left
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import nas.planning.budget
from distill.tasks.types import TASK_TYPES
from nas.config.load import load_config
from nas.latency.settings import TableSettings
from nas.latency.table import LatencyTable
from nas.planning.budget import (
    MOST_LABELS,
    NO_LIMIT,
    budgeted_space,
    check_feasible,
    closed_limits,
    globally_important,
    kept_importance,
    largest_uniform,
    latencies_file,
    latencies_of,
    limits_of,
    uniform_slice,
)
from nas.preparation.workspace import Workspace
from search_spaces import FFN, Architecture, PredictionHead, Space, SpaceError, cost
from search_spaces.graph import GELU
from search_spaces.layer import Embedding
from search_spaces.limits import Limit
from search_spaces.spaces import SIZES
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE

TABLE = {
    "space.stacks": [1, 2],
    "space.expansions": ["1/4", "1/2", "1"],
    "space.uniform": "1/2",
    "space.slack": 0.3,
    "space.mutation_rate": 0.1,
}

HEADS = [known.head for known in TASK_TYPES.values()]


def box(limits: tuple[Limit, ...] = (), head: cost.HeadCost = cost.CLASSIFIER, **changes: object) -> Space:
    config = load_config("demo-ffn", TABLE | {f"space.{key}": value for key, value in changes.items()})
    return budgeted_space(config, BASE, GELU, num_labels=4, limits=limits, head=head)


def test_the_box_reaches_from_slack_below_up_to_the_uniform_slice() -> None:
    space = box()
    uniform = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
    smallest = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 4)
    assert space.max_params == uniform
    assert space.min_params == uniform - int(0.3 * (uniform - smallest))
    assert space.num_labels == 4
    assert box(max_params=uniform - 100).max_params == uniform - 100
    assert box(min_params=uniform - 5).min_params == uniform - 5
    assert box(max_params="1G").min_params < cost.params(Architecture.uniform(BASE, stack=2), 4)


@pytest.mark.parametrize("changes", [{"max_params": 10}, {"min_params": "1G", "max_params": "2G"}])
def test_boxes_that_nothing_fits(changes: dict[str, object]) -> None:
    with pytest.raises(SpaceError):
        box(**changes)


@pytest.mark.parametrize("spare", [0, 1, 100, 1000, 3000, 10**9])
def test_the_largest_uniform_slice_is_the_largest(spare: int) -> None:
    least = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 4)
    space = replace(box(min_params=1, max_params=10**9), max_params=least + spare)
    fits = [
        inner
        for inner in range(1, BASE.inner + 1)
        if cost.params(Architecture.uniform(BASE, expansion=Fraction(inner, BASE.inner)), 4) <= space.max_params
    ]
    found = largest_uniform(Architecture.uniform(BASE), 4, space.max_params)
    assert found == Architecture.uniform(BASE, expansion=Fraction(max(fits), BASE.inner))


def test_global_importance_keeps_the_most_important_neurons(tiny_study: TinyStudy, workspace: Workspace) -> None:
    base, graph = workspace.base()
    space = budgeted_space(tiny_study.config, base, graph, workspace.num_labels)
    found = globally_important(space, graph, workspace)
    uniform = largest_uniform(Architecture.uniform(base, graph), workspace.num_labels, space.max_params)
    assert cost.params(found, workspace.num_labels) == cost.params(uniform, workspace.num_labels) == space.max_params
    assert {ffn.stack for ffn in found.ffns} == {1}
    assert {ffn.graph for ffn in found.ffns} == {graph}
    # No other division of as many neurons over two layers keeps more importance.
    inner = [ffn.inner(base) for ffn in found.ffns]
    worth = [[0.0, *scores.cumsum(0).tolist()] for scores in workspace.importance()]
    kept = sum(layer[size] for layer, size in zip(worth, inner, strict=True))
    total = sum(inner)
    choices = [(a, total - a) for a in range(4, base.inner + 1) if 4 <= total - a <= base.inner]
    assert kept == pytest.approx(max(worth[0][a] + worth[1][b] for a, b in choices))


def test_kept_importance_is_that_of_the_leading_neurons() -> None:
    kept = kept_importance([torch.arange(BASE.inner, 0, -1.0)] * BASE.depth)
    assert kept(Architecture.uniform(BASE)) == 1
    half = Architecture.uniform(BASE, expansion=Fraction(1, 2))
    assert kept(half) == pytest.approx(sum(range(25, 49)) / sum(range(1, 49)))
    # Blocks above the lowest one are not counted.
    assert kept(Architecture.uniform(BASE, stack=2, expansion=Fraction(1, 2))) == kept(half)
    uneven = Architecture.of_ffns(BASE, (*half.ffns[:1], *Architecture.uniform(BASE).ffns[1:]))
    assert kept(uneven) == pytest.approx((kept(half) + BASE.depth - 1) / BASE.depth)
    assert kept(Architecture.uniform(BASE, stack=0)) == 0
    layers = (FFN(stack=0), *Architecture.uniform(BASE).ffns[1:])
    assert kept(Architecture.of_ffns(BASE, layers)) == pytest.approx(2 / 3)


def test_the_smallest_architecture_may_have_no_ffn() -> None:
    uniform = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4)
    space = box(stacks=[0, 1])
    assert space.min_params == uniform - int(0.3 * (uniform - cost.params(Architecture.uniform(BASE, stack=0), 4)))
    assert box(stacks=[0, 1], slack=1.0).min_params == cost.params(Architecture.uniform(BASE, stack=0), 4)


def test_a_latency_in_which_not_all_layers_have_an_ffn() -> None:
    """No uniform slice keeps to it, so the budget reaches down to no FFN at all."""
    limit = Limit("latency", 7, lambda base, layer: layer.ffn.stack * (50 + layer.ffn.inner(base)), 7 + 2 * 74)
    with pytest.raises(SpaceError, match=r"max_latency = 0\.155 ms: no architecture"):
        box((limit,))
    space = box((limit,), stacks=[0, 1, 2])
    empty = Architecture.uniform(BASE, stack=0)
    assert largest_uniform(Architecture.uniform(BASE), 4, space.max_params, (limit,), least=0) == empty
    assert space.min_params == cost.params(Architecture.uniform(BASE, stack=0), 4)
    drawn = [space.sample(random.Random(seed)) for seed in range(200)]
    assert max(sum(ffn.inner(BASE) for ffn in one.ffns) for one in drawn) == 48
    assert all(limit.total(one) <= limit.maximum for one in drawn)


def test_global_importance_without_room(tiny_study: TinyStudy, workspace: Workspace) -> None:
    base, graph = workspace.base()
    least = cost.params(Architecture.uniform(base, stack=0), workspace.num_labels)
    config = tiny_study.config.with_table("space", stacks=(0, 1), max_params=least, min_params=1)
    space = budgeted_space(config, base, graph, workspace.num_labels)
    assert globally_important(space, graph, workspace) == Architecture.uniform(base, stack=0)


def channels(most: int) -> Limit:
    return Limit("macs", 7, lambda base, layer: layer.ffn.stack * layer.ffn.inner(base), most)


def test_a_tighter_limit_moves_the_box() -> None:
    limit = channels(7 + 3 * 17)
    space = box((limit,))
    # The largest uniform slice that keeps to the limit has 17 channels a layer.
    uniform = Architecture.uniform(BASE, expansion=Fraction(17, 48))
    smallest = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 4)), 4)
    reached = cost.params(uniform, 4)
    assert uniform_slice(load_config("demo-ffn", TABLE), space) == uniform
    assert space.min_params == reached - int(0.3 * (reached - smallest))
    assert space.max_params == box().max_params
    assert box((channels(NO_LIMIT),)).min_params == box().min_params


@pytest.mark.parametrize("head", HEADS, ids=TASK_TYPES)
def test_the_box_counts_the_head(head: cost.HeadCost) -> None:
    """The same architectures are within the budget for every head, unless the bounds are set explicitly."""
    space, other = box((channels(7 + 3 * 17),), head=head), box((channels(7 + 3 * 17),))
    less = cost.head_params(BASE, PredictionHead(), 4) - cost.head_params(BASE, PredictionHead(), 4, head)
    assert (other.min_params - space.min_params, other.max_params - space.max_params) == (less, less)
    assert space.size_count() == other.size_count() > 0
    uniform = cost.params(Architecture.uniform(BASE, expansion=Fraction(1, 2)), 4, head)
    assert space.max_params == uniform
    half = Architecture.uniform(BASE, expansion=Fraction(1, 2))
    assert uniform_slice(load_config("demo-ffn", TABLE), box(head=head)) == half


def test_a_stage_of_graphs_alone_has_no_lower_end() -> None:
    config = load_config("demo-ffn", TABLE | {"space.draws": "released", "space.gated": True, "space.max_height": 4})
    start = Architecture.uniform(BASE, expansion=Fraction(1, 2))
    space = budgeted_space(config, BASE, GELU, 4, start=start, vary=frozenset({"graphs"}), mutation_rate=0.4)
    assert (space.min_params, space.mutation_rate) == (1, 0.4)
    assert (space.draws, space.gated, space.max_height) == ("released", True, 4)
    assert budgeted_space(config, BASE, GELU, 4, start=start, vary=frozenset({SIZES})).min_params == box().min_params


def test_two_goals_leave_the_box_open_below() -> None:
    stages = {f"stage{n}.sampler": "nsga2" for n in (1, 2, 3)}
    config = load_config("demo-ffn", TABLE | {"goals": "score,params"} | stages)
    assert budgeted_space(config, BASE, GELU, 4).min_params == 1


def test_limits_are_those_of_the_study(tiny_study: TinyStudy, workspace: Workspace) -> None:
    assert limits_of(tiny_study.config, workspace, "cpu") == ()
    config = tiny_study.config.with_table("space", max_macs=10**6, max_latency="0.9x")
    bound = replace(workspace, config=config)
    macs, latency = limits_of(bound.config, bound, "cpu")
    base, graph = workspace.base()
    architecture = Architecture.uniform(base, graph=graph, stack=2, expansion=Fraction(1, 4))
    assert (macs.name, macs.maximum) == ("macs", 10**6)
    assert macs.total(architecture) == cost.macs(architecture, num_labels=workspace.num_labels)
    assert latency.name == "latency"
    assert latency.fixed < latency.maximum
    assert latency.total(architecture) == latency.fixed + 2 * latency.layer_cost(base, architecture.layers[0])
    # Measured once, and what is only minimized has no bound.
    assert limits_of(bound.config, bound, "cpu") == (macs, latency)
    goals = workspace.config.model_copy(update={"goals": ("score", "macs", "latency")})
    assert limits_of(goals, workspace, "cpu") == (replace(macs, maximum=NO_LIMIT), replace(latency, maximum=NO_LIMIT))


def test_the_latency_counts_heads_and_ranks(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers without an FFN, and the map of an embedding of rank 8."""
    steps = (("attention 2", 10_000), ("attention 4", 16_000), ("rank 8", 7_000))
    table = LatencyTable("torch", threads=1, batch=1, tokens=24, fixed=100, teacher=1000, steps=steps)
    monkeypatch.setattr(nas.planning.budget, "latency_table", lambda *unused: table)
    config = workspace.config.with_table("space", max_latency="0.3x", ranks=(8, None), heads=(2, 4))
    (limit,) = limits_of(config, workspace, "cpu")
    assert (limit.name, limit.maximum) == ("latency", 300)
    architecture = Architecture.uniform(workspace.base()[0], stack=0).with_heads([2, 4])
    assert limit.total(architecture) == 100 + 10 + 16
    assert limit.total(replace(architecture, embedding=Embedding(8))) == 100 + 10 + 16 + 7


def test_the_file_of_latencies_is_known_once_there_is_a_teacher(workspace: Workspace, tmp_path: Path) -> None:
    none = replace(workspace, folders=replace(workspace.folders, teacher=tmp_path / "none"))
    assert latencies_file(none.config, none, "cpu") is None
    assert latencies_file(workspace.config, workspace, "cpu") is not None


@pytest.mark.parametrize(("runtime", "most"), [("onnx", 105), ("onnx-int8", 75)])
def test_a_limit_on_the_file_is_that_of_its_form(runtime: str, most: int) -> None:
    config = load_config("demo-ffn", TABLE | {"space.max_size": f"{most}KB", "deployment.runtime": runtime})
    (limit,) = closed_limits(config, BASE, 4, cost.CLASSIFIER)
    assert (limit.name, limit.maximum) == ("size", most * 1000)
    space = box((limit,), max_params="1G", slack=1.0)
    whole = Architecture.uniform(BASE)
    uniform = largest_uniform(whole, 4, 10**9, (limit,))
    totals = [limit.total(space.sample(random.Random(seed))) for seed in range(30)]
    assert max(*totals, limit.total(uniform)) <= limit.maximum < limit.total(whole)
    with pytest.raises(SpaceError, match=r"max_size = 0\.05 MB: no architecture .*; raise it"):
        box((replace(limit, maximum=50_000),), max_params="1G", slack=1.0)


@pytest.mark.parametrize(
    ("deployment", "device", "expected"),
    [
        ({}, "cpu", ("torch", None, 1, 24, "cpu")),
        ({}, "cuda", ("torch", None, 1, 24, "cuda")),
        ({"threads": 1, "batch": 8, "tokens": 12}, "cpu", ("torch", 1, 8, 12, "cpu")),
        ({"runtime": "onnx-int8", "threads": 2}, "cuda", ("onnx-int8", 2, 1, 24, "cpu")),
    ],
)
def test_latencies_are_measured_as_students_will_run(
    deployment: dict[str, object],
    device: str,
    expected: tuple[object, ...],
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[TableSettings] = []
    monkeypatch.setattr(nas.planning.budget, "latency_table", lambda settings, *unused: asked.append(settings))
    config = workspace.config.with_table("deployment", **deployment)
    config = config.with_table("space", expansions=(Fraction(1, 8), Fraction(1, 2)), heads=(0, 2))
    latencies_of(config, workspace, device)
    (settings,) = asked
    assert (settings.runtime, settings.threads, settings.batch, settings.tokens, settings.device) == expected
    # Those of the space, and of the base model.
    assert (sorted(settings.inner_widths), sorted(settings.heads)) == ([8, 32, 64], [0, 2, 4])


@pytest.mark.parametrize("head", HEADS, ids=TASK_TYPES)
@pytest.mark.parametrize("limit", ["max_params", "max_macs"])
def test_the_early_check_refuses_only_what_fits_with_no_head(head: cost.HeadCost, limit: str) -> None:
    smallest = Architecture.uniform(BASE, expansion=Fraction(1, 4))
    costs = {"max_params": cost.params(smallest, 1, head), "max_macs": cost.macs(smallest, num_labels=1, head=head)}

    def passes(most: int) -> bool:
        config = load_config("demo-ffn", TABLE | {f"space.{limit}": most, "space.slack": 1.0})
        try:
            check_feasible(config, BASE, GELU)
        except SpaceError:
            return False
        return True

    # From the cost of the smallest architecture on everything passes, whatever its head.
    least = bisect_left(range(costs[limit] + 1), True, key=passes)
    assert least <= costs[limit] and passes(costs[limit])
    fewest_macs = min(HEADS, key=lambda head: cost.macs(smallest, num_labels=1, head=head))
    if head == (cost.HeadCost() if limit == "max_params" else fewest_macs):
        assert least == costs[limit]


@pytest.mark.parametrize("head", HEADS, ids=TASK_TYPES)
def test_the_early_check_refuses_only_what_no_head_reaches(head: cost.HeadCost) -> None:
    largest = Architecture.uniform(BASE, stack=2)

    def check(least: int) -> None:
        check_feasible(
            load_config("demo-ffn", TABLE | {"space.min_params": least, "space.max_params": "1G"}), BASE, GELU
        )

    check(cost.params(largest, MOST_LABELS, head))
    beyond = 1 + max(cost.params(largest, MOST_LABELS, other) for other in HEADS)
    with pytest.raises(SpaceError, match=f"no architecture has {beyond:,} to 1,000,000,000 parameters"):
        check(beyond)

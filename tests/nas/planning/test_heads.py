"""Plans of studies in which layers may have fewer heads or be left out: slices, baselines and starts."""

import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.planning.budget import budgeted_space, globally_important, largest_uniform, uniform_slice
from nas.planning.finalists import ALLOCATED, BASELINES, FEWER_LAYERS, GLOBAL
from nas.planning.stages import check_start, plan, sampler_of
from nas.preparation.one_shot import architectures_of_a_step, extremes
from nas.preparation.workspace import Workspace
from nas.samplers import WeightedAllocation
from nas.search.command import main
from nas.study.description import Parameters
from search_spaces import FFN, GELU, Architecture, Attention, Layer, Space, cost
from search_spaces.limits import Limit
from tests.nas.preparation.test_calibration import COMPENSATED, prepared
from tests.nas.preparation.test_heads import HEADS
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE

NONE = Layer(Attention(0), FFN(stack=0))


@pytest.fixture
def with_heads(tiny_study: TinyStudy) -> Workspace:
    return prepared(tiny_study, **COMPENSATED, **HEADS)


def changed(workspace: Workspace, **changes: Any) -> Workspace:
    return replace(workspace, config=workspace.config.with_table("space", **changes))


def space_of(workspace: Workspace) -> Space:
    base, graph = workspace.base()
    return budgeted_space(workspace.config, base, graph, workspace.num_labels)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.3, 0.6, 1.0])
def test_the_uniform_slice_has_the_same_part_of_the_heads(share: float) -> None:
    def of_width(inner: int) -> Architecture:
        ffn = FFN(GELU, 1, Fraction(inner, BASE.inner)) if inner else FFN(stack=0)
        # A quarter of the channels has one head of four, and one more channel a second one.
        return Architecture(BASE, (Layer(Attention((inner + 11) // 12), ffn),) * 3)

    sizes = [cost.params(of_width(inner), 4) for inner in range(49)]
    assert sizes == sorted(set(sizes))
    most = sizes[0] + int(share * (sizes[-1] - sizes[0]))
    slack = Limit("macs", 0, cost.layer_macs, sum(cost.layer_macs(BASE, layer) for layer in of_width(30).layers))
    whole = Architecture.uniform(BASE)
    found = largest_uniform(whole, 4, most, (), least=0, varies_heads=True)
    assert found == of_width(max(inner for inner in range(49) if sizes[inner] <= most))
    limited = largest_uniform(whole, 4, most, (slack,), least=0, varies_heads=True)
    assert limited == min(found, of_width(30), key=cost.params)


@pytest.mark.parametrize("share", [0.1, 0.35, 0.7, 1.0])
@pytest.mark.parametrize("slack", [None, 2000])
def test_global_importance_keeps_the_most_important_parts(
    share: float, slack: int | None, with_heads: Workspace
) -> None:
    """Within the budget, and with one step more it would not be; whatever the lower bound is."""
    base, graph = with_heads.base()
    empty, whole = (
        cost.params(one, with_heads.num_labels) for one in (Architecture(base, (NONE,) * 2), Architecture.uniform(base))
    )
    most = empty + int(share * (whole - empty))
    workspace = changed(with_heads, max_params=most, uniform=None, min_params=slack and most - slack)
    space = space_of(workspace)
    found = globally_important(space, graph, workspace)
    heads, neurons = workspace.head_importance(), workspace.importance()

    def kept(scores: Sequence[Any], total: int, least: int) -> list[int]:
        """By brute force: the best division over two layers."""
        sums = [[0.0, *layer.double().cumsum(0).tolist()] for layer in scores]
        size = len(scores[0])
        pairs = [(a, total - a) for a in range(least, size + 1) if least <= total - a <= size]
        return list(max(pairs, key=lambda pair: sums[0][pair[0]] + sums[1][pair[1]]))

    def of_fraction(number: int) -> Architecture:
        widths = kept(neurons, 2 * max(number, 4), 4)
        ffns = [FFN(graph, 1, Fraction(width, base.inner)) for width in widths]
        return Architecture.of_ffns(base, ffns).with_heads(kept(heads, -(-8 * number // 64), 0))

    sizes = [cost.params(of_fraction(number), workspace.num_labels) for number in range(65)]
    number = bisect_left(range(65), True, key=lambda number: sizes[number] > most) - 1
    assert found == of_fraction(number) and sizes[number] <= most
    assert number == 64 or sizes[number + 1] > most


def test_the_baselines_of_stage_1(with_heads: Workspace) -> None:
    config = with_heads.config
    base, graph = with_heads.base()
    stage = plan(config, with_heads, "1", None, ())
    origins = [origin for _, origin, _ in stage.baselines]
    assert origins == ["base model", "uniform slice", GLOBAL, FEWER_LAYERS, *ALLOCATED]
    by_origin = {origin: architecture for architecture, origin, _ in stage.baselines}
    assert stage.space.min_params == 1 and FEWER_LAYERS in BASELINES
    assert set(by_origin[FEWER_LAYERS].layers) <= {NONE, Layer(Attention(4), FFN(graph))}
    assert by_origin["uniform slice"] == uniform_slice(config, stage.space)
    assert all(stage.space.within_budget(one) for origin, one in by_origin.items() if origin != "base model")
    # All of them have values for the parameters of trials that people see.
    parameters = Parameters.of(stage.space)
    for architecture in by_origin.values():
        values = parameters.values(architecture)
        optuna.create_trial(value=0.0, params=values, distributions=parameters.distributions)  # checks the values
    heads = {name: domain for name, domain in parameters.distributions.items() if name.endswith("heads")}
    assert {(domain.low, domain.high) for domain in heads.values()} == {(0, 4)} and len(heads) == 2  # type: ignore[attr-defined]
    fewer = changed(with_heads, heads=(0, 1))
    assert Parameters.of(space_of(fewer)).distributions == parameters.distributions
    sampler = sampler_of(stage, with_heads)
    assert sampler is not None
    sliced = replace(with_heads, compensation=None)
    assert [origin for _, origin, _ in plan(config, sliced, "1", None, ()).baselines] == origins[:3]
    never = changed(with_heads, heads=(1, 4))
    assert FEWER_LAYERS not in {origin for _, origin, _ in plan(never.config, never, "1", None, ()).baselines}
    assert by_origin[GLOBAL].base == base


def test_stages_2_and_3_refine_a_layer_that_is_left_out(with_heads: Workspace) -> None:
    base, graph = with_heads.base()
    winner = Architecture(base, (NONE, Layer(Attention(3), FFN(graph, 1, Fraction(3, 8)))))
    check_start(winner, with_heads.config, base)
    second = plan(with_heads.config, with_heads, "2", winner, ())
    assert winner in second.space and all(one.layers[0] == NONE for one, _, _ in second.baselines)
    assert all(second.space.sample(random.Random(seed)).layers[0] == NONE for seed in range(5))
    third = plan(with_heads.config, with_heads, "3", winner, ())
    assert {origin for _, origin, _ in third.baselines} == {"winner so far", *ALLOCATED}
    smallest, largest = extremes(third.space)
    assert smallest.layers == (NONE,) * 2 and largest == Architecture.uniform(base)


def test_the_largest_slice_has_all_of_the_start(with_heads: Workspace) -> None:
    """Baselines may have more heads and channels than the space's largest sizes, and may win."""
    base, graph = with_heads.base()
    small = changed(with_heads, heads=(0, 2), expansions=(Fraction(1, 4), Fraction(1, 2)))
    for wide, heads in ((Fraction(3, 4), 3), (Fraction(1, 4), 1)):
        winner = Architecture(base, (NONE, Layer(Attention(heads), FFN(graph, 1, wide))))
        check_start(winner, small.config, base)
        smallest, largest = extremes(plan(small.config, small, "3", winner, ()).space)
        assert largest.layers == (Layer(Attention(max(heads, 2)), FFN(graph, 1, max(wide, Fraction(1, 2)))),) * 2
        assert smallest.layers == (NONE,) * 2
    config = small.config.with_table("one_shot", widths=(Fraction(1, 4), Fraction(1, 2)))
    trained, drawn = architectures_of_a_step(config, plan(config, small, "3", winner, ()).space)
    assert [{layer.attention for layer in one.layers} for one in trained] == [{Attention(2)}] * 2 and drawn == 0


def test_a_dry_run_names_the_baselines_to_come(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path / "cache"))
    compensated = ("[candidate]", '[supernet]\ninheritance = "compensated"\n\n[candidate]')
    fewer = ("stacks = [1, 2]", "stacks = [0, 1]\nheads = [0, 1, 4]")
    preset = tiny_study.variant(tmp_path / "tiny.toml", fewer, compensated)
    words = ["--stage", "1", "--preset", str(preset), "--out", str(tmp_path / "out"), "--device", "cpu", "--dry-run"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert f"  {', '.join([GLOBAL, FEWER_LAYERS, *ALLOCATED])}: after the supernet has been made" in printed
    assert re.search(r"uniform slice +[\d,]+ +[\d,]+ +yes", printed)


def test_a_sampler_that_corrects_allocations(with_heads: Workspace, tiny_study: TinyStudy, tmp_path: Path) -> None:
    """With weights of 1 its allocation is that of the baselines."""
    config = with_heads.config.with_table("stage1", evaluation="untrained", score="fidelity", sampler="milp")
    made = plan(config, with_heads, "1", None, ())
    sampler = sampler_of(made, with_heads)
    assert isinstance(sampler, WeightedAllocation) and sampler.allocate is not None and sampler.losses is not None
    (allocation,) = [architecture for architecture, origin, _ in made.baselines if origin == ALLOCATED[0]]
    depth = allocation.base.depth
    assert sampler.allocate(np.ones(2 * depth + 1)) == allocation
    assert sampler.losses(allocation).shape == (2 * depth + 1,)
    preset = tmp_path / "tiny.toml"
    preset.write_text(f'extends = "{tiny_study.preset}"\nstage1 = {{sampler = "milp", evaluation = "untrained"}}\n')
    with pytest.raises(ConfigError, match=r"stage1\.sampler: milp learns from the fidelity of compensated candidates"):
        load_config(str(preset))

"""What each stage varies, starts from and passes on."""

import json
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.config.stages import SAMPLER_SETTINGS
from nas.planning.finalists import WINNER
from nas.planning.stages import (
    UNIFORM,
    WINNER_WITH_BASE_GRAPHS,
    check_start,
    plan,
    sampler_of,
    start_of,
)
from nas.preparation.one_shot import architectures_of_a_step, extremes
from nas.preparation.workspace import Workspace
from nas.samplers import SAMPLERS
from nas.study.folder import Folder
from search_spaces import FFN, Architecture, FFNGraph
from search_spaces.layer import Embedding, Experts
from search_spaces.spaces import GRAPHS, SIZES
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE

DEMO = load_config("demo-ffn")


@pytest.mark.parametrize("sampler", ["lanas", "lanas-published"])
def test_the_settings_of_a_stage_reach_its_sampler(sampler: str, tiny_study: TinyStudy, workspace: Workspace) -> None:
    given = {"exploration": 0.25, "leaf_size": 3, "first_random": 4, "refit_every": 6}

    def made(settings: Mapping[str, float]) -> dict[str, float | None]:
        overrides = {f"stage1.{name}": value for name, value in ({**settings, "sampler": sampler}).items()}
        config = load_config(str(tiny_study.preset), overrides)
        made = sampler_of(plan(config, workspace, "1", None, ()), workspace, seed=11)
        assert (made.seed, type(made)) == (11, SAMPLERS[sampler])
        return {name: getattr(made, name) for name in SAMPLER_SETTINGS}

    assert made(given) == given
    defaults = {
        "lanas": {"exploration": 1.0, "leaf_size": 5, "first_random": 2, "refit_every": None},
        "lanas-published": {"exploration": 0.1, "leaf_size": 1, "first_random": 10, "refit_every": 20},
    }[sampler]
    assert made({}) == defaults
    for name, value in given.items():
        assert made({name: value}) == defaults | {name: value}


def test_plans(tiny_study: TinyStudy, workspace: Workspace) -> None:
    config = tiny_study.config
    base, graph = workspace.base()
    first = plan(config, workspace, "1", None, ())
    assert [origin for _, origin, _ in first.baselines] == ["base model", UNIFORM, "global importance"]
    # The base model, which is beyond the budget, has a study of its own, and is one of the trials of the stage.
    assert first.references == first.baselines[:1] and first.enqueued == first.baselines[1:]
    assert first.trials == config.stage1.trials - 1
    assert (first.study, first.space.vary, first.table.evaluation) == ("stage-1", {GRAPHS, SIZES}, "trained")

    relu = FFNGraph.parse("project(relu(expand(x)))")
    winner, twin = (
        Architecture.of_ffns(base, (FFN(first, 2, Fraction(1, 8)), FFN(graph, 1, Fraction(1, 4))))
        for first in (relu, graph)
    )
    second = plan(config, workspace, "2", winner, ())
    assert second.baselines == [(winner, WINNER, None), (twin, WINNER_WITH_BASE_GRAPHS, None)]
    assert (second.space.vary, second.space.start, second.table.evaluation) == ({GRAPHS}, winner, "trained")
    third = plan(config, workspace, "3", winner, ())
    assert third.baselines == [(winner, WINNER, None)]
    assert (third.space.vary, third.space.start, third.table.evaluation) == ({SIZES}, winner, "one_shot")
    assert third.space.max_params == second.space.max_params == first.space.max_params


def test_plans_with_a_layer_without_an_ffn(tiny_study: TinyStudy, workspace: Workspace) -> None:
    config = tiny_study.config.with_table("space", stacks=(0, 1, 2))
    base, graph = workspace.base()
    relu = FFNGraph.parse("project(relu(expand(x)))")
    winner = Architecture.of_ffns(base, (FFN(stack=0), FFN(relu)))
    second = plan(config, workspace, "2", winner, ())
    twin = Architecture.of_ffns(base, (FFN(stack=0), FFN(graph)))
    assert [architecture for architecture, _, _ in second.baselines] == [winner, twin]
    assert winner in second.space and twin in second.space
    third = plan(config, workspace, "3", winner, ())
    smallest, largest = extremes(third.space)
    assert smallest == Architecture.uniform(base, stack=0)
    assert largest == Architecture.of_ffns(base, (FFN(graph, 2), FFN(relu, 2)))
    assert check_start(winner, tiny_study.config, base) is None  # also if the space has no stack of 0


def test_what_a_step_of_the_one_shot_supernet_trains(tiny_study: TinyStudy, workspace: Workspace) -> None:
    config = tiny_study.config
    space = plan(config, workspace, "3", Architecture.uniform(workspace.base()[0]), ()).space
    smallest, largest = extremes(space)
    assert architectures_of_a_step(config, space) == ((), 1)
    sandwich = load_config(str(tiny_study.preset), {"one_shot.sandwich": True})
    assert architectures_of_a_step(sandwich, space) == ((largest, smallest), 2)
    widths = config.space.expansions[:2]
    given = {"one_shot.widths": [str(width) for width in widths]}
    fixed, drawn = architectures_of_a_step(load_config(str(tiny_study.preset), given), space)
    assert (fixed, drawn) == (tuple(Architecture.uniform(space.base, expansion=width) for width in widths), 0)
    for changes, words in (
        ({"one_shot.sandwich": True}, "one_shot.widths: the sandwich rule has widths of its own"),
        ({"one_shot.widths": ["1/77"]}, "one_shot.widths: 1/77 is not one of space.expansions"),
        ({"one_shot.widths": ["wide"]}, "one_shot.widths"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config(str(tiny_study.preset), given | changes)


def test_what_a_stage_refines(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    a, b = (Architecture.uniform(BASE, expansion=Fraction(1, divisor)) for divisor in (2, 4))
    assert start_of(folder, "1", None) is None
    with pytest.raises(ConfigError, match=r"refines the winner of stage 1, .*: run --stage 1 first, or give --from"):
        start_of(folder, "2", None)
    assert start_of(folder, "2", a) == a
    folder.stage("1").mkdir()
    folder.best("1").write_text(json.dumps({"winner": {"trial": 0, "architecture": b.to_json()}}))
    assert start_of(folder, "2", None) == b
    with pytest.raises(ConfigError, match="stage 3 refines the winner of stage 2"):
        start_of(folder, "3", None)
    # A stage that has begun keeps its start.
    folder.begin("2", DEMO, a)
    assert start_of(folder, "2", None) == start_of(folder, "2", a) == a
    with pytest.raises(
        ConfigError, match=r"--from: stage 2 has already begun with another architecture, .*start.json; leave out"
    ):
        start_of(folder, "2", b)


def test_what_candidates_could_not_inherit_from(tiny_study: TinyStudy, workspace: Workspace) -> None:
    base, graph = workspace.base()
    check_start(None, tiny_study.config, base)
    check_start(Architecture.uniform(base, graph=graph, stack=2), tiny_study.config, base)
    with pytest.raises(ConfigError, match=r"a stack of 3 blocks, but the supernet only has 2: add 3 to space.stacks"):
        check_start(Architecture.uniform(base, graph=graph, stack=3), tiny_study.config, base)
    hashed = Architecture.uniform(base, graph=graph, expansion=Fraction(1, 4), experts=Experts(2, routing="hash"))
    check_start(hashed, tiny_study.config, base)
    timed = tiny_study.config.with_table("space", max_latency="0.5x")
    for given in (timed, tiny_study.config.model_copy(update={"goals": ("score", "latency")})):
        with pytest.raises(ConfigError, match=r"has experts \(2 hash, shared .*\) that are not in space.experts"):
            check_start(hashed, given, base)
    # Without further choices the space has all heads and the full rank.
    whole = Architecture.uniform(base, graph=graph)
    fewer = whole.with_heads([4, 2])
    with pytest.raises(ConfigError, match=r"^the architecture to refine has heads 2: add 2 to space\.heads$"):
        check_start(fewer, tiny_study.config, base)
    varied = load_config(str(tiny_study.preset), {"space.heads": [0, 4], "space.attention_experts": [1, 2]})
    check_start(fewer, varied, base)
    with pytest.raises(ConfigError, match=r"has attention_experts 3: add 3 to space\.attention_experts"):
        check_start(Architecture.uniform(base, graph=graph, attention_experts=3), varied, base)
    with pytest.raises(ConfigError, match=r"has rank 4: add 4 to space\.ranks"):
        check_start(replace(whole, embedding=Embedding(4)), tiny_study.config, base)
    other = replace(base, inner=base.inner + 1)
    with pytest.raises(ConfigError, match="the architecture to refine is on another base than this study's"):
        check_start(Architecture.uniform(other, graph=graph), tiny_study.config, base)

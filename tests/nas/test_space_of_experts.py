"""Experts in a study's configuration, and in the search space that it describes."""

import re
from fractions import Fraction
from pathlib import Path

import pytest

from nas.config.load import load_config, parse_config
from nas.config.schema import ConfigError
from nas.planning.budget import base_model, budgeted_space, macs_limits
from nas.preparation.data import check_tasks
from search_spaces import DENSE, GELU, Architecture, Experts, Space, cost
from tests.checkout import ROOT
from tests.tiny import BASE

HASHED = {"count": 4, "shared": "2/3"}
GATED = {"count": 8, "routing": "token_gate", "top_k": 2, "capacity": 1.25}
SIZES = {"space.stacks": [1], "space.expansions": ["1/16", "1/4", "1/2", "1"]}


def box(*experts: dict[str, object], **changes: object) -> Space:
    """The space of the demo with these experts, on a small base."""
    more = {f"space.{key}": value for key, value in changes.items()} | ({"space.experts": experts} if experts else {})
    config = load_config("demo-ffn", SIZES | {"space.uniform": "1/2", "space.slack": 0.3} | more)
    return budgeted_space(config, BASE, GELU, num_labels=4)


def test_the_preset_on_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
    (preset,) = re.findall(r"^```toml\n(extends.*?)^```$", page, re.M | re.S)
    (tmp_path / "page.toml").write_text(preset)
    config = load_config(str(tmp_path / "page.toml"))
    check_tasks(config)
    assert (config.space.attention_experts, config.space.head_experts) == ((1, 4), (1, 2))


def test_experts_come_back_from_toml() -> None:
    config = load_config("demo-ffn", {"space.experts": [{"count": 1}, HASHED, GATED]})
    gated = Experts(8, routing="token_gate", top_k=2, capacity=Fraction(5, 4))
    assert config.space.experts == (DENSE, Experts(4, Fraction(2, 3)), gated)
    assert parse_config(config.to_toml(), "again") == config
    assert hash(parse_config(config.to_toml(), "again")) == hash(config)
    assert load_config("demo-ffn").space.experts == (DENSE,)


def test_a_study_without_experts_has_a_dense_space() -> None:
    assert box().genes["experts"] == (DENSE,)
    assert box() == box({"count": 1})


def test_the_box_is_that_of_dense_slices() -> None:
    routed = box({"count": 1}, HASHED)
    assert routed.genes["experts"] == (DENSE, Experts(4, Fraction(2, 3)))
    assert (routed.min_params, routed.max_params) == (box().min_params, box().max_params)
    assert routed.size_count() > box().size_count()
    # Room for more than the largest dense model.
    room = box({"count": 1}, HASHED, max_params="1M")
    largest = cost.params(Architecture.uniform(BASE), 4)
    assert room.min_params < largest < room.max_params
    assert Architecture.uniform(BASE) in room
    assert Architecture.uniform(BASE, expansion=Fraction(1, 2), experts=routed.genes["experts"][1]) in room


WHOLE = {"space.attention_experts": [1, 4], "space.head_experts": [1, 2]}
TRAINED = {f"stage{stage}.{key}": value for stage in "123" for key, value in (("evaluation", "trained"),)}
TRAINED |= {f"stage{stage}.score": "metric" for stage in "123"} | {"tasks": ["word_order"]}


def test_experts_of_attention_and_head_come_back_from_toml() -> None:
    config = load_config("demo-ffn", WHOLE | TRAINED)
    assert (config.space.attention_experts, config.space.head_experts) == ((1, 4), (1, 2))
    assert parse_config(config.to_toml(), "again") == config
    demo = load_config("demo-ffn").space
    assert (demo.attention_experts, demo.head_experts) == ((1,), (1,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space.experts": [HASHED | {"routing": "hsh"}]},
            "space.experts.0: routing: unknown routing 'hsh'; did you mean 'hash'?",
        ),
        ({"space.experts": [HASHED, {"cuont": 4}]}, "space.experts.1: unknown key 'cuont'; did you mean 'count'?"),
        ({"space.experts": [HASHED, {}]}, "space.experts.1: the key 'count' is missing"),
        ({"space.experts": [{"count": 0}]}, "space.experts.0: count: must be from 1 to 64, not 0"),
        (
            {"space.experts": [{"count": 4, "shared": "1e-9"}]},
            "space.experts.0: shared: must be a fraction such as \"1/8\", not '1e-9'",
        ),
        ({"space.experts": [{"count": 1, "shared": 1}]}, "space.experts.0: with count = 1 the layer is dense"),
        ({"space.experts": []}, "space.experts: "),
        ({"space.experts": 4}, "space.experts: "),
        ({"space.attention_experts": [0, 1]}, "space.attention_experts.0: Input should be greater than or equal to 1"),
        ({"space.attention_experts": [1, 65]}, "space.attention_experts.1: Input should be less than or equal to 64"),
        ({"space.attention_experts": [2, 2]}, "space.attention_experts: 2 is given twice"),
        ({"space.head_experts": []}, "space.head_experts: "),
        ({"space.head_experts": [True]}, "space.head_experts: must be a number, not true"),
        ({"space.head_experts": [1.5]}, "space.head_experts.0: "),
        ({"space.attention_experts": 4}, "space.attention_experts: "),
        (WHOLE, 'space.head_experts: prediction layers start with random weights: set stage1.evaluation = "trained"'),
        (
            WHOLE | TRAINED | {"stage3.evaluation": "one_shot"},
            'space.head_experts: prediction layers are not in the one-shot supernet: set stage3.evaluation = "trained"',
        ),
        (
            WHOLE | TRAINED | {"final.start": "one_shot"},
            "space.head_experts: prediction layers are not in the one-shot supernet: set another final.start",
        ),
        (
            WHOLE | TRAINED | {"space.max_latency": "5ms"},
            "space.attention_experts: space.max_latency is measured for a single number of experts: give one",
        ),
        (
            {"space.attention_experts": [1, 2], "goals": ["score", "latency"], "stage1.sampler": "nsga2"},
            "space.attention_experts: goals: latency is measured for a single number of experts",
        ),
        (
            {
                "space.attention_experts": [1, 2],
                "stage3.evaluation": "one_shot",
                "stage3.score": "metric",
                "one_shot.widths": ["1/4"],
            },
            "space.attention_experts: no step with one_shot.widths trains several experts: leave out one_shot.widths",
        ),
    ],
)
def test_experts_that_cannot_be(changes: dict[str, object], message: str) -> None:
    goals = {f"stage{stage}.sampler": "nsga2" for stage in "123"} if "goals" in changes else {}
    with pytest.raises(ConfigError) as caught:
        load_config("demo-ffn", changes | goals)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_space_has_them_beside_the_same_budget() -> None:
    wide = box(attention_experts=[1, 4])
    assert (wide.min_params, wide.max_params, wide.base) == (box().min_params, box().max_params, BASE)
    assert wide.size_count() == box().size_count()  # nothing with four fits into a budget of slices
    room = box(attention_experts=[4, 1], max_params="1M")
    attentions = {layer.attention.experts for layer in room.options(0, room.graph)}
    assert attentions == {1, 4} and room.options(0, room.graph)[0].attention.experts == 1
    assert room.size_count() > box(max_params="1M").size_count() > 0


def test_without_one_expert_baselines_have_the_fewest() -> None:
    space = box(attention_experts=[4, 2], max_params="1M")
    config = load_config("demo-ffn", SIZES | {"space.attention_experts": [4, 2]})
    assert base_model(config, BASE) == Architecture.uniform(BASE, attention_experts=2)
    assert space.min_params < cost.params(base_model(config, BASE), 4)


def test_limits_count_them() -> None:
    config = load_config("demo-ffn", SIZES | {"space.attention_experts": [1, 4], "space.max_macs": "1M"})
    (limit,) = macs_limits(config, BASE, 4, cost.CLASSIFIER)
    for experts in (1, 4):
        architecture = Architecture.uniform(BASE, expansion=Fraction(1, 2), attention_experts=experts)
        assert limit.total(architecture) == cost.macs(architecture, num_labels=4)

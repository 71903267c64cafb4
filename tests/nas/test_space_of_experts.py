"""Experts in a study's configuration, and in the search space that it describes."""

from fractions import Fraction

import pytest

from nas.budget import budgeted_space
from nas.config.load import load_config, parse_config
from nas.config.schema import ConfigError
from search_spaces import DENSE, GELU, Architecture, Base, Experts, Space, SpaceError, cost

BASE = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
HASHED = {"count": 4, "shared": "2/3"}
GATED = {"count": 8, "routing": "token_gate", "top_k": 2, "capacity": 1.25}
SIZES = {"space.stacks": [1], "space.expansions": ["1/16", "1/4", "1/2", "1"]}


def box(*experts: dict[str, object], **changes: object) -> Space:
    """The space of the demo with these experts, on a small base."""
    more = {f"space.{key}": value for key, value in changes.items()} | ({"space.experts": experts} if experts else {})
    config = load_config("demo", SIZES | {"space.uniform": "1/2", "space.slack": 0.3} | more)
    return budgeted_space(config, BASE, GELU, labels=4)


def test_experts_come_back_from_toml() -> None:
    config = load_config("demo", {"space.experts": [{"count": 1}, HASHED, GATED]})
    gated = Experts(8, routing="token_gate", top_k=2, capacity=Fraction(5, 4))
    assert config.space.experts == (DENSE, Experts(4, Fraction(2, 3)), gated)
    assert parse_config(config.to_toml(), "again") == config
    assert hash(parse_config(config.to_toml(), "again")) == hash(config)
    assert load_config("demo").space.experts == (DENSE,)


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        ([HASHED | {"routing": "hsh"}], "space.experts.0: routing: unknown routing 'hsh'; did you mean 'hash'?"),
        ([HASHED, {"cuont": 4}], "space.experts.1: unknown key 'cuont'; did you mean 'count'?"),
        ([HASHED, {}], "space.experts.1: the key 'count' is missing"),
        ([{"count": 0}], "space.experts.0: count: must be from 1 to 64, not 0"),
        ([{"count": 4, "shared": "1e-9"}], "space.experts.0: shared: must be a fraction such as \"1/8\", not '1e-9'"),
        ([{"count": 1, "shared": 1}], "space.experts.0: with count = 1 the layer is dense"),
        ([], "space.experts: "),
        (4, "space.experts: "),
    ],
)
def test_experts_that_cannot_be(experts: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("demo", {"space.experts": experts})
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_study_without_experts_has_a_dense_space() -> None:
    assert box().experts == (DENSE,)
    assert box() == box({"count": 1})


def test_the_box_is_that_of_dense_slices() -> None:
    routed = box({"count": 1}, HASHED)
    assert routed.experts == (DENSE, Experts(4, Fraction(2, 3)))
    assert (routed.min_params, routed.max_params) == (box().min_params, box().max_params)
    assert routed.size_count() > box().size_count()
    # Room for more than the largest dense model.
    room = box({"count": 1}, HASHED, max_params="1M")
    largest = cost.params(Architecture.uniform(BASE), 4)
    assert room.min_params < largest < room.max_params
    assert Architecture.uniform(BASE) in room
    assert Architecture.uniform(BASE, expansion=Fraction(1, 2), experts=routed.experts[1]) in room


def test_experts_that_no_expansion_has_room_for() -> None:
    with pytest.raises(
        SpaceError, match=r"expansions and experts: no combination is possible; at 1/16, 17 experts that"
    ):
        box({"count": 17})

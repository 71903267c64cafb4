"""Spaces in which layers may have fewer heads, or be left out; also with more sizes than are counted exactly."""

import random
from dataclasses import replace
from fractions import Fraction

import optuna
import pytest

from search_spaces import FFN, GELU, Architecture, Attention, Layer, Space, SpaceError, cost, counting, neighbourhood
from search_spaces.limits import Limit
from tests.search_spaces.small_spaces import members, of_genes, of_heads
from tests.search_spaces.strategies import small_space

LEFT_OUT = Layer(Attention(0), FFN(stack=0))
# Without a lower bound, which there is none of on the grid.
SPACES = {kind: replace(space, min_params=1) for kind, space in of_heads().items()}
SPACES["heads, two limits"] = replace(
    SPACES["heads, limited"],
    max_params=13_000,
    limits=(*SPACES["heads, limited"].limits, Limit("latency", 5, lambda base, layer: 7 * layer.attention.heads, 60)),
)


@pytest.fixture(params=["exact", "on the grid"])
def counted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "on the grid":
        monkeypatch.setattr(counting, "MANY", 2)
    return str(request.param)


@pytest.mark.parametrize("kind", [kind for kind in SPACES if "graphs" not in kind])
def test_the_grid_reaches_all_members(kind: str, counted: str) -> None:
    """Every member has choices that lead to it, and nothing else has."""
    space = replace(SPACES[kind])
    every = members(space, space.start_graphs)
    for member in random.Random(0).sample(every, 60):
        assert space.suggest(optuna.trial.FixedTrial(space.choices(member))) == member
    assert space.size_count() == pytest.approx(len(every), rel=0 if counted == "exact" else 0.2)
    beyond = Architecture.uniform(space.base)
    assert (beyond in space) == (beyond in every)
    assert neighbourhood.nearest(space, beyond) in every


def test_a_left_out_layer_costs_nothing_and_comes_first() -> None:
    space = SPACES["heads"]
    assert space.options(0, GELU)[0] == LEFT_OUT and set(space.cost(LEFT_OUT)) == {0}
    assert LEFT_OUT.left_out and not any(layer.left_out for layer in space.sizes if layer != LEFT_OUT)
    alone = replace(space, max_params=cost.params(Architecture(space.base, (LEFT_OUT,) * 3)))
    assert alone.sample(random.Random(0)).layers == (LEFT_OUT,) * 3


def test_a_lower_bound_is_refused_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    base = small_space(1, 10**9).base
    genes = {"stack": (0, 1), "expansion": tuple(Fraction(n, 48) for n in range(1, 49)), "heads": (0, 1, 4)}
    least = cost.params(Architecture(base, (LEFT_OUT,) * 3))
    space = Space(base, genes, least, 15_000)
    assert len(space.sizes) == 147 > counting.MANY
    assert space.sample(random.Random(0)) in space
    with pytest.raises(SpaceError) as error:
        replace(space, min_params=least + 1)
    assert str(error.value) == (
        f"min_params: with 147 options in each of 3 layers there can be no lower bound of {least + 1:,}; "
        "leave min_params out, set slack = 1, or allow fewer choices"
    )
    with pytest.raises(SpaceError, match=rf"no architecture has .*this space reaches from {least:,} to"):
        replace(space, min_params=1, max_params=least - 1)
    monkeypatch.setattr(counting, "MANY", 147)
    assert replace(space, min_params=least + 1).size_count() < space.size_count()


def test_a_lower_bound_below_everything_is_none_whatever_the_cheapest_layer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cheapest layer, summed over budgets, is not the one with the fewest parameters."""
    dear = Limit("latency", 0, lambda base, layer: 1000 if layer.left_out else 1, 3000)
    space = replace(SPACES["heads"], limits=(dear,), max_params=20_000)
    monkeypatch.setattr(counting, "MANY", 2)
    fewest = cost.params(Architecture(space.base, (LEFT_OUT,) * 3))
    replace(space, min_params=fewest)
    with pytest.raises(SpaceError, match="there can be no lower bound"):
        replace(space, min_params=fewest + 1)


def test_heads_that_no_layer_can_have() -> None:
    with pytest.raises(SpaceError, match=r"heads and attention_experts: no .* 5 is more than base\.heads"):
        of_genes(SPACES["heads"], heads=(5, 6))
    with pytest.raises(SpaceError, match=r"no combination is .* with 2 experts needs all 4 heads, not 1"):
        of_genes(SPACES["heads"], heads=(1,), attention_experts=(2,))

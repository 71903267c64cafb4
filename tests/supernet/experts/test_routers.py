"""The tables and gates that a model starts with, against plain Python."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces import FFN, GELU, Base, Experts
from supernet.experts.routers import DEVIATION, initial_gate, initial_head, routing_table
from supernet.inherit import expert_channels

VOCABULARY = 30522


def test_tables_share_out_the_ids_and_differ_from_layer_to_layer() -> None:
    for count in (2, 3, 8):
        tables = [routing_table(Experts(count), VOCABULARY, layer) for layer in range(12)]
        for table in tables:
            # Within five standard deviations of the binomial distribution.
            expected, slack = VOCABULARY / count, 5 * (VOCABULARY * (count - 1)) ** 0.5 / count
            assert (torch.bincount(table, minlength=count) - expected).abs().max() < slack
        for one, other in combinations(tables, 2):
            agree = float((one == other).double().mean())
            assert abs(agree - 1 / count) < 0.02


def test_tables_and_experts_of_2_4_and_8_are_nested() -> None:
    base = Base(depth=1, width=6, heads=2, inner=48)
    for fewer, more in ((2, 4), (4, 8), (2, 8)):
        coarse, fine = (routing_table(Experts(count), VOCABULARY, layer=3) for count in (fewer, more))
        assert torch.equal(fine % fewer, coarse)
        # So the channels that a token passes are among those that it passed.
        cuts = [FFN(GELU, 1, Fraction(1, count), Experts(count)) for count in (fewer, more)]
        wide, narrow = (expert_channels(base, ffn).tolist() for ffn in cuts)
        assert all(set(narrow[expert]) <= set(wide[expert % fewer]) for expert in range(more))


def greedy(counts: list[int], count: int, otherwise: list[int]) -> list[int]:
    loads = dict.fromkeys(range(count), 0)
    table = list(otherwise)
    for token in sorted((token for token in range(len(counts)) if counts[token]), key=lambda token: -counts[token]):
        table[token] = min(loads, key=lambda expert: loads[expert])
        loads[table[token]] += counts[token]
    return table


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(2, 8), st.integers(0, 3))
def test_balanced_tables_are_greedy(counts: list[int], count: int, layer: int) -> None:
    """Ties go to the lower id and the lower expert; ids that training data do not have go where "hash" sends them."""
    random = routing_table(Experts(count), len(counts), layer).tolist()
    balanced = Experts(count, routing="balanced_hash")
    expected = greedy(counts, count, random)
    assert routing_table(balanced, len(counts), layer, counts).tolist() == expected
    relative = torch.tensor(counts, dtype=torch.float64) / 2**12
    assert routing_table(balanced, len(counts), layer, relative).tolist() == expected


@pytest.mark.parametrize("count", [2, 4, 8])
def test_balanced_tables_balance_frequencies_of_zipf(count: int) -> None:
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    counts = 10**7 // (1 + order)

    def load(routing: str, layer: int) -> float:
        table = routing_table(Experts(count, routing=routing), VOCABULARY, layer, counts).long()
        loads = torch.zeros(count, dtype=torch.float64).index_add(0, table, counts.double())
        return float(loads.max() / loads.mean())

    assert load("balanced_hash", 0) < 1.001
    assert sum(load("hash", layer) for layer in range(10)) / 10 > 1.02


def test_gates_of_different_numbers() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    before = torch.get_rng_state()
    gates = {number: initial_gate(8, 400, number, like) for number in range(20)}
    assert torch.equal(torch.get_rng_state(), before)
    for number, gate in gates.items():
        assert (gate.shape, gate.dtype) == ((8, 400), torch.float64)
        assert torch.equal(initial_gate(3, 400, number, like), gate[:3])
        assert float(gate.std()) == pytest.approx(DEVIATION, rel=0.1)
    similar = Counter(torch.equal(gates[one], gates[other]) for one, other in combinations(gates, 2))
    assert similar == {False: 190}


def test_seed_0_has_the_tables_and_gates_that_studies_were_made_with() -> None:
    """They were drawn with the number of the layer, or of the gate, alone."""
    for layer, count in product(range(4), (2, 3, 8)):
        drawn = torch.randint(2**31, (99,), generator=torch.Generator().manual_seed(layer)) % count
        assert torch.equal(routing_table(Experts(count), 99, layer).long(), drawn)
    drawn_gate = torch.randn(3, 9, generator=torch.Generator().manual_seed(66))
    assert torch.equal(initial_gate(3, 9, 66, torch.zeros(1)), DEVIATION * drawn_gate)


def test_every_seed_and_layer_has_a_table_of_its_own() -> None:
    tables = [routing_table(Experts(4), 1000, layer, seed=seed) for seed, layer in product((0, 1, 2, 2**62), range(12))]
    for one, other in combinations(tables, 2):
        assert abs(float((one == other).double().mean()) - 1 / 4) < 0.1
    assert torch.equal(tables[13], routing_table(Experts(4), 1000, 1, seed=1))
    rare, frequent = (routing_table(Experts(2, routing="balanced_hash"), 50, 0, [n] * 50, seed=7) for n in (0, 1))
    assert torch.equal(rare, routing_table(Experts(2), 50, 0, seed=7))
    assert frequent.tolist() == [0, 1] * 25


def test_gates_and_heads_depend_on_the_seed() -> None:
    like = torch.zeros(3, 5)
    assert not torch.equal(initial_gate(2, 5, 4, like), initial_gate(2, 5, 4, like, seed=1))
    heads = [initial_head(2, like, seed) for seed in (0, 0, 1)]
    for name in ("router.weight", "inner.weight", "outer.weight"):
        assert torch.equal(heads[0][name], heads[1][name]) and not torch.equal(heads[0][name], heads[2][name])

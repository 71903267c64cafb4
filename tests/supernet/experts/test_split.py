"""How a dense FFN is cut up: MoEBERT's rule, and tables and gates that choose, against plain Python."""

from collections import Counter
from fractions import Fraction
from itertools import chain, combinations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces import DENSE, GELU, PUBLISHED, Base, Experts, Genes
from supernet.experts.split import DEVIATION, expert_channels, new_gate, routing_table

VOCABULARY = 30522


def channels(inner: int, count: int, own: int, shared: int) -> list[list[int]]:
    base = Base(depth=1, width=6, heads=2, inner=inner)
    genes = Genes(GELU, 1, Fraction(own, inner), DENSE if count == 1 else Experts(count, Fraction(shared, own)))
    assert not genes.fault(base)
    return expert_channels(base, genes).tolist()


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(1, 9), st.data())
def test_experts_have_what_is_shared_and_every_eth_of_the_rest(inner: int, count: int, data: st.DataObject) -> None:
    shared = data.draw(st.integers(0, inner)) if count > 1 else 0
    most = shared + (inner - shared) // count
    assume(most)
    own = data.draw(st.integers(max(shared, 1), most))
    order = list(range(inner))
    expected = [(order[:shared] + order[shared:][expert::count])[:own] for expert in range(count)]
    found = channels(inner, count, own, shared)
    assert found == expected
    assert [len(row) for row in found] == [own] * count


def test_moeberts_experts() -> None:
    """Section 4.1: four experts of 768 channels, 512 of them shared; the lower half of the 3072 is not used."""
    moebert = PUBLISHED["moebert"]
    found = expert_channels(moebert.base, moebert.layers[0])
    assert found.shape == (4, 768)
    assert found.tolist() == channels(3072, 4, 768, 512)
    rows = [set(row) for row in found.tolist()]
    assert all(one & other == set(range(512)) for one, other in combinations(rows, 2))
    assert set.union(*rows) == set(range(1536))


def test_no_shared_channels_is_a_partition_and_all_shared_are_copies() -> None:
    assert sorted(chain(*channels(48, 4, 12, 0))) == list(range(48))
    assert channels(48, 4, 20, 20) == [list(range(20))] * 4


@pytest.mark.parametrize("vocabulary", [1, 50, VOCABULARY])
def test_tables_are_the_same_whenever_asked_for(vocabulary: int) -> None:
    for count in (2, 3, 64):
        first = routing_table(Experts(count), vocabulary, layer=5)
        torch.manual_seed(count)
        before = torch.get_rng_state()
        again = routing_table(Experts(count), vocabulary, layer=5)
        assert torch.equal(first, again)
        assert torch.equal(torch.get_rng_state(), before)
        assert (again.dtype, again.shape) == (torch.uint8, (vocabulary,))
        assert int(again.max()) < count


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
        cuts = [Genes(GELU, 1, Fraction(1, count), Experts(count)) for count in (fewer, more)]
        wide, narrow = (expert_channels(base, genes).tolist() for genes in cuts)
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
    """Ties go to the lower id and the lower expert; what training data do not have, to where "hash" sends it."""
    random = routing_table(Experts(count), len(counts), layer).tolist()
    balanced = Experts(count, routing="balanced_hash")
    expected = greedy(counts, count, random)
    assert routing_table(balanced, len(counts), layer, counts).tolist() == expected
    relative = torch.tensor(counts, dtype=torch.float64) / 2**12
    assert routing_table(balanced, len(counts), layer, relative).tolist() == expected


@pytest.mark.parametrize("count", [2, 4, 8])
def test_balanced_tables_balance_what_zipf_does_not(count: int) -> None:
    order = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(0))
    counts = 10**7 // (1 + order)

    def load(routing: str, layer: int) -> float:
        table = routing_table(Experts(count, routing=routing), VOCABULARY, layer, counts).long()
        loads = torch.zeros(count, dtype=torch.float64).index_add(0, table, counts.double())
        return float(loads.max() / loads.mean())

    assert load("balanced_hash", 0) < 1.001
    assert sum(load("hash", layer) for layer in range(10)) / 10 > 1.02


def test_balanced_tables_need_frequencies_of_the_whole_vocabulary() -> None:
    balanced = Experts(4, routing="balanced_hash")
    with pytest.raises(ValueError, match="balanced_hash shares out the tokens of training data: it needs their freq"):
        routing_table(balanced, 50, 0)
    for shape in ((49,), (50, 1), ()):
        with pytest.raises(ValueError, match=r"frequencies are of \(.*\) ids; the vocabulary has 50"):
            routing_table(balanced, 50, 0, torch.ones(shape))


def test_new_gates() -> None:
    like = torch.zeros(1, dtype=torch.float64)
    before = torch.get_rng_state()
    gates = {seed: new_gate(8, 400, seed, like) for seed in range(20)}
    assert torch.equal(torch.get_rng_state(), before)
    for seed, gate in gates.items():
        assert (gate.shape, gate.dtype) == ((8, 400), torch.float64)
        assert torch.equal(new_gate(3, 400, seed, like), gate[:3])
        assert float(gate.std()) == pytest.approx(DEVIATION, rel=0.1)
    similar = Counter(torch.equal(gates[one], gates[other]) for one, other in combinations(gates, 2))
    assert similar == {False: 190}

"""Which channels each expert has: MoEBERT's rule, against plain Python."""

from fractions import Fraction
from itertools import chain, combinations

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from search_spaces import DENSE, FFN, GELU, PUBLISHED, Base, Experts
from supernet.inherit import expert_channels


def channels(inner: int, count: int, width: int, shared: int) -> list[list[int]]:
    base = Base(depth=1, width=6, heads=2, inner=inner)
    genes = FFN(GELU, 1, Fraction(width, inner), DENSE if count == 1 else Experts(count, Fraction(shared, width)))
    assert not genes.invalid_reason(base)
    return expert_channels(base, genes).tolist()


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(1, 9), st.data())
def test_experts_have_what_is_shared_and_every_eth_of_the_rest(inner: int, count: int, data: st.DataObject) -> None:
    shared = data.draw(st.integers(0, inner)) if count > 1 else 0
    largest = shared + (inner - shared) // count
    assume(largest)
    width = data.draw(st.integers(max(shared, 1), largest))
    order = list(range(inner))
    expected = [(order[:shared] + order[shared:][expert::count])[:width] for expert in range(count)]
    assert channels(inner, count, width, shared) == expected
    assert [len(row) for row in expected] == [width] * count


def test_moeberts_experts() -> None:
    """Section 4.1: four experts of 768 channels, 512 of them shared; the lower half of the 3072 is not used."""
    moebert = PUBLISHED["moebert"]
    channels_EC = expert_channels(moebert.base, moebert.ffns[0])
    assert channels_EC.shape == (4, 768)
    assert channels_EC.tolist() == channels(3072, 4, 768, 512)
    rows = [set(row) for row in channels_EC.tolist()]
    assert all(one & other == set(range(512)) for one, other in combinations(rows, 2))
    assert set.union(*rows) == set(range(1536))


def test_no_shared_channels_is_a_partition_and_all_shared_are_copies() -> None:
    assert sorted(chain(*channels(48, 4, 12, 0))) == list(range(48))
    assert channels(48, 4, 20, 20) == [list(range(20))] * 4

"""The contributions of rows as an attribute of a trial."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nas.study.contributions import decode, encode

shapes = array_shapes(max_dims=2, max_side=40)
bits = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.sampled_from([0.0, 1.0])))
floats = shapes.flatmap(lambda shape: arrays(np.float64, shape, elements=st.floats(-9, 9, width=32)))


@given(bits | floats)
def test_nothing_is_lost(rows: np.ndarray) -> None:
    again = decode(json.loads(json.dumps(encode(rows))))
    assert again.dtype == np.float64
    assert np.array_equal(again, rows)


@pytest.mark.parametrize(("shape", "largest"), [((2000,), 500), ((2000, 3), 1200)])
def test_rows_of_0_and_1_take_a_bit_each(shape: tuple[int, ...], largest: int) -> None:
    rows = np.random.default_rng(0).random(shape) < 0.5
    assert len(json.dumps(encode(rows))) < largest
    assert np.array_equal(decode(encode(rows)), rows)


def test_other_rows_have_the_precision_of_float32() -> None:
    rows = np.random.default_rng(0).normal(size=(300, 6))
    assert np.array_equal(decode(encode(rows)), rows.astype(np.float32))

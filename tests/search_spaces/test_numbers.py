"""One grammar of numbers for architecture files, presets and options."""

from fractions import Fraction

import pytest

from nas.config.load import load_config
from nas.config.values import count
from search_spaces import Architecture
from search_spaces.numbers import fraction, proportion

NUMBERS: list[tuple[object, str]] = [
    ("1/8", "1/8"),
    ("2/4", "1/2"),
    ("0.125", "1/8"),
    (".5", "1/2"),
    ("1.", "1"),
    ("+3/4", "3/4"),
    (" 1/3\n", "1/3"),
    ("1", "1"),
    (1, "1"),
    (0.1, "1/10"),
    (0.5, "1/2"),
    (Fraction(1, 3), "1/3"),
]


@pytest.mark.parametrize(("written", "meant"), NUMBERS)
def test_the_grammar(written: object, meant: str) -> None:
    assert fraction(written) == Fraction(meant)


@pytest.mark.parametrize(("written", "meant"), [(" 1/3\n", "1/3"), (0.1, "1/10")])
def test_files_and_presets_have_it(written: object, meant: str) -> None:
    base = {"depth": 1, "width": 12, "heads": 3, "inner": 24}
    layer = {"graph": "project(gelu(expand(x)))", "expansion": written}
    architecture = Architecture.from_json({"version": 1, "base": base, "layers": [layer]})
    assert architecture.ffns[0].expansion == Fraction(meant)
    assert load_config("demo-ffn", {"space.expansions": [written]}).space.expansions == (Fraction(meant),)


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", ".", "/", "1/", "/2", "-1/2", "1//2", "1/2/3", "1/0.5", "half", "1_0", "\u0661"),
        *("1e-3", "1e999999999", "9" * 16, "1/" + "9" * 5000, "0." + "1" * 5000, "nan", "inf", "0x1"),
        *(True, None, [1], 1e-9, 1e300, float("nan"), float("inf"), -1, -0.5, 10**4000),
    ],
)
def test_what_is_no_fraction(value: object) -> None:
    with pytest.raises(ValueError, match=r'^must be a fraction such as "1/8", not ') as error:
        fraction(value)
    assert len(str(error.value)) < 120


@pytest.mark.parametrize(
    ("written", "meant"),
    [("99%", "99/100"), ("12.5%", "1/8"), (" 5% ", "1/20"), ("100%", "1"), ("1/20", "1/20"), (0.25, "1/4"), (1, "1")],
)
def test_proportions(written: object, meant: str) -> None:
    assert proportion(written) == Fraction(meant)


@pytest.mark.parametrize("value", [0, "0%", "100.1%", "1.01", "%", "5 %%", "half", "1/0", "-5%", True, None])
def test_what_is_no_proportion(value: object) -> None:
    with pytest.raises(ValueError, match=r"^must be a fraction above 0 and at most 1, such as 99% or 0\.99, not "):
        proportion(value)


@pytest.mark.parametrize("value", ["1/0", "0/0", "1/000"])
def test_division_by_zero(value: str) -> None:
    with pytest.raises(ValueError, match=f"^'{value}' divides by zero$"):
        fraction(value)


def test_counts_are_numbers_of_this_grammar() -> None:
    assert [count(text) for text in ("15.4M", "1/2K", ".5G", " 7 ")] == [15_400_000, 500, 500_000_000, 7]

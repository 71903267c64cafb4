"""What messages quote of other errors and of values, and what they propose."""

import math

import pytest

from foundation.errors import beginning, did_you_mean, reason, shortened


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("\n one line\nand another"), "one line"),
        (ValueError("x" * 300), "x" * 300),
        (ValueError("x" * 301), "x" * 297 + "..."),
        (EOFError(), "EOFError"),
        (ValueError("no \ud800"), r"no \ud800"),
    ],
)
def test_the_reason_is_one_short_line(error: Exception, expected: str) -> None:
    assert reason(error) == expected


def test_did_you_mean() -> None:
    operations = ["gelu", "tanh", "relu", "add"]
    assert did_you_mean("gleu", operations) == "; did you mean 'gelu'?"
    assert did_you_mean("SST2", ["cola", "sst2"]) == "; did you mean 'sst2'?"
    assert did_you_mean("label", ["Text", "Label"]) == "; did you mean 'Label'?"
    assert did_you_mean("q" * 10_000_000, operations) == ""


def test_shortened_values() -> None:
    deep: list[object] = []
    for _ in range(5000):
        deep = [deep]
    for value in ("a" * 10_000_000, deep, list(range(10_000)), {"a": deep}, math.nan):
        assert len(shortened(value)) < 100
    assert shortened("gelu") == "'gelu'"


@pytest.mark.parametrize(
    "whole",
    [
        "e\u0301",
        "\U0001f44d\U0001f3fd",
        "\u2764\ufe0f",
        "\U0001f1e9\U0001f1ea",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    ],
)
def test_no_half_of_an_emoji_or_letter_is_shown(whole: str) -> None:
    text = f"a{whole}{whole}b"
    for most in range(len(text) + 1):
        full = sum(most >= end for end in (1 + len(whole), 1 + 2 * len(whole)))
        assert beginning(text, most) == ("a" + full * whole + "b" * (most == len(text)) if most else "")
    for before in range(40, 60):
        short = shortened("x" * before + whole + "y" * 60)
        assert short.endswith("...") and len(short) <= 60
        assert (whole[0] in short) == short.startswith(f"'{'x' * before}{repr(whole)[1:-1]}")
    assert shortened("x" * 52 + "\ud83d" * 9) == "'" + "x" * 52 + "..."

"""What messages quote of other errors."""

import pytest

from foundation.errors import reason


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("\n one line\nand another"), "one line"),
        (ValueError("x" * 300), "x" * 300),
        (ValueError("x" * 301), "x" * 297 + "..."),
        (EOFError(), "EOFError"),
    ],
)
def test_the_reason_is_one_short_line(error: Exception, expected: str) -> None:
    assert reason(error) == expected

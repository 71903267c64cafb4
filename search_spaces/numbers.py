"""Parsing of exact numbers, with the same notation in architecture files, presets and command-line options."""

import re
from fractions import Fraction

from foundation.errors import shortened

# No exponents, and few digits: Fraction("1e999999999") would fill the memory.
_FRACTION = re.compile(r"\+?(\d{1,15}/\d{1,15}|\d{1,15}\.?|\d{0,15}\.\d{1,15})", re.ASCII)


def fraction(value: object) -> Fraction:
    """The exact value of a non-negative fraction ("2/3"), decimal ("0.125", ".5", 0.125) or whole number.

    Raises:
        ValueError: the value is none of these; the caller prefixes the message with the name of the value.
    """
    is_number = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    text = str(value) if is_number else value.strip() if isinstance(value, str) else ""
    if not _FRACTION.fullmatch(text):
        raise ValueError(f'must be a fraction such as "1/8", not {shortened(value)}')
    if re.search("/0+$", text):
        raise ValueError(f"{shortened(text)} divides by zero")
    return Fraction(text)


def proportion(value: object) -> Fraction:
    """The exact value of a fraction above 0 and at most 1, which may be written as "99%", "0.99" or "99/100".

    Raises:
        ValueError: the value is none; the caller prefixes the message with the name of the value.
    """
    text = str(value).strip()
    try:
        result = fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        result = Fraction(0)
    if not 0 < result <= 1:
        raise ValueError(f"must be a fraction above 0 and at most 1, such as 99% or 0.99, not {shortened(value)}")
    return result

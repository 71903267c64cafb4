"""How people write exact numbers, the same in architecture files, presets and options."""

import re
from fractions import Fraction

from search_spaces.errors import shortened

# No exponents, and few digits: Fraction("1e999999999") would fill the memory.
_FRACTION = re.compile(r"\+?(\d{1,15}/\d{1,15}|\d{1,15}\.?|\d{0,15}\.\d{1,15})", re.ASCII)


def fraction(value: object) -> Fraction:
    """The exact value of a fraction ("2/3"), a decimal ("0.125", ".5", 0.125) or a whole number; none is negative.

    Raises ValueError, whose message is to follow the number's place or name.
    """
    is_number = isinstance(value, int | float | Fraction) and not isinstance(value, bool)
    text = str(value) if is_number else value.strip() if isinstance(value, str) else ""
    if not _FRACTION.fullmatch(text):
        raise ValueError(f'must be a fraction such as "1/8", not {shortened(value)}')
    if re.search("/0+$", text):
        raise ValueError(f"{shortened(text)} divides by zero")
    return Fraction(text)

"""Users' mistakes: one base class for all of them, and how messages quote and suggest values.

Every command turns a `UserError` into one line on stderr and exit status 2 (`distill.cli.guard`). Each package derives
its own errors from it, so that callers can still tell them apart.
"""

import reprlib
from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """A value, file or option that cannot be used; the message says which, where, and what would be right."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'gelu'?"` if a known word is close to `word`, else the empty string."""
    spelled = {name.lower(): name for name in known}
    close = get_close_matches(word[:60].lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]!r}?" if close else ""


def shown(value: object, limit: int = 60) -> str:
    """`repr(value)`, cut to a length that fits into one line of an error."""
    # Never the full repr: the value may be megabytes of text, or lists nested a thousand deep.
    text = repr(value[: limit + 1]) if isinstance(value, str) else reprlib.repr(value)
    return text if len(text) <= limit + 2 else f"{text[: limit - 3]}..."

"""A parser for formulas of the form `name` and `name(term, ...)`, bounded and non-recursive as files are untrusted."""

import re
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

from foundation.errors import UserError, shortened

MAX_TERMS = 256

T = TypeVar("T")
_TOKEN = re.compile(r"\s*([A-Za-z_]\w*|\S)")


class GraphError(UserError, ValueError):
    """The text or structure is not a valid feed-forward graph."""


def read_terms(text: str, make: Callable[[str, tuple[T, ...]], T]) -> T:
    """Parse a formula bottom-up: call `make(name, arguments)` for each complete term and return the outermost result.

    Does not recurse and stops reading at MAX_TERMS, so hostile text is rejected quickly.

    Raises:
        GraphError: the text is not a formula, or has too many terms.
    """
    # A term contributes at most four tokens: its name, two brackets and a comma.
    matches = islice(_TOKEN.finditer(text.rstrip()), 4 * MAX_TERMS + 1)
    tokens = [(match[1], match.start(1)) for match in matches]
    if len(tokens) > 4 * MAX_TERMS or sum(_is_name(token) for token, _ in tokens) > MAX_TERMS:
        raise GraphError(f"the formula has more than {MAX_TERMS} terms")
    tokens.append(("", len(text)))

    def unexpected(wanted: str) -> GraphError:
        token, place = tokens[position]
        what = f"found {shortened(token)} at character {place + 1}" if token else "the formula ends"
        return GraphError(f"expected {wanted}, but {what}")

    position = 0
    opened: list[tuple[str, list[T]]] = []
    while True:
        name = tokens[position][0]
        if not _is_name(name):
            raise unexpected("an operation or 'x'")
        position += 1
        if tokens[position][0] == "(":
            opened.append((name, []))
            position += 1
            continue
        value = make(name, ())
        while opened:
            opened[-1][1].append(value)
            token = tokens[position][0]
            if token not in (",", ")"):
                raise unexpected("',' or ')'")
            position += 1
            if token == ",":
                break
            name, arguments = opened.pop()
            value = make(name, tuple(arguments))
        else:
            if tokens[position][0]:
                raise unexpected("the end")
            return value


def _is_name(token: str) -> bool:
    return token[:1].isalpha() or token[:1] == "_"

"""The base class of all user errors, and helpers for messages that quote values and suggest corrections.

Every command turns a `UserError` into one line on stderr and exit status 2 (`distill.cli.guard`). Each package derives
its own errors from it, so that callers can still tell them apart.
"""

import logging
import os
import re
import reprlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache

log = logging.getLogger(__name__)


class UserError(Exception):
    """A value, file or option is invalid; the message says which one, where, and what is valid instead."""


@cache
def warn_once(line: str) -> None:
    """Warn with this line, if it is the first time and this is the first process."""
    if os.environ.get("RANK", "0") == "0":
        log.warning("%s", line)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'gelu'?"` if a known word is close to `word`, else the empty string."""
    by_lower_case = {name.lower(): name for name in known}
    matches = get_close_matches(word[:60].lower(), by_lower_case, n=1)
    return f"; did you mean {by_lower_case[matches[0]]!r}?" if matches else ""


def reason(error: BaseException, limit: int = 300) -> str:
    """The first line of an error's text, truncated, or the error's type if it has no text. Surrogates, which damaged
    files have and no stream can show, are escaped.
    """
    lines = str(error).encode("utf-8", "backslashreplace").decode().strip().splitlines()
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= limit else f"{beginning(line, limit - 3)}..."


def shortened(value: object, limit: int = 60) -> str:
    """`repr(value)`, truncated so that it fits into a one-line error message."""
    # Never the full repr: the value may be megabytes of text, or lists nested a thousand deep.
    text = repr(value[: limit + 1]) if isinstance(value, str) else reprlib.repr(value)
    if len(text) <= limit + 2:
        return text
    if not isinstance(value, str):
        return f"{beginning(text, limit - 3)}..."
    most = limit - 4
    while len(text := repr(beginning(value, most))) > limit - 2:  # some characters are escaped
        most -= 1
    return f"{text[:-1]}..."


# Joins two emojis; colors the one before; and ends a text with letters of which two are a flag.
JOINER, SKIN = "\u200d", re.compile("[\U0001f3fb-\U0001f3ff]")
FLAGS = re.compile("[\U0001f1e6-\U0001f1ff]+$")


def beginning(text: str, most: int) -> str:
    """At most so many characters of a text, and no half of an emoji or letter that consists of several."""
    while 0 < most < len(text) and continues(text, most):
        most -= 1
    return text[:most]


def continues(text: str, place: int) -> bool:
    """Whether the character at this place belongs to the one before it: together they are one emoji or letter."""
    here, before = text[place], text[:place]
    if FLAGS.match(here):
        flags = FLAGS.search(before)
        return flags is not None and len(flags[0]) % 2 == 1
    mark = unicodedata.category(here).startswith("M") or SKIN.match(here) is not None
    return mark or here == JOINER or before.endswith(JOINER)


@contextmanager
def naming_arguments(files: Mapping[str, str] | None = None) -> Iterator[None]:
    """In this block, user errors and warnings name the arguments of a Python function in place of a command's options:
    `max_params` for `--max-params`.

    Args:
        files: paths -> the arguments whose content they have.
    """

    def named(text: str) -> str:
        text = re.sub(r"(?<!\S)--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), text)
        for path, argument in (files or {}).items():
            # A line of such a file is a row.
            text = re.sub(rf"{re.escape(path)}:(?=\d)", f"{argument}: row ", text).replace(path, argument)
        return text

    def rename(record: logging.LogRecord) -> bool:
        record.msg, record.args = named(record.getMessage()), ()
        return True

    warn_once.cache_clear()  # a call warns of its own arguments
    log.addFilter(rename)
    try:
        yield
    except UserError as error:
        error.args = (named(str(error)),)
        raise
    finally:
        log.removeFilter(rename)

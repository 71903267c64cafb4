"""Checks of tables' columns and cells."""

from collections.abc import Iterable

import numpy as np

from search_spaces.errors import did_you_mean, shortened

SHOWN = 12
"""The most columns that an error names."""


def column_fault(wanted: Iterable[str], names: Iterable[str]) -> str:
    """What is wrong if a table whose columns have these names does not have each wanted column exactly once, or ""."""
    columns = list(names)
    for name in wanted:
        if columns.count(name) != 1:
            known = ", ".join(shortened(column)[1:-1] for column in columns[:SHOWN])
            more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
            fault = f"{columns.count(name)} columns {name!r}" if name in columns else f"no column {name!r}"
            suggestion = "" if name in columns else did_you_mean(name, columns)
            return f"{fault}{suggestion}; its columns are {known}{more}"
    return ""


def finite(text: str) -> float | None:
    """The number that a text spells; None if it spells none, or one beyond float32, in which labels are kept."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= float(np.finfo(np.float32).max) else None

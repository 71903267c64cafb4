"""Validation of the columns and cells of tables."""

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from distill.tasks.task import TaskError
from foundation.errors import did_you_mean, shortened

# Halves of characters, which JSON may have where texts were cut, and tokenizers refuse.
SURROGATES = re.compile("[\ud800-\udfff]")

SHOWN = 12
"""The maximum number of columns that an error message lists."""


def check_columns(place: str | Path, wanted: Iterable[str], names: Iterable[str]) -> None:
    """Raise TaskError if a table's column names do not have each wanted column exactly once."""
    columns = list(names)
    for name in wanted:
        if columns.count(name) != 1:
            known = ", ".join(shortened(column)[1:-1] for column in columns[:SHOWN])
            more = f" and {len(columns) - SHOWN} more" if len(columns) > SHOWN else ""
            problem = f"{columns.count(name)} columns {name!r}" if name in columns else f"no column {name!r}"
            suggestion = "" if name in columns else did_you_mean(name, columns)
            separated = ""
            if len(columns) == 1 and re.search("[;,|\t]", columns[0]):
                separated = " (a single one: in a .csv commas separate columns, in a .tsv tabs)"
            raise TaskError(f"{place}: {problem}{suggestion}; its columns are {known}{more}{separated}")


def finite(text: str) -> float | None:
    """Parse a number; None if the text is not a number, or is out of the range of float32, the type of labels."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= float(np.finfo(np.float32).max) else None

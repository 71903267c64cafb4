"""Settings of a training side by side: every seed runs all of them, and differences are between scores of one seed."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import mean
from typing import Any, TypeVar

from benchmarks.measuring import difference, summarise, take_turns
from benchmarks.report import Report

Setting = TypeVar("Setting")
# The scores "before" and "after" a training, and further figures by name. Lists of figures are saved, but not printed.
Row = dict[str, Any]


def compare(
    settings: Mapping[str, Setting],
    baseline: str,
    run: Callable[[Setting, int], Row],
    seeds: Sequence[int],
    only: Sequence[str] | None,
    report: Report,
) -> dict[str, dict[int, Row]]:
    """Run the settings (or `only` these, and the baseline) with every seed, print a table, and save all rows.

    The file is written after every run, so that a run that was cut short leaves what it has.

    Args:
        run: trains with a setting and a seed.

    Returns:
        The rows of each setting by their seeds.
    """
    rows: dict[str, dict[int, Row]] = {}

    def keep(name: str, seed: int, row: Row) -> None:
        rows.setdefault(name, {})[seed] = row
        report.progress(f"seed {seed}  {name}: {row['before']:.4f} -> {row['after']:.4f}")
        report.save(rows, seeds=seeds)

    chosen = dict.fromkeys([baseline, *(only or settings)])
    values = take_turns({name: partial(run, settings[name]) for name in chosen}, seeds, on_value=keep)
    show(report, values, baseline)
    return rows


def show(report: Report, values: Mapping[str, Sequence[Row]], baseline: str) -> None:
    """Print a line for each setting: means over the seeds, and differences from the baseline seed by seed."""
    reference = [row["after"] for row in values[baseline]]
    others = [
        key
        for key, value in values[baseline][0].items()
        if key not in ("before", "after") and not isinstance(value, list)
    ]
    lines = []
    for name, rows in values.items():
        after = [row["after"] for row in rows]
        lines.append(
            (
                name,
                f"{mean(row['before'] for row in rows):.4f}",
                summarise(after).with_error(4),
                difference(after, reference).with_error(4, "+"),
                *(f"{mean(row[key] for row in rows):.2f}" for key in others),
            )
        )
    report.table(("setting", "before", "after", f"minus {baseline}", *others), lines)

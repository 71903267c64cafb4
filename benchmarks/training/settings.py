"""Settings side by side: every seed runs all of them, and differences are between scores of one seed."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TypeVar

from benchmarks.measuring import error_of_mean

Setting = TypeVar("Setting")
Row = dict[str, float]


def compare(
    settings: Mapping[str, Setting],
    baseline: str,
    run: Callable[[Setting, int], Row],
    seeds: Sequence[int],
    only: Sequence[str] | None,
    out: Path | None,
) -> None:
    """Run the settings (or `only` these, and the baseline), print a line for each run and a table, and write all rows
    to the file `out`.

    Args:
        run: setting and seed -> scores "before" and "after" the training, and further figures, which are shown too.
    """
    found: dict[str, dict[int, Row]] = {}
    width = max(map(len, settings))
    for seed in seeds:
        for name in dict.fromkeys([baseline, *(only or settings)]):
            found.setdefault(name, {})[seed] = row = run(settings[name], seed)
            print(f"seed {seed}  {name:{width}} {row['before']:.4f} -> {row['after']:.4f}", flush=True)
            if out:
                out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    others = [key for key in row if key not in ("before", "after")]
    print(f"{'setting':{width}}  before    after ± s.e.   minus {baseline} ± s.e.   {', '.join(others)}")
    for name, rows in found.items():
        after = [row["after"] for row in rows.values()]
        above = [row["after"] - found[baseline][seed]["after"] for seed, row in rows.items()]
        before = mean(row["before"] for row in rows.values())
        further = ", ".join(f"{mean(row[key] for row in rows.values()):.2f}" for key in others)
        print(
            f"{name:{width}}  {before:.4f}  {mean(after):.4f} ± {error_of_mean(after):.4f}"
            f"    {mean(above):+.4f} ± {error_of_mean(above):.4f}   {further}"
        )

"""Compare architectures: layers, costs, and paired differences of their scores where these are known on the same rows.

    python -m nas.compare results/demo efficientbert-tiny my_architecture.json
    python -m nas.compare results/demo results/other                     (the winners of two studies of one task)
    python -m nas.compare results/demo/final results/other/final         (checkpoints, scored on the same dev split)

What is compared is a study's folder (its winner), a checkpoint of train_final.py, an architecture file, or a published
architecture.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.cli import DONE, Parser, add_device_option, at_least, interruptible
from distill.training.progress import terminal
from foundation.errors import UserError

if TYPE_CHECKING:
    from distill.table import Table
    from nas.report.comparison import Difference, Item

# The rows of the table of costs: key of `describe`, and what it is called.
COSTS = {
    "params": "parameters",
    "params_active": "active parameters",
    "params_published": "parameters as published",
    "macs": "MACs",
    "macs_linear": "MACs of linear maps",
}


def parser() -> Parser:
    result = Parser("nas.compare", description=__doc__)
    add = result.add_argument
    items = (
        "a study's folder (its winner), a checkpoint of train_final.py, an architecture file, or the name of a "
        "published architecture; the first one is the reference"
    )
    add("items", nargs="+", metavar="ITEM", help=items)
    add("--storage", metavar="URL", help="Optuna storage URL of the studies (default: their study.db)")
    tokens = "sequence length for which MACs are counted (default: 128, or the shortest base's positions)"
    add("--tokens", type=at_least(1), help=tokens)
    add("--labels", type=at_least(1), default=3, help="classes of the classifier (default: %(default)s)")
    add("--rows", type=at_least(1), metavar="N", help="score checkpoints on the first N dev rows (default: on all)")
    add_device_option(result)
    plot = "draw the scores of folders of nas.export against their latencies (.png or .svg), and nothing else"
    add("--plot", type=Path, metavar="FILE", help=plot)
    result.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("nas.compare", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Compare and print.

    Raises:
        UserError: an item cannot be read, or two of them cannot be compared, as their rows are of different tasks.
    """
    from nas.report.architecture import describe
    from nas.report.comparison import check_tasks, differences, item_of, scored_checkpoints, with_confirmed_rows
    from search_spaces.cost import CLASSIFIER

    if len(options.items) < 2:
        raise UserError("give at least two things to compare; nas.inspect shows a single one")
    if options.plot is not None:
        others = ("storage", "tokens", "labels", "rows", "device", "json")
        for name in others:
            if getattr(options, name) != parser().get_default(name):
                raise UserError(f"--plot: draws what nas.export has measured, and nothing else: leave out --{name}")
        from nas.report.command import check_plots

        check_plots()
        from nas.report.scatter import draw

        draw([Path(item) for item in options.items], options.plot)
        print(f"wrote {options.plot}")
        return DONE
    items = [item_of(text) for text in options.items]
    check_tasks(items)
    if options.rows is not None and sum(item.checkpoint is not None for item in items) < 2:
        raise UserError("--rows: is of checkpoints, which are scored if there are at least two of them: leave it out")
    items = scored_checkpoints(with_confirmed_rows(items, options.storage), options.rows, options.device)
    shortest = min(items, key=lambda item: item.architecture.base.positions)
    limit = shortest.architecture.base.positions
    tokens = options.tokens or min(128, limit)
    if tokens > limit:
        raise UserError(f"--tokens: {shortest.name} has {limit} positions, which is less than {tokens}")
    facts = [describe(item.architecture, tokens, options.labels) for item in items]
    paired, notes = differences(items)
    if options.json:
        document = {
            "tokens": tokens,
            "labels": options.labels,
            "items": [{"name": item.name, **fact} for item, fact in zip(items, facts, strict=True)],
            "differences": [asdict(difference) for difference in paired],
            "notes": notes,
        }
        print(json.dumps(document, indent=2))
        return DONE
    console = terminal()
    side_by_side(items, facts).print(console)
    head = CLASSIFIER.describe(options.labels)
    console.print(f"parameters {head}; MACs of a sentence of {tokens} tokens; percentages are of {items[0].name}'s")
    if paired:
        differences_table(paired).print(console)
    for note in notes:
        console.print(note)
    return DONE


def side_by_side(items: "Sequence[Item]", facts: Sequence[Mapping[str, Any]]) -> "Table":
    """The layers in short form and the costs of each item, these also as percentages of the first one's."""
    from distill.table import Column, Table
    from nas.study.description import formulas
    from search_spaces.genes import outside_ffns

    bases = [item.architecture.base for item in items]
    layers = [formulas(item.architecture) for item in items]
    experts = [outside_ffns(item.architecture) for item in items]
    rows = [
        ("layers × width", *(f"{base.depth} × {base.width}" for base in bases)),
        *([("attention and head", *experts)] if any(experts) else []),
        *(
            (f"layer {number + 1}", *(own[number] if number < len(own) else None for own in layers))
            for number in range(max(map(len, layers)))
        ),
    ]
    for key, name in COSTS.items():
        values = [fact[key] for fact in facts]
        if key != "params_active" or values != [fact["params"] for fact in facts]:
            percentages = ["", *(f" ({value / values[0]:.1%})" if values[0] else "" for value in values[1:])]
            rows.append((name, *(f"{value:,}{part}" for value, part in zip(values, percentages, strict=True))))
    return Table([Column("", is_text=True), *(Column(item.name, is_text=True) for item in items)], rows)


def differences_table(paired: "Sequence[Difference]") -> "Table":
    """The paired differences to the first item."""
    from distill.table import Column, Table, difference

    columns = (
        Column("", is_text=True),
        Column("score", "{:.4f}".format),
        Column("minus", is_text=True),
        Column("difference", difference),
        Column("95 % interval", lambda ends: f"{ends[0]:+.4f} to {ends[1]:+.4f}"),
        Column("p", "{:.3g}".format),
        Column("on", is_text=True),
    )
    rows = [(d.name, d.score, d.reference, (d.value, d.standard_error), d.interval, d.p, d.on) for d in paired]
    return Table(columns, rows)


if __name__ == "__main__":
    sys.exit(main())

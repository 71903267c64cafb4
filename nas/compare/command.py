"""Compare architectures: layers, costs, and paired differences of their scores where these are known on the same rows.

    python -m nas.compare results/demo efficientbert-tiny my_architecture.json
    python -m nas.compare results/demo results/other                     (the winners of two studies of one task)
    python -m nas.compare results/demo/final results/other/final         (checkpoints, scored on the same dev split)

What is compared is a study's folder (its winner), a checkpoint of train_final.py, an architecture file, or a published
architecture.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distill.cli import DONE, Parser, add_device_option, interruptible

if TYPE_CHECKING:
    from rich.console import Console

    from nas.compare.items import Item
    from search_spaces.architecture import Architecture

# The widths of the tables' first column and of those of the items, in characters.
LABELS, COLUMN = 26, 60
# The rows of the table of costs: key of `nas.inspect.describe`, and what it is called.
COSTS = {
    "params": "parameters",
    "params_active": "active parameters",
    "params_published": "parameters as published",
    "macs": "MACs",
    "macs_linear": "MACs of linear maps",
}


def parser() -> Parser:
    """The command line's options."""
    result = Parser(
        prog="nas.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "items",
        nargs="+",
        metavar="ITEM",
        help="a study's folder (its winner), a checkpoint of train_final.py, an architecture file, or the name of a "
        "published architecture; the first one is the reference",
    )
    result.add_argument("--storage", metavar="URL", help="Optuna storage URL of the studies (default: their study.db)")
    result.add_argument(
        "--tokens",
        type=int,
        help="sequence length for which MACs are counted (default: 128, or the shortest base's positions)",
    )
    result.add_argument("--labels", type=int, default=3, help="classes of the classifier (default: %(default)s)")
    result.add_argument(
        "--rows", type=int, metavar="N", help="score checkpoints on the first N dev rows (default: on all)"
    )
    add_device_option(result)
    result.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("nas.compare", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Compare and print.

    Raises:
        UserError: an item cannot be read, or the items cannot be compared.
    """
    from rich.console import Console

    from nas.compare.items import CompareError
    from nas.compare.rows import differences
    from nas.inspect import describe

    if len(options.items) < 2:
        raise CompareError("give at least two things to compare; nas.inspect shows a single one")
    for name in ("tokens", "labels", "rows"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise CompareError(f"--{name}: must be at least 1, not {value}")
    items = loaded(options)
    shortest = min(items, key=lambda item: item.architecture.base.positions)
    limit = shortest.architecture.base.positions
    tokens = options.tokens or min(128, limit)
    if tokens > limit:
        raise CompareError(f"--tokens: {shortest.name} has {limit} positions, which is less than {tokens}")
    facts = [describe(item.architecture, tokens, options.labels) for item in items]
    found = differences(items)
    if options.json:
        document = {
            "tokens": tokens,
            "items": [{"name": item.name, **fact} for item, fact in zip(items, facts, strict=True)],
            "differences": [difference.to_json() for difference in found.differences],
            "notes": found.notes,
        }
        print(json.dumps(document, indent=2))
        return DONE
    console = Console(highlight=False, soft_wrap=True)
    # A narrow terminal, or a file, would break every formula.
    console.width = max(console.width, LABELS + COLUMN * len(items))
    show(items, facts, tokens, console)
    show_differences(found.differences, found.notes, console)
    return DONE


def loaded(options: argparse.Namespace) -> "list[Item]":
    """The items with the rows on which they were or can be scored.

    Raises:
        UserError: an item cannot be read, or two of them have rows of different tasks.
    """
    from nas.compare.items import item_of
    from nas.compare.rows import check_tasks, scored_checkpoints, with_confirmed_rows

    items = [item_of(text) for text in options.items]
    check_tasks(items)
    items = with_confirmed_rows(items, options.storage)
    return scored_checkpoints(items, options.rows, options.device)


def show(items: "Sequence[Item]", facts: Sequence[Mapping[str, Any]], tokens: int, console: "Console") -> None:
    """Print the layers and costs side by side."""
    from rich import box
    from rich.table import Table

    from search_spaces.variants import experts_in_words

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("")
    for item in items:
        table.add_column(item.name, overflow="fold")
    bases = [item.architecture.base for item in items]
    table.add_row("layers × width", *(f"{base.depth} × {base.width}" for base in bases))
    experts = [experts_in_words(base) for base in bases]
    if any(experts):
        table.add_row("attention and head", *experts)
    for number in range(max(base.depth for base in bases)):
        table.add_row(f"layer {number + 1}", *(layer_text(item.architecture, number) for item in items))
    table.add_section()
    for key, name in COSTS.items():
        values = [fact[key] for fact in facts]
        if key == "params_active" and values == [fact["params"] for fact in facts]:
            continue
        shares = ["", *(f" ({value / values[0]:.1%})" if values[0] else "" for value in values[1:])]
        table.add_row(name, *(f"{value:,}{share}" for value, share in zip(values, shares, strict=True)))
    console.print(table)
    console.print(f"MACs of a sentence of {tokens} tokens; shares are of {items[0].name}'s")


def layer_text(architecture: "Architecture", number: int) -> str:
    """A layer in short form: stack × inner width, experts if there are any, and graph; empty beyond the last layer."""
    from nas.study.description import formulas

    layers = formulas(architecture)
    return layers[number] if number < len(layers) else ""


def show_differences(found: Sequence[Any], notes: Sequence[str], console: "Console") -> None:
    """Print the paired differences to the first item, and what could not be compared."""
    from rich import box
    from rich.table import Table

    if found:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        columns = ["", "score", "minus", "difference", "95 % interval", "p", "on"]
        exact = any(row.mcnemar is not None for row in found)
        for column in [*columns, "McNemar's p"] if exact else columns:
            table.add_column(column, overflow="fold")
        for row in found:
            low, high = row.interval
            last = [] if row.mcnemar is None else [f"{row.mcnemar:.3g}"]
            difference = f"{row.value:+.4f} ± {row.standard_error:.4f}"
            interval = f"{low:+.4f} to {high:+.4f}"
            cells = (row.name, f"{row.score:.4f}", row.reference, difference, interval, f"{row.p:.3g}", row.on)
            table.add_row(*cells, *last)
        console.print(table)
    for note in notes:
        console.print(note)

"""Show the layers of an architecture and its costs.

    python -m nas.inspect results/demo                  (the winner so far)
    python -m nas.inspect results/demo/stage-1/best.json
    python -m nas.inspect efficientbert --tokens 64 --labels 2
    python -m nas.inspect results/demo/final --singular-values

ARCH is the name of a published architecture, the JSON file of an architecture, the best.json of a stage, or the folder
of a study or checkpoint.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from distill.cli import Parser, at_least
from distill.table import Column, Table, count
from distill.training.progress import terminal
from foundation.errors import UserError
from foundation.extensions import load_extensions
from nas.report import architecture as shown
from search_spaces import PUBLISHED, Architecture, cost
from search_spaces.formula import layers_latex
from search_spaces.genes import outside_ffns


def show(architecture: Architecture, tokens: int, num_labels: int, head: cost.HeadCost, console: Console) -> None:
    """Print layers and costs as tables."""
    base = architecture.base
    embedding = f"factorized, {base.embedding}" if base.embedding else "full width"
    others = outside_ffns(architecture)
    console.print(
        f"{base.depth} layers, width {base.width}, {base.heads} heads{', ' * bool(others)}{others}, "
        f"inner width {base.inner} at expansion 1, embedding {embedding}",
        soft_wrap=True,
    )
    shown.layers(architecture).print(console)
    shown.costs(architecture, tokens, num_labels, head).print(console)


def head_cost(name: str | None) -> cost.HeadCost:
    """The head for tasks of the type of this name. Raises UserError if there is no such type."""
    if name is None:
        return cost.CLASSIFIER
    from distill.tasks.types import get_task_type  # imports torch, which takes seconds

    try:
        return get_task_type(name).head
    except ValueError as error:
        raise UserError(f"--head: {error}") from None


def show_singular_values(folder: Path, console: Console) -> None:
    """Print how many singular values of a checkpoint's FFN output projections are large, and their weights if the
    others were left out (MiniMoE, table 12). Raises UserError as `spectra`.
    """
    from nas.report.singular_values import THRESHOLDS, Spectrum, spectra

    maps = spectra(folder)
    columns = [
        *map(Column, ("layer", "block", "expert", *(f"above {threshold}" for threshold in THRESHOLDS))),
        Column("weights", count),
        Column(f"decomposed above {THRESHOLDS[1]}", count),
    ]

    def numbers(maps: Sequence[Spectrum]) -> tuple[object, ...]:
        values = sum(len(one.values) for one in maps)
        counts = (sum(one.above(threshold) for one in maps) for threshold in THRESHOLDS)
        weights = sum(one.shape[0] * one.shape[1] for one in maps), sum(one.params(THRESHOLDS[1]) for one in maps)
        return *(f"{count}/{values} = {count / values:.0%}" for count in counts), *weights

    rows = [(one.layer, one.block, one.expert, *numbers([one])) for one in maps]
    Table(columns, [*rows, ("all", None, None, *numbers(maps))], strong=len(maps)).print(console)


def parser() -> Parser:
    result = Parser("nas.inspect", description=__doc__)
    add, published = result.add_argument, ", ".join(PUBLISHED)
    add("architecture", metavar="ARCH", help=f"a JSON file, a study's folder, or one of {published}")
    tokens = "sequence length for which MACs are counted (default: 128, or the base's positions if they are fewer)"
    add("--tokens", type=int, help=tokens)
    add("--labels", type=at_least(1), default=3, help="classes of the classifier (default: %(default)s)")
    add("--head", metavar="TYPE", help="the task type, such as token_classification (default: classification)")
    form = result.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--latex", action="store_true", help="print only the formula of each layer, in LaTeX")
    singular_values = (
        "of a checkpoint, BERT's included: how many singular values of each FFN's or expert's output projection are "
        "above 0.2, 0.1 and 0.05 of the largest"
    )
    form.add_argument("--singular-values", action="store_true", help=singular_values)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    its_parser = parser()
    options = its_parser.parse_args(argv)
    of_costs = ("tokens", "labels", "head")
    given = [name for name in of_costs if getattr(options, name) != its_parser.get_default(name)]
    if given and (options.singular_values or options.latex):
        its_parser.error(f"--{given[0]}: is for costs, which --singular-values and --latex do not show: leave it out")
    try:
        load_extensions()
        if options.singular_values:
            show_singular_values(Path(options.architecture), terminal())
            return 0
        head = head_cost(options.head)
        architecture = shown.named(options.architecture)
    except UserError as error:
        its_parser.error(str(error))
    positions = architecture.base.positions
    tokens = min(128, positions) if options.tokens is None else options.tokens
    if not 1 <= tokens <= positions:
        its_parser.error(f"--tokens: must be from 1 to the base's {positions} positions, not {tokens}")
    if options.json:
        print(json.dumps(shown.describe(architecture, tokens, options.labels, head), indent=2))
    elif options.latex:
        print("\n".join(layers_latex(architecture)))
    else:
        show(architecture, tokens, options.labels, head, terminal())
    return 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)

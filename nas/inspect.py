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
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from distill.cli import Parser
from distill.extensions import load_extensions
from nas.config.schema import ConfigError
from search_spaces import PUBLISHED, Architecture, Experts, UserError
from search_spaces import cost as costs
from search_spaces.formula import layers_latex
from search_spaces.published import load


def describe(
    architecture: Architecture, tokens: int = 128, labels: int = 3, head: costs.HeadCost = costs.CLASSIFIER
) -> dict[str, Any]:
    """Costs and layers as plain values, which `--json` prints. MACs are per sequence of `tokens` tokens."""
    return {
        "params": costs.params(architecture, labels, head),
        "params_active": costs.params_active(architecture, labels, head),
        "params_encoder": costs.params_encoder(architecture),
        "params_effective": costs.params_effective(architecture),
        "params_minimoe": costs.params_minimoe(architecture),
        "params_published": costs.params_published(architecture),
        "macs_linear": costs.macs_linear(architecture, tokens),
        "macs": costs.macs(architecture, tokens, labels, head),
        "flops": costs.flops(architecture, tokens),
        "speedup": costs.speedup(architecture),
        "attention_experts": architecture.base.attention_experts,
        "head_experts": architecture.base.head_experts,
        "layers": [
            {
                "formula": genes.formula,
                "stack": genes.stack,
                "expansion": str(genes.expansion if genes.stack else 0),
                "inner": genes.inner(architecture.base),
                "experts": genes.experts.count,
                **_experts(genes.experts),
            }
            for genes in architecture.layers
        ],
    }


def _experts(experts: Experts) -> dict[str, Any]:
    """The settings of experts except their number, including defaults; empty for a dense layer."""
    if experts.count == 1:
        return {}
    capacity = None if experts.capacity is None else str(experts.capacity)
    return {"shared": str(experts.shared), "routing": experts.routing, "top_k": experts.top_k, "capacity": capacity}


def found(name: str) -> Architecture:
    """The architecture that ARCH names.

    Raises:
        UserError: there is none, or the file is not one of an architecture.
    """
    path = Path(name)
    if name in PUBLISHED:
        return load(name)
    if path.is_dir():
        file = path / "architecture.json"
        if not file.exists():
            begun = " (a stage writes it when it ends; until then: python -m nas.pick)" if is_study(path) else ""
            raise ConfigError(f"{path} has no {file.name}{begun}")
        return Architecture.load(file)
    if path.name == "best.json" and path.is_file():
        try:
            return Architecture.from_json(json.loads(path.read_text(encoding="utf-8"))["winner"]["architecture"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: is not the best.json of a stage ({error})") from None
    return load(name)


def is_study(folder: Path) -> bool:
    """Whether this is the folder of a study."""
    return (folder / "config.toml").exists()


def show(architecture: Architecture, tokens: int, labels: int, head: costs.HeadCost, console: Console) -> None:
    """Print layers and costs as tables."""
    base = architecture.base
    facts = describe(architecture, tokens, labels, head)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("layer", "stack", "expansion", "inner", "params"):
        table.add_column(column, justify="right", no_wrap=True)
    routed = any(genes.experts.count > 1 for genes in architecture.layers)
    if routed:
        table.add_column("experts")
    table.add_column("formula", overflow="fold")
    for number, (layer, genes) in enumerate(zip(facts["layers"], architecture.layers, strict=True), start=1):
        numbers = (number, layer["stack"], layer["expansion"], layer["inner"])
        experts = [str(genes.experts)] if routed else []
        table.add_row(*map(str, numbers), f"{costs.ffn_params(base, genes):,}", *experts, layer["formula"])
    embedding = f"factorised, {base.embedding}" if base.embedding else "full width"
    attention = f", {base.attention_experts} attention experts" if base.attention_experts > 1 else ""
    attention += f", {base.head_experts} head experts" if base.head_experts > 1 else ""
    console.print(
        f"{base.depth} layers, width {base.width}, {base.heads} heads{attention}, "
        f"inner width {base.inner} at expansion 1, embedding {embedding}",
        soft_wrap=True,
    )
    console.print(table)
    rows = (
        ("parameters", "params", head.describe(labels)),
        ("", "params_active", "of these active for a token"),
        ("", "params_encoder", "without the head"),
        ("", "params_effective", "of these active for a token (MoEBERT)"),
        ("", "params_minimoe", "without it, with MiniMoE's maps for relations"),
        ("", "params_published", "without it, with a map to 768 channels (EfficientBERT, TinyBERT)"),
        ("MACs", "macs", f"for one sequence of {tokens} tokens"),
        ("", "macs_linear", "of these in the encoder's linear maps (MiniMoE)"),
        ("FLOPs", "flops", "as TinyBERT and MicroBERT count them"),
    )
    width = max(len(f"{facts[key]:,}") for _, key, _ in rows)
    for name, key, meaning in rows:
        console.print(f"{name:<10} {facts[key]:>{width},} {meaning}", soft_wrap=True)
    console.print(f"speedup    {facts['speedup']:>{width}.2f} over the base in linear maps (MoEBERT)")


def head_cost(name: str | None) -> costs.HeadCost:
    """The head for tasks of the type of this name. Raises UserError if there is no such type."""
    if name is None:
        return costs.CLASSIFIER
    from distill.tasks.types import task_type  # imports torch, which takes seconds

    try:
        return task_type(name).head
    except ValueError as error:
        raise UserError(f"--head: {error}") from None


def show_singular_values(folder: Path, console: Console) -> None:
    """Print how many singular values of a checkpoint's FFN output maps are large, and their weights if the others were
    left out (MiniMoE, table 12). Raises UserError as `spectra`.
    """
    from nas.singular_values import THRESHOLDS, spectra

    found = spectra(folder)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("layer", "block", "expert", *(f"above {threshold}" for threshold in THRESHOLDS), "weights"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(f"decomposed above {THRESHOLDS[1]}", justify="right", no_wrap=True)
    for one in found:
        count = len(one.values)
        above = (f"{one.above(threshold)}/{count} = {one.above(threshold) / count:.0%}" for threshold in THRESHOLDS)
        weights = (f"{one.shape[0] * one.shape[1]:,}", f"{one.params(THRESHOLDS[1]):,}")
        table.add_row(str(one.layer), str(one.block), str(one.expert or ""), *above, *weights)
    total = sum(len(one.values) for one in found)
    above = (f"{sum(one.above(threshold) for one in found) / total:.0%}" for threshold in THRESHOLDS)
    whole = sum(one.shape[0] * one.shape[1] for one in found)
    decomposed = sum(one.params(THRESHOLDS[1]) for one in found)
    table.add_section()
    table.add_row("all", "", "", *above, f"{whole:,}", f"{decomposed:,}")
    console.width = max(console.width, 120)
    console.print(table)


def parser() -> Parser:
    """The command line's options."""
    result = Parser(prog="nas.inspect", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    names = ", ".join(PUBLISHED)
    result.add_argument("architecture", metavar="ARCH", help=f"a JSON file, a study's folder, or one of {names}")
    result.add_argument(
        "--tokens", type=int, default=128, help="sequence length for which MACs are counted (default: %(default)s)"
    )
    result.add_argument("--labels", type=int, default=3, help="classes of the classifier (default: %(default)s)")
    result.add_argument(
        "--head", metavar="TYPE", help="the task type, such as token_classification (default: classification)"
    )
    form = result.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of a table")
    form.add_argument("--latex", action="store_true", help="print only the formula of each layer, in LaTeX")
    form.add_argument(
        "--singular-values",
        action="store_true",
        help="of a checkpoint, BERT's included: how many singular values of each FFN's or expert's output map are "
        "above 0.2, 0.1 and 0.05 of the largest",
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    its_parser = parser()
    options = its_parser.parse_args(argv)
    try:
        load_extensions()
        if options.singular_values:
            show_singular_values(Path(options.architecture), Console(highlight=False))
            return 0
        head = head_cost(options.head)
        architecture = found(options.architecture)
    except UserError as error:
        its_parser.error(str(error))
    positions = architecture.base.positions
    if not 1 <= options.tokens <= positions:
        its_parser.error(f"--tokens: must be from 1 to the base's {positions} positions, not {options.tokens}")
    if options.labels < 1:
        its_parser.error(f"--labels: must be at least 1, not {options.labels}")
    if options.json:
        print(json.dumps(describe(architecture, options.tokens, options.labels, head), indent=2))
    elif options.latex:
        print("\n".join(layers_latex(architecture)))
    else:
        show(architecture, options.tokens, options.labels, head, Console(highlight=False))
    return 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)

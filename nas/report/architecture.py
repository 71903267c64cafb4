"""What is shown of an architecture: its layers, and what it costs."""

import json
from pathlib import Path
from typing import Any

from distill.table import Column, Table, count
from nas.config.schema import ConfigError
from search_spaces import PUBLISHED, Architecture, Experts, cost
from search_spaces.architecture import DENSE
from search_spaces.published import load


def named(name: str) -> Architecture:
    """The architecture that this names: a published one, the JSON file of one, the best.json of a stage, or the folder
    of a study or checkpoint.

    Raises:
        UserError: there is none, or the file is not one of an architecture.
    """
    path = Path(name)
    if name in PUBLISHED:
        return load(name)
    if path.is_dir():
        file = path / "architecture.json"
        if not file.exists():
            is_study = (path / "config.toml").exists()
            begun = " (a stage writes it when it ends; until then: python -m nas.pick)" if is_study else ""
            raise ConfigError(f"{path} has no {file.name}{begun}")
        return Architecture.load(file)
    if path.name == "best.json" and path.is_file():
        try:
            return Architecture.from_json(json.loads(path.read_text(encoding="utf-8"))["winner"]["architecture"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: is not the best.json of a stage ({error})") from None
    return load(name)


def describe(
    architecture: Architecture, tokens: int = 128, num_labels: int = 3, head: cost.HeadCost = cost.CLASSIFIER
) -> dict[str, Any]:
    """Costs and layers as plain values, which `nas.inspect --json` prints. MACs are per sequence of `tokens` tokens."""
    return {
        "params": cost.params(architecture, num_labels, head),
        "params_active": cost.params_active(architecture, num_labels, head),
        "params_encoder": cost.params_encoder(architecture),
        "params_effective": cost.params_effective(architecture),
        "params_minimoe": cost.params_minimoe(architecture),
        "params_published": cost.params_published(architecture),
        "macs_linear": cost.macs_linear(architecture, tokens),
        "macs": cost.macs(architecture, tokens, num_labels, head),
        "flops": cost.flops(architecture, tokens),
        "speedup": cost.speedup(architecture),
        "head_experts": architecture.head.experts,
        "embedding_rank": architecture.embedding.rank,
        "layers": [
            {
                "formula": layer.ffn.formula,
                "stack": layer.ffn.stack,
                "expansion": str(layer.ffn.expansion if layer.ffn.stack else 0),
                "inner": layer.ffn.inner(architecture.base),
                "experts": layer.ffn.experts.count,
                **_experts(layer.ffn.experts),
                "heads": layer.attention.heads,
                "attention_experts": layer.attention.experts,
            }
            for layer in architecture.layers
        ],
    }


def _experts(experts: Experts) -> dict[str, Any]:
    """The settings of experts except their number, including defaults; empty for a dense layer."""
    if experts.count == 1:
        return {}
    capacity = None if experts.capacity is None else str(experts.capacity)
    return {"shared": str(experts.shared), "routing": experts.routing, "top_k": experts.top_k, "capacity": capacity}


def layers(architecture: Architecture) -> Table:
    """The layers, the lowest first; without pruned heads or experts there is no column for them."""
    columns = (
        Column("layer"),
        Column("heads"),
        Column("blocks"),
        Column("expansion"),
        Column("inner width"),
        Column("parameters", count),
        Column("experts", is_text=True),
        Column("FFN", is_text=True, is_code=True),
    )
    pruned = any(layer.attention.heads < architecture.base.heads for layer in architecture.layers)
    rows = [
        (
            number,
            layer.attention.heads if pruned else None,
            layer.ffn.stack,
            layer.ffn.expansion if layer.ffn.stack else 0,
            layer.ffn.inner(architecture.base),
            cost.ffn_params(architecture.base, layer.ffn),
            None if layer.ffn.experts == DENSE else layer.ffn.experts,
            layer.ffn.formula,
        )
        for number, layer in enumerate(architecture.layers, start=1)
    ]
    return Table(columns, rows)


def costs(architecture: Architecture, tokens: int, num_labels: int, head: cost.HeadCost) -> Table:
    """All costs, and what each of them counts."""
    facts = describe(architecture, tokens, num_labels, head)
    rows = (
        ("parameters", "params", head.describe(num_labels)),
        ("", "params_active", "of these active for a token"),
        ("", "params_encoder", "without the head"),
        ("", "params_effective", "of these active for a token (MoEBERT)"),
        ("", "params_minimoe", "without it, with MiniMoE's maps for relations"),
        ("", "params_published", "without it, with a map to 768 channels (EfficientBERT, TinyBERT)"),
        ("MACs", "macs", f"for one sequence of {tokens} tokens"),
        ("", "macs_linear", "of these in the encoder's linear maps (MiniMoE)"),
        ("FLOPs", "flops", "as TinyBERT and MicroBERT count them"),
        ("speedup", "speedup", "over the base in linear maps (MoEBERT)"),
    )
    columns = (Column("cost", is_text=True), Column("", count), Column("what is counted", is_text=True))
    return Table(columns, [(name, facts[key], meaning) for name, key, meaning in rows])

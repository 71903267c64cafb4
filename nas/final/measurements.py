"""Evaluates trained models: scores on the dev split, latency, parameters and MACs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from transformers import PreTrainedModel

from distill.tasks.encoding import collate
from distill.training.evaluation import Load, evaluate
from nas.evaluate import Evaluator
from nas.latency.table import latencies
from search_spaces import cost
from search_spaces.architecture import Architecture


@dataclass(frozen=True)
class Measurements:
    """Scores and costs of several models.

    Attributes:
        models: name -> metrics and costs, as they are written to metrics.json.
        dev_rows: the number of rows of the dev split.
        tokens: the length of the sentence for which latency and MACs are given: the median of the dev split.
        loads: the loads of the student's experts.
    """

    models: dict[str, dict[str, Any]]
    dev_rows: int
    tokens: int
    loads: tuple[Load, ...]


def measure(
    evaluator: Evaluator,
    models: Mapping[str, PreTrainedModel],
    architectures: Mapping[str, Architecture],
    loads_of: str,
) -> Measurements:
    """Score all models on the whole dev split, and measure their latencies in turns.

    Args:
        architectures: the architectures of models, from which their costs follow; a teacher may have none.
        loads_of: the name of the model whose experts' loads are counted.
    """
    accelerator, task, pad_id = evaluator.accelerator, evaluator.task, evaluator.supernet_config.pad_token_id
    folders, labels = evaluator.workspace.folders, evaluator.workspace.labels
    dev, split = folders.rows("dev"), folders.split("dev")
    loads = evaluator.loads(models[loads_of], dev)
    sentence = collate(dev, dev.lengths.argsort()[len(dev) // 2 : len(dev) // 2 + 1], pad_id)
    batch = {key: tensor.to(accelerator.device) for key, tensor in sentence.items()}
    tokens = batch["input_ids"].shape[1]
    results: dict[str, dict[str, Any]] = {}
    for name, model in models.items():
        scores = evaluate(model, dev, split, task, accelerator=accelerator, pad_id=pad_id)
        results[name] = {
            metric: {"value": score.value, "standard_error": score.standard_error} for metric, score in scores.items()
        }
    for name, latency in latencies(dict(models), batch).items():
        results[name]["latency_ms"] = 1e3 * latency.median
        results[name]["latency_quartiles_ms"] = [1e3 * latency.lower, 1e3 * latency.upper]
    for name, model in models.items():
        results[name]["params"] = sum(parameter.numel() for parameter in model.parameters())
    for name, architecture in architectures.items():
        idle = cost.params(architecture, labels) - cost.params_active(architecture, labels)
        results[name]["params_active"] = results[name]["params"] - idle
        results[name]["ffn_params"] = sum(cost.ffn_params(architecture.base, genes) for genes in architecture.layers)
        results[name]["macs"] = cost.macs(architecture, tokens, labels, task.type.head)
    return Measurements(results, len(split), tokens, loads)


def table(models: Mapping[str, Mapping[str, Any]], metrics: Sequence[str], slowest: str) -> Table:
    """The measurements as a table with a row for each model; speed-ups are relative to the model named `slowest`."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("model", *metrics, "parameters", "in FFNs", "MACs", "latency", "speed-up"):
        result.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    reference = models[slowest]["latency_ms"]
    for name, row in models.items():
        result.add_row(
            name,
            *(f"{row[metric]['value']:.4f} ± {row[metric]['standard_error']:.4f}" for metric in metrics),
            f"{row['params'] / 1e6:.2f} M",
            f"{row['ffn_params'] / 1e6:.2f} M" if "ffn_params" in row else "",
            f"{row['macs'] / 1e6:.0f} M" if "macs" in row else "",
            f"{row['latency_ms']:.1f} ms",
            f"{reference / row['latency_ms']:.2f}×",
        )
    return result

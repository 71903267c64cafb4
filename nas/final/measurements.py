"""Evaluates trained models: scores on the dev split, latency, parameters and MACs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from transformers import PreTrainedModel

from distill.tasks.encoding import collate
from distill.tasks.metrics import Score, paired_difference
from distill.tasks.task import Task, scores_of
from distill.training.evaluation import Load, evaluate_rows
from nas.evaluation.trained import TrainedEvaluator
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
    evaluator: TrainedEvaluator,
    models: Mapping[str, PreTrainedModel],
    architectures: Mapping[str, Architecture],
    loads_of: str,
    reference: str,
) -> Measurements:
    """Score all models on the whole dev split, and measure their latencies in turns.

    Args:
        reference: the name of the model with which the others are compared.
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
    rows = {
        name: evaluate_rows(model, dev, split, task, accelerator=accelerator, pad_id=pad_id)
        for name, model in models.items()
    }
    results = compared(task, rows, reference)
    for name, latency in latencies(dict(models), batch).items():
        results[name]["latency_ms"] = 1e3 * latency.median
        results[name]["latency_quartiles_ms"] = [1e3 * latency.lower, 1e3 * latency.upper]
    for name, model in models.items():
        results[name]["params"] = sum(parameter.numel() for parameter in model.parameters())
    for name, architecture in architectures.items():
        idle = cost.params(architecture, labels) - cost.params_active(architecture, labels)
        results[name]["params_active"] = results[name]["params"] - idle
        results[name]["ffn_params"] = sum(cost.ffn_params(architecture.base, genes) for genes in architecture.ffns)
        results[name]["macs"] = cost.macs(architecture, tokens, labels, task.type.head)
    return Measurements(results, len(split), tokens, loads)


def compared(task: Task, rows: Mapping[str, Mapping[str, np.ndarray]], reference: str) -> dict[str, dict[str, Any]]:
    """For each model and metric the value and, unless it is the reference, its paired difference to the value of the
    reference and its share of that value (None if that is not positive).

    Args:
        rows: the contributions of the dev rows by model and metric, of shape (N,) or (N, K).
    """
    scores = {name: scores_of(task, of_metrics) for name, of_metrics in rows.items()}
    results: dict[str, dict[str, Any]] = {
        name: {metric: asdict(score) for metric, score in found.items()} for name, found in scores.items()
    }
    for name in rows.keys() - {reference}:
        for metric, score in scores[name].items():
            difference = paired_difference(task.type.metrics[metric], rows[name][metric], rows[reference][metric])
            whole = scores[reference][metric].value
            share = score.value / whole if whole > 0 else None
            results[name][metric]["difference"] = {"to": reference, **asdict(difference), "share": share}
    return results


def table(models: Mapping[str, Mapping[str, Any]], metrics: Sequence[str], reference: str) -> Table:
    """The measurements as a table with a row for each model; speed-ups, and the paired differences of the first metric,
    are relative to the model named `reference`.
    """
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = (*metrics, f"{metrics[0]} − {reference}'s", "parameters", "in FFNs", "MACs", "latency", "speed-up")
    for column in ("model", *columns):
        result.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    latency_ms = models[reference]["latency_ms"]
    for name, row in models.items():
        result.add_row(
            name,
            *(str(Score(row[metric]["value"], row[metric]["standard_error"])) for metric in metrics),
            _difference(row[metrics[0]].get("difference")),
            f"{row['params'] / 1e6:.2f} M",
            f"{row['ffn_params'] / 1e6:.2f} M" if "ffn_params" in row else "",
            f"{row['macs'] / 1e6:.0f} M" if "macs" in row else "",
            f"{row['latency_ms']:.1f} ms",
            f"{latency_ms / row['latency_ms']:.2f}×",
        )
    return result


def _difference(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return ""
    share = "" if found["share"] is None else f" ({found['share']:.1%})"
    return f"{found['value']:+.4f} ± {found['standard_error']:.4f}{share}"

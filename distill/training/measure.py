"""What is measured of a model: its scores with their errors, its size and costs, and the loads of its experts."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from distill.tasks.metrics import paired_difference
from distill.tasks.task import Task, scores_of
from distill.training.evaluation import EvalSet, expert_load
from search_spaces import cost
from search_spaces.architecture import Architecture

# By the name of a model: metrics and costs, as metrics.json has them.
Measurements = dict[str, dict[str, Any]]


def measure(
    models: Mapping[str, PreTrainedModel],
    eval_set: EvalSet | None,
    accelerator: Accelerator,
    *,
    architectures: Mapping[str, Architecture] | None = None,
    reference: str | None = None,
    tokens: int = 128,
) -> Measurements:
    """For each model its parameters (`params`) and, if there is an eval set, all metrics, see `scores`, the loads of
    its experts (`expert_load`), if it has any, and its `costs`, if its architecture is given.

    Args:
        reference: the model with which the others are compared.
        tokens: the length of the sentence for which MACs are counted.
    """
    result: Measurements = {
        name: {"params": sum(parameter.numel() for parameter in model.parameters())} for name, model in models.items()
    }
    if eval_set is None:
        return result
    task = eval_set.task
    contributions = {name: eval_set.contributions(model, accelerator) for name, model in models.items()}
    for name, metrics in scores(task, contributions, reference).items():
        result[name] |= metrics
        if loads := expert_load(models[name], eval_set.batches(), accelerator=accelerator):
            result[name]["expert_load"] = [load.to_json() for load in loads]
    for name, architecture in (architectures or {}).items():
        if name in models:
            result[name] |= costs(architecture, result[name]["params"], task, tokens)
    return result


def scores(
    task: Task, contributions: Mapping[str, Mapping[str, np.ndarray]], reference: str | None = None
) -> dict[str, dict[str, Any]]:
    """For each model and metric the value and its standard error. If there is a reference, the other models also have
    the paired difference to its value and the fraction of its value (`share`; None if that is not positive).

    Args:
        contributions: of the examples by model and metric, of shape (N,) or (N, K).
    """
    by_model = {name: scores_of(task, of_metrics) for name, of_metrics in contributions.items()}
    results: dict[str, dict[str, Any]] = {
        name: {metric: asdict(score) for metric, score in metrics.items()} for name, metrics in by_model.items()
    }
    if reference is None:
        return results
    for name in contributions.keys() - {reference}:
        for metric, score in by_model[name].items():
            pair = contributions[name][metric], contributions[reference][metric]
            difference = paired_difference(task.type.metrics[metric], [pair])
            whole = by_model[reference][metric].value
            fraction = score.value / whole if whole > 0 else None
            results[name][metric]["difference"] = {"to": reference, **asdict(difference), "share": fraction}
    return results


def costs(architecture: Architecture, params: int, task: Task, tokens: int) -> dict[str, int]:
    """The parameters of a model with this architecture, `params` in all, that are active for a token and that are in
    FFNs, and its MACs for a sentence.
    """
    labels, head = len(task.labels), task.type.head
    idle = cost.params(architecture, labels, head) - cost.params_active(architecture, labels, head)
    return {
        "params_active": params - idle,
        "ffn_params": sum(cost.ffn_params(architecture.base, ffn) for ffn in architecture.ffns),
        "macs": cost.macs(architecture, tokens, labels, head),
    }


def environment(accelerator: Accelerator) -> dict[str, Any]:
    """What the last digits of measurements depend on, for metrics.json."""
    return {
        "device": str(accelerator.device),
        "precision": accelerator.mixed_precision,
        "processes": accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }

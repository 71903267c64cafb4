"""Compares compensated inheritance with two retraining-free pruning methods, at equal numbers of inner neurons.

All methods prune the inner neurons of the same supernet, which has one block per layer, and see only training rows:

Kwon: neurons are ranked in the whole network by the diagonal of the empirical Fisher matrix of their masks, then every
    kept neuron of a layer may change places with a pruned one, and one factor per kept neuron is solved for, layer
    after layer (Kwon et al., 2022, section 4). Unlike there, the factors aim at the sums of the unpruned model instead
    of a half-pruned one, at all tokens of the uppermost layer, too, and are solved for exactly instead of by LSMR.
K-prune: from the lowest layer up, all neurons that are not decided yet are scored in the pruned model by what the
    predictions and the layer's output lose, the layer is pruned by a threshold for the whole remaining network, and its
    `project` is solved for by least squares without a ridge (Park et al., 2024, section 3). It is run with both
    published weights of the second term, and has the better score of the two.

The others are the baselines of a search, compensated (`supernet.compensation`). Kwon and K-prune have --rows training
rows, more than the preset's calibration.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import prune_linear_layer

from benchmarks.candidates import phases_of
from benchmarks.common import Kept, Report, difference, timed
from distill.encoders.parts import encoder_layers, model_inputs
from distill.objectives.outputs import Batch
from distill.tasks.encoding import collate, eval_batches, take
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.budget import limits_of
from nas.planning.finalists import ALLOCATED, GLOBAL, UNIFORM
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from search_spaces import Architecture
from supernet.build import build
from supernet.inherit import inherit
from supernet.module_inputs import module_inputs
from supernet.order.importance import summed_loss

BATCH = 32
# Kwon: the strength with which factors are kept at 1, and the factor above which layers are left as they are.
DAMPING, LARGEST = 1.0, 10.0
# K-prune: the weight of the change of the layer's output against that of the predictions, and the temperature.
WEIGHTS = (2.5e-4, 1e-5)
TEMPERATURE = 2.0
Row = dict[str, Any]


def blocks_of(model: PreTrainedModel) -> list[Any]:
    """The only block of each layer."""
    return [layer.ffn[0] for layer in encoder_layers(model)]


def mask_gradients(
    model: PreTrainedModel, batches: Sequence[Batch], loss: Callable[[nn.Module, int], Tensor]
) -> list[Tensor]:
    """The gradients of the loss of each batch with respect to a factor of every inner neuron: `[layer]` -> (N, E) for N
    batches.

    Args:
        loss: of the model on the batch with this number, a mean over rows.
    """
    inputs: dict[int, Tensor] = {}

    def keep(layer: int) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs[layer] = arguments[0]

        return hook

    blocks = blocks_of(model)
    hooks = [block.project.register_forward_pre_hook(keep(layer)) for layer, block in enumerate(blocks)]
    gradients_of: list[list[Tensor]] = [[] for _ in blocks]
    model.eval()
    for number in range(len(batches)):
        gradients = torch.autograd.grad(loss(model, number), [inputs[layer] for layer in range(len(blocks))])
        for layer, gradient in enumerate(gradients):
            product_BTE = inputs[layer].detach() * gradient
            gradients_of[layer].append(product_BTE.flatten(0, -2).sum(dim=0).double())
    for hook in hooks:
        hook.remove()
    return [torch.stack(of_layer) for of_layer in gradients_of]


def prune(block: Any, kept_E: Tensor) -> None:
    """Keep only these inner neurons of a block."""
    block.expand = prune_linear_layer(block.expand, kept_E, dim=0)
    block.project = prune_linear_layer(block.project, kept_E, dim=1)


def highest(scores: Sequence[Tensor], total: int) -> list[Tensor]:
    """The indices of the neurons of each layer that are among the `total` highest of all layers, and of the highest of
    every layer.
    """
    threshold = torch.cat(list(scores)).sort(descending=True).values[total - 1]
    return [torch.nonzero(score >= min(threshold, score.max()))[:, 0] for score in scores]


def rearranged(gradients_NE: Tensor, kept: Tensor) -> Tensor:
    """Let every kept neuron change places with the pruned one that makes the summed gradient of what is pruned
    shortest, if that makes it shorter (Kwon et al., section 4.2).
    """
    is_kept = torch.zeros(gradients_NE.shape[1], dtype=torch.bool)
    is_kept[kept] = True
    pruned_N = gradients_NE[:, ~is_kept].sum(dim=1)
    for neuron in kept.tolist():
        others = torch.nonzero(~is_kept)[:, 0]
        if not len(others):
            break
        swapped_NO = (pruned_N + gradients_NE[:, neuron])[:, None] - gradients_NE[:, others]
        lengths_O = (swapped_NO**2).sum(dim=0)
        best = int(lengths_O.argmin())
        if lengths_O[best] < (pruned_N**2).sum():
            pruned_N = swapped_NO[:, best]
            is_kept[neuron], is_kept[others[best]] = False, True
    return torch.nonzero(is_kept)[:, 0]


def inputs_and_sums(
    model: PreTrainedModel, layer: int, batches: Sequence[Batch], accelerator: Accelerator
) -> tuple[Tensor, Tensor]:
    """The inputs (N, E) of `project` in a layer, and the sums (N, D) before its LayerNorm."""
    block = blocks_of(model)[layer]
    input_NE, sum_ND = module_inputs(model, [block.project, block.LayerNorm], batches, accelerator.autocast)
    return input_NE.double(), sum_ND.double()


@torch.no_grad()
def rescale(block: Any, input_NE: Tensor, error_ND: Tensor) -> bool:
    """Solve for one factor for every inner neuron of a block, by least squares damped towards 1; leaves the block as it
    is, and returns False, if a factor is too large.
    """
    weight_DE = block.project.weight.double()
    moments_EE = (input_NE.t() @ input_NE) * (weight_DE.t() @ weight_DE)
    target_E = (input_NE * (error_ND @ weight_DE)).sum(dim=0)
    eye_EE = torch.eye(len(target_E), dtype=torch.float64)
    factor_E = 1 + torch.linalg.solve(moments_EE + DAMPING**2 * eye_EE, target_E)
    if float(factor_E.abs().max()) > LARGEST:
        return False
    block.project.weight.copy_(weight_DE * factor_E)
    return True


@torch.no_grad()
def solve_again(block: Any, input_NE: Tensor, error_ND: Tensor) -> None:
    """Solve for the weight of `project` by least squares without a ridge."""
    change_ED = torch.linalg.lstsq(input_NE, error_ND, driver="gelsd").solution
    block.project.weight.add_(change_ED.t().to(block.project.weight.dtype))


def kwon(model: PreTrainedModel, batches: Sequence[Batch], total: int, accelerator: Accelerator) -> None:
    """Prune a model to `total` inner neurons as Kwon et al. do."""
    gradients = mask_gradients(model, batches, lambda model, number: _mean_loss(model, batches[number], accelerator))
    targets = sums_of(model, batches, accelerator)
    kept = highest([(of_layer**2).sum(dim=0) for of_layer in gradients], total)
    for block, of_layer, neurons in zip(blocks_of(model), gradients, kept, strict=True):
        prune(block, rearranged(of_layer, neurons))
    for layer, (block, target_ND) in enumerate(zip(blocks_of(model), targets, strict=True)):
        input_NE, sum_ND = inputs_and_sums(model, layer, batches, accelerator)
        if not rescale(block, input_NE, target_ND - sum_ND):
            break


def k_prune(
    model: PreTrainedModel, batches: Sequence[Batch], total: int, accelerator: Accelerator, weight: float
) -> None:
    """Prune a model to `total` inner neurons as K-prune does.

    Args:
        weight: of the change of the layer's output in the score of a neuron.
    """
    with torch.no_grad(), accelerator.autocast():
        wanted = [_logits(model, batch).float() for batch in batches]
    targets = sums_of(model, batches, accelerator)
    blocks = blocks_of(model)
    remaining = total

    def divergence(model: nn.Module, number: int) -> Tensor:
        with accelerator.autocast():
            logits = _logits(model, batches[number]).float()
        own, other = ((value / TEMPERATURE).log_softmax(dim=-1) for value in (logits, wanted[number]))
        return nn.functional.kl_div(own, other, log_target=True, reduction="batchmean") * TEMPERATURE**2

    for layer, (block, target_ND) in enumerate(zip(blocks, targets, strict=True)):
        gradients = mask_gradients(model, batches, divergence)
        projects = [upper.project for upper in blocks[layer:]]
        scores = []
        for project, inputs_NE, of_layer in zip(
            projects, module_inputs(model, projects, batches, accelerator.autocast), gradients[layer:], strict=True
        ):
            change_E = (inputs_NE**2).mean(dim=0) * (project.weight.detach() ** 2).mean(dim=0)
            scores.append((of_layer**2).mean(dim=0) / 2 + weight * change_E.double())
        # The layers above need at least one neuron each.
        neurons = highest(scores, remaining)[0][: max(1, remaining - (len(blocks) - layer - 1))]
        prune(block, neurons)
        remaining -= len(neurons)
        input_NE, sum_ND = inputs_and_sums(model, layer, batches, accelerator)
        solve_again(block, input_NE, target_ND - sum_ND)


def sums_of(model: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator) -> list[Tensor]:
    """The sums (N, D) before the LayerNorm of every layer, in float64."""
    norms = [block.LayerNorm for block in blocks_of(model)]
    return [sum_ND.double() for sum_ND in module_inputs(model, norms, batches, accelerator.autocast)]


def _mean_loss(model: nn.Module, batch: Batch, accelerator: Accelerator) -> Tensor:
    with accelerator.autocast():
        return summed_loss(model, batch) / len(batch["input_ids"])


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits: Tensor = model(**model_inputs(model, batch)).logits
    return logits


def pruned(
    evaluator: TrainedEvaluator, batches: Sequence[Batch], total: int, method: Callable[..., None]
) -> PreTrainedModel:
    """A copy of the lowest blocks of the supernet, pruned to `total` inner neurons by `kwon` or `k_prune`."""
    base, graph = evaluator.workspace.base()
    whole = Architecture.uniform(base, graph, 1)
    weights = inherit(evaluator.weights, whole, evaluator.frequencies, evaluator.config.seed)
    model = build(whole, evaluator.task.type, template=evaluator.supernet_config, weights=weights)
    method(model, batches, total, evaluator.accelerator)
    return model


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--budgets", type=int, nargs="+", default=[8, 16], help="n of 1/n; default: 8 16")
    parser.add_argument(
        "--rows", type=int, default=1024, help="training rows of Kwon and K-prune; default: %(default)s"
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 60], help="of the training; default: 0 60")
    parser.add_argument("--supernets", type=int, nargs="+", default=[0, 1, 2], help="seeds; default: 0 1 2")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset).model_dump(mode="json")
    kept = Kept(report, {"config": config, "rows": options.rows, "steps": options.steps}, options.supernets)
    places = list(product(options.budgets, options.supernets))
    of_places = {
        place: kept("1/{}, supernet {}".format(*place), partial(of_budget, options, *place)) for place in places
    }
    show(of_places, options, report)


def of_budget(options: Namespace, budget: int, supernet: int) -> dict[str, Row]:
    """By method, on one supernet: the widths, the seconds of pruning, and the scores after each number of steps."""
    config = load_config(options.preset, {"space.uniform": f"1/{budget}", "seed": supernet})
    evaluator = TrainedEvaluator(prepare(config))
    workspace = evaluator.workspace
    base, _ = workspace.base()
    train, pad_id = workspace.folders.rows("train"), evaluator.supernet_config.pad_token_id
    chosen = take(
        train, torch.randperm(len(train), generator=torch.Generator().manual_seed(supernet)).numpy()[: options.rows]
    )
    batches = [collate(chosen, batch, pad_id) for batch in eval_batches(chosen, BATCH)]
    total = base.depth * base.inner // budget
    methods: dict[str, Callable[[], PreTrainedModel]] = {"Kwon": partial(pruned, evaluator, batches, total, kwon)}
    for weight in WEIGHTS:
        methods[f"K-prune, {weight:g}"] = partial(pruned, evaluator, batches, total, partial(k_prune, weight=weight))
    for architecture, origin, _ in plan(config, workspace, "1", None, limits_of(config, workspace)).baselines:
        if origin in (UNIFORM, GLOBAL, ALLOCATED[0]):
            methods[f"compensated, {origin}"] = partial(evaluator.student, architecture)
    rows = {}
    for name, make in methods.items():
        model, seconds = timed(make)
        widths = [block.expand.out_features for layer in encoder_layers(model) for block in layer.ffn]
        weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        scores = []
        for steps in options.steps:
            model.load_state_dict(weights)
            if steps:
                evaluator.train(model, phases_of(evaluator, steps), supernet)
            scores.append(evaluator.score(model).value)
        rows[name] = {"widths": widths, "seconds": seconds, "scores": scores}
    return rows


def show(of_places: Mapping[tuple[int, int], dict[str, Row]], options: Namespace, report: Report) -> None:
    """Print the mean scores over supernets, and the differences to the best of K-prune and Kwon of each supernet."""
    lines = []
    for budget in options.budgets:
        of_supernets = [of_places[budget, supernet] for supernet in options.supernets]
        methods = list(of_supernets[0])
        published = [method for method in methods if not method.startswith("compensated")]
        for method in methods:
            cells = []
            for place in range(len(options.steps)):
                own = [rows[method]["scores"][place] for rows in of_supernets]
                text = f"{mean(own):.4f}"
                if method not in published:
                    best = [max(rows[other]["scores"][place] for other in published) for rows in of_supernets]
                    text += f" ({difference(own, best).with_error(4, '+')})"
                cells.append(text)
            seconds = mean(rows[method]["seconds"] for rows in of_supernets)
            lines.append([f"1/{budget}", method, *cells, f"{seconds:.1f}"])
    report.table(["budget", "method", *(f"{steps} steps" for steps in options.steps), "seconds"], lines)

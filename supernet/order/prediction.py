"""Predicts by how much a narrower layer or another activation raises the loss (its "predicted loss") in closed form, so
that no candidate is built or trained.

A layer computes y = W h + b from the channels h = op(expand(x)), or with a gate h = op(expand(x)) gate(x). With only
its first k channels, or another activation, and with W and b refitted, it computes the linear regression of y on these
channels; in families without biases b is 0. Half the error of the regression, in the metric of the Fisher information
of y, is the increase in loss to second order (`supernet.order.moments`). A layer without an FFN approximates y channel
by channel, y_d ≈ a_d x_d + b_d, which refits the LayerNorm before it; in families whose LayerNorms come first, by the
mean of y, or without biases by 0.

Attention heads are predicted alike: y is then the output of the attention, and h are the outputs of the heads.

A word embedding of lower rank changes the sum of the embeddings, before their LayerNorm, by a known amount; the
increase in loss is half its square in the metric of that sum.

Dimensions are those of `supernet.order.moments`: N tokens without padding, E channels, D channels of the output.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from distill.objectives.outputs import Batch
from supernet.embedding import principal_axes
from supernet.module_inputs import module_inputs
from supernet.order.gradients import OUTPUT, Loss, gradients
from supernet.order.moments import FisherMatrices, MomentsError
from supernet.order.reconstruction import root_of

# The ridge, relative to the variance of the channels, without which the regression on dependent channels is undefined;
# where it is not enough, it is raised tenfold.
RIDGE = 1e-6


def predicted_losses(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    matrices: FisherMatrices,
    operations: Sequence[str],
    limit: int,
) -> dict[str, list[Tensor]]:
    """By how much the loss rises if the lowest block of one layer keeps only its leading channels, for each activation.
    A sum over layers ignores how their errors interact.

    Args:
        model: a dense supernet whose graphs end with `project`, with its channels in order.
        batches: batches of tensors (B, ...) of training data.
        matrices: those of the model, with `supernet.order.moments.sampled_loss`.
        operations: unary operations.
        limit: the largest number of channels, L.

    Returns:
        operation -> `[layer]` -> (L + 1,), nats per token; entry k is for k channels, and entry 0 for no FFN.

    Raises:
        MomentsError: an activation is not finite.
    """
    losses: dict[str, list[Tensor]] = {op: [] for op in operations}
    blocks: list[Any] = [layer.ffn[0] for layer in encoder_layers(model)]
    inputs = module_inputs(model, blocks, batches)
    for block, metric_DD, inputs_ND in zip(blocks, matrices.ffns, inputs, strict=True):
        root_DD = root_of(metric_DD)
        with torch.no_grad():
            x_ND = block.normalized(inputs_ND.to(model.device))
            output_ND, has_bias = block.f(x_ND).double().cpu(), block.project.bias is not None
            left_ND = _left(inputs_ND, output_ND, has_bias, block.pre_norm)
            without = (left_ND @ root_DD).square().sum() / len(x_ND)
            expanded_NE = block.expand(x_ND)[:, :limit]
            gate_NE = block.gate(x_ND)[:, :limit].cpu() if hasattr(block, "gate") else 1.0
            for op in operations:
                channels_NE = block.apply_op(op, [expanded_NE]).cpu() * gate_NE
                if not bool(torch.isfinite(channels_NE).all()):
                    raise MomentsError(f"layer {len(losses[op])}: the outputs of {op} are not finite")
                errors = regression_errors(channels_NE, output_ND @ root_DD, has_bias)
                losses[op].append(torch.cat((without[None], errors[1:])) / 2)
    return losses


def predicted_losses_of_heads(
    model: PreTrainedModel, batches: Sequence[Batch], matrices: FisherMatrices
) -> list[Tensor]:
    """By how much the loss rises if the attention of one layer keeps only its leading heads: `[layer]` -> (heads + 1,),
    nats per token as for `predicted_losses`; entry k is for k heads.

    Args:
        model: a dense supernet with its heads in order.
        batches, matrices: as for `predicted_losses`.
    """
    family = family_of(model)
    heads = family.size(model.config, "heads")
    layers = encoder_layers(model)
    maps = [part(layer, family.output) for layer in layers]
    inputs = module_inputs(model, [*layers, *maps], batches)
    losses = []
    for linear, metric_DD, input_ND, context_NE in zip(
        maps, matrices.attentions, inputs[: len(layers)], inputs[len(layers) :], strict=True
    ):
        root_DD = root_of(metric_DD)
        output_ND, has_bias = linear(context_NE.to(model.device)).detach().double().cpu(), linear.bias is not None
        left_ND = _left(input_ND, output_ND, has_bias, family.pre_norm)
        without = (left_ND @ root_DD).square().sum() / len(input_ND)
        errors = regression_errors(context_NE, output_ND @ root_DD, has_bias)[:: context_NE.shape[1] // heads]
        losses.append(torch.cat((without[None], errors[1:])) / 2)
    return losses


def predicted_losses_of_ranks(
    model: PreTrainedModel, batches: Iterable[Batch], loss: Loss, frequencies: Tensor
) -> Tensor:
    """By how much the loss rises if the word embedding has rank r, for r = 0 ... D: (D + 1,), nats per token as for
    `predicted_losses`. No weights are refitted to compensate for it.

    Args:
        model: a model with the full word embedding.
        batches: as for `predicted_losses`.
        loss: such as `supernet.order.moments.sampled_loss(seed)`.
        frequencies: how often each token occurs (vocabulary,), as for `supernet.embedding.principal_axes`.

    Raises:
        MomentsError: a gradient is not finite, or there are no batches.
    """
    base: Any = model.base_model
    family = family_of(model)
    embedding_VD = part(base, family.words).weight.detach().double().cpu()
    axes_DD = principal_axes(embedding_VD, frequencies.cpu())
    words, width = part(base, family.words), embedding_VD.shape[1]
    products_DD, metric_DD = torch.zeros(2, width, width, dtype=torch.float64)
    tokens = 0
    for batch, values in gradients(model, batches, loss, {OUTPUT: (words, OUTPUT)}):
        valid_BT = batch["attention_mask"].bool()
        embedded_ND = embedding_VD[batch["input_ids"][valid_BT].cpu()]
        gradient_BTD = values[OUTPUT][1]
        assert gradient_BTD is not None  # everything is computed from it
        gradient_ND = gradient_BTD[valid_BT].double().cpu()
        products_DD += embedded_ND.t() @ embedded_ND
        metric_DD += gradient_ND.t() @ gradient_ND
        tokens += len(embedded_ND)
    if not tokens or not bool(torch.isfinite(metric_DD).all()):
        raise MomentsError("embeddings: there are no tokens, or gradients are not finite; lower the learning rate")
    # Entry r is the sum over all pairs (i, j) of dropped axes, i, j >= r, of the products' entry times the metric's:
    # that of the lower right corner.
    pairs_DD = (axes_DD.t() @ products_DD @ axes_DD) * (axes_DD.t() @ metric_DD @ axes_DD) / tokens**2
    corners_D = pairs_DD.flip(0, 1).cumsum(0).cumsum(1).diagonal().flip(0)
    return torch.cat((corners_D.clamp(min=0) / 2, torch.zeros(1, dtype=torch.float64)))


def _left(input_ND: Tensor, output_ND: Tensor, has_bias: bool, pre_norm: bool) -> Tensor:
    """What is lost of the outputs (N, D) without the FFN or the attention, whose inputs these are."""
    if pre_norm:
        return _centered(output_ND) if has_bias else output_ND
    return affine_residuals(input_ND, output_ND)


def affine_residuals(input_ND: Tensor, target_ND: Tensor) -> Tensor:
    """The residuals (N, D) of the regressions of every target on the same channel of the input alone and a constant."""
    centered_ND, target_ND = _centered(input_ND.double()), _centered(target_ND)
    variance_D = centered_ND.square().mean(dim=0)
    slope_D = torch.where(variance_D > 0, (centered_ND * target_ND).mean(dim=0) / variance_D.clamp(min=1e-300), 0)
    return target_ND - slope_D * centered_ND


def regression_errors(channels_NE: Tensor, target_ND: Tensor, constant: bool = True) -> Tensor:
    """The mean squared error, summed over D, of the regressions of a target on the first k channels, for k = 0 ... E:
    (E + 1,).

    Args:
        constant: whether on a constant, too.

    Raises:
        MomentsError: a channel is not finite.
    """
    if not bool(torch.isfinite(channels_NE).all()):
        raise MomentsError("the outputs of a layer are not finite")
    tokens = len(channels_NE)
    centered_NE = channels_NE.double()
    if constant:
        centered_NE, target_ND = _centered(centered_NE), _centered(target_ND)
    deviation_E = centered_NE.square().mean(dim=0).sqrt()
    # Constant channels deviate by rounding errors only.
    constant_E = deviation_E <= 1e-7 * channels_NE.double().abs().amax(dim=0)
    scaled_NE = centered_NE * torch.where(constant_E, 0, 1 / deviation_E)
    covariance_EE = scaled_NE.t() @ scaled_NE / tokens
    across_ED = scaled_NE.t() @ target_ND / tokens
    ridge = RIDGE
    while True:
        factor_EE, failed = torch.linalg.cholesky_ex(covariance_EE + ridge * torch.eye(len(covariance_EE)).double())
        if not int(failed):
            break
        ridge *= 10
    # Row k is what the k-th channel explains beyond the channels before it.
    explained_ED = torch.linalg.solve_triangular(factor_EE, across_ED, upper=False)
    total = target_ND.square().sum() / tokens
    explained_E = torch.cat((torch.zeros(1, dtype=torch.float64), explained_ED.square().sum(dim=1).cumsum(0)))
    return (total - explained_E).clamp(min=0)


def _centered(values: Tensor) -> Tensor:
    return values - values.mean(dim=0)

"""Zero-cost proxies: signals of what a candidate is worth that need no training of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.objectives import terms
from distill.objectives.losses import soft_cross_entropy
from distill.objectives.outputs import INPUTS, Batch, Outputs
from supernet.model.dispatch import Tokens
from supernet.order.importance import summed_loss

HARD = terms.labels(1.0).loss
SOFT = terms.soft_labels("soft labels", 1.0, soft_cross_entropy).loss


def losses(
    logits: Sequence[Tensor], teacher: Sequence[Tensor], batches: Sequence[Batch], kind: str
) -> tuple[float, float]:
    """The loss with the labels and the loss with the teacher's predictions, means over rows.

    Args:
        logits: of each batch, as `distill.training.evaluation.batch_logits` returns them.
        teacher: the teacher's.
        kind: the type of the task.
    """
    rows = sum(len(batch["input_ids"]) for batch in batches)
    hard = soft = 0.0
    for own_logits, target, batch in zip(logits, teacher, batches, strict=True):
        share = len(own_logits) / rows
        hard += share * float(HARD(Outputs(own_logits, kind), None, batch))
        soft += share * float(SOFT(Outputs(own_logits, kind), Outputs(target, kind), batch))
    return hard, soft


def principal_components(
    model: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator, share: float = 0.99
) -> int:
    """How many principal components explain this share of the variance of the outputs of `expand`, summed over blocks;
    times the parameters this is the proxy W-PCA (Wang et al., ICLR 2025), there with random weights.
    """
    outputs: dict[int, list[Tensor]] = {}
    mask_BT = torch.empty(0)

    def keep(number: int) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> None:
            if output.dim() == 3:
                output = output[mask_BT]
            outputs.setdefault(number, []).append(output.detach().float().cpu())

        return hook

    encoder: Any = model.to(accelerator.device).eval().base_model
    blocks = [block for layer in encoder.encoder.layer for block in layer.ffn]
    hooks = [block.expand.register_forward_hook(keep(number)) for number, block in enumerate(blocks)]
    try:
        with torch.no_grad(), accelerator.autocast():
            for batch in batches:
                inputs = {name: batch[name].to(accelerator.device) for name in INPUTS if name in batch}
                mask_BT = inputs["attention_mask"].bool()
                encoder(**inputs)
    finally:
        for handle in hooks:
            handle.remove()
    total = 0
    for parts in outputs.values():
        variances_E = torch.linalg.eigvalsh(torch.cat(parts).double().t().cov()).flip(0).clamp(min=0)
        explained_E = variances_E.cumsum(0) / variances_E.sum()
        total += int((explained_E < share).sum()) + 1
    return total


@dataclass(frozen=True)
class Activations:
    """Activations of the full model at one layer for one batch, each (B, T, D).

    Attributes:
        x_BTD: the input of the layer's FFN.
        y_BTD: its output.
        gradient_BTD: the gradients of the sentences' losses with respect to the output.
    """

    x_BTD: Tensor
    y_BTD: Tensor
    gradient_BTD: Tensor


def observe(model: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator) -> list[list[Activations]]:
    """Activations by `[batch][layer]` of the full model, which is left in eval mode; losses are with the labels."""
    encoder: Any = model.to(accelerator.device).eval().base_model
    activations = []
    for batch in batches:
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        hooks = [
            hook
            for layer in encoder.encoder.layer
            for hook in (
                layer.ffn[0].register_forward_pre_hook(lambda _m, arguments, into=inputs: into.append(arguments[0])),
                layer.ffn[-1].register_forward_hook(lambda _m, _i, output, into=outputs: into.append(output)),
            )
        ]
        try:
            with accelerator.autocast():
                total = summed_loss(model, {name: tensor.to(accelerator.device) for name, tensor in batch.items()})
        finally:
            for hook in hooks:
                hook.remove()
        gradients = torch.autograd.grad(total, outputs)
        of_layers = zip(inputs, outputs, gradients, strict=True)
        activations.append([Activations(*map(Tensor.detach, tensors)) for tensors in of_layers])
    return activations


def block_errors(
    model: PreTrainedModel,
    batches: Sequence[Batch],
    activations: Sequence[Sequence[Activations]],
    accelerator: Accelerator,
) -> tuple[float, float, float]:
    """How far the FFN of each layer is from the full model's on the full model's inputs. With e_lt the error of layer l
    at token t, the difference of the outputs (D,), and g_lt the gradient of the sentence's loss there (D,), these are

        plain       sum_l E_t[|e_lt|² / D], over tokens that are no padding
        weighted    1/2 sum_l E_s[(sum_t e_lt . g_lt)²], over sentences s
        joined      1/2 E_s[(sum_l sum_t e_lt . g_lt)²]

    The first order of the rise in loss, E_s[sum e . g], vanishes at a trained model. The second order is 1/2 e H e. For
    a loss that is a log-likelihood the Hessian H is about E[g g'], the Fisher matrix, which gives the squares above;
    `weighted` leaves out the products of errors of two layers. A layer without an FFN counts as the identity, even if
    its LayerNorm was solved for.
    """
    encoder: Any = model.to(accelerator.device).eval().base_model
    squares, count = 0.0, 0
    responses = []
    for batch, of_layers in zip(batches, activations, strict=True):
        ids_BT, mask_BT = (batch[name].to(accelerator.device) for name in ("input_ids", "attention_mask"))
        tokens = Tokens(ids_BT, mask_BT)
        count += int(mask_BT.sum())
        response_LB = []
        for layer, full in zip(encoder.encoder.layer, of_layers, strict=True):
            y_BTD = full.x_BTD
            with torch.no_grad(), accelerator.autocast():
                routing = None if layer.router is None else layer.router(y_BTD, tokens)
                for block in layer.ffn:
                    y_BTD = block(y_BTD, tokens, routing)
            error_BTD = (y_BTD.float() - full.y_BTD.float()) * mask_BT[:, :, None]
            squares += float(error_BTD.square().mean(dim=-1).sum())
            response_LB.append((error_BTD * full.gradient_BTD.float()).sum(dim=(1, 2)))
        responses.append(torch.stack(response_LB))
    response_LN = torch.cat(responses, dim=1).double()
    weighted = 0.5 * response_LN.square().mean(dim=1).sum()
    joined = 0.5 * response_LN.sum(dim=0).square().mean()
    return squares / count, float(weighted), float(joined)

"""Signals of what a candidate is worth that cost less than its training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.objectives import terms
from distill.objectives.losses import soft_cross_entropy
from distill.objectives.outputs import Batch, Outputs
from distill.training.evaluation import batch_logits
from supernet.importance import summed_loss
from supernet.model.routing import Tokens

HARD = terms.labels(1.0).loss
SOFT = terms.soft_labels("soft labels", 1.0, soft_cross_entropy).loss


def losses(
    model: nn.Module, batches: Sequence[Batch], teacher: Sequence[Tensor], kind: str, accelerator: Accelerator
) -> tuple[float, float]:
    """The loss with the labels and that with the teacher's predictions, means over rows.

    Args:
        teacher: its logits of each batch, as `batch_logits` returns them.
        kind: of the task.
    """
    rows = sum(len(batch["input_ids"]) for batch in batches)
    found = batch_logits(model, batches, accelerator=accelerator)
    hard = soft = 0.0
    for own, target, batch in zip(found, teacher, batches, strict=True):
        share = len(own) / rows
        hard += share * float(HARD(Outputs(own, kind), None, batch))
        soft += share * float(SOFT(Outputs(own, kind), Outputs(target, kind), batch))
    return hard, soft


@dataclass(frozen=True)
class Seen:
    """What the full model sees of a batch at a layer: input and output of its FFN, and the gradients of the sentences'
    losses with respect to the output; each (B, T, D).
    """

    x_BTD: Tensor
    y_BTD: Tensor
    gradient_BTD: Tensor


def observe(model: PreTrainedModel, batches: Sequence[Batch], accelerator: Accelerator) -> list[list[Seen]]:
    """`[batch][layer]` of the full model, in eval mode from here on; losses are those with the labels."""
    encoder: Any = model.to(accelerator.device).eval().base_model
    found = []
    for batch in batches:
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []
        hooks = [
            hook
            for layer in encoder.encoder.layer
            for hook in (
                layer.ffn[0].register_forward_pre_hook(lambda _m, given, into=inputs: into.append(given[0])),
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
        found.append([Seen(*map(Tensor.detach, one)) for one in zip(inputs, outputs, gradients, strict=True)])
    return found


def block_errors(
    model: PreTrainedModel, batches: Sequence[Batch], seen: Sequence[Sequence[Seen]], accelerator: Accelerator
) -> tuple[float, float, float]:
    """How far each layer's FFN is from the full model's on the full model's inputs. With e_lt the error of layer l at
    token t, the difference of the outputs (D,), and g_lt the gradient of the sentence's loss there (D,),

        plain       sum_l E_t[|e_lt|² / D], over tokens that are no padding
        weighted    1/2 sum_l E_s[(sum_t e_lt . g_lt)²], over sentences s
        joined      1/2 E_s[(sum_l sum_t e_lt . g_lt)²]

    The first order of the rise in loss, E_s[sum e . g], vanishes at a trained model. The second is 1/2 e H e. There
    H, of a loss that is a log-likelihood, is about E[g g'], the Fisher matrix, which makes it the squares above;
    `weighted` leaves out what errors of two layers do together.
    """
    encoder: Any = model.to(accelerator.device).eval().base_model
    squares, count = 0.0, 0
    responses = []
    for batch, of_layers in zip(batches, seen, strict=True):
        ids_BT, mask_BT = (batch[name].to(accelerator.device) for name in ("input_ids", "attention_mask"))
        tokens = Tokens(ids_BT, mask_BT)
        count += int(mask_BT.sum())
        response_LB = []
        for layer, one in zip(encoder.encoder.layer, of_layers, strict=True):
            y_BTD = one.x_BTD
            with torch.no_grad(), accelerator.autocast():
                routing = None if layer.router is None else layer.router(y_BTD, tokens)
                for block in layer.ffn:
                    y_BTD = block(y_BTD, tokens, routing)
            error_BTD = (y_BTD.float() - one.y_BTD.float()) * mask_BT[:, :, None]
            squares += float(error_BTD.square().mean(dim=-1).sum())
            response_LB.append((error_BTD * one.gradient_BTD.float()).sum(dim=(1, 2)))
        responses.append(torch.stack(response_LB))
    response_LN = torch.cat(responses, dim=1).double()
    weighted = 0.5 * response_LN.square().mean(dim=1).sum()
    joined = 0.5 * response_LN.sum(dim=0).square().mean()
    return squares / count, float(weighted), float(joined)

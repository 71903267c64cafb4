"""Second moments of a model's linear layers on training rows, by which channels and heads are ordered and increases in
loss are predicted.

Dimensions: N tokens without padding; E channels of the input of a linear layer; D channels of its output.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from distill.objectives.outputs import LOGITS, Batch, run
from distill.tasks.types import get_task_type
from foundation.errors import UserError
from supernet.order.gradients import INPUT, OUTPUT, Loss, gradients


@dataclass(frozen=True)
class Moments:
    """The moments of one linear layer, in float64.

    Attributes:
        tokens: N.
        mean_E: the mean input.
        covariance_EE: the covariance of the inputs; of a layer without a bias, which could make up for a mean, their
            second moments.
        metric_DD: the mean of g g' over the tokens, where g is the gradient of the loss with respect to the output.
            With `sampled_loss` this is the Fisher information of that output, and (v' metric v) / 2 is the expected
            increase in loss per token (in nats; the loss is that of a sentence's prediction) if v is added to the
            output, assuming that v is independent of the gradients and that tokens are independent (as in K-FAC,
            Martens and Grosse, 2015).
    """

    tokens: int
    mean_E: Tensor
    covariance_EE: Tensor
    metric_DD: Tensor


class MomentsError(UserError, ValueError):
    """The activations of a model have no finite moments, or its predictions do not depend on them."""


@dataclass(frozen=True)
class FisherMatrices:
    """The Fisher information matrices (D, D), as `Moments.metric_DD`, of the outputs of the layers of a model.

    Attributes:
        ffns: `[layer]`, of `project` of the lowest block.
        attentions: `[layer]`, of the attention's output projection.
    """

    ffns: Sequence[Tensor]
    attentions: Sequence[Tensor]

    @classmethod
    def load(cls, path: Path) -> "FisherMatrices":
        """Read what `save` has written."""
        both = load_file(path)
        return cls(both["ffns"].double(), both["attentions"].double())

    def save(self, path: Path) -> None:
        """Write them in float32."""
        both = {"ffns": self.ffns, "attentions": self.attentions}
        save_file({name: torch.stack([*matrices]).float() for name, matrices in both.items()}, path)


class ModelMoments:
    """The moments of the linear layers of a model that read channels and heads, from one pass over the rows.

    Args:
        model: a model whose layers consist of dense `FFNBlock`s.
        batches: batches of tensors (B, ...) of training data.
        loss: such as `sampled_loss(seed)`.

    Its methods raise MomentsError if an activation or a gradient is not finite, all gradients of a linear layer are 0,
    or there are no batches.
    """

    def __init__(self, model: PreTrainedModel, batches: Iterable[Batch], loss: Loss) -> None:
        layers, output = encoder_layers(model), family_of(model).output
        self._ffns = [
            {f"layer {i}, block {j}": block.project for j, block in enumerate(layer.ffn)}
            for i, layer in enumerate(layers)
        ]
        self._attentions = {f"layer {i}, attention": part(layer, output) for i, layer in enumerate(layers)}
        maps = {place: linear for of_layer in (*self._ffns, self._attentions) for place, linear in of_layer.items()}
        places = {(place, end): (linear, end) for place, linear in maps.items() for end in (INPUT, OUTPUT)}
        self._sums = {place: _Sums(linear) for place, linear in maps.items()}
        for batch, values in gradients(model, batches, loss, places):
            valid_BT = batch["attention_mask"].bool()
            for place, of_map in self._sums.items():
                input_BTE, _ = values[place, INPUT]
                _, grad_BTD = values[place, OUTPUT]
                of_map.add(input_BTE.detach()[valid_BT], None if grad_BTD is None else grad_BTD[valid_BT])

    def blocks(self) -> list[list[Moments]]:
        """Those of `project` of every block: `[layer][block]`."""
        return [[self._sums[place].moments(place) for place in of_layer] for of_layer in self._ffns]

    def attentions(self) -> list[Moments]:
        """Those of the output projection of every attention: `[layer]`."""
        return [self._sums[place].moments(place) for place in self._attentions]

    def fisher_matrices(self) -> FisherMatrices:
        """The metrics alone."""
        lowest = [next(iter(of_layer)) for of_layer in self._ffns]
        return FisherMatrices(
            *([self._sums[place].metric(place) for place in some] for some in (lowest, self._attentions))
        )


class _Sums:
    """Running sums over the tokens of batches."""

    def __init__(self, linear: Any) -> None:
        self.tokens = 0
        self.has_bias = linear.bias is not None
        # Subtracted before products are summed, as float32 loses the variance of channels far from 0.
        self.shift_E: Tensor | None = None
        width, inner = linear.weight.shape
        self.sum_E = torch.zeros(inner, dtype=torch.float64)
        self.products_EE = torch.zeros(inner, inner, dtype=torch.float64)
        self.metric_DD = torch.zeros(width, width, dtype=torch.float64)

    def add(self, input_NE: Tensor, gradient_ND: Tensor | None) -> None:
        if self.shift_E is None and len(input_NE):
            self.shift_E = input_NE.mean(dim=0)
        input_NE = input_NE if self.shift_E is None else input_NE - self.shift_E
        self.tokens += len(input_NE)
        self.sum_E += input_NE.double().sum(dim=0).cpu()
        self.products_EE += (input_NE.t() @ input_NE).double().cpu()
        if gradient_ND is not None:
            self.metric_DD += (gradient_ND.t() @ gradient_ND).double().cpu()

    def metric(self, place: str) -> Tensor:
        """The metric of this linear layer; errors are those of `ModelMoments`."""
        if not self.tokens:
            raise MomentsError(f"{place}: the training examples have no tokens; check the data")
        metric_DD = self.metric_DD / self.tokens
        if not bool(torch.isfinite(metric_DD).all()):
            raise MomentsError(f"{place}: activations or gradients are not finite; lower the supernet's learning rate")
        if not bool(metric_DD.any()):
            raise MomentsError(
                f"{place}: the predictions do not depend on its output, so nothing says which channels matter; train "
                "the supernet longer, or sort its channels by another order, such as magnitude"
            )
        return metric_DD

    def moments(self, place: str) -> Moments:
        metric_DD = self.metric(place)
        assert self.shift_E is not None
        offset_E = self.sum_E / self.tokens
        mean_E = offset_E + self.shift_E.double().cpu()
        covariance_EE = self.products_EE / self.tokens - torch.outer(offset_E, offset_E)
        if not self.has_bias:
            covariance_EE += torch.outer(mean_E, mean_E)
        if not bool(torch.isfinite(covariance_EE).all()):
            raise MomentsError(f"{place}: activations are not finite; lower the supernet's learning rate")
        return Moments(self.tokens, mean_E, covariance_EE, metric_DD)


def sampled_loss(seed: int) -> Loss:
    """A loss whose gradients are those, up to their sign, of the negative log-likelihood, summed over a batch, of
    predictions that are sampled from the model itself: labels from its predictive distribution; for regression, targets
    from a normal distribution of variance 1 around its prediction.

    The loss raises MomentsError if logits are not finite.
    """
    generator = torch.Generator().manual_seed(seed)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        outputs = run(model, batch, frozenset({LOGITS}))
        if not bool(torch.isfinite(outputs.logits).all()):
            raise MomentsError("the model's logits are not finite")
        distributions = get_task_type(outputs.task_type).distributions
        if distributions is None:
            noise = torch.randn(outputs.logits.shape, generator=generator).to(outputs.logits)
            return (outputs.logits * noise).sum()
        log_probabilities_NC = torch.log_softmax(distributions(outputs.logits, batch), dim=-1)
        probabilities_NC = log_probabilities_NC.detach().exp().cpu()
        sampled_N1 = torch.multinomial(probabilities_NC, 1, generator=generator).to(log_probabilities_NC.device)
        return -log_probabilities_NC.gather(-1, sampled_N1).sum()

    return loss

"""Refits `project` in every block of a candidate, layer after layer; where candidates may have fewer heads, also the
output projection of every attention without experts, before the blocks of its layer.

Every projection is refitted on the inputs that the candidate itself computes, with the ones below already refitted, so
it also corrects the errors that the layers below leave. The target is the sum h + f(h), before LayerNorm, of the same
block or attention of the reference: the supernet, or the teacher that it started from. A block that the reference
lacks should compute the output of the reference's layer. In a layer with another number of blocks than the reference's,
weight and bias of the highest LayerNorm are refitted, too.

Where a part is missing, parameters that remain are refitted in its place, at no cost: in a layer without an FFN, weight
and bias of the attention's LayerNorm (target: the output of the reference's layer); in an attention without heads, its
bias and then its LayerNorm (target: the output of the reference's attention); and where a layer is left out, the
LayerNorm below it (target: the output of the reference's layer). In families whose LayerNorms come first, none
follows. There, if attentions are refitted, the target in a layer without an FFN is the output of the reference's layer;
otherwise nothing is refitted in it, nor where a layer is left out.

Dimensions are those of `distill.encoders.student.dispatch`: N tokens without padding, S slots of experts; E channels of
the input of `project`; D channels of its output. A block without experts has one slot per token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, evaluating, layer_inputs, part
from distill.encoders.student.configuration import attention_experts, is_left_out
from distill.encoders.student.dispatch import Dispatch, Tokens, take
from distill.encoders.student.ffn import FFNBlock
from supernet.compensation.calibration import Calibration
from supernet.compensation.ridge import CompensationError, Linear, Ridge, affine_change

# At most this many Gauss-Newton steps for a graph that does something after `project`, and no further one after a step
# that reduced the squared error by less than this fraction.
STEPS = 8
CONVERGED = 0.01
# A block keeps its inherited weights if its mean squared error is at most this fraction of the mean square of its
# target, about what a few layers in bfloat16 lose by rounding.
EXACT = 1e-4
# Passes over the experts of a block in which several experts process a token, as the target of each depends on the
# others.
PASSES = 2


@torch.no_grad()
def compensate(model: PreTrainedModel, calibration: Calibration, accelerator: Accelerator) -> None:
    """Refit the weight and the bias of `project` in every block of a candidate, of the output projections of attention
    without experts if the calibration has theirs, and of the LayerNorms where parts are missing, in place.

    Args:
        model: a candidate with inherited weights, in which every block is a slice of a supernet's.
        calibration: of the reference.

    Raises:
        CompensationError: activations are not finite.
    """
    model.to(accelerator.device)
    with evaluating(model):
        _layer_after_layer(model, calibration, accelerator)


def _layer_after_layer(model: PreTrainedModel, calibration: Calibration, accelerator: Accelerator) -> None:
    """`compensate` for a model in eval mode on its device."""
    held_out_N = calibration.held_out_N
    device = accelerator.device
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in calibration.batches]
    family = family_of(model)
    with accelerator.autocast():
        given = [layer_inputs(model, batch) for batch in batches]
    hidden = [hidden_BTD for hidden_BTD, _ in given]
    valid = [batch["attention_mask"].bool() for batch in batches]
    tokens = [Tokens(batch["input_ids"], batch["attention_mask"]) for batch in batches]
    epsilon = family.norm_epsilon(model.config)
    mapped = family.embedding(model.config) is not None
    if not family.pre_norm:
        norm = model.base_model.get_submodule(family.embedding_map if mapped else str(family.embeddings_norm))
    for i, layer in enumerate(encoder_layers(model)):
        left_out = is_left_out(model.config, i)
        solves_attention = bool(calibration.attention_sums) and attention_experts(model.config, i) == 1
        if not left_out:
            norm = part(layer, family.attention_norm)
            output = part(layer, family.output)
            with accelerator.autocast(), _kept_inputs(output) as contexts:
                attended = [
                    layer.attend(states, *arguments[i][0], **arguments[i][1])
                    for states, (_, arguments) in zip(hidden, given, strict=True)
                ]
            if solves_attention:
                x_ND, context_NE = _of_tokens(hidden, valid), _of_tokens(contexts, valid)
                whole = family.pre_norm and not len(layer.ffn)
                target_ND = calibration.output(i, epsilon) if whole else calibration.attention_sums[i]
                try:
                    sum_ND = _solve_attention(
                        output, context_NE, x_ND, target_ND.to(x_ND.device), held_out_N.to(x_ND.device)
                    )
                    attended = _with_tokens(attended, valid, sum_ND if family.pre_norm else norm(sum_ND))
                    if not context_NE.shape[1] and not family.pre_norm:
                        attended = _solve_norm(
                            norm, attended, valid, calibration.attention_output(i, epsilon), held_out_N
                        )
                except CompensationError as error:
                    raise CompensationError(f"layers[{i}], attention: {error}") from None
            hidden = attended
        if not len(layer.ffn) and not family.pre_norm:
            try:
                hidden = _solve_norm(norm, hidden, valid, calibration.output(i, epsilon), held_out_N)
            except CompensationError as error:
                raise CompensationError(f"layers[{i}], {'left out' if left_out else 'no FFN'}: {error}") from None
        for j, block in enumerate(layer.ffn):
            router = layer.router if block.router is None else block.router
            with accelerator.autocast():
                if router is None:
                    slots = _token_slots(block, hidden, valid)
                else:
                    slots = _expert_slots(block, hidden, valid, router, tokens)
            x_ND = _of_tokens(hidden, valid)
            known = j < len(calibration.sums[i])
            target_ND = (calibration.sums[i][j] if known else calibration.output(i, epsilon)).to(x_ND.device)
            try:
                sum_ND = _solve(block, slots, x_ND, target_ND, held_out_N.to(x_ND.device))
            except CompensationError as error:
                raise CompensationError(f"layers[{i}], block {j}: {error}") from None
            norm = block.LayerNorm
            hidden = _with_tokens(hidden, valid, sum_ND if family.pre_norm else norm(sum_ND))
            if j == len(layer.ffn) - 1 != len(calibration.sums[i]) - 1 and not family.pre_norm:
                hidden = _solve_norm(norm, hidden, valid, calibration.output(i, epsilon), held_out_N)


@contextmanager
def _kept_inputs(module: nn.Module) -> Iterator[list[Tensor]]:
    """A context with a list of the inputs of a module, to which each of its calls adds one."""
    inputs: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0]))
    try:
        yield inputs
    finally:
        hook.remove()


def _of_tokens(states: Sequence[Tensor], valid: Sequence[Tensor]) -> Tensor:
    """The states (N, ...) of all tokens of all batches, without padding, in float32."""
    return torch.cat([of_batch[chosen] for of_batch, chosen in zip(states, valid, strict=True)]).float()


def _with_tokens(states: Sequence[Tensor], valid: Sequence[Tensor], new_ND: Tensor) -> list[Tensor]:
    """The states of all batches with those of all tokens replaced, in place; the inverse of `_of_tokens`."""
    sizes = [int(chosen.sum()) for chosen in valid]
    for of_batch, chosen, new in zip(states, valid, new_ND.split(sizes), strict=True):
        of_batch[chosen] = new.to(of_batch.dtype)
    return list(states)


def _solve_attention(output: Any, context_NE: Tensor, x_ND: Tensor, target_ND: Tensor, held_out_N: Tensor) -> Tensor:
    """Solve for the output projection of an attention, in place; returns the sum x + attention(x), (N, D).

    Args:
        output: its output projection, or the bias of that if it has no heads.
        context_NE: what that is applied to.
    """
    if not context_NE.shape[1]:
        wanted_ND = target_ND - x_ND
        if not bool(torch.isfinite(wanted_ND).all()):
            raise CompensationError("the activations are not finite")
        if output.bias is None:
            return x_ND
        output.bias.copy_(wanted_ND[~held_out_N].mean(dim=0))
        return x_ND + output.bias
    bias_D = output.weight.new_zeros(len(output.weight)) if output.bias is None else output.bias.detach().clone()
    start = Linear(output.weight.detach().clone(), bias_D)
    sum_ND = x_ND + start(context_NE)
    if bool(((target_ND - sum_ND) ** 2).mean() <= EXACT * (target_ND**2).mean()):
        return sum_ND
    ridge = Ridge(context_NE, held_out_N, with_bias=output.bias is not None)
    solution = ridge.solve(target_ND - x_ND, start)
    output.weight.copy_(solution.weight_DE)
    if output.bias is not None:
        output.bias.copy_(solution.bias_D)
    return x_ND + solution(context_NE)


def _solve_norm(
    norm: nn.LayerNorm | nn.Linear,
    hidden: Sequence[Tensor],
    valid: Sequence[Tensor],
    target_ND: Tensor,
    held_out_N: Tensor,
) -> list[Tensor]:
    """Solve for the scale and the bias of the outputs of a LayerNorm, or of the map of the embeddings, which are
    `hidden`, in place; returns its new outputs.

    Attention experts share their LayerNorm, so the outputs of all of them are solved for together.
    """
    x_ND = _of_tokens(hidden, valid)
    factor_D, shift_D = affine_change(x_ND, target_ND.to(x_ND.device), held_out_N.to(x_ND.device))
    norm.weight.mul_(factor_D if norm.weight.dim() == 1 else factor_D[:, None])
    norm.bias.mul_(factor_D).add_(shift_D)
    return [(states * factor_D + shift_D).to(states.dtype) for states in hidden]


@dataclass(frozen=True)
class _Slots:
    """What a block computes before `project`, for the slots of all batches.

    Attributes:
        values: for every node of the graph before `project` its value (S, channels).
        project_input: the number of the node that `project` reads.
        token_S: the token of each slot, counted over all batches without padding.
        expert_S: the expert of each slot.
        weight_S: the factor of each slot's output.
    """

    values: list[Tensor]
    project_input: int
    token_S: Tensor
    expert_S: Tensor
    weight_S: Tensor


def _before_project(block: FFNBlock, x: Tensor, *dispatch: Dispatch) -> tuple[list[Tensor], int]:
    """The values of the graph's nodes before `project`, and the number of the node that `project` reads."""
    values = [x]
    for op, inputs in block.steps:
        if op == "project":
            return values, inputs[0]
        values.append(block.apply_op(op, [values[number] for number in inputs], *dispatch))
    raise AssertionError("every graph has a project")


def _after_project(block: FFNBlock, values: Sequence[Tensor], projected_SD: Tensor) -> Tensor:
    """The graph's output, given the values before `project` and its output. No linear layer follows `project`."""
    values = [*values, projected_SD]
    for op, inputs in block.steps[len(values) - 1 :]:
        values.append(block.apply_op(op, [values[number] for number in inputs]))
    return values[-1]


def _token_slots(block: FFNBlock, hidden: Sequence[Tensor], valid: Sequence[Tensor]) -> _Slots:
    """The slots of a block without experts."""
    x_ND = block.normalized(torch.cat([states[chosen] for states, chosen in zip(hidden, valid, strict=True)]))
    values, project_input = _before_project(block, x_ND)
    token_S = torch.arange(len(x_ND), device=x_ND.device)
    weight_S = torch.ones(len(x_ND), device=x_ND.device)
    return _Slots([value.float() for value in values], project_input, token_S, torch.zeros_like(token_S), weight_S)


def _expert_slots(
    block: FFNBlock, hidden: Sequence[Tensor], valid: Sequence[Tensor], router: Any, tokens: Sequence[Tokens]
) -> _Slots:
    """The slots of a block with experts, without those that hold no token."""
    parts: list[tuple[Tensor, ...]] = []
    project_input, first = 0, 0
    for hidden_BTD, valid_BT, of_batch in zip(hidden, valid, tokens, strict=True):
        # The router of a layer, which chooses for all of its blocks, gets the hidden states.
        states_BTD = block.normalized(hidden_BTD)
        routing = router(hidden_BTD if block.router is None else states_BTD, of_batch)
        dispatch = routing.dispatch
        values, project_input = _before_project(
            block, take(states_BTD.reshape(-1, states_BTD.shape[-1]), dispatch), dispatch
        )
        counts = torch.tensor(dispatch.counts, device=states_BTD.device)
        if dispatch.real_S is None:
            real_S, expert_S = slice(None), torch.repeat_interleave(counts)
        else:
            real_S = dispatch.real_S
            expert_S = (torch.arange(len(real_S), device=real_S.device) // int(counts.max()))[real_S]
        number_P = valid_BT.reshape(-1).cumsum(0) - 1 + first
        weight_S = torch.ones(len(expert_S), device=expert_S.device)
        if routing.weight_S is not None:
            weight_S = routing.weight_S[real_S].float()
        kept = [value[real_S].float() for value in values]
        parts.append((number_P[dispatch.token_S[real_S]], expert_S, weight_S, *kept))
        first += int(valid_BT.sum())
    token_S, expert_S, weight_S, *values = (torch.cat(part) for part in zip(*parts, strict=True))
    return _Slots(values, project_input, token_S, expert_S, weight_S)


def _solve(block: FFNBlock, slots: _Slots, x_ND: Tensor, target_ND: Tensor, held_out_N: Tensor) -> Tensor:
    """Solve for `project` of a block, in place; returns the sum x + f(x), (N, D)."""
    project: Any = block.project
    weight_XDE, bias_XD = project.weight, project.bias
    if bias_XD is None:
        bias_XD = weight_XDE.new_zeros(weight_XDE.shape[:-1])
    if weight_XDE.dim() == 2:
        weight_XDE, bias_XD = weight_XDE[None], bias_XD[None]
    experts = range(len(weight_XDE))
    rows = [torch.nonzero(slots.expert_S == expert)[:, 0] for expert in experts]
    projections = [
        _Projection(block, slots, rows[expert], held_out_N, Linear(weight_XDE[expert], bias_XD[expert]))
        for expert in experts
    ]
    sum_ND = x_ND.clone()
    for projection in projections:
        projection.add_to(sum_ND)
    if bool(((target_ND - sum_ND) ** 2).mean() <= EXACT * (target_ND**2).mean()):
        return sum_ND
    shared = len(slots.token_S) > len(torch.unique(slots.token_S))
    for _ in range(PASSES if shared else 1):
        for projection in projections:
            projection.solve(target_ND, sum_ND)
    for expert, projection in zip(experts, projections, strict=True):
        weight_XDE[expert].copy_(projection.linear.weight_DE)
        bias_XD[expert].copy_(projection.linear.bias_D)
    return sum_ND


class _Projection:
    """The linear layer `project` of one expert, on the slots of its tokens."""

    def __init__(self, block: FFNBlock, slots: _Slots, rows_S: Tensor, held_out_N: Tensor, linear: Linear) -> None:
        self.block, self.linear, self.start = block, linear, linear
        self.token_S = slots.token_S[rows_S]
        self.weight_S1 = slots.weight_S[rows_S, None]
        self.values = [value[rows_S] for value in slots.values]
        self.features_SE = self.values[slots.project_input]
        self.held_out_S = held_out_N[self.token_S]
        self.ends_with_project = block.steps[-1][0] == "project"
        self.ridge: Ridge | None = None
        self.projected_SD = linear(self.features_SE)
        self.output_SD = self._output(self.projected_SD)

    def _output(self, projected_SD: Tensor) -> Tensor:
        output_SD = projected_SD if self.ends_with_project else _after_project(self.block, self.values, projected_SD)
        return output_SD * self.weight_S1

    def add_to(self, sum_ND: Tensor, factor: float = 1.0) -> None:
        """Add the outputs of the slots to their tokens."""
        sum_ND.index_add_(0, self.token_S, self.output_SD, alpha=factor)

    def solve(self, target_ND: Tensor, sum_ND: Tensor) -> None:
        """Solve for `project`, and replace its part of the sums. An expert without tokens keeps its weights."""
        if not len(self.token_S) or bool(self.held_out_S.all()):
            return
        if self.ridge is None:
            with_bias = self.block.project.bias is not None
            self.ridge = Ridge(self.features_SE, self.held_out_S, self.weight_S1[:, 0] ** 2, with_bias)
        self.add_to(sum_ND, -1.0)
        wanted_SD = (target_ND - sum_ND)[self.token_S]
        if self.ends_with_project:
            self.linear = self.ridge.solve(wanted_SD / self.weight_S1, self.start)
            self.output_SD = self._output(self.linear(self.features_SE))
        else:
            self._gauss_newton(wanted_SD)
        self.add_to(sum_ND)

    def _gauss_newton(self, wanted_SD: Tensor) -> None:
        """Solve for `project` in a graph that does something after it, by steps that each solve for a linear layer
        with one curvature per channel. A step that does not reduce the error is halved, so the result is never worse
        than the inherited weights.
        """
        assert self.ridge is not None
        scale, error = 1.0, float(((wanted_SD - self.output_SD) ** 2).sum())
        for _ in range(STEPS):
            slope_SD = self._slope()
            curvature_D = (slope_SD**2).mean(dim=0).clamp(min=1e-6)
            step_SD = slope_SD * (wanted_SD - self.output_SD) / curvature_D
            linear = self.ridge.solve(self.projected_SD + scale * step_SD, self.start)
            projected_SD = linear(self.features_SE)
            output_SD = self._output(projected_SD)
            reduced = float(((wanted_SD - output_SD) ** 2).sum())
            if reduced >= error:
                scale /= 2
                continue
            self.linear, self.projected_SD, self.output_SD = linear, projected_SD, output_SD
            converged, error = reduced > (1 - CONVERGED) * error, reduced
            if converged:
                break

    def _slope(self) -> Tensor:
        """The derivative of every output with respect to the same channel of `project`'s output."""
        with torch.enable_grad():
            projected_SD = self.projected_SD.detach().requires_grad_()
            (slope_SD,) = torch.autograd.grad(self._output(projected_SD).sum(), projected_SD)
        return slope_SD

"""Which experts a token goes to, how it gets there and back, and what they compute.

Part of every exported checkpoint: imports torch and nothing of this project.

Tokens are sorted by expert once; every linear map then works on one run of rows for each expert, and the results go
back in place. Dimensions: N tokens in B sentences of T, E experts, of which a token passes K; S slots, which are the
rows that experts compute, in the order of the experts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

HASHES = ("hash", "balanced_hash")
# Where an expert's linear map has at most so many weights, a CPU is faster with one batched product of padded rows
# than with a product for each expert (benchmarks/speed/experts.py).
BATCHED = 24_576


class Tokens:
    """The tokens of a batch: made once, used by all layers.

    Args:
        input_ids_BT: None where the model was given embeddings.
        mask: 1 for tokens and 0 for padding (B, T). Without it, or with one of another shape, all are tokens.
    """

    def __init__(self, input_ids_BT: Tensor | None, mask: Tensor | None) -> None:
        self.input_ids_BT = input_ids_BT
        valid_BT = mask.bool() if mask is not None and mask.dim() == 2 else None
        self.valid_BT = None if valid_BT is None or bool(valid_BT.all()) else valid_BT


@dataclass(frozen=True)
class Dispatch:
    """The way of tokens to their experts and back.

    slot_NK: the slot of each token for each of its experts, -1 where it has none (padding, or beyond the capacity).
    pair_S: the pair (token * K + k) in each slot. counts: tokens of each expert. real_S: None, or where all experts
    have the same number of slots, which of them hold a token; what the others compute is dropped.
    """

    slot_NK: Tensor
    pair_S: Tensor
    counts: tuple[int, ...]
    real_S: Tensor | None

    @cached_property
    def token_S(self) -> Tensor:
        """The token in each slot."""
        choices = self.slot_NK.shape[1]
        return self.pair_S if choices == 1 else self.pair_S // choices

    @cached_property
    def missing_NK(self) -> Tensor | None:
        """Where a token has no slot; None if all have."""
        return None if sum(self.counts) == self.slot_NK.numel() else self.slot_NK < 0

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """First slot and end of each expert."""
        return tuple(pairwise(accumulate(self.counts, initial=0)))


@dataclass(frozen=True)
class Routing:
    """What a router decides.

    experts: (R, K), of the R tokens, or sentences, that are no padding. probabilities: the gate's, (R, E); None for a
    hash. weight_S: the factor of what each slot computes; None for 1.
    """

    experts: Tensor
    probabilities: Tensor | None
    dispatch: Dispatch
    weight_S: Tensor | None


class Router(nn.Module):
    """Decides which experts the tokens of a batch go to: by a persistent `table` (vocabulary,) of experts, or by a gate
    of `weight` (E, width).

    What an expert computes is multiplied by the gate's probability times E / K: 1 where the gate is indifferent, as it
    nearly is at the start, so a mixture cut from a dense model starts near what that computes. MiniMoE and Switch,
    which start from random weights, have the probability alone.

    Args:
        experts: `count`, `routing`, `top_k` and `capacity` of a layer, as in `NasBertConfig.ffn`.
        config: of the model.
        batched: experts have equal numbers of slots, for batched products.
    """

    table: Tensor

    def __init__(self, experts: Mapping[str, Any], config: Any, batched: bool = False) -> None:
        super().__init__()
        self.count, self.top_k, self.routing = experts["count"], experts["top_k"], experts["routing"]
        self.capacity = None if experts["capacity"] is None else Fraction(experts["capacity"])
        self.jitter = config.router_jitter_noise
        self.batched = batched
        if self.routing in HASHES:
            self.register_buffer("table", torch.zeros(config.vocab_size, dtype=torch.uint8))
        else:
            self.weight = nn.Parameter(torch.empty(self.count, config.hidden_size))

    def forward(self, hidden_BTD: Tensor, tokens: Tokens) -> Routing:
        """Raises ValueError where a hash has no token ids, or one that is not in its table."""
        if self.routing in HASHES:
            return self._by_table(hidden_BTD, tokens)
        return self._by_gate(hidden_BTD, tokens)

    def _by_table(self, hidden_BTD: Tensor, tokens: Tokens) -> Routing:
        ids_BT = tokens.input_ids_BT
        if ids_BT is None:
            raise ValueError(f"{self.routing} routing goes by token ids: give the model input_ids, not inputs_embeds")
        if ids_BT.numel() and int(ids_BT.max()) >= len(self.table):
            raise ValueError(f"token id {int(ids_BT.max())} is not in the routing table of {len(self.table)} ids")
        experts_NK = self.table[ids_BT.reshape(-1, 1)].long()
        if self.top_k > 1:
            experts_NK = (experts_NK + torch.arange(self.top_k, device=ids_BT.device)) % self.count
        sent = dispatch(experts_NK, self.count, ids_BT.shape, tokens, self.capacity, self.batched)
        shared = hidden_BTD.new_full(sent.pair_S.shape, 1 / self.top_k) if self.top_k > 1 else None
        routed = experts_NK if tokens.valid_BT is None else experts_NK[tokens.valid_BT.reshape(-1)]
        return Routing(routed, None, sent, shared)

    def _by_gate(self, hidden_BTD: Tensor, tokens: Tokens) -> Routing:
        valid_BT, by_sentence = tokens.valid_BT, self.routing == "sentence_gate"
        routed_R: Any = slice(None)
        # The choice must not hang on how bfloat16 rounds.
        full_BTD = hidden_BTD if hidden_BTD.dtype == torch.float64 else hidden_BTD.float()
        if by_sentence:
            inputs_RD = full_BTD.mean(dim=1)
            if valid_BT is not None:
                lengths_B = valid_BT.sum(dim=1)
                inputs_RD = (full_BTD * valid_BT[..., None]).sum(dim=1) / lengths_B.clamp(min=1)[:, None]
                routed_R = lengths_B > 0
        else:
            inputs_RD = full_BTD.flatten(0, 1)
            if valid_BT is not None:
                routed_R = valid_BT.reshape(-1)
        if self.training and self.jitter:
            inputs_RD = inputs_RD * torch.empty_like(inputs_RD).uniform_(1 - self.jitter, 1 + self.jitter)
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            probabilities_RE = F.softmax(inputs_RD @ self.weight.to(inputs_RD.dtype).t(), dim=-1)
        kept_RK, experts_RK = torch.topk(probabilities_RE, self.top_k, dim=-1)
        kept_NK, experts_NK = kept_RK, experts_RK
        if by_sentence:
            sentence_N = torch.arange(len(full_BTD), device=full_BTD.device).repeat_interleave(full_BTD.shape[1])
            kept_NK, experts_NK = kept_RK[sentence_N], experts_RK[sentence_N]
        sent = dispatch(experts_NK, self.count, full_BTD.shape[:2], tokens, self.capacity, self.batched)
        weight_S = kept_NK.reshape(-1)[sent.pair_S] * (self.count / self.top_k)
        return Routing(experts_RK[routed_R], probabilities_RE[routed_R], sent, weight_S)


def dispatch(
    experts_NK: Tensor,
    count: int,
    shape: tuple[int, ...],
    tokens: Tokens,
    capacity: Fraction | None = None,
    batched: bool = False,
) -> Dispatch:
    """Sort the pairs of tokens and experts by expert, `count` in all, without padding and overflow.

    Args:
        shape: (B, T).
        capacity: each expert takes the first ceil(capacity * K * tokens / count) of a sentence. The bound is for each
            sentence, so what else is in the batch makes no difference.
        batched: fill up every expert's slots to the largest number.
    """
    choices = experts_NK.shape[1]
    expert_P = experts_NK.reshape(-1)
    device = expert_P.device
    place_P = torch.arange(len(expert_P), device=device)
    if tokens.valid_BT is not None:
        valid_P = tokens.valid_BT.reshape(-1).repeat_interleave(choices)
        expert_P = torch.where(valid_P, expert_P, count)
    if capacity is not None and len(expert_P):
        batch, length = shape
        sentence_P = place_P // (length * choices)
        lengths_B = torch.full((batch,), length, device=device)
        if tokens.valid_BT is not None:
            lengths_B = tokens.valid_BT.sum(dim=1)
        most_B = -(-lengths_B * choices * capacity.numerator // (count * capacity.denominator))
        group_P = sentence_P * (count + 1) + expert_P
        order_P = torch.argsort(group_P, stable=True)
        sizes = torch.bincount(group_P)
        before_P = torch.empty_like(place_P)
        before_P[order_P] = place_P - (sizes.cumsum(0) - sizes)[group_P[order_P]]
        expert_P = torch.where(before_P < most_B[sentence_P], expert_P, count)
    # Sorting bytes is several times faster; there are 64 experts at most.
    order_P = torch.argsort(expert_P.to(torch.uint8), stable=True)
    counts = torch.bincount(expert_P, minlength=count + 1)[:count].tolist()
    total = sum(counts)
    pair_S, slots = order_P[:total], place_P[:total]
    real_S = None
    if batched:
        most = max(counts)
        expert_S = torch.repeat_interleave(torch.tensor(counts, device=device))
        before = accumulate(counts[:-1], initial=0)
        moved = torch.tensor([most * expert - first for expert, first in enumerate(before)], device=device)
        slots = slots + moved[expert_S]
        padded_S = pair_S.new_zeros(most * count)
        padded_S[slots] = pair_S
        real_S = torch.zeros(most * count, dtype=torch.bool, device=device)
        real_S[slots] = True
        slot_P = torch.full_like(place_P, -1)
        slot_P[pair_S] = slots
        return Dispatch(slot_P.view(-1, choices), padded_S, tuple(counts), real_S)
    slot_P = torch.full_like(place_P, -1) if total < len(place_P) else torch.empty_like(place_P)
    slot_P[pair_S] = slots
    return Dispatch(slot_P.view(-1, choices), pair_S, tuple(counts), real_S)


class _Take(Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, sent: Dispatch) -> Tensor:
        ctx.sent = sent
        return x_ND.index_select(0, sent.token_S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor, None]:
        return _back(grad_SD, ctx.sent), None


class _Put(Function):
    @staticmethod
    def forward(ctx: Any, y_SD: Tensor, sent: Dispatch) -> Tensor:
        ctx.sent = sent
        return _back(y_SD, sent)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None]:
        grad_SD = grad_ND.index_select(0, ctx.sent.token_S)
        if ctx.sent.real_S is not None:
            grad_SD.masked_fill_(~ctx.sent.real_S[:, None], 0)
        return grad_SD, None


def _back(y_SD: Tensor, sent: Dispatch) -> Tensor:
    """The sum over each token's slots."""
    tokens, choices = sent.slot_NK.shape
    if not len(y_SD):
        return y_SD.new_zeros(tokens, y_SD.shape[-1])
    slot_P = sent.slot_NK.reshape(-1)
    if sent.missing_NK is None:
        y_PD = y_SD.index_select(0, slot_P)
    else:
        y_PD = y_SD.index_select(0, slot_P.clamp(min=0)).masked_fill_(sent.missing_NK.reshape(-1, 1), 0)
    return y_PD if choices == 1 else y_PD.view(tokens, choices, -1).sum(dim=1)


def take(x_ND: Tensor, sent: Dispatch) -> Tensor:
    """Each slot's token: (N, D) -> (S, D)."""
    return _Take.apply(x_ND, sent)


def put(y_SD: Tensor, sent: Dispatch) -> Tensor:
    """The sum of what a token's slots hold: (S, D) -> (N, D); zero where it has none."""
    return _Put.apply(y_SD, sent)


def _onednn() -> Any:
    """oneDNN's linear map, which in float32 takes half of the time of torch's own on processors with AVX-512 that are
    not Intel's; None where this torch has none.
    """
    if not torch.backends.mkldnn.is_available():
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)


_ONEDNN = _onednn()


def _linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
    """`F.linear` without a gradient."""
    if _ONEDNN is not None and x_NI.device.type == "cpu" and x_NI.dtype == torch.float32:
        return _ONEDNN(x_NI, weight_OI, bias_O, "none", [], "")
    return F.linear(x_NI, weight_OI, bias_O)


def _product(a_NI: Tensor, b_IO: Tensor, out_NO: Tensor) -> None:
    """`torch.mm` into `out_NO`."""
    if _ONEDNN is not None and a_NI.device.type == "cpu" and a_NI.dtype == torch.float32 and a_NI.shape[1]:
        out_NO.copy_(_ONEDNN(a_NI, b_IO.t(), None, "none", [], ""))
    else:
        torch.mm(a_NI, b_IO, out=out_NO)


class _GroupedLinear(Function):
    """A linear map for every run of rows."""

    @staticmethod
    def forward(ctx: Any, x_SI: Tensor, weight_EOI: Tensor, bias_EO: Tensor, runs: Sequence[tuple[int, int]]) -> Tensor:
        ctx.save_for_backward(x_SI, weight_EOI)
        ctx.runs = runs
        y_SO = x_SI.new_empty(len(x_SI), weight_EOI.shape[1])
        for expert, (first, end) in enumerate(runs):
            if end > first:
                y_SO[first:end] = _linear(x_SI[first:end], weight_EOI[expert], bias_EO[expert])
        return y_SO

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SO: Tensor) -> tuple[Tensor | None, ...]:
        x_SI, weight_EOI = ctx.saved_tensors
        grad_SO = grad_SO.contiguous()
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        grad_SI = torch.empty_like(x_SI) if needs_x else None
        grad_EOI = torch.empty_like(weight_EOI) if needs_weight else None
        grad_EO = grad_SO.new_zeros(weight_EOI.shape[:2]) if needs_bias else None
        for expert, (first, end) in enumerate(ctx.runs):
            rows = grad_SO[first:end]
            if grad_SI is not None and end > first:
                _product(rows, weight_EOI[expert], grad_SI[first:end])
            if grad_EOI is not None:
                _product(rows.t(), x_SI[first:end], grad_EOI[expert])
            if grad_EO is not None:
                torch.sum(rows, dim=0, out=grad_EO[expert])
        return grad_SI, grad_EOI, grad_EO, None


def grouped_linear(x_SI: Tensor, weight_EOI: Tensor, bias_EO: Tensor, sent: Dispatch) -> Tensor:
    """Each slot's row through its expert's linear map: (S, I) -> (S, O)."""
    device = x_SI.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        x_SI, weight_EOI, bias_EO = x_SI.to(dtype), weight_EOI.to(dtype), bias_EO.to(dtype)
    if sent.real_S is not None:
        experts, outputs, inputs = weight_EOI.shape
        x_ECI = x_SI.reshape(experts, -1, inputs)
        return torch.baddbmm(bias_EO[:, None], x_ECI, weight_EOI.transpose(1, 2)).view(len(x_SI), outputs)
    return _GroupedLinear.apply(x_SI, weight_EOI, bias_EO, sent.runs)


def weighted(y_SD: Tensor, weight_S: Tensor | None) -> Tensor:
    """Each slot's row times its factor."""
    return y_SD if weight_S is None else y_SD * weight_S[:, None].to(y_SD.dtype)


class ExpertLinear(nn.Module):
    """A linear map for each expert: `weight` (E, outputs, inputs) and `bias` (E, outputs)."""

    def __init__(self, count: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(count, outputs))

    def forward(self, x_SI: Tensor, sent: Dispatch) -> Tensor:
        """Slots (S, inputs) -> (S, outputs)."""
        return grouped_linear(x_SI, self.weight, self.bias, sent)


class RoutedLinear(ExpertLinear):
    """The same from tokens to tokens."""

    def forward(self, x_BTI: Tensor, sent: Dispatch, weight_S: Tensor | None = None) -> Tensor:
        """(B, T, inputs) -> (B, T, outputs), times `weight_S`; zero where a token has no expert."""
        y_SO = super().forward(take(x_BTI.reshape(-1, x_BTI.shape[-1]), sent), sent)
        return put(weighted(y_SO, weight_S), sent).view(*x_BTI.shape[:2], self.weight.shape[1])

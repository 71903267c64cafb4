"""Token dispatch: sorting tokens by expert, gathering them into the experts' slots, and scattering the results back.

Tokens are sorted by expert once; every linear map then processes one contiguous run of rows per expert. Dimensions: N
tokens in B sentences of length T; E experts, of which K process each token; S slots, the rows that the experts compute,
ordered by expert; P = N * K pairs of a token and one of its experts; D channels.

How many tokens an expert gets depends on the data, and so do the shapes of all that follows. Compilers and exporters
(`torch.compile`, `torch.export`, ONNX, tracing) need shapes that follow from those of the inputs. For them the dispatch
is dense: every expert has a slot for every token (S = E * N), computes all of them, and what was not routed to it is
left out of the sum. The results are the same up to rounding; the experts' work is E / K times as much.
"""

from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


def needs_static_shapes() -> bool:
    """Whether a compiler, exporter or tracer runs the model, so that no shape may depend on the data."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


class Tokens:
    """The tokens of a batch, created once per forward pass and used by all layers.

    Args:
        input_ids_BT: None if the model was given embeddings.
        mask: (B, T), 1 for tokens and 0 for padding. Without it, or if it has another shape, nothing counts as padding.

    Attributes:
        valid_BT: False for padding; None if there is none.
        dense: whether tokens are dispatched densely, so that all shapes follow from those of the inputs.
    """

    def __init__(self, input_ids_BT: Tensor | None, mask: Tensor | None) -> None:
        self.input_ids_BT = input_ids_BT
        self.dense = needs_static_shapes()
        self.valid_BT = mask.bool() if mask is not None and mask.dim() == 2 else None
        if self.valid_BT is not None and not self.dense and bool(self.valid_BT.all()):
            self.valid_BT = None


class Dispatch:
    """The assignment of tokens to the experts' slots.

    Attributes:
        slot_NK: the slot of each token for each of its experts; -1 for padding and for tokens beyond the capacity.
        missing_NK: True for the pairs without a slot; None if all have one.
        pair_S: the pair (token * K + k) in each slot.
        token_S: the token in each slot.
        counts: the number of tokens of each expert; empty if `dense`, where it is not known.
        real_S: if all experts have equal numbers of slots, True for the slots that hold a token; the results of the
            others are discarded. None if there are no empty slots, and if `dense`.
        dense: whether every expert has a slot for every token. Slots of tokens that were not routed to it have an
            arbitrary pair of the token; their results are discarded.
    """

    def __init__(
        self,
        slot_NK: Tensor,
        pair_S: Tensor,
        counts: tuple[int, ...] = (),
        real_S: Tensor | None = None,
        dense: bool = False,
    ) -> None:
        choices = slot_NK.shape[1]
        self.slot_NK, self.pair_S, self.counts, self.real_S, self.dense = slot_NK, pair_S, counts, real_S, dense
        self.missing_NK = None if not dense and sum(counts) == slot_NK.numel() else slot_NK < 0
        self.token_S = pair_S if choices == 1 else pair_S // choices

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """For each expert the half-open range of its slots: the first one, and the one after the last."""
        return tuple(pairwise(accumulate(self.counts, initial=0)))


def dispatch_tokens(
    experts_NK: Tensor,
    count: int,
    shape: tuple[int, ...],
    tokens: Tokens,
    capacity: Fraction | None = None,
    batched: bool = False,
) -> Dispatch:
    """Sort the pairs of tokens and experts by expert, without padding and tokens beyond the capacity.

    Args:
        experts_NK: the experts of each token.
        count: E.
        shape: (B, T), or (1, B * T) if the capacity is shared by the sentences of the batch.
        capacity: each expert takes at most the first ceil(capacity * K * length / E) tokens of a sentence of that
            length. The bound applies to each sentence, so results do not depend on the rest of the batch; or, with the
            shape (1, B * T), to the batch as if it were one sentence, as in Switch (without its padding).
        batched: pad every expert to as many slots as the one with the most tokens needs.
    """
    if tokens.dense:
        return _dense_dispatch(experts_NK, count, shape, tokens, capacity)
    choices = experts_NK.shape[1]
    expert_P = experts_NK.reshape(-1)
    device = expert_P.device
    place_P = torch.arange(len(expert_P), device=device)
    # Pairs that are not dispatched get the expert number E, so they are sorted behind all others.
    if tokens.valid_BT is not None:
        valid_P = tokens.valid_BT.reshape(-1).repeat_interleave(choices)
        expert_P = torch.where(valid_P, expert_P, count)
    if capacity is not None and len(expert_P):
        expert_P = _without_overflow(expert_P, place_P, count, shape, choices, tokens, capacity)
    # Sorting uint8 is several times faster than int64, and there are at most 64 experts.
    order_P = torch.argsort(expert_P.to(torch.uint8), stable=True)
    counts = torch.bincount(expert_P, minlength=count + 1)[:count].tolist()
    total = sum(counts)
    pair_S, slots = order_P[:total], place_P[:total]
    if not batched:
        slot_P = torch.full_like(place_P, -1) if total < len(place_P) else torch.empty_like(place_P)
        slot_P[pair_S] = slots
        return Dispatch(slot_P.view(-1, choices), pair_S, tuple(counts))
    largest = max(counts)
    expert_S = torch.repeat_interleave(torch.tensor(counts, device=device))
    firsts = accumulate(counts[:-1], initial=0)
    shifts = torch.tensor([largest * expert - first for expert, first in enumerate(firsts)], device=device)
    slots = slots + shifts[expert_S]
    padded_S = pair_S.new_zeros(largest * count)
    padded_S[slots] = pair_S
    real_S = torch.zeros(largest * count, dtype=torch.bool, device=device)
    real_S[slots] = True
    slot_P = torch.full_like(place_P, -1)
    slot_P[pair_S] = slots
    return Dispatch(slot_P.view(-1, choices), padded_S, tuple(counts), real_S)


def _dense_dispatch(
    experts_NK: Tensor, count: int, shape: tuple[int, ...], tokens: Tokens, capacity: Fraction | None
) -> Dispatch:
    """As `dispatch_tokens`, with a slot for every token in every expert. No shape depends on the data."""
    total, choices = experts_NK.shape
    device = experts_NK.device
    expert_E = torch.arange(count, device=device)
    token_N = torch.arange(total, device=device)
    kept_NK = torch.ones_like(experts_NK, dtype=torch.bool)
    if tokens.valid_BT is not None:
        kept_NK = kept_NK & tokens.valid_BT.reshape(-1, 1)
    if capacity is not None:
        # The pairs of each sentence in the order of its tokens: Q = T * K. Each pair counts those before it.
        chosen_NKE = (experts_NK[..., None] == expert_E) & kept_NK[..., None]
        chosen_BQE = chosen_NKE.reshape(shape[0], shape[1] * choices, count).long()
        before_BQE = chosen_BQE.cumsum(dim=1) - chosen_BQE
        before_NK = (before_BQE * chosen_BQE).sum(dim=-1).reshape(total, choices)
        bound_B = _bounds(count, shape, choices, tokens, capacity, device)
        kept_NK = kept_NK & (before_NK < bound_B[token_N // shape[1]][:, None])
    slot_NK = torch.where(kept_NK, experts_NK * total + token_N[:, None], -1)
    choice_EN = (experts_NK == expert_E[:, None, None]).long().argmax(dim=-1)
    pair_S = (token_N * choices + choice_EN).reshape(-1)
    return Dispatch(slot_NK, pair_S, dense=True)


def _bounds(
    count: int, shape: tuple[int, ...], choices: int, tokens: Tokens, capacity: Fraction, device: torch.device
) -> Tensor:
    """The number of tokens of each sentence that an expert takes: (B,)."""
    batch, length = shape
    lengths_B = torch.full((batch,), length, device=device)
    if tokens.valid_BT is not None:
        lengths_B = tokens.valid_BT.reshape(batch, length).sum(dim=1)
    return -(-lengths_B * choices * capacity.numerator // (count * capacity.denominator))


def _without_overflow(
    expert_P: Tensor,
    place_P: Tensor,
    count: int,
    shape: tuple[int, ...],
    choices: int,
    tokens: Tokens,
    capacity: Fraction,
) -> Tensor:
    """`expert_P` with `count` in place of the expert for the pairs that exceed its capacity."""
    sentence_P = place_P // (shape[1] * choices)
    bound_B = _bounds(count, shape, choices, tokens, capacity, expert_P.device)
    # The rank of each pair among those of the same sentence and expert.
    group_P = sentence_P * (count + 1) + expert_P
    order_P = torch.argsort(group_P, stable=True)
    sizes = torch.bincount(group_P)
    before_P = torch.empty_like(place_P)
    before_P[order_P] = place_P - (sizes.cumsum(0) - sizes)[group_P[order_P]]
    return torch.where(before_P < bound_B[sentence_P], expert_P, count)


class _Take(Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, dispatch: Dispatch) -> Tensor:
        ctx.dispatch = dispatch
        return x_ND.index_select(0, dispatch.token_S)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_SD: Tensor) -> tuple[Tensor, None]:
        return _back(grad_SD, ctx.dispatch), None


class _Put(Function):
    @staticmethod
    def forward(ctx: Any, y_SD: Tensor, dispatch: Dispatch) -> Tensor:
        ctx.dispatch = dispatch
        return _back(y_SD, dispatch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor, None]:
        grad_SD = grad_ND.index_select(0, ctx.dispatch.token_S)
        if ctx.dispatch.real_S is not None:
            grad_SD.masked_fill_(~ctx.dispatch.real_S[:, None], 0)
        return grad_SD, None


def _back(y_SD: Tensor, dispatch: Dispatch) -> Tensor:
    """The sum over each token's slots, (S, D) -> (N, D)."""
    tokens, choices = dispatch.slot_NK.shape
    if not dispatch.dense and not len(y_SD):
        return y_SD.new_zeros(tokens, y_SD.shape[-1])
    slot_P = dispatch.slot_NK.reshape(-1)
    if dispatch.missing_NK is None:
        y_PD = y_SD.index_select(0, slot_P)
    else:
        y_PD = y_SD.index_select(0, slot_P.clamp(min=0)).masked_fill_(dispatch.missing_NK.reshape(-1, 1), 0)
    return y_PD if choices == 1 else y_PD.view(tokens, choices, -1).sum(dim=1)


def take(x_ND: Tensor, dispatch: Dispatch) -> Tensor:
    """Gather each slot's token: (N, D) -> (S, D)."""
    if dispatch.dense:  # compilers and exporters differentiate themselves, and cannot trace `Function`s
        return x_ND.index_select(0, dispatch.token_S)
    return _Take.apply(x_ND, dispatch)


def put(y_SD: Tensor, dispatch: Dispatch) -> Tensor:
    """Scatter the slots back and sum over each token's slots: (S, D) -> (N, D); zero for a token without a slot."""
    return _back(y_SD, dispatch) if dispatch.dense else _Put.apply(y_SD, dispatch)


def weighted(y_SD: Tensor, weight_S: Tensor | None) -> Tensor:
    """Multiply each row by its slot's weight: (S, D) -> (S, D)."""
    return y_SD if weight_S is None else y_SD * weight_S[:, None].to(y_SD.dtype)

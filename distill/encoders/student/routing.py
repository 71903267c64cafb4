"""Routers, which decide to which experts the tokens of a batch are sent. Dimensions are those of `dispatch.py`, and R
routing decisions, one for each valid token or for each sentence.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .dispatch import Dispatch, Tokens, dispatch_tokens


@dataclass(frozen=True)
class Routing:
    """The decision of a router for a batch.

    Attributes:
        experts: (R, K), the experts of every valid token or, if whole sentences are routed, of every sentence that has
            a valid token. If the dispatch is dense, padding is included.
        probabilities: (R, E), the gate's softmax over the experts; None for a routing table.
        dispatch: the assignment of tokens to slots.
        weight_S: the factor by which the output of each slot is multiplied; None means 1.
    """

    experts: Tensor
    probabilities: Tensor | None
    dispatch: Dispatch
    weight_S: Tensor | None


class Router(nn.Module):
    """The base class of all routers, which decide which experts process the tokens of a batch.

    Args:
        experts: `count` (E), `routing`, `top_k` (K) and `capacity` of a layer, as in `NasBertConfig.ffn`.
        config: the model's configuration.
        batched: whether all experts get equal numbers of slots, for batched matrix products.

    Attributes:
        reads_hidden_states: whether the decision depends on the hidden states. If so, every block has its own router;
            if not, the layer has one router that decides once for all of its blocks.
    """

    reads_hidden_states: bool

    def __init__(self, experts: Mapping[str, Any], config: Any, batched: bool = False) -> None:
        super().__init__()
        self.count, self.top_k, self.routing = experts["count"], experts["top_k"], experts["routing"]
        if type(self.count) is not int or type(self.top_k) is not int or not 1 <= self.top_k <= self.count:
            raise ValueError(f"top_k must be from 1 to the number of experts, {self.count!r}, not {self.top_k!r}")
        self.capacity = None if experts["capacity"] is None else Fraction(experts["capacity"])
        if config.capacity_per not in ("sentence", "batch"):
            raise ValueError(f"config.capacity_per is {config.capacity_per!r}; known are sentence, batch")
        self.per_batch = config.capacity_per == "batch"
        self.batched = batched

    def dispatch(self, experts_NK: Tensor, shape: tuple[int, ...], tokens: Tokens) -> Dispatch:
        """Dispatch the tokens of a batch of this shape, (B, T), to these experts."""
        shape = (1, shape[0] * shape[1]) if self.per_batch else shape
        return dispatch_tokens(experts_NK, self.count, shape, tokens, self.capacity, self.batched)


class TableRouter(Router):
    """Sends every token id to a fixed expert, by a persistent `table` (vocabulary,) uint8 (hash layers: Roller et al.,
    2021; MoEBERT, section 3.3). With K > 1 a token also goes to the K - 1 next experts by number (modulo E), and each
    expert's output is weighted by 1 / K.
    """

    table: Tensor
    reads_hidden_states = False

    def __init__(self, experts: Mapping[str, Any], config: Any, batched: bool = False) -> None:
        super().__init__(experts, config, batched)
        self.register_buffer("table", torch.zeros(config.vocab_size, dtype=torch.uint8))

    def resize(self, vocabulary: int) -> None:
        """Give the table as many rows; each new token id goes to the expert with the number id modulo E."""
        kept = self.table[:vocabulary]
        ids = torch.arange(len(kept), vocabulary, device=kept.device)
        self.table = torch.cat((kept, (ids % self.count).to(kept.dtype)))

    def forward(self, hidden_BTD: Tensor, tokens: Tokens) -> Routing:
        """Route by token id. Raises ValueError if there are no token ids, or one of them is not in the table."""
        ids_BT = tokens.input_ids_BT
        if ids_BT is None:
            raise ValueError(f"{self.routing} routing goes by token ids: give the model input_ids, not inputs_embeds")
        if not tokens.dense and ids_BT.numel() and int(ids_BT.max()) >= len(self.table):
            raise ValueError(f"token id {int(ids_BT.max())} is not in the routing table of {len(self.table)} ids")
        experts_NK = self.table[ids_BT.reshape(-1, 1)].long()
        if self.top_k > 1:
            experts_NK = (experts_NK + torch.arange(self.top_k, device=ids_BT.device)) % self.count
        dispatch = self.dispatch(experts_NK, ids_BT.shape, tokens)
        weight_S = hidden_BTD.new_full(dispatch.pair_S.shape, 1 / self.top_k) if self.top_k > 1 else None
        valid_NK = experts_NK if tokens.dense or tokens.valid_BT is None else experts_NK[tokens.valid_BT.reshape(-1)]
        return Routing(valid_NK, None, dispatch, weight_S)


class GateRouter(Router, ABC):
    """Sends tokens to the K experts with the highest probability softmax(weight x), with a learned `weight` (E, D).

    With `gate_scale` = "relative", the output of an expert is multiplied by its probability times E / K (summing over
    the K experts, this is 1 for uniform probabilities). As they are nearly uniform at initialization, a mixture that is
    split from a dense model starts close to its function. With "probability" it is multiplied by the probability alone,
    as in MoEBERT (equations 2 and 3), MiniMoE and Switch: a mixture starts at 1 / E of its dense layers' outputs.
    MoEBERT's released code, whose experts contain the residual connection and the LayerNorm, multiplies what comes
    after these; here it is always the output before the residual connection, as in MiniMoE.

    A subclass defines the gate's input by `gate_inputs`. It must not add parameters to `weight`, since inheritance and
    the one-shot supernet slice that by rows.
    """

    reads_hidden_states = True
    by_sentence = False

    def __init__(self, experts: Mapping[str, Any], config: Any, batched: bool = False) -> None:
        super().__init__(experts, config, batched)
        self.jitter = config.router_jitter_noise
        scales = {"relative": self.count / self.top_k, "probability": 1.0}
        if config.gate_scale not in scales:
            raise ValueError(f"config.gate_scale is {config.gate_scale!r}; known are {', '.join(scales)}")
        self.scale = scales[config.gate_scale]
        self.weight = nn.Parameter(torch.empty(self.count, config.hidden_size))

    @abstractmethod
    def gate_inputs(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The input vectors of the gate.

        Args:
            valid_BT: False for padding; None if there is no padding.

        Returns:
            The vectors, (B * T, D), or (B, D) with `by_sentence`; and a mask of those that are not padding, or None if
            none is.
        """

    def forward(self, hidden_BTD: Tensor, tokens: Tokens) -> Routing:
        # The routing decision is made in float32 so that it does not depend on rounding to bfloat16.
        full_BTD = hidden_BTD if hidden_BTD.dtype == torch.float64 else hidden_BTD.float()
        inputs_RD, valid_R = self.gate_inputs(full_BTD, tokens.valid_BT)
        if self.training and self.jitter:
            inputs_RD = inputs_RD * torch.empty_like(inputs_RD).uniform_(1 - self.jitter, 1 + self.jitter)
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            probabilities_RE = F.softmax(inputs_RD @ self.weight.to(inputs_RD.dtype).t(), dim=-1)
        chosen_RK, experts_RK = torch.topk(probabilities_RE, self.top_k, dim=-1)
        chosen_NK, experts_NK = chosen_RK, experts_RK
        if self.by_sentence:
            chosen_NK, experts_NK = (
                of_sentences[:, None].expand(-1, full_BTD.shape[1], -1).reshape(-1, self.top_k)
                for of_sentences in (chosen_RK, experts_RK)
            )
        dispatch = self.dispatch(experts_NK, full_BTD.shape[:2], tokens)
        weight_S = chosen_NK.reshape(-1)[dispatch.pair_S] * self.scale
        if valid_R is not None and not tokens.dense:
            experts_RK, probabilities_RE = experts_RK[valid_R], probabilities_RE[valid_R]
        return Routing(experts_RK, probabilities_RE, dispatch, weight_S)


class TokenGate(GateRouter):
    """Routes every token by its own hidden state (MiniMoE, section 3.2)."""

    def gate_inputs(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return hidden_BTD.flatten(0, 1), None if valid_BT is None else valid_BT.reshape(-1)


class SentenceGate(GateRouter):
    """Routes all tokens of a sentence together, by the mean of their hidden states."""

    by_sentence = True

    def gate_inputs(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if valid_BT is None:
            return hidden_BTD.mean(dim=1), None
        lengths_B = valid_BT.sum(dim=1)
        sums_BD = (hidden_BTD * valid_BT[..., None]).sum(dim=1)
        return sums_BD / lengths_B.clamp(min=1)[:, None], lengths_B > 0


# The routers by their names in a configuration; `search_spaces.routing.ROUTINGS` has their properties.
ROUTERS: dict[str, type[Router]] = {
    "hash": TableRouter,
    "balanced_hash": TableRouter,
    "token_gate": TokenGate,
    "sentence_gate": SentenceGate,
}
# The routers whose code ships in a checkpoint; others may be added to `ROUTERS` at run time.
EXPORTED_ROUTERS = frozenset(ROUTERS)


def router_class(experts: Mapping[str, Any]) -> type[Router]:
    """The router class for a layer with these experts, as in an entry of `NasBertConfig.ffn`.

    Raises:
        ValueError: `ROUTERS` does not have the routing.
    """
    name = experts["routing"]
    if name not in ROUTERS:
        raise ValueError(f"no router is called {name!r}; known are {', '.join(ROUTERS)}")
    return ROUTERS[name]


def make_gate(count: int, config: Any, batched: bool = False, capacity: str | None = None) -> Router:
    """A `TokenGate` that sends each token to one of `count` experts of this capacity."""
    return TokenGate({"count": count, "routing": "token_gate", "top_k": 1, "capacity": capacity}, config, batched)

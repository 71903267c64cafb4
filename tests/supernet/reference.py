"""Experts written out: one token after the other, each through dense blocks."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn


def dense_blocks(block: nn.Module, make: Any, count: int) -> list[nn.Module]:
    """A dense block, made by `make`, with the weights of each of a block's experts."""
    blocks = []
    for expert in range(count):
        dense = make()
        expert_weights = {
            name: tensor[expert] for name, tensor in block.named_parameters() if name.partition(".")[0] in MAPS
        }
        norm = {name: tensor for name, tensor in block.named_parameters() if name.startswith("LayerNorm")}
        dense.load_state_dict({name: tensor.detach().clone() for name, tensor in (expert_weights | norm).items()})
        blocks.append(dense)
    return blocks


MAPS = ("expand", "gate", "project")


def by_token(
    dense: Sequence[nn.Module],
    experts: Mapping[str, Any],
    chooser: Tensor,
    hidden_BTD: Tensor,
    ids_BT: Tensor,
    mask_BT: Tensor,
    relative: bool = True,
) -> Tensor:
    """What a block of these experts returns.

    Args:
        dense: a block for each expert; the LayerNorm is the first one's.
        experts: an entry of `NasBertConfig.ffn`.
        chooser: the table of a hash, or the weight of a gate.
        relative: whether a gate's probability is divided by the one with which all would share alike.
    """
    count, top_k, routing = experts["count"], experts["top_k"], experts["routing"]
    sentences = []
    for states_TD, ids_T, mask_T in zip(hidden_BTD, ids_BT.tolist(), mask_BT.bool(), strict=True):
        length = int(mask_T.sum())
        most = math.inf
        if experts["capacity"] is not None:
            most = math.ceil(Fraction(experts["capacity"]) * top_k * length / count)
        room = [most] * count
        for state_D, number, valid in zip(states_TD, ids_T, mask_T.tolist(), strict=True):
            change_D = torch.zeros_like(state_D)
            if valid and routing in ("hash", "balanced_hash"):
                passed = [((int(chooser[number]) + step) % count, 1 / top_k) for step in range(top_k)]
            elif valid:
                asked_D = states_TD[mask_T].mean(dim=0) if routing == "sentence_gate" else state_D
                odds_E = (chooser @ asked_D).exp()
                order = odds_E.argsort(descending=True)[:top_k].tolist()
                equal = top_k / count if relative else 1
                passed = [(expert, odds_E[expert] / odds_E.sum() / equal) for expert in order]
            else:
                passed = []
            for expert, share in passed:
                if room[expert] > 0:
                    room[expert] -= 1
                    change_D = change_D + share * dense[expert].f(state_D)
            sentences.append(dense[0].LayerNorm(state_D + change_D))
    return torch.stack(sentences).view(hidden_BTD.shape)

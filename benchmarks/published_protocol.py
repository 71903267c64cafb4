"""The reference protocol: how the code that EfficientBERT's authors released trains a candidate, written anew.

For every candidate the supernet is loaded from its checkpoint with all blocks at full width; stacks and expansions are
slices that the forward pass takes. Every sequence is padded to the full length. The teacher runs in every step and
returns the attention scores and hidden states of all its layers. Everything is float32, and attention is computed
without a fused kernel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import FFN

BLOCKS = 4
DROPOUT = 0.1
MASKED = -10_000.0

OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "gelu": lambda x: F.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "swish": F.silu,
}


@dataclass(frozen=True)
class Outputs:
    """What a model computes.

    Attributes:
        logits: (B, labels).
        scores: of each layer the attention scores before the softmax, (B, H, T, T).
        states: the embedding's output and the hidden states of all layers, (B, T, D).
    """

    logits: Tensor
    scores: Sequence[Tensor]
    states: Sequence[Tensor]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(DROPOUT)

    def forward(self, hidden_BTD: Tensor, bias_B11T: Tensor) -> tuple[Tensor, Tensor]:
        def split(linear: nn.Linear) -> Tensor:
            return linear(hidden_BTD).unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = split(self.query), split(self.key), split(self.value)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias_B11T
        context = self.dropout(scores.softmax(dim=-1)) @ value
        change = self.output(context.transpose(1, 2).flatten(2))
        return self.norm(hidden_BTD + self.dropout(change)), scores


class Block(nn.Module):
    """One FFN of full width; a candidate uses its first inner channels."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.expand, self.project = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(DROPOUT)

    def forward(self, hidden_BTD: Tensor, ffn: FFN, inner: int) -> Tensor:
        values: list[Tensor] = []
        for node in ffn.graph.nodes:
            inputs = [values[place] for place in node.inputs]
            if node.op == "x":
                value = hidden_BTD
            elif node.op == "expand":
                value = F.linear(inputs[0], self.expand.weight[:inner], self.expand.bias[:inner])
            elif node.op == "project":
                value = F.linear(inputs[0], self.project.weight[:, : inputs[0].shape[-1]], self.project.bias)
            elif node.op in OPERATIONS:
                value = OPERATIONS[node.op](*inputs)
            else:
                width = min(tensor.shape[-1] for tensor in inputs)
                left, right = (tensor[..., :width] for tensor in inputs)
                value = {"add": left.add, "mul": left.mul, "max": left.maximum}[node.op](right)
            values.append(value)
        return self.norm(hidden_BTD + self.dropout(values[-1]))


class Encoder(nn.Module):
    """A BERT, or EfficientBERT's supernet with `blocks` FFNs a layer, and a classifier on top."""

    def __init__(self, base: Base, blocks: int) -> None:
        super().__init__()
        self.base = base
        self.words = nn.Embedding(base.vocabulary, base.embedding or base.width)
        self.widen = nn.Linear(3 * base.embedding, base.width) if base.embedding else nn.Identity()
        self.positions = nn.Embedding(base.positions, base.width)
        self.token_types = nn.Embedding(base.token_types, base.width)
        self.norm, self.dropout = nn.LayerNorm(base.width), nn.Dropout(DROPOUT)
        self.stack = blocks
        self.attentions = nn.ModuleList(Attention(base.width, base.heads) for _ in range(base.depth))
        self.blocks = nn.ModuleList(Block(base.width, base.inner) for _ in range(base.depth * blocks))
        self.pooler, self.classifier = nn.Linear(base.width, base.width), nn.Linear(base.width, 2)

    def forward(self, ids_BT: Tensor, mask_BT: Tensor, architecture: Architecture) -> Outputs:
        words = self.words(ids_BT)
        if self.base.embedding:
            after, before = F.pad(words[:, 1:], (0, 0, 0, 1)), F.pad(words[:, :-1], (0, 0, 1, 0))
            words = torch.cat((after, words, before), dim=-1)
        places = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        hidden = self.widen(words) + self.positions(places) + self.token_types(torch.zeros_like(ids_BT))
        states, scores = [self.dropout(self.norm(hidden))], []
        bias = (1.0 - mask_BT[:, None, None, :].float()) * MASKED
        for layer, (attention, ffn) in enumerate(zip(self.attentions, architecture.ffns, strict=True)):
            hidden, score = attention(states[-1], bias)
            for number in range(ffn.stack):
                hidden = self.blocks[layer * self.stack + number](hidden, ffn, ffn.inner(self.base))
            states.append(hidden)
            scores.append(score)
        pooled = torch.tanh(self.pooler(states[-1][:, 0]))
        return Outputs(self.classifier(self.dropout(pooled)), scores, states)


def loss(student: Outputs, teacher: Outputs, transform: nn.Linear) -> Tensor:
    """Attention, hidden states, embedding and soft labels, as released: means over padding too, and over classes."""

    def without_masked(scores: Tensor) -> Tensor:
        return torch.where(scores <= -100, 0.0, scores)

    step = len(teacher.scores) // len(student.scores)
    total = F.mse_loss(transform(student.states[0]), teacher.states[0])
    for layer, (scores, state) in enumerate(zip(student.scores, student.states[1:], strict=True), start=1):
        total = total + F.mse_loss(without_masked(scores), without_masked(teacher.scores[layer * step - 1]))
        total = total + F.mse_loss(transform(state), teacher.states[layer * step])
    soft = teacher.logits.softmax(dim=-1) * student.logits.log_softmax(dim=-1)
    return total - soft.mean()


def train(
    student: Encoder,
    architecture: Architecture,
    teacher: Encoder,
    batches: Sequence[tuple[Tensor, Tensor]],
    learning_rate: float = 1e-4,
) -> list[float]:
    """Train a candidate on batches of token ids and masks, both (B, T); returns the loss of every step."""
    dense = Architecture.uniform(teacher.base)
    device = student.classifier.weight.device
    transform = nn.Linear(student.base.width, teacher.base.width).to(device)
    parameters = [*student.parameters(), *transform.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / len(batches))
    student.train()
    teacher.eval()
    losses = []
    for ids_BT, mask_BT in ((ids.to(device), mask.to(device)) for ids, mask in batches):
        with torch.no_grad():
            target = teacher(ids_BT, mask_BT, dense)
        value = loss(student(ids_BT, mask_BT, architecture), target, transform)
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses

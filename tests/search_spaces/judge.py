"""Judges fingerprints: graphs with one of them must compute one function in the student's own block, and others not."""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from distill.encoders.student.ffn import FFNBlock
from search_spaces import Base, FFNGraph, Space
from search_spaces.equivalence import fingerprint

BASE = Base(depth=6, width=12, heads=3, inner=12)
# Inner widths of the judged graphs: smaller than, equal to and larger than the width.
INNER = (5, 12, 20)
# Differences that count as none, in float32 and in float64, relative to a token's largest value.
SINGLE, DOUBLE = 1e-6, 1e-10


def draws(count: int, rng: random.Random) -> list[FFNGraph]:
    """Graphs drawn from spaces with and without a gate, close to the base graph and far from it."""
    spaces = [
        Space(
            genes={"stack": (1,), "expansion": (Fraction(1),)},
            base=BASE,
            min_params=0,
            max_params=10**9,
            mutation_rate=mutation_rate,
            gated=gated,
        )
        for mutation_rate in (0.5, 0.75, 1.0)
        for gated in (False, True)
    ]
    graphs: list[FFNGraph] = []
    while len(graphs) < count:
        graphs += [ffn.graph for space in spaces for ffn in space.sample(rng).ffns]
    return graphs[:count]


class Judge:
    """Computes graphs as the student does, in float64, on 8 sets of weights with 256 tokens each."""

    def __init__(self, base: Base, inner: int) -> None:
        self.base, self.inner = base, inner
        generator = torch.Generator().manual_seed(1)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        self.x_STD = normal(8, 256, base.width) * 10 ** (
            6 * torch.rand(8, 256, 1, dtype=torch.float64, generator=generator) - 2
        )
        self.weights: list[dict[str, tuple[Tensor, Tensor]]] = []
        for number in range(8):
            self.weights.append({})
            for place, op in enumerate(("expand", "project", "gate")):
                inputs, outputs = (max(base.width, inner), base.width) if op == "project" else (base.width, inner)
                gain = 100.0 if number >> place & 1 else 1.0
                self.weights[-1][op] = gain * normal(outputs, inputs) / inputs**0.5, gain * normal(outputs)

    @torch.no_grad()
    def output(self, graph: FFNGraph) -> Tensor:
        """The values of the graph's function, (2048, width)."""
        config = SimpleNamespace(
            model_type="nas_bert",
            hidden_size=self.base.width,
            layer_norm_eps=1e-12,
            hidden_dropout_prob=0.0,
            gelu=self.base.gelu,
            mismatch=self.base.mismatch,
        )
        widths = graph.widths(self.base.width, self.inner, self.base.mismatch)
        block = FFNBlock([(node.op, node.inputs) for node in graph.nodes[1:]], widths, self.inner, config)
        outputs = []
        for x_TD, weights in zip(self.x_STD, self.weights, strict=True):
            for op, (weight, bias) in weights.items():
                if op != "gate" or graph.gated:
                    linear = getattr(block, op)
                    linear.weight = nn.Parameter(weight[:, : linear.in_features])
                    linear.bias = nn.Parameter(bias)
            outputs.append(block.f(x_TD))
        return torch.cat(outputs)


def agree(a: Tensor, b: Tensor, precision: float) -> bool:
    """Whether outputs (tokens, width) differ by at most `precision` of a token's largest value, or of 1."""
    scale = a.abs().amax(-1, keepdim=True).clamp(min=1)
    return bool(((a - b).abs() <= precision * scale).all())


@dataclass(frozen=True)
class Verdict:
    """What fingerprints do with a set of graphs.

    Attributes:
        classes: the number of different fingerprints.
        wrong: pairs of graphs with one fingerprint that compute different functions.
        missed: pairs of graphs with different fingerprints that compute the same function.
    """

    classes: int
    wrong: list[tuple[str, str]]
    missed: list[tuple[str, str]]


def check(graphs: Sequence[FFNGraph], base: Base, inner: int) -> Verdict:
    """Judge the fingerprints of these graphs."""
    groups: dict[str, list[FFNGraph]] = defaultdict(list)
    for graph in dict.fromkeys(graphs):
        groups[fingerprint(graph, base, inner)].append(graph)
    judge = Judge(base, inner)
    wrong: list[tuple[str, str]] = []
    samples = []
    for first, *others in groups.values():
        output = judge.output(first)
        samples.append(output[::97].numpy().ravel())
        for other in others:
            if not agree(output, judge.output(other), SINGLE):
                wrong.append((str(first), str(other)))
    firsts = [graphs[0] for graphs in groups.values()]
    # Functions that agree are neighbours in the order of a random weighting of their values, in which others differ.
    weights = np.random.default_rng(0).normal(size=samples[0].shape)
    order = sorted(range(len(firsts)), key=lambda number: weights @ np.arctan(samples[number]))
    missed: list[tuple[str, str]] = []
    for left, right in pairwise(order):
        close = np.allclose(samples[left], samples[right], rtol=1e-8, atol=1e-8)
        if close and agree(judge.output(firsts[left]), judge.output(firsts[right]), DOUBLE):
            missed.append((str(firsts[left]), str(firsts[right])))
    return Verdict(len(groups), wrong, missed)

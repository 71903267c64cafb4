"""Whether the same functions get the same fingerprint, and different ones different ones.

    python -m benchmarks duplicates [--graphs N] [--seed N]

Random graphs of the space, in every order of the widths and treatment of different ones:

classes  different fingerprints
repeats  share of the graphs whose fingerprint an earlier one has
wrong    graphs with the fingerprint of a function that differs by more than float32's precision
missed   pairs of fingerprints whose functions agree to float64's precision
twins    share of graphs that keep their fingerprint when rewritten by 1 to 8 identities

The judge of `wrong` and `missed` is the student's block, on other weights and inputs of all magnitudes. A second table
does the same for thousands of graphs that differ in the activations at one place, many of which are hard to tell
apart. Times are those of first checks, in milliseconds of the processor.
"""

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.search.identities import filled, parse, rewritten, text
from search_spaces import BINARY, UNARY, Architecture, Base, FFNGraph, Genes, Space
from search_spaces.equivalence import fingerprint, function_key
from search_spaces.formula import expression
from supernet.model.ffn import FFNBlock

BASE = Base(depth=6, width=12, heads=3, inner=12)
# Of the judge: smaller, equal and larger than the width.
INNER = (5, 12, 20)
SINGLE, DOUBLE = 1e-6, 1e-10


def draws(count: int, rng: random.Random) -> list[FFNGraph]:
    """Graphs drawn from spaces with and without a gate, close to the base graph and far from it."""
    spaces = [
        Space(
            base=BASE,
            stacks=(1,),
            expansions=(Fraction(1),),
            min_params=0,
            max_params=10**9,
            edit_rate=edit_rate,
            gated=gated,
        )
        for edit_rate in (0.5, 0.75, 1.0)
        for gated in (False, True)
    ]
    graphs: list[FFNGraph] = []
    while len(graphs) < count:
        graphs += [genes.graph for space in spaces for genes in space.sample(rng).layers]
    return graphs[:count]


def similar(rng: random.Random) -> dict[str, list[FFNGraph]]:
    """By place, graphs that differ in what one value a goes through there: up to two activations, or a binary
    operation of values with one or two each, and an activation of its result; of the largest group a sample.
    """
    once = ["a", *(f"{op}(a)" for op in UNARY)]
    twice = [f"{op}({value})" for op in UNARY for value in once]
    pairs = [f"{op}({left},{right})" for op in BINARY for left, right in combinations_with_replacement(once, 2)]
    mixed = [f"{op}({left},{right})" for op in BINARY for left in twice for right in (*once, *twice)]
    formulas = [*once, *twice, *pairs, *(f"{op}({pair})" for op in UNARY for pair in pairs), *rng.sample(mixed, 3000)]
    places = {
        "x": ("project(gelu(expand(a)))", "x"),
        "expand(x)": ("project(a)", "expand(x)"),
        "expand(sigmoid(x))": ("tanh(project(a))", "expand(sigmoid(x))"),
        "project(...)": ("a", "project(gelu(expand(x)))"),
        "project(sigmoid(...))": ("a", "project(sigmoid(expand(x)))"),
    }
    result = {}
    for place, (around, inside) in places.items():
        terms = (filled(parse(around), {"a": filled(parse(formula), {"a": parse(inside)})}) for formula in formulas)
        result[place] = [FFNGraph.parse(text(term)) for term in terms]
    return result


class Judge:
    """Runs graphs as the student does, in float64, on 8 sets of weights with 256 tokens each."""

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
        """The graph's function, (2048, width)."""
        config = SimpleNamespace(
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


def check(graphs: Sequence[FFNGraph], base: Base, inner: int, times: list[float]) -> tuple[int, int, int]:
    """Numbers of fingerprints, of wrong merges and of missed ones; appends the seconds of every fingerprint."""
    groups: dict[str, list[FFNGraph]] = defaultdict(list)
    for graph in dict.fromkeys(graphs):
        start = time.thread_time()
        key = fingerprint(graph, base, inner)
        times.append(time.thread_time() - start)
        groups[key].append(graph)
    judge = Judge(base, inner)
    wrong, samples = 0, []
    for first, *others in groups.values():
        output = judge.output(first)
        samples.append(output[::97].numpy().ravel())
        for other in others:
            if not agree(output, judge.output(other), SINGLE):
                wrong += 1
                print(f"  wrong: {first} and {other}")
    firsts = [graphs[0] for graphs in groups.values()]
    # Functions that agree are neighbours in the order of a random weighting of their values, in which others differ.
    weights = np.random.default_rng(0).normal(size=samples[0].shape)
    order = sorted(range(len(firsts)), key=lambda number: weights @ np.arctan(samples[number]))
    missed = 0
    for left, right in pairwise(order):
        close = np.allclose(samples[left], samples[right], rtol=1e-8, atol=1e-8)
        if close and agree(judge.output(firsts[left]), judge.output(firsts[right]), DOUBLE):
            missed += 1
            print(f"  missed: {firsts[left]} and {firsts[right]}")
    return len(groups), wrong, missed


def shown(times: Sequence[float]) -> str:
    low, high, most = 1000 * np.quantile(times, (0.5, 0.99, 1))
    return f"median {low:.2f}, 99 % below {high:.2f}, max {most:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description="are the same functions found, and only those?")
    parser.add_argument("--graphs", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(arguments.seed)
    graphs = draws(arguments.graphs, rng)
    twins = [rewritten(graph, rng, rng.randint(1, 8)) for graph in graphs]
    expressions = {expression(graph, named=True) for graph in set(graphs)}
    print(f"{len(graphs):,} graphs, {len(set(graphs)):,} formulas, {len(expressions):,} expressions of sympy")
    print("mismatch  gelu  inner of 12  classes  repeats  wrong  missed    twins")
    times: dict[str, list[float]] = {"tanh": [], "erf": []}
    for mismatch, gelu, inner in (
        *(("narrow", "tanh", inner) for inner in INNER),
        *(("wide", "erf", inner) for inner in INNER),
    ):
        base = replace(BASE, mismatch=mismatch, gelu=gelu)
        classes, wrong, missed = check(graphs, base, inner, times[gelu])
        kept = sum(
            fingerprint(graph, base, inner) == fingerprint(twin, base, inner)
            for graph, twin in zip(graphs, twins, strict=True)
        )
        print(
            f"{mismatch:8}  {gelu:4}  {inner:11}  {classes:7,}  {1 - classes / len(graphs):7.1%}  {wrong:5}"
            f"  {missed:6}  {kept / len(graphs):7.2%}",
            flush=True,
        )
    print("a value is             graphs  classes  wrong  missed")
    for place, alike in similar(rng).items():
        classes, wrong, missed = check(alike, BASE, 20, [])
        print(f"{place:21}  {len(alike):6,}  {classes:7,}  {wrong:5}  {missed:6}", flush=True)
    for gelu, seconds in times.items():
        print(f"a new graph ({gelu} gelu): {shown(seconds)}")
    keys = []
    for _ in range(1000):
        architecture = Architecture(BASE, tuple(Genes(rng.choice(graphs)) for _ in range(BASE.depth)))
        function_key(architecture)  # its graphs are seen
        shuffled = replace(architecture, layers=architecture.layers[::-1])
        start = time.thread_time()
        function_key(shuffled)
        keys.append(time.thread_time() - start)
    print(f"a new architecture of {BASE.depth} seen graphs: {shown(keys)}")


if __name__ == "__main__":
    main()

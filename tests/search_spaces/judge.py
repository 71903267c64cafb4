"""Checks that graphs of the same function have the same fingerprint, and graphs of different functions different ones.

Random graphs of the space, in every order of the widths and treatment of different ones:

    classes  different fingerprints
    repeats  share of the graphs whose fingerprint an earlier one has
    wrong    graphs with the fingerprint of a function that differs by more than float32's precision
    missed   pairs of fingerprints whose functions agree to float64's precision
    twins    share of graphs that keep their fingerprint when rewritten by 1 to 8 identities

`wrong` and `missed` are judged by the student's block, on other weights and inputs of all magnitudes. A second table
does the same for thousands of graphs that differ in the activations at one place, many of which are hard to tell apart.
Times are those of first fingerprints, in milliseconds of the processor.
"""

import random
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations_with_replacement, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.report import Report
from benchmarks.search.identities import filled, parse, rewritten, text
from search_spaces import BINARY, UNARY, Architecture, Base, FFNGraph, Genes, Space
from search_spaces.equivalence import fingerprint, function_key
from search_spaces.formula import expression
from supernet.model.ffn import FFNBlock

BASE = Base(depth=6, width=12, heads=3, inner=12)
# Inner widths of the judged graphs: smaller than, equal to and larger than the width.
INNER = (5, 12, 20)
# Differences that count as none, in float32 and in float64, relative to a token's largest value.
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
    """By place, graphs that differ in what happens to one value a there: up to two activations; or a binary operation
    of two results of activations of a, and an activation after it. Of the largest group there is a sample.
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
        seconds: of every fingerprint.
    """

    classes: int
    wrong: list[tuple[str, str]]
    missed: list[tuple[str, str]]
    seconds: list[float]


def check(graphs: Sequence[FFNGraph], base: Base, inner: int) -> Verdict:
    """Judge the fingerprints of these graphs."""
    times: list[float] = []
    groups: dict[str, list[FFNGraph]] = defaultdict(list)
    for graph in dict.fromkeys(graphs):
        start = time.thread_time()
        key = fingerprint(graph, base, inner)
        times.append(time.thread_time() - start)
        groups[key].append(graph)
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
    return Verdict(len(groups), wrong, missed, times)


def quantiles(seconds: Sequence[float]) -> tuple[str, str, str]:
    """Median, 99 % quantile and maximum in milliseconds."""
    median, high, most = (f"{1000 * value:.2f}" for value in np.quantile(seconds, (0.5, 0.99, 1)))
    return median, high, most


def key_seconds(graphs: Sequence[FFNGraph], rng: random.Random, count: int = 1000) -> list[float]:
    """Seconds of the keys of new architectures, whose graphs have been seen."""
    seconds = []
    for _ in range(count):
        architecture = Architecture(BASE, tuple(Genes(rng.choice(graphs)) for _ in range(BASE.depth)))
        function_key(architecture)  # now its graphs have been seen
        reversed_layers = replace(architecture, layers=architecture.layers[::-1])
        started = time.thread_time()
        function_key(reversed_layers)
        seconds.append(time.thread_time() - started)
    return seconds


def show_mistakes(report: Report, verdict: Verdict) -> None:
    """Print the pairs of graphs that a fingerprint merged or parted wrongly."""
    for kind in ("wrong", "missed"):
        for one, other in getattr(verdict, kind):
            report.note(f"{kind}: {one} and {other}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--graphs", type=int, default=10_000, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    graphs = draws(options.graphs, rng)
    twins = [rewritten(graph, rng, rng.randint(1, 8)) for graph in graphs]
    expressions = {expression(graph, named=True) for graph in set(graphs)}
    report.note(f"{len(graphs):,} graphs, {len(set(graphs)):,} formulas, {len(expressions):,} expressions of sympy\n")
    times: dict[str, list[float]] = {"tanh": [], "erf": []}
    rows: list[tuple[object, ...]] = []
    results: dict[str, Any] = {}
    for mismatch, gelu in (("narrow", "tanh"), ("wide", "erf")):
        for inner in INNER:
            base = replace(BASE, mismatch=mismatch, gelu=gelu)
            verdict = check(graphs, base, inner)
            show_mistakes(report, verdict)
            times[gelu] += verdict.seconds
            pairs = zip(graphs, twins, strict=True)
            same = (fingerprint(graph, base, inner) == fingerprint(twin, base, inner) for graph, twin in pairs)
            kept, repeats = sum(same) / len(graphs), 1 - verdict.classes / len(graphs)
            results[f"{mismatch}, {gelu}, {inner}"] = {
                "classes": verdict.classes,
                "wrong": verdict.wrong,
                "missed": verdict.missed,
                "twins": kept,
            }
            mistakes = (len(verdict.wrong), len(verdict.missed))
            rows.append((mismatch, gelu, inner, f"{verdict.classes:,}", f"{repeats:.1%}", *mistakes, f"{kept:.2%}"))
            report.progress(f"mismatch {mismatch}, gelu {gelu}, inner width {inner}: checked")
    columns = ("mismatch", "gelu", "inner of 12", "classes", "repeats", "wrong", "missed", "twins")
    report.table(columns, rows)
    rows = []
    for place, alike in similar(rng).items():
        verdict = check(alike, BASE, 20)
        show_mistakes(report, verdict)
        results[place] = {"classes": verdict.classes, "wrong": verdict.wrong, "missed": verdict.missed}
        rows.append((place, f"{len(alike):,}", f"{verdict.classes:,}", len(verdict.wrong), len(verdict.missed)))
        report.progress(f"a value is {place}: checked")
    report.table(("a value is", "graphs", "classes", "wrong", "missed"), rows)
    of_kinds = {f"a new graph ({gelu} gelu)": seconds for gelu, seconds in times.items()}
    of_kinds[f"a new architecture of {BASE.depth} seen graphs"] = key_seconds(graphs, rng)
    rows = [(name, *quantiles(seconds)) for name, seconds in of_kinds.items()]
    report.table(("the fingerprint of", "median, ms", "99 % below", "most"), rows)
    results["quantiles in ms: median, 99 %, most"] = {name: quantiles(seconds) for name, seconds in of_kinds.items()}
    report.save(results, seeds=[options.seed])

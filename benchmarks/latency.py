"""How well the latency table predicts the latency of whole models, for architectures that were not used to fit it.

The architectures have random graphs (half of them gated), stacks, expansions and heads on the demo's base, and lack
some FFNs and some whole layers; a third have a word embedding of lower rank. Their weights are random. With --experts
all heads and words are whole and most of the layers are mixtures of experts. The table is measured anew, then all
models side by side, the teacher among them. Errors are relative to `Latency.quiet`, which the table predicts, and to
the median pass; both of the latency and of its ratio to the teacher's. On a quiet machine all of these agree.
"""

import random
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from statistics import mean

import torch
from scipy.stats import kendalltau
from transformers import BertConfig

from benchmarks.common import Report, timed
from nas.latency.measure import latency_table, measure_whole
from nas.latency.settings import RUNTIMES, TableSettings
from nas.latency.table import LatencyTable
from nas.latency.whole import Latency
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import DENSE, Attention, Embedding, Experts, Layer
from search_spaces.spaces import Space

BASE = Base(depth=6, width=384, heads=12, inner=1536, gelu="erf")
TEACHER = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
EXPANSIONS = tuple(map(Fraction, ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8")))
RANKS = (64, 128, 192, 256)
EXPERTS = (
    DENSE,
    Experts(2, Fraction(2, 3)),
    Experts(4, Fraction(2, 3)),
    Experts(8, Fraction(2, 3)),
    Experts(4, Fraction(2, 3), "token_gate"),
    Experts(4, Fraction(2, 3), "token_gate", top_k=2),
    Experts(4, Fraction(2, 3), "sentence_gate"),
)


def random_architectures(count: int, seed: int, experts: tuple[Experts, ...]) -> list[Architecture]:
    """Architectures like those of stage 1, every second one gated, most graphs far from the base graph. Without experts
    a third of the attentions have no heads, and a third of the word embeddings have a lower rank.
    """
    rng = random.Random(seed)
    genes = {"stack": (0, 1, 2, 3), "expansion": EXPANSIONS, "experts": experts}
    plain = Space(BASE, genes, 0, 10**9, mutation_rate=0.6)
    spaces = (plain, replace(plain, gated=True))
    sampled = [spaces[number % 2].sample(rng) for number in range(count)]
    if len(experts) > 1:
        return sampled
    sampled = [with_random_heads(architecture, rng) for architecture in sampled]
    return [replace(each, embedding=Embedding(rng.choice((None, None, rng.choice(RANKS))))) for each in sampled]


def with_random_heads(architecture: Architecture, rng: random.Random) -> Architecture:
    """The architecture with a random number of heads in each layer, none in a third of them."""
    heads = [rng.choice((0, *rng.choices(range(1, BASE.heads + 1), k=2))) for _ in architecture.layers]
    layers = (Layer(Attention(number), layer.ffn) for number, layer in zip(heads, architecture.layers, strict=True))
    return Architecture(BASE, tuple(layers))


def errors(predicted: Sequence[float], measured: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the largest absolute error and the bias of predictions, in per cent of what was measured."""
    percents = [100 * (guess / real - 1) for guess, real in zip(predicted, measured, strict=True)]
    return mean(map(abs, percents)), max(map(abs, percents)), mean(percents)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--architectures", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=60, help="of measuring them whole; default: %(default)s")
    parser.add_argument("--runtime", choices=RUNTIMES, default="torch", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--batch", type=int, default=1, help="sentences in a batch; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=64, help="of each sentence; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the architectures; default: %(default)s")
    parser.add_argument("--experts", action="store_true", help="mixtures of experts too")


def measured_table(options: Namespace, experts: tuple[Experts, ...]) -> LatencyTable:
    """The table for the base and these kinds of layers, measured now."""
    settings = TableSettings(
        base_model=Architecture.uniform(BASE),
        teacher=TEACHER,
        inner_widths=[int(expansion * BASE.inner) for expansion in EXPANSIONS],
        heads=range(BASE.heads + 1) if experts == (DENSE,) else [BASE.heads],
        batch=options.batch,
        tokens=options.tokens,
        device="cpu",
        experts=experts,
        ranks=RANKS if experts == (DENSE,) else (),
        runtime=options.runtime,
        threads=options.threads,
    )
    with tempfile.TemporaryDirectory() as cache:
        return latency_table(settings, Path(cache))


def run(options: Namespace, report: Report) -> None:
    experts = EXPERTS if options.experts else (DENSE,)
    table, seconds = timed(lambda: measured_table(options, experts))
    report.progress(f"table of {len(table.steps)} steps measured in {seconds:.1f} s")

    sampled = random_architectures(options.architectures, options.seed, experts)
    architectures = {f"{number}": architecture for number, architecture in enumerate(sampled)}
    measured, seconds = timed(lambda: measure_whole(architectures, table, "cpu", TEACHER, options.rounds, True))
    report.progress(f"{len(measured)} whole models measured in {seconds:.1f} s")

    # The table has microseconds, measurements are in seconds.
    predicted = {name: latency.predicted / 1e6 for name, latency in measured.items()}
    whole = {name: latency.whole for name, latency in measured.items()}
    report.save(
        {
            "predicted seconds": predicted,
            "measured seconds": {name: asdict(latency) for name, latency in whole.items()},
            "architectures": [architecture.to_json() for architecture in sampled],
            "table": table.to_json(),
        },
        seeds=[options.seed],
    )
    show(report, predicted, whole)


def show(report: Report, predicted: dict[str, float], measured: dict[str, Latency]) -> None:
    """Print every model, and then the errors without the teacher's."""
    rows = []
    for name, latency in measured.items():
        error = 100 * (predicted[name] / latency.quiet - 1)
        passes = f"{1e3 * latency.median:.3f} ({1e3 * latency.lower:.3f} to {1e3 * latency.upper:.3f})"
        rows.append((name, f"{1e3 * predicted[name]:.3f}", f"{1e3 * latency.quiet:.3f}", f"{error:+.1f} %", passes))
    report.table(("model", "predicted, ms", "undisturbed, ms", "error", "passes, ms (quartiles)"), rows)
    names = [name for name in measured if name != "teacher"]
    guesses = [predicted[name] for name in names]
    rows = []
    for kind, attribute in (("undisturbed", "quiet"), ("median pass", "median")):
        real = [getattr(measured[name], attribute) for name in names]
        scale = getattr(measured["teacher"], attribute) / predicted["teacher"]
        tau = kendalltau(guesses, real).statistic
        for what, factor in (("latency", 1.0), ("ratio to the teacher", scale)):
            average, worst, bias = errors([factor * guess for guess in guesses], real)
            cells = (f"{average:.2f} %", f"{worst:.2f} %", f"{bias:+.2f} %", f"{tau:.3f}")
            rows.append((f"{what}, {kind}", *cells))
    report.table(("predicted", "mean error", "worst", "bias", "Kendall's tau"), rows)

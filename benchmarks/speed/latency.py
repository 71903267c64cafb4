"""How well the latency table predicts whole models, on architectures that had no part in measuring it.

    python -m benchmarks latency [--architectures N] [--rounds N] [--threads N] [--seed N] [--experts]

Random graphs (half of the architectures gated), stacks and expansions on the demo's base with random weights, one
sentence of 64 tokens; with --experts most layers are mixtures of experts. The table is measured anew, then all models
side by side, the teacher among them. Errors are given against `Latency.quiet`, which the table predicts, and against
the median pass; both of the microseconds and of the ratio to the teacher. On a quiet machine all these agree.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import mean

import torch
from scipy.stats import kendalltau
from torch import nn
from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from nas.latency.table import example, latencies, latency_table
from search_spaces.architecture import DENSE, Architecture, Base, Experts
from search_spaces.spaces import Space
from supernet.build import build

BASE = Base(depth=6, width=384, heads=12, inner=1536, gelu="erf")
TEACHER = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
EXPANSIONS = tuple(map(Fraction, ("1/64", "1/32", "1/16", "1/8", "3/16", "1/4", "3/8")))
EXPERTS = (
    DENSE,
    Experts(2, Fraction(2, 3)),
    Experts(4, Fraction(2, 3)),
    Experts(8, Fraction(2, 3)),
    Experts(4, Fraction(2, 3), "token_gate"),
    Experts(4, Fraction(2, 3), "token_gate", top_k=2),
    Experts(4, Fraction(2, 3), "sentence_gate"),
)
BATCH, TOKENS = 1, 64


def drawn(count: int, seed: int, experts: tuple[Experts, ...]) -> list[Architecture]:
    """Architectures of the coarse search's space, every second one gated, most graphs far from the base graph."""
    rng = random.Random(seed)
    plain = Space(BASE, (1, 2, 3), EXPANSIONS, 0, 10**9, edit_rate=0.6, experts=experts)
    spaces = (plain, replace(plain, gated=True))
    return [spaces[number % 2].sample(rng) for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare predicted with measured latencies.")
    parser.add_argument("--architectures", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=60, help="of measuring them whole; default: %(default)s")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the architectures; default: %(default)s")
    parser.add_argument("--experts", action="store_true", help="mixtures of experts too")
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)

    experts = EXPERTS if options.experts else (DENSE,)
    inner_widths = [int(expansion * BASE.inner) for expansion in EXPANSIONS]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        table = latency_table(
            BASE, TEACHER, inner_widths, batch=BATCH, tokens=TOKENS, device="cpu", cache=Path(cache), experts=experts
        )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {BATCH} x {TOKENS} tokens")
    print(f"table of {len(table.steps)} steps measured in {time.perf_counter() - begun:.1f} s:", end=" ")
    print(f"fixed {table.fixed / 1000:.3f} ms, teacher {table.teacher / 1000:.3f} ms")

    architectures = drawn(options.architectures, options.seed, experts)
    models: dict[str, nn.Module] = {"teacher": BertForSequenceClassification(TEACHER)}
    models |= {f"{number}": build(architecture) for number, architecture in enumerate(architectures)}
    begun = time.perf_counter()
    whole = latencies(models, example(BASE.vocabulary, BATCH, TOKENS, "cpu"), options.rounds)
    print(f"{len(models)} whole models measured in {time.perf_counter() - begun:.1f} s, ms with quartiles")
    teacher = whole.pop("teacher")
    predicted = [table.total(architecture) for architecture in architectures]
    for guess, latency in zip((table.teacher, *predicted), (teacher, *whole.values()), strict=True):
        quartiles = f"{1e3 * latency.median:7.3f} ({1e3 * latency.lower:.3f} to {1e3 * latency.upper:.3f})"
        error = 100 * (guess / 1e6 / latency.quiet - 1)
        print(f"predicted {guess / 1e3:7.3f}  quiet {1e3 * latency.quiet:7.3f} ({error:+5.1f} %)  passes {quartiles}")
    print("the first is the teacher")
    for name in ("quiet", "median"):
        measured = [1e6 * getattr(latency, name) for latency in whole.values()]
        scale = 1e6 * getattr(teacher, name) / table.teacher
        errors = [100 * (guess / real - 1) for guess, real in zip(predicted, measured, strict=True)]
        ratios = [100 * (scale * guess / real - 1) for guess, real in zip(predicted, measured, strict=True)]
        print(
            f"{name:<6}  error: mean {mean(map(abs, errors)):.2f} %, worst {max(map(abs, errors)):.2f} %, "
            f"bias {mean(errors):+.2f} %; of the ratio to the teacher: mean {mean(map(abs, ratios)):.2f} %, "
            f"worst {max(map(abs, ratios)):.2f} %; Kendall's tau {kendalltau(predicted, measured).statistic:.3f}"
        )


if __name__ == "__main__":
    main()

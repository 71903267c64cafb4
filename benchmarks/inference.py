"""The speed of whole mixtures on a processor against their number of experts: MoEBERT's figure 4, and beyond it.

The figure shows examples of SST-2 per second, one at a time, of BERT-base, of DistilBERT, which is half of its layers,
and of MoEBERT with a sentence gate. Here mixtures have 1, 2, 4 and 8 experts (`--experts`) of a quarter of BERT's inner
width, as published, so that all compute the same FFNs but for the gate. The paper pads to 128 tokens at most, without
saying whether to as many; without padding the sentences of SST-2's dev split have 25 tokens on average. Both lengths
are measured.

--models times published architectures instead, such as MiniMoE's and MiniLM's students (its table 5, in tokens per
millisecond; `python -m nas.inspect` lists the names), each with its own gates. --batch is the number of sentences.

Weights and token ids are random. Every pass is on another sentence, and the routers are drawn anew before it: trained
ones, too, send sentences (or tokens) to different experts, whose weights must come from memory. The channels that
experts share do not matter for the speed; the experts here are copies, of which there can be any number.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial

import torch
from torch import nn

from benchmarks.common import BenchmarkError, Report, ratio, summarise, take_turns
from distill.command.options import check_minima
from distill.encoders.student.routing import TableRouter
from distill.objectives.outputs import routers
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import Experts
from search_spaces.published import load
from search_spaces.routing import ROUTINGS
from supernet.build import build

SEED = 0
# Rounds that are not counted.
WARMUP = 3
# The inner width of an expert, as a part of BERT's.
EXPANSION = Fraction(1, 4)


def architectures_of(base: Base, counts: Sequence[int], routing: str) -> dict[str, Architecture]:
    """What is compared, by name."""
    result = {
        "BERT": Architecture.uniform(base),
        "DistilBERT": Architecture.uniform(replace(base, depth=base.depth // 2)),
    }
    for count in counts:
        experts = Experts(count, Fraction(1), routing) if count > 1 else Experts()
        name = f"{count} expert{'s' * (count > 1)} of {int(base.inner * EXPANSION)}"
        result[name] = Architecture.uniform(base, expansion=EXPANSION, experts=experts)
    return result


@torch.no_grad()
def redraw_routers(model: nn.Module) -> None:
    """Give all routers of the model other random tables or gates."""
    for _, router in routers(model):
        if isinstance(router, TableRouter):
            router.table.random_(router.count)
        else:
            router.weight.normal_()


def measure(
    models: Mapping[str, nn.Module], vocabulary: int, batch: int, tokens: int, rounds: int
) -> dict[str, list[float]]:
    """Seconds for a batch of sentences of so many tokens by each model, in every round."""

    def sentences() -> dict[str, torch.Tensor]:
        ids_BT = torch.randint(vocabulary, (batch, tokens))
        return {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}

    @torch.inference_mode()
    def seconds(model: nn.Module, _: int) -> float:
        # Two passes: the first brings back weights that the other models have driven out of the processor's caches, as
        # far as they fit.
        for inputs in (sentences(), sentences()):
            redraw_routers(model)
            started = time.perf_counter()
            model(**inputs)
        return time.perf_counter() - started

    sides = {name: partial(seconds, model) for name, model in models.items()}
    return take_turns(sides, range(rounds), warmup=WARMUP)


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", metavar="NAME", help="published ones, in place of mixtures of --experts")
    parser.add_argument("--experts", type=int, nargs="+", default=[1, 2, 4, 8], help="default: %(default)s")
    parser.add_argument("--routing", default="sentence_gate", choices=ROUTINGS, help="default: %(default)s")
    parser.add_argument("--tokens", type=int, nargs="+", default=[25, 128], help="of a sentence; default: %(default)s")
    parser.add_argument("--batch", type=int, default=1, help="sentences; default: %(default)s")
    parser.add_argument("--layers", type=int, default=12, help="of BERT; default: %(default)s")
    parser.add_argument("--width", type=int, default=768, help="of all models, a multiple of 64; default: %(default)s")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=100, help="default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    check_minima(options, layers=2, width=64, batch=1, rounds=1)
    if min(options.tokens) < 1:
        raise BenchmarkError(f"--tokens: must be at least 1, not {min(options.tokens)}")
    torch.set_num_threads(options.threads)
    torch.manual_seed(SEED)
    base = Base(
        depth=options.layers,
        width=options.width,
        heads=options.width // 64,
        inner=4 * options.width,
        positions=max(512, *options.tokens),
        gelu="erf",
    )
    if options.models:
        architectures = {name: load(name) for name in options.models}
    else:
        architectures = architectures_of(base, options.experts, options.routing)
    models = {name: build(architecture).eval() for name, architecture in architectures.items()}
    report.progress(f"{len(models)} models built")
    times = {}
    for tokens in options.tokens:
        times[tokens] = measure(models, base.vocabulary, options.batch, tokens, options.rounds)
        report.progress(f"{tokens} tokens: done")
    report.save({"seconds": {str(tokens): values for tokens, values in times.items()}}, seeds=[SEED])
    show(report, times, options)


def show(report: Report, times: Mapping[int, Mapping[str, list[float]]], options: Namespace) -> None:
    """Print examples per second, tokens per millisecond, and the speed relative to the first model's."""
    for tokens, seconds in times.items():
        first = next(iter(seconds))
        rows = [
            (
                name,
                summarise([options.batch / value for value in values]).with_quartiles(1),
                summarise([options.batch * tokens / value / 1000 for value in values]).with_quartiles(1),
                ratio(seconds[first], values).with_quartiles(),
            )
            for name, values in seconds.items()
        ]
        routed = "" if options.models else f", {options.routing}"
        title = f"sentences of {tokens} tokens, batch {options.batch}{routed}, {options.threads} threads, float32"
        report.table(("model", "examples per second", "tokens per ms", f"times {first}"), rows, title)

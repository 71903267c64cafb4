"""Measures latency tables of models in onnxruntime.

Reference architectures are exported and measured part by part (`nas.latency.onnx`). The times of the steps are the
solution of a regression that explains the times of the parts by what is in them. The unknowns are one time per width
for each linear layer and per rank for the projection of a word embedding, and for every other operation a constant and
a time per channel.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, cycle
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from distill.training.progress import ProgressCallback
from foundation.files import scratch_folder
from nas.latency.onnx import exported, onnx_parts, undisturbed
from nas.latency.references import mixed_references, small_model, small_teacher
from nas.latency.settings import TableSettings
from nas.latency.steps import GATED, attention_step, probed_graphs, rank_step, step_names
from nas.latency.table import LatencyTable
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import DENSE, FFN, Embedding
from search_spaces.operations import LINEAR

# The references have at least this number of layers, and LAYERS_OF_WIDTH for each width.
LAYERS, LAYERS_OF_WIDTH = 42, 5
# How many processes export models; each takes nearly a gigabyte of memory.
PROCESSES = 4
# What every model has beside its layers: the embeddings, the mask before the first attention, the prediction head.
BESIDE_LAYERS = ("embeddings", "mask", "head")
# A ridge so weak that it only settles what the data leave undetermined.
RIDGE = 1e-4


def onnx_table(settings: TableSettings, on_progress: ProgressCallback) -> LatencyTable:
    """Measure a table.

    Raises:
        ValueError: there are experts, or the device is not "cpu".
        TooBusy: the table would make no sense.
    """
    base_model, widths = settings.base_model, settings.probed_widths
    if base_model.has_experts or any(experts != DENSE for experts in settings.experts):
        raise ValueError(f"experts: {settings.runtime} has no latency table of experts")
    if settings.device != "cpu":
        raise ValueError(f"device: {settings.runtime} runs on the cpu, not on {settings.device}")
    base = replace(base_model.base, inner=widths[-1])
    base_model = replace(base_model, base=base)
    layers = max(LAYERS, LAYERS_OF_WIDTH * len(widths))
    architectures = mixed_references(base_model, widths, settings.measured_heads, layers)
    # A model of few nodes, so that the times of nodes and of their recording differ in what they add up to.
    narrow = base_model.with_ffns([FFN(GATED, 1, Fraction(min(widths), base.inner))] * base.depth)
    narrow = replace(narrow, base=replace(base, depth=1), layers=narrow.layers[:1])
    architectures.append(narrow.with_heads([settings.measured_heads[-1]]))
    # A line in the rank needs the largest and the smallest.
    ranks = cycle([None, *settings.measured_ranks[-1:], *settings.measured_ranks[:1]])
    architectures = [replace(each, embedding=Embedding(next(ranks))) for each in architectures]
    with scratch_folder() as folder:
        students = (small_model(architecture, settings.teacher) for architecture in architectures)
        models = chain([small_teacher(settings.teacher)], students)
        files: dict[str, Path] = {}
        for path in exported(models, settings.runtime, folder, PROCESSES):
            files[f"{len(files)}"] = path
            on_progress(f"latency: {settings.runtime} models", len(files) / (1 + len(architectures)))
        on_progress("latency: whole models and their parts", None)
        found = onnx_parts(files, settings.batch, settings.tokens).values()
    whole = [1e6 * latency.quiet for latency, _ in found]
    teacher, *measured = undisturbed([parts for _, parts in found], whole)
    measured = [merged(base, parts) for parts in measured]
    times = solution([equation for pair in zip(architectures, measured, strict=True) for equation in equations(*pair)])
    steps = {attention_step(heads): times[attention_step(heads)] for heads in settings.measured_heads}
    for name in (*dense_steps(base, widths), *map(rank_step, settings.measured_ranks)):
        steps[name] = sum(times[term] * amount for term, amount in terms(name, base.mismatch).items())
    beside = sum(times.get(name, 0) for name in BESIDE_LAYERS)
    return settings.table({name: round(1e3 * time) for name, time in steps.items()}, beside, sum(teacher))


def merged(base: Base, times: Sequence[float]) -> list[float]:
    """The times of the embeddings, the attentions, the blocks and the head, given those of the parts that end with a
    LayerNorm. Where LayerNorms come first, each is taken as a part of what is below it, that of the lowest attention as
    one of the embeddings. A head may have a LayerNorm, too.
    """
    times = list(times)
    if base.pre_norm and base.first_norm and base.embeddings_norm:
        times[:2] = [sum(times[:2])]
    if base.dense_heads:
        times[-2:] = [sum(times[-2:])]
    return times


def dense_steps(base: Base, widths: Sequence[int]) -> list[str]:
    """The names of all steps of dense blocks of these inner widths."""
    named = (name for graph in probed_graphs() for width in widths for name in step_names(graph, base, width))
    return ["norm", *sorted(set(named))]


def terms(step: str, mismatch: str) -> dict[str, int]:
    """What the time of a step of a block, or of the map of a word embedding, depends on: a factor for each of the
    unknown times.
    """
    op, *numbers = step.split()
    if op == "norm":
        return {step: 1}
    widths = [int(number) for number in numbers]
    if op in LINEAR:
        # A `gate` is a linear layer like `expand`.
        return {f"{'expand' if op == 'gate' else op} {widths[0]}": 1}
    computed = {op: 1, f"{op}, channels": min(widths)}
    if len(widths) == 1:
        return computed
    return computed | {"mismatch": 1, "mismatch, channels": max(widths) if mismatch == "wide" else min(widths)}


def equations(architecture: Architecture, times: Sequence[float]) -> Iterator[tuple[Mapping[str, float], float]]:
    """An equation for each part of a model: factors by the names of the unknown times, and the time of the part."""
    base, masked = architecture.base, False
    contents: list[Counter[str]] = [Counter({"embeddings": 1})]
    if (rank := architecture.embedding.rank) is not None:
        contents[0].update(terms(rank_step(rank), base.mismatch))
    for number, layer in enumerate(architecture.layers):
        heads, ffn = layer.attention.heads, layer.ffn
        contents.append(Counter({attention_step(heads): 1}))
        if base.pre_norm and not heads and (base.first_norm or number):
            # Its LayerNorm is unused and not exported, so that it is one part with what is before it.
            contents[-2:] = [contents[-2] + contents[-1]]
        if heads and not masked:
            # onnxruntime computes the attention mask where it is first needed.
            contents[-1]["mask"] = 1
            masked = True
        block: Counter[str] = Counter()
        for name in ("norm", *step_names(ffn.graph, base, ffn.inner(base))):
            block.update(terms(name, base.mismatch))
        contents += [block] * ffn.stack
    contents.append(Counter({"head": 1}))
    if len(contents) != len(times):
        raise RuntimeError(f"onnxruntime runs a model with {len(contents) - 2} LayerNorms as one with {len(times) - 2}")
    yield from zip(contents, times, strict=True)


def solution(equations: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """The times, none of them below 0, that predict the sums of the equations with the least sum of squares of relative
    errors.

    Args:
        equations: factors by the names of the times, and their sum.
    """
    names = sorted({name for factors, _ in equations for name in factors})
    matrix = np.array([[factors.get(name, 0) / total for name in names] for factors, total in equations])
    # Columns of one length, so that the ridge treats all alike.
    lengths = np.linalg.norm(matrix, axis=0)
    padded = np.vstack([matrix / lengths, RIDGE * np.eye(len(names))])
    found, _ = nnls(padded, np.concatenate([np.ones(len(equations)), np.zeros(len(names))]))
    return dict(zip(names, (found / lengths).tolist(), strict=True))

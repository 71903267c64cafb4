"""Measures latency tables of models in torch: measures attention modules and steps inside whole models, and fits a
constant.

A step is measured inside a whole model, with inputs that have just been computed and weights that are as far away in
the memory hierarchy as in use: a linear layer that runs over and over finds its weights in the nearest cache. The times
of attention modules (and what word embeddings of lower rank take longer) and those of the blocks' steps are then
multiplied by a factor each, and a time is added for embeddings and prediction head; these are fitted to random
reference architectures that are measured as a whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
from torch import nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from distill.encoders.student.embedding import LowRankEmbedding
from distill.training.progress import ProgressCallback
from nas.latency.references import references, small_model
from nas.latency.settings import TableSettings
from nas.latency.steps import GATED, rank_step, step_times
from nas.latency.table import LatencyTable
from nas.latency.whole import NO_GROWTH, TooBusy, example, latencies
from search_spaces.architecture import Architecture
from search_spaces.layer import FFN
from supernet.build import build

# The number of random architectures that are measured as a whole to fit a table, and of the rounds.
REFERENCES, ROUNDS = 12, 60


def torch_table(settings: TableSettings, on_progress: ProgressCallback) -> LatencyTable:
    """Measure a table.

    Raises:
        TooBusy: the table would make no sense.
    """
    base_model, teacher, device = settings.base_model, settings.teacher, settings.device
    batch = example(base_model.base.vocabulary, settings.batch, settings.tokens, device)
    widths = settings.probed_widths
    base = replace(base_model.base, inner=widths[-1])
    base_model = replace(base_model, base=base)
    narrow = base_model.with_ffns([FFN(GATED, 1, Fraction(min(settings.inner_widths), base.inner))] * base.depth)
    host = build(narrow, template=teacher).to(device)
    attentions: dict[int, list[nn.Module]] = {}
    for heads in settings.measured_heads:
        model = small_model(narrow.with_heads([heads] * base.depth), teacher).to(device)
        attentions[heads] = [part(layer, family_of(model).attention) for layer in encoder_layers(model)]
    words = {base.width: part(host.base_model, family_of(host).words)}
    for rank in settings.measured_ranks:
        words[rank] = LowRankEmbedding(base.vocabulary, rank, base.width).to(device)
    experts = list(settings.measured_experts.values())
    on_progress("latency: steps", None)
    seconds = step_times(host, attentions, words, base, widths, experts, batch)
    of_full_rank = seconds.pop(rank_step(base.width))
    for name in map(rank_step, settings.measured_ranks):
        seconds[name] = max(0.0, seconds[name] - of_full_rank)
    nanoseconds = {name: round(1e9 * value) for name, value in seconds.items()}

    shallow = replace(narrow, base=replace(base, depth=1), layers=narrow.layers[:1]).with_heads([min(attentions)])
    inner_widths = sorted(set(settings.inner_widths))
    architectures = [shallow, *islice(references(base_model, inner_widths, list(attentions)), REFERENCES)]
    models: dict[str, nn.Module] = {"teacher": AutoModelForSequenceClassification.from_config(teacher).to(device)}
    for number, architecture in enumerate(architectures):
        models[f"{number}"] = _sharing(host, attentions, architecture)
    on_progress("latency: whole models", None)
    teacher_time, *whole = (1e6 * latency.quiet for latency in latencies(models, batch, ROUNDS).values())
    sums = settings.table(nanoseconds)
    of_attentions = [
        sum(sums.attention(layer.attention) for layer in architecture.layers) for architecture in architectures
    ]
    of_ffns = [sum(sums.ffn(base, ffn) for ffn in architecture.ffns) for architecture in architectures]
    of_attention, of_block, fixed = fitted((of_attentions, of_ffns), whole)
    steps = {
        name: round(value * (of_attention if name.startswith(("attention", "rank")) else of_block))
        for name, value in nanoseconds.items()
    }
    return settings.table(steps, fixed, teacher_time)


def _sharing(
    host: PreTrainedModel, attentions: Mapping[int, Sequence[nn.Module]], architecture: Architecture
) -> PreTrainedModel:
    """A model of the architecture that shares the embeddings of `host`, and the attention modules of all layers by
    their numbers of heads.
    """
    model, family = small_model(architecture, host.config).to(host.device), family_of(host)
    model.base_model.set_submodule(family.embeddings, part(host.base_model, family.embeddings))
    for number, (layer, own) in enumerate(zip(architecture.layers, encoder_layers(model), strict=True)):
        own.set_submodule(family.attention, attentions[layer.attention.heads][number])
    return model


def fitted(sums: Sequence[Sequence[float]], whole: Sequence[float]) -> list[float]:
    """The factors of the sums and the constant that predict the latencies of whole models,

        whole = factor * sum + other factor * other sum + constant,

    with the least sum of squares of relative errors.

    Args:
        sums: for each kind of part, the sum of the times of each model's parts.
        whole: the measured latency of each model.

    Raises:
        TooBusy: a factor or the constant is not positive.
    """
    relative = np.array([*sums, np.ones(len(whole))]).T / np.array(whole)[:, None]
    result: list[float] = np.linalg.lstsq(relative, np.ones(len(whole)), rcond=None)[0].tolist()
    if min(result) <= 0:
        raise TooBusy(NO_GROWTH)
    return result

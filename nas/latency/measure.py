"""Measures latency tables: attentions and steps in the place where they are used, and what is added to their sum.

A step is measured inside a whole model, with inputs that have just been computed and weights that are as far away in
the memory hierarchy as in use: a linear map that runs over and over finds its weights in the nearest cache. The times
of attentions and those of the blocks' steps are then multiplied by a factor each, and a time is added for embeddings
and head; these are fitted to random reference architectures that are measured as a whole.
"""

import json
import platform
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path

import numpy as np
import torch
import transformers
from torch import nn
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, part
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.checksums import create_once
from foundation.files import fingerprint
from nas.latency.steps import GATED, experts_name, step_times
from nas.latency.table import LatencyTable
from nas.latency.whole import WHOLE_ROUNDS, Latency, example, latencies, torch_threads
from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE, FFN, Attention, Experts, Layer
from search_spaces.operations import BINARY, UNARY
from supernet.build import added_operations, build, config_of

# Part of every cache key: increase it when what is measured here, or how, changes.
FORMAT = 5
RUNTIMES = ("torch", "onnx", "onnx-int8")
# The number of random architectures that are measured as a whole to fit a table.
REFERENCES = 12
# The shapes of their graphs: {0} and {1} are activations, {2} is a binary operation.
SHAPES = (
    "project({0}(expand(x)))",
    "{1}(project({0}(expand(x))))",
    "project({2}(x,{0}(expand(x))))",
    "project({2}({0}(expand(x)),gate(x)))",
    "{2}(x,project({0}(expand({1}(x)))))",
)
# At most this many numbers of heads are measured, and 0; latencies of others are interpolated.
MOST_HEADS = 6


class TooBusy(RuntimeError):
    """The measurements make no sense, because the device is busy with other work."""


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What a latency table is measured for.

    Attributes:
        base_model: all architectures have its base, the experts of its attentions, and its head.
        teacher: the configuration of the teacher, which is measured with random weights.
        inner_widths: the inner widths of all blocks that occur, in channels.
        heads: the numbers of heads of all attentions that occur.
        batch, tokens: the number of sentences, without padding, and the number of tokens of each.
        device: a torch device.
        experts: all settings of experts that occur.
        threads: the number of threads; None: as many as torch has now.
    """

    base_model: Architecture
    teacher: PretrainedConfig
    inner_widths: Sequence[int]
    heads: Sequence[int]
    batch: int
    tokens: int
    device: str
    experts: Sequence[Experts] = ()
    runtime: str = "torch"
    threads: int | None = None

    @property
    def widths(self) -> list[int]:
        """The inner widths, each once, in ascending order."""
        return sorted(set(self.inner_widths))

    @property
    def measured_heads(self) -> list[int]:
        """The numbers of heads that are measured, in ascending order."""
        heads = np.array(sorted({*self.heads} - {0}), int)
        chosen = np.linspace(0, len(heads) - 1, min(MOST_HEADS, len(heads))).round().astype(int)
        return [*([0] if 0 in self.heads else []), *heads[chosen].tolist()]

    @property
    def measured_experts(self) -> dict[str, Experts]:
        """The settings of experts by their names in the table. Which channels they share does not affect latency."""
        return {experts_name(experts): experts for experts in self.experts if experts != DENSE}

    @property
    def number_of_threads(self) -> int:
        """The number of threads."""
        return self.threads or torch.get_num_threads()

    def path(self, cache: Path) -> Path:
        """Where the table is kept in the folder `cache`."""
        # The teacher's latency does not depend on the folder that it was loaded from.
        teacher = {name: value for name, value in self.teacher.to_dict().items() if name != "_name_or_path"}
        # What the outputs of experts are multiplied by and the noise of training do not change how long it takes.
        base = asdict(self.base_model.base)
        base = {name: value for name, value in base.items() if name not in ("gate_scale", "gate_jitter")}
        models = (base, self.base_model.layers[0].attention.experts, asdict(self.base_model.head), teacher)
        environment = (device_name(self.device), self.number_of_threads, torch.__version__, transformers.__version__)
        measured = [*sorted(self.measured_experts), *added_operations()]
        sizes = (self.widths, self.measured_heads, self.batch, self.tokens)
        key = fingerprint(FORMAT, *models, sizes, self.runtime, environment, measured)
        return cache / "latencies" / f"{key}.json"


def latency_table(
    settings: TableSettings, cache: Path, on_progress: ProgressCallback = ignore_progress
) -> LatencyTable:
    """The latency table of this device, from the folder `cache`; it is measured first if it is not there.

    Args:
        cache: see `foundation.files.cache_folder`.
        on_progress: progress callback for the measurements.

    Raises:
        ValueError: the base or the teacher has fewer positions than `settings.tokens`.
        TooBusy: the table would make no sense.
    """
    student = config_of(settings.base_model, template=settings.teacher)
    positions = min(family_of(config).positions(config) for config in (student, settings.teacher))
    if settings.tokens > positions:
        raise ValueError(f"tokens: there are {positions} positions, not {settings.tokens}")

    def make(path: Path) -> None:
        # The random state afterwards must not depend on whether the table had to be measured.
        with torch.random.fork_rng(devices=[]), torch_threads(settings.number_of_threads):
            table = _measure(settings, on_progress)
        path.write_text(json.dumps(table.to_json(), indent=1), encoding="utf-8")

    path = settings.path(cache)
    create_once(path, make)
    return LatencyTable.from_json(json.loads(path.read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Measured:
    """The latency of an architecture: predicted from the table in microseconds, and measured on the whole model."""

    predicted: int
    whole: Latency


def measure_whole(
    architectures: Mapping[str, Architecture],
    table: LatencyTable,
    device: str,
    rounds: int = WHOLE_ROUNDS,
    teacher: PretrainedConfig | None = None,
) -> dict[str, Measured]:
    """Measure whole models of the architectures, with random weights, on sentences like those of the table, and a
    teacher with this configuration as "teacher".
    """
    predicted = {name: table.total(architecture) for name, architecture in architectures.items()}
    vocabulary = min(architecture.base.vocabulary for architecture in architectures.values())
    with torch.random.fork_rng(devices=[]), torch_threads(table.threads):
        models: dict[str, nn.Module] = {name: build(architecture) for name, architecture in architectures.items()}
        if teacher is not None:
            predicted["teacher"] = table.teacher
            models["teacher"] = AutoModelForSequenceClassification.from_config(teacher)
        models = {name: model.to(device) for name, model in models.items()}
        measured = latencies(models, example(vocabulary, table.batch, table.tokens, device), rounds)
    return {name: Measured(predicted[name], latency) for name, latency in measured.items()}


def _measure(settings: TableSettings, on_progress: ProgressCallback) -> LatencyTable:
    base_model, teacher, widths, device = settings.base_model, settings.teacher, settings.widths, settings.device
    batch = example(base_model.base.vocabulary, settings.batch, settings.tokens, device)
    # The values before `expand` and after `project` are as wide as the model, which may be none of the inner widths.
    probed = sorted({*widths, base_model.base.width})
    base = replace(base_model.base, inner=max(probed))
    base_model = replace(base_model, base=base)
    narrow = base_model.with_ffns([FFN(GATED, 1, Fraction(widths[0], base.inner))] * base.depth)
    host = build(narrow, template=teacher).to(device)
    family = family_of(host)
    attentions = {
        heads: [part(layer, family.attention) for layer in encoder_layers(_small(_with_heads(narrow, heads), host))]
        for heads in settings.measured_heads
    }
    experts = list(settings.measured_experts.values())
    on_progress("latency: steps", None)
    seconds = step_times(host, attentions, base, probed, experts, batch)
    nanoseconds = {name: round(1e9 * value) for name, value in seconds.items()}
    sums = LatencyTable(
        settings.runtime,
        settings.number_of_threads,
        settings.batch,
        settings.tokens,
        0,
        0,
        tuple(nanoseconds.items()),
    )

    least = settings.measured_heads[0]
    shallow = replace(narrow, base=replace(base, depth=1), layers=_with_heads(narrow, least).layers[:1])
    architectures = [shallow, *islice(references(base_model, widths, settings.measured_heads), REFERENCES)]
    models: dict[str, nn.Module] = {"teacher": AutoModelForSequenceClassification.from_config(teacher).to(device)}
    for number, architecture in enumerate(architectures):
        models[f"{number}"] = _sharing(host, attentions, architecture)
    on_progress("latency: whole models", None)
    teacher_time, *whole = (1e6 * latency.quiet for latency in latencies(models, batch).values())
    of_attentions = [
        sum(sums.attention(layer.attention) for layer in architecture.layers) for architecture in architectures
    ]
    of_ffns = [sum(sums.ffn(base, ffn) for ffn in architecture.ffns) for architecture in architectures]
    attention, ffn, fixed = fitted((of_attentions, of_ffns), whole)
    scaled = tuple(
        (name, round((attention if name.startswith("attention") else ffn) * value))
        for name, value in nanoseconds.items()
    )
    return replace(sums, fixed=round(fixed), teacher=round(teacher_time), steps=scaled)


def _with_heads(architecture: Architecture, heads: int) -> Architecture:
    """The architecture with this number of heads in all layers."""
    layers = (Layer(replace(layer.attention, heads=heads), layer.ffn) for layer in architecture.layers)
    return replace(architecture, layers=tuple(layers))


def _small(architecture: Architecture, host: PreTrainedModel) -> PreTrainedModel:
    """A model of the architecture like `host`, with the smallest vocabulary: word embeddings would take most of the
    memory and of the time for building.
    """
    base = replace(architecture.base, vocabulary=1 + (host.config.pad_token_id or 0))
    return build(replace(architecture, base=base), template=host.config).to(host.device).eval()


def _sharing(
    host: PreTrainedModel, attentions: Mapping[int, Sequence[nn.Module]], architecture: Architecture
) -> PreTrainedModel:
    """A model of the architecture that shares the embeddings of `host`, and the attentions of all layers by their
    numbers of heads.
    """
    model, family = _small(architecture, host), family_of(host)
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
        raise TooBusy("larger models measure no slower, because something else disturbs them")
    return result


def references(base_model: Architecture, widths: Sequence[int], heads: Sequence[int]) -> Iterator[Architecture]:
    """Yield random reference architectures without end. Their graphs, stacks and heads are random, and gelu is the most
    frequent operation.

    All layers of an architecture have the same inner width, so that the sizes of architectures differ a lot.
    """
    rng = random.Random(0)
    base, experts = base_model.base, base_model.layers[0].attention.experts
    for inner in cycle(widths):
        layers = []
        for _ in range(base.depth):
            unary, binary = tuple(UNARY), tuple(BINARY)
            operations = (rng.choice(("gelu", rng.choice(unary))), rng.choice(unary), rng.choice(binary))
            graph = FFNGraph.parse(rng.choice(SHAPES).format(*operations))
            ffn = FFN(graph, rng.randint(1, 2), Fraction(inner, base.inner))
            layers.append(Layer(Attention(rng.choice(heads), experts), ffn))
        yield replace(base_model, layers=tuple(layers))


def device_name(device: str) -> str:
    """The name of the GPU or CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()

"""The latency of models on this device, either measured on whole models or predicted from a table of measured steps.

A search needs the latencies of thousands of architectures before it builds any of them. Therefore every step that a
block can have is measured once, in the place where it is used: after the attention of a whole model, with inputs that
have just been computed and weights that are as far away in the memory hierarchy as in use. The latency of an
architecture is predicted as

    fixed + scale * (the sum of the times of its steps)

where `fixed` and `scale` are fitted to a few models that are measured as a whole: random reference architectures, and
one without FFNs.

Steps are not measured outside of a model, because a linear map that runs over and over finds its weights in the nearest
cache. Whole models are timed in pieces (`Latency.quiet`), because on a busy device every pass may be interrupted.
"""

import json
import platform
import random
import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import linear_regression, quantiles
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForSequenceClassification, PretrainedConfig

from distill.encoders.family import family_of
from distill.encoders.parts import model_inputs
from distill.encoders.student.expert_linear import ExpertLinear
from distill.objectives.outputs import Batch
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.checksums import create_once
from foundation.files import fingerprint
from nas.latency.steps import (
    GATED,
    bounded,
    dispatch_step,
    experts_name,
    finish,
    lower_quartile,
    routing_step,
    step_names,
    step_times,
)
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.layer import DENSE, FFN, Experts
from search_spaces.operations import BINARY, UNARY
from supernet.build import added_operations, build, config_of

# Part of every cache key: increase it when what is measured here, or how, changes.
FORMAT = 4
WHOLE_ROUNDS = 30
# The number of random architectures that are measured as a whole to fit a table's `fixed` and `scale`.
REFERENCES = 12
# The shapes of their graphs: {0} and {1} are activations, {2} is a binary operation.
SHAPES = (
    "project({0}(expand(x)))",
    "{1}(project({0}(expand(x))))",
    "project({2}(x,{0}(expand(x))))",
    "project({2}({0}(expand(x)),gate(x)))",
    "{2}(x,project({0}(expand({1}(x)))))",
)


class TooBusy(RuntimeError):
    """The measurements make no sense, because the device is busy with other work."""


@dataclass(frozen=True)
class Latency:
    """The seconds of one forward pass: the quartiles, and `quiet`, an estimate for a device that does nothing else.

    On a busy device every pass may be interrupted somewhere, but most pieces of a pass are not: for `quiet` a pass is
    cut before every linear map, and the lower quartiles of the pieces are added up.
    """

    lower: float
    median: float
    upper: float
    quiet: float


@torch.inference_mode()
def latencies(models: Mapping[str, nn.Module], batch: Batch, rounds: int = WHOLE_ROUNDS) -> dict[str, Latency]:
    """Time a float32 forward pass of every model on `batch` in each of `rounds` rounds (fewer if they take too long).

    In each round a model runs twice and the second pass is timed: the first one refills the processor's caches, which
    the other models have used in the meantime.
    """
    inputs = {name: model_inputs(model, batch) for name, model in models.items()}
    cuda = batch["input_ids"].is_cuda
    cuts: list[float] = []
    passes: dict[str, list[list[float]]] = {name: [] for name in models}
    # A set, so that a module that several models share gets a single hook.
    parts = {part for model in models.values() for part in model.modules()}
    linear = [part for part in parts if isinstance(part, nn.Linear | ExpertLinear)]
    hooks = [part.register_forward_pre_hook(lambda part, inputs: cuts.append(time.perf_counter())) for part in linear]
    try:
        for model in models.values():
            model.eval()
        for _ in bounded(rounds):
            for name, model in models.items():
                model(**inputs[name])
                finish(cuda)
                cuts.clear()
                begun = time.perf_counter()
                model(**inputs[name])
                finish(cuda)
                passes[name].append([begun, *cuts, time.perf_counter()])
    finally:
        for hook in hooks:
            hook.remove()
    return {name: summary(times) for name, times in passes.items()}


def summary(passes: Sequence[Sequence[float]]) -> Latency:
    """The latency that follows from the time stamps of every pass, in seconds: its start, its cuts and its end."""
    whole = [moments[-1] - moments[0] for moments in passes]
    pieces = zip(*([end - begin for begin, end in pairwise(moments)] for moments in passes), strict=True)
    lower, middle, upper = quantiles(whole, n=4)
    return Latency(lower, middle, upper, quiet=sum(map(lower_quartile, pieces)))


@dataclass(frozen=True)
class LatencyTable:
    """Predicts the latencies (`Latency.quiet`) of architectures on one base. They are sums of whole numbers, so that a
    budget can be kept exactly.

    Attributes:
        batch, tokens: the number of sentences, and the number of tokens of each.
        fixed: microseconds of everything but the FFNs.
        teacher: microseconds of the whole teacher.
        steps: nanoseconds of every step of a block by its name, see `nas.latency.steps`.
    """

    batch: int
    tokens: int
    fixed: int
    teacher: int
    steps: tuple[tuple[str, int], ...]

    def ffn(self, base: Base, ffn: FFN) -> int:
        """Microseconds of all blocks of one layer; 0 if it has none. For inner widths between those of the table, which
        baselines may have, they are interpolated linearly.

        Raises:
            ValueError: the table is for another width of the model, or its largest inner width is below this one.
        """
        if not ffn.stack:
            return 0
        inner = ffn.inner(base)
        above = bisect_left(self._inner, inner)
        if above == len(self._inner):
            raise ValueError(f"{ffn.graph} with {inner} inner channels: the latency table ends at {self._inner[-1]}")
        upper = self._inner[above]
        nanoseconds = self._block(ffn, base, upper)
        if above and inner < upper:
            lower = self._inner[above - 1]
            less = self._block(ffn, base, lower)
            nanoseconds = less + (nanoseconds - less) * (inner - lower) // (upper - lower)
        # Hash routing happens once for all blocks of a layer.
        once = 0 if ffn.experts.gated or ffn.experts == DENSE else self._nanoseconds[routing_step(ffn.experts)]
        return (ffn.stack * nanoseconds + once + 500) // 1000

    def _block(self, ffn: FFN, base: Base, inner: int) -> int:
        experts = ffn.experts
        names = ["norm", *step_names(ffn.graph, base, inner, experts)]
        if experts != DENSE:
            names += [dispatch_step(experts), *([routing_step(experts)] if experts.gated else [])]
        try:
            # Every token has as many rows in the operations between the linear maps as it passes experts.
            return sum(
                self._nanoseconds[name] * (1 if "," in name or name == "norm" else experts.top_k) for name in names
            )
        except KeyError as error:
            raise ValueError(f"{ffn.graph}, {base.width} wide: {error} is not in the latency table") from None

    def total(self, architecture: Architecture) -> int:
        """Microseconds of a whole model: `fixed` plus `ffn` of every layer."""
        return self.fixed + sum(self.ffn(architecture.base, ffn) for ffn in architecture.ffns)

    def to_json(self) -> dict[str, Any]:
        """The table as values that `json.dumps` accepts; the inverse of `from_json`."""
        return asdict(self) | {"steps": self._nanoseconds}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LatencyTable":
        return cls(**{**value, "steps": tuple(value["steps"].items())})

    @cached_property
    def _inner(self) -> list[int]:
        """The inner widths of the table."""
        return sorted(int(name.split()[1]) for name, _ in self.steps if name.startswith("expand ") and "," not in name)

    @cached_property
    def _nanoseconds(self) -> dict[str, int]:
        return dict(self.steps)


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What a latency table is measured for.

    Attributes:
        base_model: all architectures have its base, its attentions and its head.
        teacher: the configuration of the teacher, which is measured with random weights.
        inner_widths: the inner widths of all blocks that occur, in channels.
        batch, tokens: the number of sentences, without padding, and the number of tokens of each.
        device: a torch device.
        experts: all settings of experts that occur.
    """

    base_model: Architecture
    teacher: PretrainedConfig
    inner_widths: Sequence[int]
    batch: int
    tokens: int
    device: str
    experts: Sequence[Experts] = ()

    @property
    def widths(self) -> list[int]:
        """The inner widths, each once, in ascending order."""
        return sorted(set(self.inner_widths))

    @property
    def measured_experts(self) -> dict[str, Experts]:
        """The settings of experts by their names in the table. Which channels they share does not affect latency."""
        return {experts_name(experts): experts for experts in self.experts if experts != DENSE}

    def path(self, cache: Path) -> Path:
        """Where the table is kept in the folder `cache`."""
        # The teacher's latency does not depend on the folder that it was loaded from.
        teacher = {name: value for name, value in self.teacher.to_dict().items() if name != "_name_or_path"}
        # What the outputs of experts are multiplied by and the noise of training do not change how long it takes.
        base = asdict(self.base_model.base)
        base = {name: value for name, value in base.items() if name not in ("gate_scale", "gate_jitter")}
        models = (base, asdict(self.base_model.layers[0].attention), asdict(self.base_model.head), teacher)
        environment = (device_name(self.device), torch.get_num_threads(), torch.__version__, transformers.__version__)
        measured = [*sorted(self.measured_experts), *added_operations()]
        key = fingerprint(FORMAT, *models, self.widths, self.batch, self.tokens, environment, measured)
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
        with torch.random.fork_rng(devices=[]):
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
    architectures: Mapping[str, Architecture], table: LatencyTable, device: str, rounds: int = WHOLE_ROUNDS
) -> dict[str, Measured]:
    """Measure whole models of the architectures, with random weights, on sentences like those of the table."""
    with torch.random.fork_rng(devices=[]):
        models = {name: build(architecture).to(device) for name, architecture in architectures.items()}
    vocabulary = min(architecture.base.vocabulary for architecture in architectures.values())
    measured = latencies(models, example(vocabulary, table.batch, table.tokens, device), rounds)
    return {name: Measured(table.total(architectures[name]), latency) for name, latency in measured.items()}


def _measure(settings: TableSettings, on_progress: ProgressCallback) -> LatencyTable:
    base_model, teacher, widths, device = settings.base_model, settings.teacher, settings.widths, settings.device
    batch = example(base_model.base.vocabulary, settings.batch, settings.tokens, device)
    # The values before `expand` and after `project` are as wide as the model, which may be none of the inner widths.
    probed = sorted({*widths, base_model.base.width})
    base = replace(base_model.base, inner=max(probed))
    base_model = replace(base_model, base=base)
    narrow = FFN(GATED, 1, Fraction(widths[0], base.inner))
    host = build(base_model.with_ffns([narrow] * base.depth), template=teacher).to(device)
    experts = list(settings.measured_experts.values())
    on_progress("latency: steps", None)
    nanoseconds = {name: round(1e9 * value) for name, value in step_times(host, base, probed, experts, batch).items()}
    steps = LatencyTable(settings.batch, settings.tokens, 0, 0, tuple(nanoseconds.items()))

    none = base_model.with_ffns([FFN(stack=0)] * base.depth)
    architectures = [none, *islice(_references(base_model, widths), REFERENCES)]
    family = family_of(host)
    shared = [family.embeddings, *(f"{family.layers}.{layer}.{family.attention}" for layer in range(base.depth))]
    models: dict[str, nn.Module] = {"teacher": AutoModelForSequenceClassification.from_config(teacher).to(device)}
    for number, architecture in enumerate(architectures):
        # The models share all modules except the FFNs: word embeddings alone would take most of the memory and of the
        # time for building.
        small = replace(base, vocabulary=1 + (teacher.pad_token_id or 0))
        model = build(replace(architecture, base=small), template=teacher).to(device)
        for path in shared:
            model.base_model.set_submodule(path, host.base_model.get_submodule(path))
        models[f"{number}"] = model
    on_progress("latency: whole models", None)
    teacher_time, *whole = (1e6 * latency.quiet for latency in latencies(models, batch).values())
    scale, fixed = line([*map(steps.total, architectures)], whole)
    scaled = tuple((name, round(scale * value)) for name, value in nanoseconds.items())
    return replace(steps, fixed=round(fixed), teacher=round(teacher_time), steps=scaled)


def line(sums: Sequence[float], whole: Sequence[float]) -> tuple[float, float]:
    """Fit `scale` and `fixed` to the models that were measured as a whole.

    Args:
        sums: the sum of the times of each model's steps.
        whole: the measured latency of each model.

    Raises:
        TooBusy: `scale` or `fixed` is not positive.
    """
    scale, fixed = linear_regression(sums, whole)
    if scale <= 0 or fixed <= 0:
        raise TooBusy("models with larger FFNs measure no slower, because something else disturbs them")
    return scale, fixed


def _references(base_model: Architecture, widths: Sequence[int]) -> Iterator[Architecture]:
    """Yield random reference architectures without end. Their graphs and stacks are random, and gelu is the most
    frequent operation.

    All layers of an architecture have the same inner width, so that the sizes of architectures differ a lot.
    """
    rng = random.Random(0)
    base = base_model.base
    for inner in cycle(widths):
        layers = []
        for _ in range(base.depth):
            unary, binary = tuple(UNARY), tuple(BINARY)
            operations = (rng.choice(("gelu", rng.choice(unary))), rng.choice(unary), rng.choice(binary))
            graph = FFNGraph.parse(rng.choice(SHAPES).format(*operations))
            layers.append(FFN(graph, rng.randint(1, 2), Fraction(inner, base.inner)))
        yield base_model.with_ffns(layers)


def example(vocabulary: int, batch: int, tokens: int, device: str) -> Batch:
    """A batch of random token ids without padding."""
    generator = torch.Generator().manual_seed(0)
    ids_BT = torch.randint(vocabulary, (batch, tokens), generator=generator).to(device)
    return {
        "input_ids": ids_BT,
        "attention_mask": torch.ones_like(ids_BT),
        "token_type_ids": torch.zeros_like(ids_BT),
    }


def device_name(device: str) -> str:
    """The name of the GPU or CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    described = Path("/proc/cpuinfo")
    text = described.read_text(encoding="utf-8") if described.exists() else ""
    model = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()

"""Latency tables from the cache, which are measured if they are not there, and the latencies of whole models."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from distill.encoders.family import family_of
from distill.training.progress import ProgressCallback, ignore_progress
from foundation.checksums import create_once
from foundation.files import scratch_folder
from nas.latency.onnx import exported, onnx_latencies
from nas.latency.onnx_table import onnx_table
from nas.latency.references import small_model, small_teacher
from nas.latency.settings import TORCH, TableSettings
from nas.latency.table import LatencyTable
from nas.latency.torch_table import torch_table
from nas.latency.whole import WHOLE_ROUNDS, Latency, example, latencies, torch_threads
from search_spaces.architecture import Architecture
from supernet.build import build, config_of


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
    measure = torch_table if settings.runtime == TORCH else onnx_table

    def make(path: Path) -> None:
        # The random state afterwards must not depend on whether the table had to be measured.
        with torch.random.fork_rng(devices=[]), torch_threads(settings.number_of_threads):
            table = measure(settings, on_progress)
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
    teacher: PretrainedConfig,
    rounds: int = WHOLE_ROUNDS,
    also_teacher: bool = False,
) -> dict[str, Measured]:
    """Measure whole models of the architectures in the table's runtime, with random weights, on sentences like those of
    the table.

    Args:
        device: a torch device, if the runtime is torch.
        teacher: the configuration of their teacher.
        also_teacher: whether to measure a teacher, too, as "teacher".
    """
    predicted = {name: table.total(architecture) for name, architecture in architectures.items()}
    if also_teacher:
        predicted["teacher"] = table.teacher
    with torch.random.fork_rng(devices=[]):
        models: dict[str, PreTrainedModel] = {}
        for name, architecture in architectures.items():
            own = build if table.runtime == TORCH else small_model
            models[name] = own(architecture, template=teacher)
        if also_teacher:
            whole = AutoModelForSequenceClassification.from_config
            models["teacher"] = whole(teacher) if table.runtime == TORCH else small_teacher(teacher)
        measured = latencies_in(table.runtime, models, table.batch, table.tokens, table.threads, device, rounds)
    return {name: Measured(predicted[name], latency) for name, latency in measured.items()}


def latencies_in(
    runtime: str,
    models: Mapping[str, PreTrainedModel],
    batch: int,
    tokens: int,
    threads: int | None = None,
    device: str = "cpu",
    rounds: int = WHOLE_ROUNDS,
) -> dict[str, Latency]:
    """Measure models in a runtime, side by side; the arguments are those of `TableSettings`.

    Args:
        device: a torch device, if the runtime is torch.
    """
    with torch_threads(threads or torch.get_num_threads()):
        if runtime == TORCH:
            vocabulary = min(model.config.vocab_size for model in models.values())
            on_device = {name: model.to(device) for name, model in models.items()}
            return latencies(on_device, example(vocabulary, batch, tokens, device), rounds)
        with scratch_folder() as folder:
            files = exported(models.values(), runtime, folder)
            return onnx_latencies(dict(zip(models, files, strict=True)), batch, tokens, rounds)

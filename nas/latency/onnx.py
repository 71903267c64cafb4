"""The latency of models in onnxruntime, and of their parts.

onnxruntime rewrites a model before it runs it, so a step of a block may be several nodes, or a part of one. Therefore
the unit is what every rewriting leaves: a part of the model that ends with a LayerNorm, namely the embeddings, an
attention, a block; and the head behind the last one. onnxruntime's profiles tell how long each node takes; recording
that costs time, too, so what a part takes is

    scale * the sum of the times of its nodes - overhead * the number of its nodes

where `scale` and `overhead` are fitted to passes that are not profiled.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from transformers import PreTrainedModel

from distill.objectives.outputs import Batch
from foundation.files import scratch_folder
from nas.latency.steps import bounded, lower_quartile
from nas.latency.whole import WHOLE_ROUNDS, Latency, TooBusy
from nas.onnx.int8 import quantize
from nas.onnx.model import OnnxModel, export_onnx

INT8 = "onnx-int8"
RUNTIMES = ("onnx", INT8)


@dataclass(frozen=True)
class Part:
    """The nodes of a part of a model.

    Attributes:
        microseconds: the sum of the lower quartiles of their times, while these are recorded.
        nodes: their number.
    """

    microseconds: float
    nodes: int


def exported(model: PreTrainedModel, runtime: str, folder: Path, name: str) -> Path:
    """The file of the model as `nas.export` writes it, in `folder`."""
    path = folder / f"{name}.onnx"
    export_onnx(model.eval(), path)
    if runtime != INT8:
        return path
    quantize(path, folder / f"{name}-int8.onnx")
    path.unlink()
    return folder / f"{name}-int8.onnx"


def onnx_latencies(
    models: Mapping[str, Path],
    batch: Batch,
    rounds: int = WHOLE_ROUNDS,
    profiled: Mapping[str, OnnxModel] | None = None,
) -> dict[str, Latency]:
    """Time a pass of every model on `batch` in each of `rounds` rounds, as `nas.latency.whole.latencies` does.

    With one thread `quiet` is the lower quartile of the time that this thread had a processor, with several that of the
    passes: no pass can be cut into pieces without changing it.

    Args:
        profiled: for each model the same one, which makes two passes in each round, the first for the caches.
    """
    sessions = {name: OnnxModel(path) for name, path in models.items()}
    clocks: list[Callable[[], float]] = [time.perf_counter]
    clocks.append(time.thread_time if torch.get_num_threads() == 1 else time.perf_counter)
    passes: dict[str, list[list[float]]] = {name: [] for name in models}
    for _ in bounded(rounds):
        for name, session in sessions.items():
            session.run(batch)
            begun = [clock() for clock in clocks]
            session.run(batch)
            passes[name].append([clock() - start for clock, start in zip(clocks, begun, strict=True)])
            if profiled is not None:
                profiled[name].run(batch)
                profiled[name].run(batch)
    result = {}
    for name, seconds in passes.items():
        whole, busy = zip(*seconds, strict=True)
        lower, middle, upper = quantiles(whole, n=4)
        result[name] = Latency(lower, middle, upper, quiet=lower_quartile(busy))
    return result


def onnx_parts(
    models: Mapping[str, Path], batch: Batch, rounds: int = WHOLE_ROUNDS
) -> dict[str, tuple[Latency, list[Part]]]:
    """For each model the latency, and its parts in their order: the embeddings, the attention and the blocks of each
    layer, and the head. Both are measured in the same rounds, so that other work on this machine disturbs both alike.
    """
    with scratch_folder() as folder:
        profiled = {name: OnnxModel(path, folder) for name, path in models.items()}
        latencies = onnx_latencies(models, batch, rounds, profiled)
        return {
            name: (latencies[name], _parts(Path(session.session.end_profiling()))) for name, session in profiled.items()
        }


def _parts(profile: Path) -> list[Part]:
    """The parts according to every second pass of a profile."""
    events = json.loads(profile.read_text(encoding="utf-8"))
    nodes = sorted((event["ts"], event["dur"], event["args"]["op_name"]) for event in events if event["cat"] == "Node")
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    per_pass = np.split(np.arange(len(nodes)), np.searchsorted([begun for begun, *_ in nodes], starts[1:]))
    operations = [nodes[number][2] for number in per_pass[0]]
    durations = np.array([[nodes[number][1] for number in numbers] for numbers in per_pass[1::2]])
    quartiles = np.quantile(durations, 0.25, axis=0)
    ends = [place + 1 for place, operation in enumerate(operations) if "LayerNorm" in operation]
    return [Part(float(part.sum()), len(part)) for part in np.split(quartiles, ends)]


def undisturbed(models: Sequence[Sequence[Part]], whole: Sequence[float]) -> list[list[float]]:
    """The microseconds of all parts of models without the recording, of which those of whole models are known.

    Args:
        models: the parts of each model.
        whole: the microseconds of a pass of each model that is not profiled.

    Raises:
        TooBusy: passes with more work took no longer.
    """
    sums = np.array([[sum(part.microseconds for part in of), sum(part.nodes for part in of)] for of in models])
    relative = sums / np.array(whole)[:, None]
    scale, per_node = np.linalg.lstsq(relative, np.ones(len(whole)), rcond=None)[0]
    if scale <= 0:
        raise TooBusy("larger models measure no slower, because something else disturbs them")
    # Every node takes some time, though recording it may take longer.
    return [[max(scale * part.microseconds + per_node * part.nodes, 0.1 * part.nodes) for part in of] for of in models]

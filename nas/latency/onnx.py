"""The latency of models in onnxruntime, and of their parts.

onnxruntime rewrites a model before it runs it, so a step of a block may be several nodes, or a part of one. Therefore
the unit is what every rewriting leaves: a part of the model that ends with a LayerNorm, namely the embeddings, an
attention, a block; and the head behind the last one. onnxruntime's profiles tell how long each node takes; recording
that costs time, too, so what a part takes is

    scale * the sum of the times of its nodes - overhead * the number of its nodes

where `scale` and `overhead` are fitted to passes that are not profiled.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import quantiles

import numpy as np
import torch
from transformers import PreTrainedModel

from foundation.files import scratch_folder
from foundation.processes import in_processes
from nas.latency import onnx_passes
from nas.latency.steps import lower_quartile
from nas.latency.whole import NO_GROWTH, WHOLE_ROUNDS, Latency, TooBusy
from nas.onnx.int8 import quantize
from nas.onnx.model import export_onnx

INT8 = "onnx-int8"
RUNTIMES = ("onnx", INT8)
# The last node of a part: a LayerNorm; in an RMSNorm, which onnxruntime runs node by node, the one before its scale.
ENDS = ("LayerNorm", "Reciprocal")
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class ModelPart:
    """The nodes of a part of a model.

    Attributes:
        microseconds: the sum of the lower quartiles of their times, while these are recorded.
        nodes: their number.
    """

    microseconds: float
    nodes: int


def exported(models: Iterable[PreTrainedModel], runtime: str, folder: Path, processes: int = 1) -> Iterator[Path]:
    """The file of each model as `nas.export` writes it, in `folder`, made by `processes` at the same time. For several
    the models must be picklable, which one that accelerate has prepared for training is not.
    """
    return in_processes(partial(_export, runtime=runtime, folder=folder), enumerate(models), processes)


def _export(numbered: tuple[int, PreTrainedModel], runtime: str, folder: Path) -> Path:
    number, model = numbered
    path = folder / f"{number}.onnx"
    export_onnx(model.cpu().eval(), path)
    if runtime != INT8:
        return path
    quantize(path, folder / f"{number}-int8.onnx")
    path.unlink()
    return folder / f"{number}-int8.onnx"


def onnx_latencies(
    models: Mapping[str, Path], batch: int, tokens: int, rounds: int = WHOLE_ROUNDS
) -> dict[str, Latency]:
    """Time a pass of every model in each of `rounds` rounds, as `nas.latency.whole.latencies` does.

    With one thread `Latency.quiet` is the lower quartile of the thread's CPU time, with several that of the wall time:
    no pass can be cut into pieces without changing it.

    Args:
        batch, tokens: the number of sentences, without padding, and the number of tokens of each.
    """
    return {name: _latency(seconds) for name, seconds in _passes(models, batch, tokens, rounds).items()}


def onnx_parts(
    models: Mapping[str, Path], batch: int, tokens: int, rounds: int = WHOLE_ROUNDS
) -> dict[str, tuple[Latency, list[ModelPart]]]:
    """For each model the latency, and its parts in their order: the embeddings, the attention and the blocks of each
    layer, and the head. Both are measured in the same rounds, so that other work on this machine disturbs both alike.
    """
    with scratch_folder() as folder:
        passes = _passes(models, batch, tokens, rounds, folder)
        profiles = {name: next(folder.glob(f"{path.stem}_*.json")) for name, path in models.items()}
        return {name: (_latency(seconds), _parts(profiles[name])) for name, seconds in passes.items()}


def _passes(
    models: Mapping[str, Path], batch: int, tokens: int, rounds: int, profiles: Path | None = None
) -> dict[str, list[list[float]]]:
    """What `nas.latency.onnx_passes` measures, in a new process: in one that has exported models before, inference is
    up to 5 % slower.
    """
    request = {
        "models": {name: str(path) for name, path in models.items()},
        "batch": batch,
        "tokens": tokens,
        "rounds": rounds,
        "threads": torch.get_num_threads(),
        "profiles": profiles and str(profiles),
    }
    finished = subprocess.run(
        [sys.executable, "-m", onnx_passes.__name__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PROJECT), *sys.path])},
    )
    if finished.returncode != 0:
        raise RuntimeError(f"the models cannot be measured in onnxruntime: {finished.stderr}")
    result: dict[str, list[list[float]]] = json.loads(finished.stdout)
    return result


def _latency(passes: Sequence[Sequence[float]]) -> Latency:
    """The latency that follows from the seconds of every pass, and from those that the processor spent on it."""
    whole, busy = zip(*passes, strict=True)
    lower, middle, upper = quantiles(whole, n=4)
    return Latency(lower, middle, upper, quiet=lower_quartile(busy))


def _parts(profile: Path) -> list[ModelPart]:
    """The parts according to every second pass of a profile."""
    events = json.loads(profile.read_text(encoding="utf-8"))
    nodes = sorted((event["ts"], event["dur"], event["args"]["op_name"]) for event in events if event["cat"] == "Node")
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")
    per_pass = np.split(np.arange(len(nodes)), np.searchsorted([begun for begun, *_ in nodes], starts[1:]))
    operations = [nodes[number][2] for number in per_pass[0]]
    durations = np.array([[nodes[number][1] for number in numbers] for numbers in per_pass[1::2]])
    quartiles = np.quantile(durations, 0.25, axis=0)
    ends = [place + 1 for place, name in enumerate(operations) if any(end in name for end in ENDS)]
    return [ModelPart(float(part.sum()), len(part)) for part in np.split(quartiles, ends)]


def undisturbed(models: Sequence[Sequence[ModelPart]], whole: Sequence[float]) -> list[list[float]]:
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
        raise TooBusy(NO_GROWTH)
    # Every node takes some time, though recording it may take longer.
    return [[max(scale * part.microseconds + per_node * part.nodes, 0.1 * part.nodes) for part in of] for of in models]

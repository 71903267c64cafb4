"""What a latency table is measured for, and the file in which it is kept."""

import platform
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PretrainedConfig

from foundation.files import fingerprint
from nas.latency.onnx import RUNTIMES as ONNX_RUNTIMES
from nas.latency.steps import experts_name, rank_step
from nas.latency.table import LatencyTable
from nas.onnx.model import version
from search_spaces.architecture import Architecture
from search_spaces.layer import DENSE, Experts
from supernet.build import added_operations

# Part of every cache key: increase it when what is measured, or how, changes.
FORMAT = 5
TORCH = "torch"
RUNTIMES = (TORCH, *ONNX_RUNTIMES)
# At most this many numbers of heads above 0, and ranks, are measured; latencies of others are interpolated.
MOST_SIZES = 6


@dataclass(frozen=True, kw_only=True)
class TableSettings:
    """What a latency table is measured for.

    Attributes:
        base_model: all architectures have its base, its attention experts, and its prediction head.
        teacher: the configuration of the teacher, which is measured with random weights.
        inner_widths: the inner widths of all blocks that occur, in channels.
        heads: all numbers of heads that occur in a layer.
        batch, tokens: the number of sentences, without padding, and the number of tokens of each.
        device: a torch device; "cpu" for runtimes other than torch.
        experts: all settings of experts that occur (torch only).
        ranks: the ranks of all word embeddings that occur, without the full one.
        runtime: one of `RUNTIMES`.
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
    ranks: Sequence[int] = ()
    runtime: str = "torch"
    threads: int | None = None

    @property
    def probed_widths(self) -> list[int]:
        """The widths of all values in blocks. Before `expand` and after `project` they are as wide as the model, which
        may be none of the inner widths.
        """
        return sorted({*self.inner_widths, self.base_model.base.width})

    @property
    def measured_heads(self) -> list[int]:
        """The numbers of heads that are measured, in ascending order."""
        return [*([0] if 0 in self.heads else []), *_evenly({*self.heads} - {0})]

    @property
    def measured_ranks(self) -> list[int]:
        """The ranks that are measured, in ascending order."""
        return _evenly({*self.ranks})

    @property
    def measured_experts(self) -> dict[str, Experts]:
        """The settings of experts by their names in the table. Which channels they share does not affect latency."""
        return {experts_name(experts): experts for experts in self.experts if experts != DENSE}

    @property
    def number_of_threads(self) -> int:
        return self.threads or torch.get_num_threads()

    def table(self, steps: Mapping[str, int], fixed: float = 0, teacher: float = 0) -> LatencyTable:
        """The table of these nanoseconds by step, and microseconds of everything else and of the teacher."""
        threads, measured = self.number_of_threads, tuple(steps.items())
        return LatencyTable(self.runtime, threads, self.batch, self.tokens, round(fixed), round(teacher), measured)

    def path(self, cache: Path) -> Path:
        # The teacher's latency does not depend on the folder that it was loaded from.
        teacher = {name: value for name, value in self.teacher.to_dict().items() if name != "_name_or_path"}
        # What the outputs of experts are multiplied by and the noise of training do not change how long it takes.
        base = self.base_model.base.to_json()
        base = {name: value for name, value in base.items() if name not in ("gate_scale", "gate_jitter")}
        models = (base, self.base_model.layers[0].attention.experts, asdict(self.base_model.head), teacher)
        environment = [device_name(self.device), self.number_of_threads, torch.__version__, transformers.__version__]
        if self.runtime != TORCH:
            environment.append(version())
        measured = [*sorted(self.measured_experts), *added_operations(), *map(rank_step, self.measured_ranks)]
        sizes = (sorted(set(self.inner_widths)), self.measured_heads, self.batch, self.tokens)
        key = fingerprint(FORMAT, *models, sizes, self.runtime, environment, measured)
        return cache / "latencies" / f"{key}.json"


def _evenly(sizes: Set[int]) -> list[int]:
    """At most `MOST_SIZES` of the sizes, from the smallest to the largest."""
    ordered = np.array(sorted(sizes), int)
    chosen = np.linspace(0, len(ordered) - 1, min(MOST_SIZES, len(ordered))).round().astype(int)
    return [int(size) for size in ordered[chosen]]


# Instructions that decide how fast a processor multiplies, and in which order it sums, as PyTorch calls them.
_INSTRUCTIONS = (
    *("avx2", "avx_vnni", "avx512_f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16"),
    *("dot", "i8mm", "bf16", "sve"),
)


def device_name(device: str) -> str:
    """The name of a GPU, or of the processor as `processor_name` has it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name(torch.cpu.get_capabilities())


def processor_name(capabilities: Mapping[str, Any]) -> str:
    """The name of a processor with those of its instructions that matter here, from what `torch.cpu` says of it.

    The name alone is not enough: in virtual machines many kinds of processors have one, such as "AMD EPYC".
    """
    name = capabilities.get("cpu_name") or platform.machine()
    return ", ".join([name, *(instruction for instruction in _INSTRUCTIONS if capabilities.get(instruction))])

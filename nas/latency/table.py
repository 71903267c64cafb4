"""Latency tables, which predict the latency of architectures.

A search needs the latencies of thousands of architectures before it builds any of them. Therefore the attention of a
layer with each number of heads, every step that a block can have, and a word embedding of each lower rank is measured
once (`nas.latency.torch_table`, `nas.latency.onnx_table`). The latency of an architecture is predicted as

    fixed + the sum of the times of its layers' attention and of their blocks' steps
          + what a word embedding of lower rank takes longer
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from nas.latency.steps import attention_step, dispatch_step, rank_step, routing_step, step_names
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import DENSE, FFN, Attention, Embedding, Layer


@dataclass(frozen=True)
class LatencyTable:
    """Predicts the latencies (`Latency.quiet`) of architectures on one base. They are sums of whole numbers, so that a
    budget can be kept exactly.

    Attributes:
        runtime, threads: what runs the models, see `nas.latency.settings.TableSettings`, and the number of its threads.
        batch, tokens: the number of sentences, and the number of tokens of each.
        fixed: microseconds of everything but the layers, with a word embedding of full rank.
        teacher: microseconds of the whole teacher.
        steps: nanoseconds of attention with each number of heads, and of every step of a block, by its name, see
            `nas.latency.steps`; and those that a word embedding of lower rank takes longer than one of full rank.
    """

    runtime: str
    threads: int
    batch: int
    tokens: int
    fixed: int
    teacher: int
    steps: tuple[tuple[str, int], ...]

    def layer(self, base: Base, layer: Layer) -> int:
        """Microseconds of a layer; 0 for one that is left out, with neither heads nor an FFN.

        Raises:
            ValueError: see `attention` and `ffn`.
        """
        if not layer.attention.heads and not layer.ffn.stack:
            return 0
        return self.attention(layer.attention) + self.ffn(base, layer.ffn)

    def attention(self, attention: Attention) -> int:
        """Microseconds of a layer's attention. For numbers of heads between those of the table they are interpolated
        linearly.

        Raises:
            ValueError: the largest number of heads of the table is below this one.
        """
        nanoseconds = _between(
            self._sizes["attention"], attention.heads, lambda heads: self._nanoseconds[attention_step(heads)]
        )
        if nanoseconds is None:
            most = f"the latency table ends at {self._sizes['attention'][-1]}"
            raise ValueError(f"an attention with {attention.heads} heads: {most}")
        return (nanoseconds + 500) // 1000

    def embedding(self, embedding: Embedding) -> int:
        """Microseconds that a word embedding takes longer than one of full rank, because it has a map. For ranks
        between those of the table they are interpolated linearly.

        Raises:
            ValueError: the largest rank of the table is below this one.
        """
        if embedding.rank is None:
            return 0
        nanoseconds = _between(self._sizes["rank"], embedding.rank, lambda rank: self._nanoseconds[rank_step(rank)])
        if nanoseconds is None:
            raise ValueError(
                f"an embedding of rank {embedding.rank}: the latency table has the ranks {self._sizes['rank']}"
            )
        return (nanoseconds + 500) // 1000

    def ffn(self, base: Base, ffn: FFN) -> int:
        """Microseconds of all blocks of one layer; 0 if it has none. For inner widths between those of the table, which
        baselines may have, they are interpolated linearly.

        Raises:
            ValueError: the table is for another width of the model, or its largest inner width is below this one.
        """
        if not ffn.stack:
            return 0
        inner = ffn.inner(base)
        nanoseconds = _between(self._sizes["expand"], inner, lambda width: self._block(ffn, base, width))
        if nanoseconds is None:
            raise ValueError(
                f"{ffn.graph} with {inner} inner channels: the latency table ends at {self._sizes['expand'][-1]}"
            )
        # Hash routing happens once for all blocks of a layer.
        once = 0 if ffn.experts.gated or ffn.experts == DENSE else self._nanoseconds[routing_step(ffn.experts)]
        return (ffn.stack * nanoseconds + once + 500) // 1000

    def _block(self, ffn: FFN, base: Base, inner: int) -> int:
        experts = ffn.experts
        names = ["norm", *step_names(ffn.graph, base, inner, experts)]
        if experts != DENSE:
            names += [dispatch_step(experts), *([routing_step(experts)] if experts.gated else [])]
        try:
            # Between the linear layers, a token is processed once for each of its top_k experts.
            return sum(
                self._nanoseconds[name] * (1 if "," in name or name == "norm" else experts.top_k) for name in names
            )
        except KeyError as error:
            raise ValueError(f"{ffn.graph}, {base.width} wide: {error} is not in the latency table") from None

    def total(self, architecture: Architecture) -> int:
        """Microseconds of a whole model: `fixed`, the embedding's, and every layer's."""
        layers = sum(self.layer(architecture.base, layer) for layer in architecture.layers)
        return self.fixed + self.embedding(architecture.embedding) + layers

    def to_json(self) -> dict[str, Any]:
        """The table as values that `json.dumps` accepts; the inverse of `from_json`."""
        return asdict(self) | {"steps": self._nanoseconds}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LatencyTable":
        return cls(**{**value, "steps": tuple(value["steps"].items())})

    @cached_property
    def _sizes(self) -> dict[str, list[int]]:
        """The sizes for which the steps of linear layers, attention and word embeddings were measured, ascending."""
        sizes: dict[str, list[int]] = {"expand": [], "attention": [], "rank": []}
        for step, size in (name.split()[:2] for name, _ in self.steps if "," not in name and " " in name):
            if step in sizes:
                insort(sizes[step], int(size))
        return sizes

    @cached_property
    def _nanoseconds(self) -> dict[str, int]:
        return dict(self.steps)


def _between(sizes: Sequence[int], size: int, time: Callable[[int], int]) -> int | None:
    """The time of a size: that of the next one of the sorted `sizes`, or on the line between its neighbors; None beyond
    the last one.
    """
    above = bisect_left(sizes, size)
    if above == len(sizes):
        return None
    upper = sizes[above]
    if not above or size == upper:
        return time(upper)
    lower = sizes[above - 1]
    less = time(lower)
    return less + (time(upper) - less) * (size - lower) // (upper - lower)

"""The tables of a study's configuration for its search space and its budget."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from nas.config.values import (
    Choices,
    Count,
    ExpertCounts,
    ExpertsTable,
    FileSize,
    HeadCounts,
    Latency,
    PositiveFraction,
    Ranks,
    Table,
    UnitFloat,
)
from search_spaces.genes import SIZE_GENES
from search_spaces.layer import DENSE
from search_spaces.numbers import proportion
from search_spaces.reasons import NO_FFN
from search_spaces.trees import MAX_HEIGHT, MIN_HEIGHT


class SpaceTable(Table):
    """The search space and the budget.

    Attributes:
        stacks, expansions, experts: the choices for each layer; a stack of 0 is a layer without an FFN.
        heads: the choices for the number of attention heads of each layer; None: all of the base's. A layer without
            heads and without an FFN is left out.
        attention_experts: the choices for the number of experts of each layer's attention.
        head_experts: the choices for the number of prediction layers in the head. Baselines have the fewest experts of
            both.
        ranks: the choices for the rank of the word embedding beside the full one, which baselines have; None: only the
            full one.
        uniform: without `max_params`, the upper bound on parameters is what a student has whose layers all have this
            expansion (a uniform slice).
        min_params, max_params: bounds on the parameters, pooler and classifier included, such as "15M".
        max_macs: the limit on the multiply-accumulates for a sentence of 128 tokens.
        max_latency: the limit on the latency, measured as `deployment` says, such as "12ms", or "0.25x" for a quarter
            of the teacher's.
        max_size: the limit on the file of the weights, as `deployment.runtime` stores them, such as "10MB" (10,000,000
            bytes).
        slack: without `min_params`, the lower bound on parameters lies below the upper one by this fraction of
            the distance to the smallest architecture.
        draws: "near": every operation of a random graph is, with the probability `mutation_rate`, another one than the
            base graph's; "released": graphs are as frequent as in EfficientBERT's released code, where 93 of 100 differ
            from the base graph, mostly by one operation.
        mutation_rate: see `draws`; unused with "released".
        gated: whether graphs may have a second linear map beside `expand`; if the teacher has one, they always may.
        max_height: the arguments of binary operations may be binary operations themselves, in graphs whose longest path
            has at most this number of operations; 7 in EfficientBERT's released code. None: before `expand`, between
            the linear maps and after `project` a graph has at most one binary operation each.
        mismatch: whether binary operations cut the wider value ("narrow") or pad the narrower one ("wide").
    """

    stacks: Choices[Annotated[int, Field(ge=0, le=16)]]
    expansions: Choices[PositiveFraction]
    experts: Choices[ExpertsTable] = (DENSE,)
    heads: HeadCounts | None = None
    attention_experts: ExpertCounts = (1,)
    head_experts: ExpertCounts = (1,)
    ranks: Ranks | None = None
    uniform: PositiveFraction | None = None
    slack: UnitFloat = 0.05
    min_params: Count | None = None
    max_params: Count | None = None
    max_macs: Count | None = None
    max_latency: Latency | None = None
    max_size: FileSize | None = None
    draws: Literal["near", "released"] = "near"
    mutation_rate: UnitFloat = 0.1
    gated: bool = False
    max_height: Annotated[int, Field(ge=MIN_HEIGHT, le=MAX_HEIGHT)] | None = None
    mismatch: Literal["narrow", "wide"] = "narrow"

    def genes(self) -> dict[str, tuple[Any, ...]]:
        """The choices of genes by their names, as a `search_spaces.spaces.Space` takes them."""
        choices = {name: getattr(self, gene.key) for name, gene in SIZE_GENES.items()}
        if self.ranks is not None:
            choices["rank"] = (None, *self.ranks)
        return {name: values for name, values in choices.items() if values is not None}

    @property
    def varies_heads(self) -> bool:
        """Whether layers may have fewer attention heads than the base."""
        return self.heads is not None

    @field_validator("stacks")
    @classmethod
    def _supernet_has_blocks(cls, stacks: tuple[int, ...]) -> tuple[int, ...]:
        if not any(stacks):
            raise ValueError(NO_FFN)
        return stacks

    @model_validator(mode="after")
    def _parameters_are_limited(self) -> "SpaceTable":
        if self.uniform is None and self.max_params is None:
            raise ValueError("limit the parameters: set max_params, or uniform (the expansion of a uniform slice)")
        if self.min_params is not None and self.max_params is not None and self.min_params > self.max_params:
            raise ValueError(f"min_params = {self.min_params:,} must be at most max_params = {self.max_params:,}")
        return self


class DeploymentTable(Table):
    """How students will run, which is how latencies are measured and sizes counted.

    Attributes:
        runtime: "torch"; or "onnx" or "onnx-int8", the files that `nas.export` writes, in onnxruntime on the processor.
        threads: the number of threads; None: as many as torch has.
        batch: the number of sentences in a batch.
        tokens: the number of tokens of each sentence; None: `max_length`.
    """

    runtime: Literal["torch", "onnx", "onnx-int8"] = "torch"
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    batch: Annotated[int, Field(ge=1, le=100_000)] = 1
    tokens: Annotated[int, Field(ge=1)] | None = None


class KeepTable(Table):
    """A goal in place of a budget: the smallest student that keeps a fraction of the teacher's score.

    Attributes:
        fraction: of the teacher's score on the search split, such as "99%".
        cost: what is minimized.
    """

    fraction: Annotated[float, BeforeValidator(lambda value: float(proportion(value)))]
    cost: Literal["params", "macs", "latency"] = "latency"

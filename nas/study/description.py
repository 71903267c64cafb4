"""What a trial records of its architecture: parameters, as Optuna's dashboard shows them, attributes and constraints.

A sampler draws an architecture by a sequence of choices (`search_spaces.spaces.Space.suggest`). Trials cannot be
compared by these choices, because which choices there are depends on earlier ones, and a size is a position between 0
and 1. Therefore they are stored as an attribute (`nas.study.attributes.CHOICES`), and the parameters of a trial are
values that every architecture has.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from nas.study.attributes import ARCHITECTURE, CHOICES, FUNCTION, IN_BUDGET, OF_BASE, PREFIX, attribute
from search_spaces import cost, variants
from search_spaces.architecture import DENSE, Architecture, Genes
from search_spaces.equivalence import function_key
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY
from search_spaces.spaces import GRAPHS, SIZES, Space

# The value for a segment without an operation.
NO_OPERATION = "none"
# The value for experts that the space does not have, but the architecture that the stage refines.
OTHER_EXPERTS = "other"


@dataclass(frozen=True)
class Parameters:
    """The names, distributions and values of the parameters of one study's trials.

    All trials of a study, including baselines and other enqueued architectures, have the same parameters with the same
    distributions, because the plots of the dashboard leave out parameters that only some trials have. What does not
    vary in a study is no parameter: stage 2 varies only operations, stage 3 only sizes, and a dense space has no
    experts. The numbers of experts in attention and head are parameters of the whole architecture.

    Args:
        depth: the number of layers.
        inner: the inner width of the base model, which is the largest one.
        stacks: the number of blocks of the largest stack.
        experts: the kinds of layers of the space, including the dense layer.
        vary: `GRAPHS`, `SIZES` or both.
        least: the number of blocks of the smallest stack, and the smallest inner width: 0 if there may be layers
            without an FFN, else 1.
        expert_counts: the choices of the numbers of experts in attention and head that vary, by their fields.
    """

    depth: int
    inner: int
    stacks: int
    experts: tuple[str, ...]
    vary: frozenset[str] = frozenset({GRAPHS, SIZES})
    least: int = 1
    expert_counts: tuple[tuple[str, tuple[int, ...]], ...] = ()

    @classmethod
    def of(cls, space: Space, vary: frozenset[str] | None = None) -> "Parameters":
        """The parameters of a study of this space.

        Args:
            vary: replaces what the space varies, for example in the confirmation of several stages' finalists.
        """
        start = space.start.layers if space.start else ()
        stacks = {*space.stacks, 1, *(genes.stack for genes in start)}
        experts = tuple(dict.fromkeys(map(str, (DENSE, *space.experts))))
        varied = space.vary if vary is None else vary
        counts = variants.expert_choices(variants.variants(space.base, space.attention_experts, space.head_experts))
        expert_counts = tuple((name, values) for name, values in counts.items() if len(values) > 1)
        return cls(space.base.depth, space.base.inner, max(stacks), experts, varied, min(stacks), expert_counts)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of every parameter by its name."""
        operations = CategoricalDistribution((NO_OPERATION, *UNARY, *BINARY))
        layer: dict[str, BaseDistribution] = {}
        if SIZES in self.vary:
            layer["inner width"] = IntDistribution(self.least, self.inner)
            if self.stacks > self.least:
                layer["stack"] = IntDistribution(self.least, self.stacks)
            if len(self.experts) > 1:
                layer["experts"] = CategoricalDistribution((*self.experts, OTHER_EXPERTS))
        if GRAPHS in self.vary:
            layer |= dict.fromkeys(_operations_of(FFNGraph.parse("project(gelu(expand(x)))")), operations)
        of_base = dict(self.expert_counts) if SIZES in self.vary else {}
        whole: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(of_base[field]) for name, field in OF_BASE.items() if field in of_base
        }
        return whole | {
            f"{prefix}/{name}": distribution for prefix in self._prefixes() for name, distribution in layer.items()
        }

    def values(self, architecture: Architecture) -> dict[str, int | str]:
        """The value of every parameter for an architecture on the base of the space."""
        whole: dict[str, int | str] = {name: getattr(architecture.base, field) for name, field in OF_BASE.items()}
        values = whole | {
            f"{prefix}/{name}": value
            for prefix, genes in zip(self._prefixes(), architecture.layers, strict=True)
            for name, value in self._values_of(genes, architecture).items()
        }
        return {name: values[name] for name in self.distributions}

    def _prefixes(self) -> Iterator[str]:
        # Zero-padded, because the dashboard sorts parameters as text.
        digits = len(str(self.depth))
        return (f"{PREFIX}{number:0{digits}}" for number in range(1, self.depth + 1))

    def _values_of(self, genes: Genes, architecture: Architecture) -> dict[str, int | str]:
        experts = str(genes.experts)
        return {
            "inner width": genes.inner(architecture.base),
            "stack": genes.stack,
            "experts": experts if experts in self.experts else OTHER_EXPERTS,
            **{name: op if genes.stack else NO_OPERATION for name, op in _operations_of(genes.graph).items()},
        }


def _operations_of(graph: FFNGraph) -> dict[str, str]:
    """The operation in each segment of a graph: before `expand`, between the linear maps, and after `project`."""
    ends = {
        "operation before expand": graph.nodes[graph.find("expand")].inputs[0],
        "operation between": graph.nodes[graph.find("project")].inputs[0],
        "operation after project": len(graph.nodes) - 1,
    }
    return {name: _operation_at(graph, end) for name, end in ends.items()}


def _operation_at(graph: FFNGraph, end: int) -> str:
    """The binary operation that computes the value of a node, possibly followed by activations; if there is none, the
    last activation.
    """
    last = graph.nodes[end].op
    while graph.nodes[end].op in UNARY:
        end = graph.nodes[end].inputs[0]
    if graph.nodes[end].op in BINARY:
        return graph.nodes[end].op
    return last if last in UNARY else NO_OPERATION


def architecture_attributes(architecture: Architecture, space: Space, labels: int) -> dict[str, Any]:
    """The attributes of a trial that describe its architecture to people."""
    return {
        IN_BUDGET: space.keeps_budget(architecture),
        "params": cost.params(architecture, labels, space.head),
        "params_active": cost.params_active(architecture, labels, space.head),
        "macs": cost.macs(architecture, labels=labels, head=space.head),
    } | {limit.name: limit.total(architecture) for limit in space.limits}


def identity(architecture: Architecture) -> dict[str, str]:
    """The attributes of a trial by which programs know its architecture."""
    return {ARCHITECTURE: json.dumps(architecture.to_json()), FUNCTION: function_key(architecture)}


def constraints(architecture: Architecture, space: Space) -> list[float]:
    """By how much an architecture violates each bound of the budget: the lower and the upper bound on parameters, then
    the limits. All values are at most 0 if it keeps the budget.
    """
    params = cost.params(architecture, space.labels, space.head)
    excess = [space.min_params - params, params - space.max_params]
    return [float(value) for value in (*excess, *(limit.total(architecture) - limit.maximum for limit in space.limits))]


def formulas(architecture: Architecture) -> list[str]:
    """Each layer in short form: stack × inner width, experts if there are any, and graph; or that there is no FFN."""
    parts = []
    for genes in architecture.layers:
        if not genes.stack:
            parts.append(genes.formula)
            continue
        size = f"{genes.stack}×{genes.inner(architecture.base)}"
        size += f" ({genes.experts})" if genes.experts != DENSE else ""
        parts.append(f"{size} {genes.graph}")
    return parts


def formula(architecture: Architecture) -> str:
    """The `formulas` of the layers, and in brackets the experts in attention and head, if there are any."""
    whole = variants.experts_in_words(architecture.base)
    return "; ".join(formulas(architecture)) + (f" [{whole}]" if whole else "")


def choices_of(trial: FrozenTrial) -> dict[str, str | float]:
    """The choices of the space that lead to a trial's architecture; empty if the architecture was enqueued."""
    return dict(attribute(trial, CHOICES, {}))

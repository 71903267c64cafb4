"""The parameters of a trial as Optuna's dashboard shows them: sizes, operations and experts of every layer.

A sampler draws an architecture by the choices that spell it (`search_spaces.spaces.Space.suggest`). Which of them there
are depends on those before, and a size is a position between 0 and 1, so trials cannot be compared by them; they are an
attribute (`nas.study.attributes.CHOICES`). What Optuna calls a trial's parameters are values that any architecture has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution

from search_spaces.architecture import DENSE, Architecture, Genes
from search_spaces.graph import FFNGraph
from search_spaces.operations import BINARY, UNARY
from search_spaces.spaces import GRAPHS, SIZES, Space

# What the names of all parameters begin with; those of a space's choices begin with "layer1/" and so on.
PREFIX = "layer "
# The operation of a segment that has none.
NO_OPERATION = "none"
# Experts of an architecture to refine that the space does not have.
OTHER_EXPERTS = "other"


@dataclass(frozen=True)
class Parameters:
    """Names, distributions and values of the parameters in the trials of one study.

    All trials of a study have the same parameters with the same distributions, baselines and enqueued architectures
    included, because plots of a dashboard leave out what only some trials have. Values that are the same in the whole
    study are no parameters: stage 2 varies operations alone, stage 3 sizes alone, and a dense space has no experts.

    Args:
        depth: layers.
        inner: inner width of the base model, the largest there is.
        stacks: blocks of the largest stack.
        experts: what the space has for a layer, the dense layer among it.
        vary: `GRAPHS`, `SIZES` or both.
    """

    depth: int
    inner: int
    stacks: int
    experts: tuple[str, ...]
    vary: frozenset[str] = frozenset({GRAPHS, SIZES})

    @classmethod
    def of(cls, space: Space, vary: frozenset[str] | None = None) -> "Parameters":
        """The parameters of a study of this space; of one where other things `vary`, such as the confirmation of
        several stages' finalists, if given.
        """
        start = space.start.layers if space.start else ()
        stacks = max(*space.stacks, 1, *(genes.stack for genes in start))
        experts = tuple(dict.fromkeys(map(str, (DENSE, *space.experts))))
        return cls(space.base.depth, space.base.inner, stacks, experts, space.vary if vary is None else vary)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """The distribution of every parameter by its name."""
        operations = CategoricalDistribution((NO_OPERATION, *UNARY, *BINARY))
        layer: dict[str, BaseDistribution] = {}
        if SIZES in self.vary:
            layer["inner width"] = IntDistribution(1, self.inner)
            if self.stacks > 1:
                layer["stack"] = IntDistribution(1, self.stacks)
            if len(self.experts) > 1:
                layer["experts"] = CategoricalDistribution((*self.experts, OTHER_EXPERTS))
        if GRAPHS in self.vary:
            layer |= dict.fromkeys(_operations_of(FFNGraph.parse("project(gelu(expand(x)))")), operations)
        return {f"{prefix}/{name}": distribution for prefix in self._prefixes() for name, distribution in layer.items()}

    def values(self, architecture: Architecture) -> dict[str, int | str]:
        """The value of every parameter for an architecture on the base of the space."""
        values = {
            f"{prefix}/{name}": value
            for prefix, genes in zip(self._prefixes(), architecture.layers, strict=True)
            for name, value in self._values_of(genes, architecture).items()
        }
        return {name: values[name] for name in self.distributions}

    def _prefixes(self) -> Iterator[str]:
        # Dashboards sort parameters as text: layer 02 before layer 10.
        digits = len(str(self.depth))
        return (f"{PREFIX}{number:0{digits}}" for number in range(1, self.depth + 1))

    def _values_of(self, genes: Genes, architecture: Architecture) -> dict[str, int | str]:
        experts = str(genes.experts)
        return {
            "inner width": genes.inner(architecture.base),
            "stack": genes.stack,
            "experts": experts if experts in self.experts else OTHER_EXPERTS,
            **_operations_of(genes.graph),
        }


def _operations_of(graph: FFNGraph) -> dict[str, str]:
    """The operation of each segment of a graph: before `expand`, between the linear maps, after `project`."""
    ends = {
        "operation before expand": graph.nodes[graph.find("expand")].inputs[0],
        "operation between": graph.nodes[graph.find("project")].inputs[0],
        "operation after project": len(graph.nodes) - 1,
    }
    return {name: _operation_at(graph, end) for name, end in ends.items()}


def _operation_at(graph: FFNGraph, end: int) -> str:
    """The binary operation that gives the value of a node, which may be activated; else the activation, if any."""
    last = graph.nodes[end].op
    while graph.nodes[end].op in UNARY:
        end = graph.nodes[end].inputs[0]
    if graph.nodes[end].op in BINARY:
        return graph.nodes[end].op
    return last if last in UNARY else NO_OPERATION

"""What a trial records of its architecture: parameters, as Optuna's dashboard shows them, attributes and constraints.

A sampler draws an architecture by a sequence of choices (`search_spaces.spaces.Space.suggest`). Trials cannot be
compared by these choices, because which choices there are depends on earlier ones, and a size is a position between 0
and 1. Therefore they are stored as an attribute (`nas.study.attributes.CHOICES`), and the parameters of a trial are
values that every architecture has.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

from nas.study.attributes import ARCHITECTURE, CHOICES, FUNCTION, PREFIX, WITHIN_BUDGET, attribute
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.equivalence import function_key
from search_spaces.genes import GENES, OTHER_EXPERTS, SIZE_GENES, Domains, Part, genes_of, outside_ffns
from search_spaces.layer import DENSE, Embedding, Layer, PredictionHead
from search_spaces.spaces import GRAPHS, SIZES, Space


@dataclass(frozen=True)
class Parameters:
    """The names, distributions and values of the parameters of one study's trials.

    All trials of a study, including baselines and other enqueued architectures, have the same parameters with the same
    distributions, because the plots of the dashboard leave out parameters that only some trials have. What does not
    vary in a study is no parameter: stage 2 varies only operations, stage 3 only sizes, and a dense space has no
    experts.

    Args:
        base: the base of all architectures.
        choices: the values of every gene but the graph that occur: those of the space, the default, and the numbers of
            the architecture that the stage refines.
        vary: `GRAPHS`, `SIZES` or both.
    """

    base: Base
    choices: Mapping[str, tuple[Any, ...]] = field(hash=False)
    vary: frozenset[str] = frozenset({GRAPHS, SIZES})

    @classmethod
    def of(cls, space: Space, vary: frozenset[str] | None = None) -> "Parameters":
        """The parameters of a study of this space.

        Args:
            vary: replaces what the space varies, for example in the confirmation of several stages' finalists.
        """
        choices = {}
        for name, gene in SIZE_GENES.items():
            kept = [] if space.start is None else map(gene.read, gene.parts(space.start))
            numbers = [value for value in kept if isinstance(value, int)]
            of_stack = [1] if name == "stack" else []
            choices[name] = tuple(dict.fromkeys([*space.genes[name], *of_stack, *numbers]))
        return cls(space.base, choices, space.vary if vary is None else vary)

    @cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        result: dict[str, BaseDistribution] = {}
        others = [(kind, "") for kind in (PredictionHead, Embedding)]
        for kind, prefix in [*others, *((Layer, prefix) for prefix in self._prefixes())]:
            for name, domain in self._domains(kind).items():
                result[prefix + name] = (
                    IntDistribution(domain[0], domain[-1])
                    if isinstance(domain, range)
                    else CategoricalDistribution(domain)
                )
        return result

    def values(self, architecture: Architecture) -> dict[str, int | str]:
        result: dict[str, int | str] = {}
        for prefix, part in zip((*self._prefixes(), "", ""), architecture.parts, strict=True):
            domains = self._domains(type(part))
            for gene in genes_of(part).values():
                for name, value in gene.values(self.base, part).items():
                    if name in domains:
                        is_other = OTHER_EXPERTS in domains[name] and value not in domains[name]
                        result[prefix + name] = OTHER_EXPERTS if is_other else value
        return {name: result[name] for name in self.distributions}

    def _domains(self, part: type[Part]) -> Domains:
        """The values of the parameters of a kind of part."""
        kinds = [kind for kind in (SIZES, GRAPHS) if kind in self.vary]
        return {
            name: domain
            for kind in kinds
            for gene in GENES.values()
            if gene.of is part and bool(gene.key) == (kind == SIZES)
            for name, domain in gene.domains(self.base, self.choices).items()
        }

    def _prefixes(self) -> Iterator[str]:
        # Zero-padded, because the dashboard sorts parameters as text.
        digits = len(str(self.base.depth))
        return (f"{PREFIX}{number:0{digits}}/" for number in range(1, self.base.depth + 1))


def architecture_attributes(architecture: Architecture, space: Space) -> dict[str, Any]:
    return {
        WITHIN_BUDGET: space.within_budget(architecture),
        "params": cost.params(architecture, space.num_labels, space.head),
        "params_active": cost.params_active(architecture, space.num_labels, space.head),
        "macs": cost.macs(architecture, num_labels=space.num_labels, head=space.head),
    } | {limit.name: limit.total(architecture) for limit in space.limits}


def identity(architecture: Architecture) -> dict[str, str]:
    """The attributes of a trial by which programs know its architecture."""
    return {ARCHITECTURE: json.dumps(architecture.to_json()), FUNCTION: function_key(architecture)}


def constraints(architecture: Architecture, space: Space) -> list[float]:
    """By how much an architecture violates each bound of the budget: the lower and the upper bound on parameters, then
    the limits. All values are at most 0 if it is within the budget.
    """
    params = cost.params(architecture, space.num_labels, space.head)
    excess = [space.min_params - params, params - space.max_params]
    return [float(value) for value in (*excess, *(limit.total(architecture) - limit.maximum for limit in space.limits))]


def formulas(architecture: Architecture) -> list[str]:
    """Each layer in short form: its number of heads if that is not everywhere the base's, stack × inner width, experts
    if there are any, and graph; or that there is no FFN, or that the layer is left out.
    """
    base = architecture.base
    pruned = any(layer.attention.heads < base.heads for layer in architecture.layers)
    parts = []
    for layer in architecture.layers:
        ffn, heads = layer.ffn, layer.attention.heads
        size = f"{heads} head{'s' if heads != 1 else ''}, " if pruned else ""
        if layer.left_out:
            parts.append("left out")
        elif not ffn.stack:
            parts.append(size + ffn.formula)
        else:
            size += f"{ffn.stack}×{ffn.inner(base)}"
            size += f" ({ffn.experts})" if ffn.experts != DENSE else ""
            parts.append(f"{size} {ffn.graph}")
    return parts


def formula(architecture: Architecture) -> str:
    """The `formulas` of the layers, and in brackets what attention, head and embedding have of their
    own.
    """
    others = outside_ffns(architecture)
    return "; ".join(formulas(architecture)) + (f" [{others}]" if others else "")


def choices_of(trial: FrozenTrial) -> dict[str, str | float]:
    """The choices of the space that lead to a trial's architecture; empty if the architecture was enqueued."""
    return dict(attribute(trial, CHOICES, {}))

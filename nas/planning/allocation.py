"""The MILP allocation: heads, widths and activations of all layers, and the rank of the word embedding, that minimize
the sum of their predicted losses within the budget, by mixed-integer linear programming, as Puzzle (Bercovich et al.,
2024) chooses blocks by their scores.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file
from scipy.optimize import Bounds, LinearConstraint, milp

from foundation.streams import stdout_to_stderr
from nas.preparation.predictions import HEADS, RANKS
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.counting import Cost, add
from search_spaces.graph import FFNGraph, base_graph
from search_spaces.layer import FFN, FULL, Attention, Embedding, Layer
from search_spaces.operations import UNARY
from search_spaces.spaces import Space

# The solver stops after this many nodes with the best allocation that it has found (a limit on time would give another
# result on a busy machine).
NODES = 20_000
# Several allocations differ in at least this many of the attention modules, the FFNs and the embedding's rank.
DISTANCE = 2


Option = Attention | FFN | Embedding | None


@dataclass(frozen=True, eq=False)
class PredictedLosses:
    """The increase in loss that `supernet.order.prediction` predicts for every part of a layer and for the word
    embedding; `of` adds them up.

    Attributes:
        base: the base of all architectures.
        activation: the operation of the base graph.
        losses: operation -> `[layer]` -> (L + 1,), nats per token, by the number of channels.
        heads: `[layer]` -> (heads + 1,), nats per token, by the number of heads; empty if all architectures have all.
        ranks: `[0]` -> (width + 1,), nats per token, by the rank of the word embedding; empty if all have the full one.
    """

    base: Base
    activation: str
    losses: Mapping[str, Sequence[np.ndarray]]
    heads: Sequence[np.ndarray] = ()
    ranks: Sequence[np.ndarray] = ()

    @classmethod
    def load(cls, path: Path, base: Base, graph: FFNGraph) -> "PredictedLosses":
        """Read what `nas.preparation.predictions` has saved."""
        losses: dict[str, list[np.ndarray]] = {}
        for key, values in load_file(path).items():
            op, layer = key.rsplit("/", 1)
            losses.setdefault(op, [np.empty(0)] * base.depth)[int(layer)] = values
        heads, ranks = losses.pop(HEADS, ()), losses.pop(RANKS, ())[:1]
        return cls(base, graph.activation, losses, heads, ranks)

    def of_attention(self, layer: int, attention: Attention) -> float:
        """The predicted loss of a layer with this attention. The number of experts has no influence."""
        return float(self.heads[layer][attention.heads]) if self.heads else 0.0

    def of_ffn(self, layer: int, ffn: FFN) -> float:
        """The predicted loss of a layer with this FFN. It depends on the width and on the activation, or the operation
        whose output `project` reads; if that is no activation, on the base graph's. Nothing else in the graph counts,
        nor do further blocks or experts. A width beyond those of the table counts as its widest, but the base model's
        own width and activation lose nothing.
        """
        if ffn.stack == 0:
            return float(self.losses[self.activation][layer][0])
        graph = ffn.graph
        read = graph.nodes[graph.nodes[graph.find("project")].inputs[0]].op
        operation = graph.activation or read
        operation = operation if operation in self.losses else self.activation
        losses, width = self.losses[operation][layer], ffn.inner(self.base)
        if width >= len(losses) and (width, operation) == (self.base.inner, self.activation):
            return 0.0
        return float(losses[min(width, len(losses) - 1)])

    def of_embedding(self, embedding: Embedding) -> float:
        return 0.0 if embedding == FULL or not self.ranks else float(self.ranks[0][embedding.rank])

    def of(self, architecture: Architecture) -> float:
        """The predicted loss of an architecture: the sum over its parts."""
        return float(self.of_parts(architecture).sum())

    def of_parts(self, architecture: Architecture) -> np.ndarray:
        """The predicted losses of an architecture's FFNs, attentions and word embedding (2 * depth + 1,)."""
        ffns = [self.of_ffn(number, ffn) for number, ffn in enumerate(architecture.ffns)]
        attentions = [self.of_attention(number, layer.attention) for number, layer in enumerate(architecture.layers)]
        return np.array([*ffns, *attentions, self.of_embedding(architecture.embedding)])

    def weighted(self, weights: np.ndarray) -> "PredictedLosses":
        """With the losses of each part, as `of_parts` has them, multiplied by its weight (2 * depth + 1,)."""
        ffns, attentions, rest = np.split(weights, [self.base.depth, 2 * self.base.depth])
        return replace(
            self,
            losses={op: [*map(np.multiply, ffns, of_layers)] for op, of_layers in self.losses.items()},
            heads=[*map(np.multiply, attentions, self.heads)],
            ranks=[*map(np.multiply, rest, self.ranks)],
        )


class _Variable(NamedTuple):
    """A 0-1 variable of the program. There is one for each option of an attention, of an FFN and of the word embedding,
    and one for each layer that may be left out. A layer costs the sum of its attention's and its FFN's cost, less what
    is saved if it is left out.

    Attributes:
        option: what it stands for; None: that the layer is left out.
        layer: of the embedding the depth.
        predicted: its predicted loss.
        cost: its cost (budgets,) beyond what does not vary.
    """

    option: Option
    layer: int
    predicted: float
    cost: np.ndarray


def _places(variables: Sequence[_Variable], part: type, layer: int) -> list[int]:
    """The indices of the variables for this part of a layer or, if it is the type of None, for leaving it out."""
    return [place for place, one in enumerate(variables) if one.layer == layer and type(one.option) is part]


def allocate(
    space: Space,
    losses: PredictedLosses,
    *,
    exclude: Iterable[Architecture] = (),
    distance: int = 1,
    whole_layers: bool = False,
) -> Architecture | None:
    """The member of the space with the least predicted loss that the solver finds within `NODES` nodes, among those
    whose graphs are activations between the linear maps (or, if graphs do not vary, the start's). Of sizes with equal
    predicted losses, such as one block and two, only the one with the fewest parameters is considered; so attention
    modules and prediction head have the fewest experts.

    Args:
        exclude: the result differs from these in at least `distance` attention modules, FFNs and embedding ranks.
        whole_layers: whether every layer is whole, as in the base model, or left out, even if the space has no such
            layers; the embedding is then the largest of the space.

    Returns:
        None if the solver finds none: the budget admits none, or the node limit came first.
    """
    head = space.options_of_parts(space.start_graphs)[0][-2][0]
    embeddings = [part for part in space.options_of_parts(space.start_graphs)[0][-1] if isinstance(part, Embedding)]
    if whole_layers:
        embeddings = [max(embeddings, key=lambda embedding: embedding.rank or space.base.width)]
    others = add(space.cost(head), space.cost(embeddings[0]))
    variables, fixed = _variables(space, losses, others, embeddings, whole_layers)
    costs = np.array([one.cost for one in variables], float)
    predicted = np.array([one.predicted for one in variables])
    count, depth = len(variables), space.base.depth
    bounds = space.bounds.without(fixed)
    high = np.array(bounds.high, float)
    low = np.concatenate(([bounds.low], np.full(len(high) - 1, -np.inf)))
    scale = np.maximum(1.0, np.abs(high))
    # Half a unit of slack, as the solver computes in floating point and costs are whole numbers.
    constraints = [LinearConstraint(costs.T / scale[:, None], (low - 0.5) / scale, (high + 0.5) / scale)]
    parts = (FFN, Attention) if any(isinstance(one.option, Attention) for one in variables) else (FFN,)
    for layer in range(depth):
        for part in parts:
            constraints.append(LinearConstraint(_row(count, _places(variables, part, layer)), 1, 1))
        for place in _places(variables, type(None), layer):
            # A layer is left out if, and only if, it has neither heads nor an FFN.
            nothing = [n for n, one in enumerate(variables) if one.layer == layer and _is_nothing(one.option)]
            row = _row(count, nothing)
            row[0, place] = -1
            constraints.append(LinearConstraint(row, 0, 1))
            for n in nothing:
                row = _row(count, [n])
                row[0, place] = -1
                constraints.append(LinearConstraint(row, 0, 0 if whole_layers else 1))
    varied = len(parts) * depth
    if of_embedding := _places(variables, Embedding, depth):
        constraints.append(LinearConstraint(_row(count, of_embedding), 1, 1))
        varied += 1
    for architecture in exclude:
        same = [place for place, one in enumerate(variables) if one.option in _parts(architecture, one.layer)]
        constraints.append(LinearConstraint(_row(count, same), -np.inf, varied - distance))
    with stdout_to_stderr():  # HiGHS prints a line of its own in rare cases, whatever its options
        solution = milp(
            predicted / max(float(predicted.max()), 1e-300),
            integrality=np.ones(count),
            bounds=Bounds(0, 1),
            constraints=constraints,
            options={"node_limit": NODES, "mip_rel_gap": 0.0},
        )
    if solution.x is None:
        return None
    chosen = np.flatnonzero(solution.x > 0.5).tolist()
    layers, embedding = [space.options(layer, space.start_graphs[layer])[0] for layer in range(depth)], embeddings[0]
    for place in chosen:
        option, layer, *_ = variables[place]
        if isinstance(option, FFN):
            layers[layer] = replace(layers[layer], ffn=option)
        elif isinstance(option, Embedding):
            embedding = option
        elif option is not None:
            layers[layer] = replace(layers[layer], attention=option)
    architecture = space.of_parts([*layers, head, embedding])
    return architecture if space.within_budget(architecture) else None


def _row(count: int, places: Iterable[int]) -> np.ndarray:
    """The coefficients (1, count) that are 1 at these places."""
    row = np.zeros((1, count))
    row[0, list(places)] = 1
    return row


def _parts(architecture: Architecture, layer: int) -> tuple[Option, ...]:
    """What a variable of this layer may stand for, as the architecture has it."""
    if layer == architecture.base.depth:
        return (architecture.embedding,)
    return architecture.layers[layer].ffn, architecture.layers[layer].attention


def _is_nothing(option: Option) -> bool:
    """Whether it is an attention without heads, or no FFN."""
    return option == FFN(stack=0) or (isinstance(option, Attention) and not option.heads)


def _variables(
    space: Space, losses: PredictedLosses, others: Cost, embeddings: Sequence[Embedding], whole_layers: bool
) -> tuple[list[_Variable], Cost]:
    """The variables of a space, and the cost of everything that does not vary. Attention modules and embeddings have no
    variables if they do not vary.

    Args:
        others: the cost of the prediction head and of the first of the `embeddings`.
        embeddings: what the word embedding may be.
        whole_layers: as for `allocate`.
    """
    variables: list[_Variable] = []
    fixed = np.array(others)
    for number in range(space.base.depth):
        attentions, ffns = _options(space, number)
        if whole_layers:
            attentions = [Attention(space.base.heads, min(space.genes["attention_experts"])), Attention(0)]
            ffns = [FFN(space.graph), FFN(stack=0)]
        most = max(attentions, key=lambda attention: attention.heads)
        some = max(ffns, key=lambda ffn: ffn.stack)
        # What does not vary is left out, so that it does not cost the solver digits.
        without_ffn = np.array(space.cost(Layer(most, FFN(stack=0))))
        fixed = fixed + without_ffn
        with_some = np.array(space.cost(Layer(most, some)))
        of_attention = {a: np.array(space.cost(Layer(a, some))) - with_some for a in attentions}
        of_ffn = {ffn: np.array(space.cost(Layer(most, ffn))) - without_ffn for ffn in ffns}
        variables += [_Variable(ffn, number, losses.of_ffn(number, ffn), cost) for ffn, cost in of_ffn.items()]
        if len(attentions) > 1:
            variables += [
                _Variable(a, number, losses.of_attention(number, a), cost) for a, cost in of_attention.items()
            ]
            nothing = Layer(Attention(0), FFN(stack=0))
            if nothing.attention in of_attention and nothing.ffn in of_ffn:
                parts = without_ffn + of_attention[nothing.attention] + of_ffn[nothing.ffn]
                variables.append(_Variable(None, number, 0.0, np.array(space.cost(nothing)) - parts))
    for embedding in embeddings if len(embeddings) > 1 else ():
        cost = np.array(space.cost(embedding)) - np.array(space.cost(embeddings[0]))
        variables.append(_Variable(embedding, space.base.depth, losses.of_embedding(embedding), cost))
    return variables, tuple(int(cost) for cost in fixed)


def fewest_layers(space: Space, losses: PredictedLosses) -> Architecture | None:
    """The baseline of fewer layers: whole layers of the base model are kept or left out, so that the predicted loss is
    least within the budget (DistilBERT and MiniLM drop whole layers, too). None if the space cannot leave layers out,
    or nothing fits.
    """
    if 0 not in space.genes["heads"] or 0 not in space.genes["stack"]:
        return None
    return allocate(space, losses, whole_layers=True)


def allocations(space: Space, losses: PredictedLosses, number: int) -> list[Architecture]:
    """Up to `number` allocations, the best first; any two differ as `DISTANCE` says (in one part if the depth is 1)."""
    results: list[Architecture] = []
    while len(results) < number:
        architecture = allocate(space, losses, exclude=results, distance=min(DISTANCE, space.base.depth))
        if architecture is None:
            break
        results.append(architecture)
    return results


def _options(space: Space, layer: int) -> tuple[list[Attention], list[FFN]]:
    """What a layer's attention and FFN may be: of those with the same predicted loss, the one with the fewest
    parameters.
    """
    graphs = [space.start_graphs[layer]]
    if space.varies_graphs:
        graphs = [base_graph(op, space.graph.gated) for op in UNARY]
    attentions: dict[int, Attention] = {}
    ffns: dict[tuple[FFNGraph, int, Fraction], FFN] = {}
    for graph in graphs:
        for option in space.options(layer, graph):  # in the order of their parameters
            attentions.setdefault(option.attention.heads, option.attention)
            ffn = option.ffn
            ffns.setdefault((ffn.graph, min(ffn.stack, 1), ffn.expansion), ffn)
    return list(attentions.values()), list(ffns.values())

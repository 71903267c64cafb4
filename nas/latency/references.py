"""Random architectures to which latency tables are fitted."""

import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import cycle

from transformers import AutoModelForSequenceClassification, PretrainedConfig, PreTrainedModel

from distill.encoders.family import family_of
from nas.latency.steps import probed_graphs
from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN, Attention, Layer
from search_spaces.operations import BINARY, UNARY
from supernet.build import build

# The shapes of their graphs: {0} and {1} are activations, {2} is a binary operation.
SHAPES = (
    "project({0}(expand(x)))",
    "{1}(project({0}(expand(x))))",
    "project({2}(x,{0}(expand(x))))",
    "project({2}({0}(expand(x)),gate(x)))",
    "project({2}({0}(expand(x)),{1}(expand(x))))",
    "{2}(x,project({0}(expand({1}(x)))))",
)


def references(base_model: Architecture, widths: Sequence[int], heads: Sequence[int]) -> Iterator[Architecture]:
    """Yield random reference architectures without end. Their graphs, stacks and heads are random.

    All layers of an architecture have the same inner width, so that the sizes of architectures differ a lot.
    """
    rng = random.Random(0)
    base, experts = base_model.base, base_model.layers[0].attention.experts
    for inner in cycle(widths):
        layers = []
        for _ in range(base.depth):
            ffn = FFN(random_graph(rng), rng.randint(1, 2), Fraction(inner, base.inner))
            layers.append(Layer(Attention(rng.choice(heads), experts), ffn))
        yield replace(base_model, layers=tuple(layers))


def mixed_references(
    base_model: Architecture, widths: Sequence[int], heads: Sequence[int], layers: int
) -> list[Architecture]:
    """Reference architectures with this number of layers in all, whose widths differ from layer to layer. All widths
    and numbers of heads are equally frequent, and every step of a block occurs.
    """
    rng = random.Random(0)
    graphs = probed_graphs()
    graphs += [random_graph(rng) for _ in range(layers - len(graphs))]
    rng.shuffle(graphs)
    inners, numbers = _in_turns(widths, rng), _in_turns(heads, rng)
    base = base_model.base
    drawn = [
        Layer(Attention(number), FFN(graph, rng.randint(1, 2), Fraction(inner, base.inner)))
        for graph, inner, number in zip(graphs, inners, numbers, strict=False)
    ]
    parts = [tuple(drawn[start : start + base.depth]) for start in range(0, len(drawn), base.depth)]
    return [replace(base_model, base=replace(base, depth=len(part)), layers=part) for part in parts]


def random_graph(rng: random.Random) -> FFNGraph:
    """A random graph, in which gelu is the most frequent operation."""
    unary, binary = tuple(UNARY), tuple(BINARY)
    operations = (rng.choice(("gelu", rng.choice(unary))), rng.choice(unary), rng.choice(binary))
    return FFNGraph.parse(rng.choice(SHAPES).format(*operations))


def _in_turns(values: Sequence[int], rng: random.Random) -> Iterator[int]:
    """Yield the values without end, all of them before any is repeated, in a random order."""
    while True:
        yield from rng.sample(values, len(values))


def small_model(architecture: Architecture, template: PretrainedConfig | None) -> PreTrainedModel:
    """A model of the architecture in eval mode with the smallest vocabulary: word embeddings would take most of the
    memory and of the time for building.

    Args:
        template: as for `supernet.build.build`.
    """
    vocabulary = 1 if template is None else _smallest_vocabulary(template)
    small = replace(architecture, base=replace(architecture.base, vocabulary=vocabulary))
    return build(small, template=template).eval()


def _smallest_vocabulary(config: PretrainedConfig) -> int:
    """The smallest vocabulary with a padding token; an MPNet's has the number before its first position,
    whatever its configuration says.
    """
    return max(1 + (config.pad_token_id or 0), family_of(config).first_position or 0)


def small_teacher(config: PretrainedConfig) -> PreTrainedModel:
    """A teacher in eval mode with random weights and the smallest vocabulary."""
    small = copy.deepcopy(config)
    setattr(small, family_of(config).sizes["vocabulary"], _smallest_vocabulary(config))
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(small)
    return model.eval()

"""The closed forms against an itemised count of every tensor of the model."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from search_spaces import DENSE, Architecture, Attention, Base, Embedding, Layer, PredictionHead, cost
from tests.search_spaces.strategies import architectures


def shapes(architecture: Architecture, labels: int) -> list[tuple[int, ...]]:
    """The shape of every parameter, tensor by tensor."""
    base = architecture.base
    d = base.width
    found: list[tuple[int, ...]] = [(base.position_biases, base.heads)] if base.position_biases else []
    found += [(base.positions, d), (base.token_types, d), (d,), (d,)]
    if rank := architecture.embedding.rank:
        found += [(base.vocabulary, rank), (rank, d)]
    elif base.embedding is None:
        found.append((base.vocabulary, d))
    else:
        found += [(base.vocabulary, base.embedding), (3 * base.embedding, d), (d,)]
    for layer in architecture.layers:
        attention, genes, experts = layer.attention, layer.ffn, layer.ffn.experts
        if not attention.heads and not genes.stack:
            continue
        kept = attention.heads * (d // base.heads)
        found += ([(d, kept), (kept,)] * 3 + [(kept, d), (d,)]) * attention.experts + [(d,), (d,)]
        if attention.experts > 1:
            found.append((d, attention.experts))
        nodes, widths = genes.graph.nodes, genes.graph.widths(d, genes.inner(base), base.mismatch)
        for _ in range(genes.stack):
            for number, node in enumerate(nodes):
                if node.op in ("expand", "gate", "project"):
                    found += [(widths[node.inputs[0]], widths[number]), (widths[number],)] * experts.count
            found += [(d,), (d,)]
            if experts.routing in ("token_gate", "sentence_gate"):
                found.append((d, experts.count))
    if (count := architecture.head.experts) > 1:
        found += [(d, d), (d,), (d, labels), (labels,)] * count + [(d, count)]
        labels = 0
    return [*found, (d, d), (d,), *([(d, labels), (labels,)] if labels else [])]


def size(shape: tuple[int, ...]) -> int:
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


@given(architectures(), st.integers(1, 5), st.sampled_from([None, 7]), st.sampled_from(["narrow", "wide"]))
def test_parameters(drawn: Architecture, labels: int, embedding: int | None, mismatch: str) -> None:
    rank = drawn.embedding if embedding is None else Embedding()
    changes = {"embedding": embedding, "mismatch": mismatch, "position_biases": labels - 1}
    architecture = replace(drawn, base=replace(drawn.base, **changes), embedding=rank)
    expected = shapes(architecture, labels)
    assert cost.params(architecture, labels) == sum(map(size, expected))
    base = architecture.base
    layers = sum(cost.layer_params(base, layer) for layer in architecture.layers)
    head = cost.head_params(base, architecture.head, labels)
    assert cost.embedding_params(base, rank) + layers + head == cost.params(architecture, labels)


def passed(architecture: Architecture) -> Architecture:
    """A dense architecture with a block for each expert that a token passes, of one attention, with a linear head."""
    layers = (
        Layer(Attention(layer.attention.heads), replace(ffn, stack=ffn.stack * ffn.experts.top_k, experts=DENSE))
        for layer, ffn in zip(architecture.layers, architecture.ffns, strict=True)
    )
    return Architecture(architecture.base, tuple(layers), embedding=architecture.embedding)


def gates_of_attentions(architecture: Architecture) -> int:
    """The weights of the gates of all attentions, by which each token costs."""
    counts = [layer.attention.experts for layer in architecture.layers]
    return architecture.base.width * sum(count for count in counts if count > 1)


@given(architectures(), st.integers(1, 5))
def test_active_parameters(drawn: Architecture, labels: int) -> None:
    architecture = replace(drawn, head=PredictionHead())
    d = architecture.base.width
    routers = gates_of_attentions(architecture)
    norms = 0
    for genes in architecture.ffns:
        routers += genes.stack * d * genes.experts.count * genes.experts.gated
        norms += genes.stack * (genes.experts.top_k - 1) * 2 * d  # `passed` has one for each of its blocks
    active, stored = cost.params_active(architecture, labels), cost.params(architecture, labels)
    assert active == cost.params(passed(architecture), labels) - norms + routers
    everything = all(genes.experts.top_k == genes.experts.count for genes in architecture.ffns)
    assert active <= stored
    assert (active == stored) == (everything and not gates_of_attentions(architecture))
    of_head = cost.params_active(drawn, labels) - active
    # Of several prediction layers one is used, beside the pooler, and the gate.
    assert of_head == (d * d + d + d * drawn.head.experts if drawn.head.experts > 1 else 0)


@given(architectures(), st.integers(1, 20), st.integers(1, 5))
def test_macs(drawn: Architecture, tokens: int, labels: int) -> None:
    architecture = passed(drawn)
    base, d = architecture.base, architecture.base.width
    matrices = [shape for shape in shapes(architecture, labels) if len(shape) == 2]
    # Word, position and type embeddings are look-ups, pooler and classifier see one token.
    rank = architecture.embedding.rank or 0
    encoder = matrices[3 + bool(rank) : -2]
    assert cost.macs_linear(architecture, tokens) == tokens * sum(map(size, encoder))
    heads = sum(layer.attention.heads for layer in architecture.layers)
    attention = 2 * heads * tokens * tokens * (d // base.heads)
    others = tokens * rank * d + d * d + d * labels
    assert cost.macs(architecture, tokens, labels) == cost.macs_linear(architecture, tokens) + attention + others

    # Experts cost what a token passes, and their gates.
    gates = tokens * gates_of_attentions(drawn)
    for genes in drawn.ffns:
        decisions = {"token_gate": tokens, "sentence_gate": 1}.get(genes.experts.routing, 0)
        gates += genes.stack * decisions * d * genes.experts.count
    gates += d * d + d * drawn.head.experts if drawn.head.experts > 1 else 0
    assert cost.macs_linear(drawn, tokens) == cost.macs_linear(architecture, tokens)
    assert cost.macs(drawn, tokens, labels) == cost.macs(architecture, tokens, labels) + gates


def test_no_ffn_costs_nothing() -> None:
    """What is left are embeddings, attention and head, in every way of counting."""
    base = Base(depth=3, width=12, heads=3, inner=24, vocabulary=50, positions=20)
    empty = Architecture.uniform(base, stack=0)
    assert cost.ffn_params(base, empty.ffns[0]) == cost.ffn_macs(base, empty.ffns[0], 7) == 0
    embeddings = (50 + 20 + 2) * 12 + 2 * 12
    attention = 4 * (12 * 12 + 12) + 2 * 12
    encoder = embeddings + 3 * attention
    assert cost.params_encoder(empty) == cost.params_effective(empty) == encoder
    assert cost.params(empty, 5) == cost.params_active(empty, 5) == encoder + 12 * 12 + 12 + 12 * 5 + 5
    assert cost.params_published(empty, 20) == encoder + 12 * 20 + 20
    assert cost.params_minimoe(empty) == encoder + 3 * (12 * 12 + 12)
    assert cost.macs_linear(empty, 7) == 7 * 3 * 4 * 12 * 12
    # The FFN has 2 * 24 / (4 * 12) times the MACs of the attention's maps.
    assert cost.speedup(empty) == 2
    assert cost.flops(empty, 7) == cost.flops(Architecture.uniform(base), 7) - 2 * 7 * 3 * 2 * 12 * 24


def test_macs_of_the_factorised_embedding() -> None:
    plain = Architecture.uniform(Base(depth=2, width=12, heads=3, inner=12))
    factorised = Architecture.uniform(replace(plain.base, embedding=5))
    assert cost.macs(factorised, 7) - cost.macs(plain, 7) == 7 * 15 * 12

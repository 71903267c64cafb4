"""What an architecture costs in closed form: parameters and multiply-accumulates (MACs).

The model is an encoder as transformers builds it. `Base` says which biases, LayerNorms and tables it has; BERT, the
default, has all biases, and no tables but these: word, position and token-type embeddings with a LayerNorm (a word
embedding of rank r has r columns, and a projection r -> d without bias); per layer the linear layers for query, key,
value and output with a LayerNorm; per block `expand` (d -> e), `gate` (d -> e) where the graph has one, `project` (w ->
d, where w is the width of the value it is really applied to) and a LayerNorm; and a prediction head. A sentence-level
head has a pooler and a classifier; a token-level head (tags, or the start and end of an answer) a classifier alone; a
masked-LM head has a linear layer and a LayerNorm before the output embedding, which is tied to the word embedding, and
a bias for each token. An attention of h of the base's n heads maps d to h d / n channels; without heads the bias of its
output projection is left. Each expert has its own copy of all linear layers of a block (or of an attention); a gate (d
-> E, without bias) chooses among the experts. Hash routing tables do not count as parameters, and the MACs that a
capacity saves are not subtracted. A layer without an FFN has only its attention, and a layer with neither heads nor an
FFN nothing at all.

`num_labels` is the number of classes or tags; other heads have a fixed number of outputs. Papers count differently;
functions that follow a paper name it.
"""

from dataclasses import dataclass

from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.layer import FFN, FULL, Attention, Embedding, Layer, PredictionHead


@dataclass(frozen=True)
class HeadCost:
    """What the cost of a prediction head depends on. Every task type has one (`distill.tasks.types.TaskType.head`).

    Attributes:
        pooled: whether it is applied to the pooled state of a sentence rather than to all tokens; only such a head may
            have experts.
        outputs: its number of outputs; None means one per label, 0 that a model has no head, only a pooler.
        vocabulary: whether it predicts words: a linear map and a LayerNorm, then the word embedding as the output
            embedding.
    """

    pooled: bool = False
    outputs: int | None = None
    vocabulary: bool = False

    def of(self, num_labels: int) -> int:
        """Its number of outputs for a task with this number of labels."""
        return num_labels if self.outputs is None else self.outputs

    @property
    def may_have_experts(self) -> bool:
        """Whether it may have experts."""
        return self.pooled and self.outputs != 0

    def describe(self, num_labels: int) -> str:
        """The head in words, for a task with this number of labels."""
        if self.vocabulary:
            return "with the head of a masked language model"
        count = self.of(num_labels)
        if not count:
            return "with pooler"
        outputs = f"{count} output{'s' * (count > 1)}"
        return f"with pooler and {outputs}" if self.pooled else f"with {outputs} for each token"


CLASSIFIER = HeadCost(pooled=True)
"""The head that classifies sentences."""


def params(architecture: Architecture, num_labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The number of stored parameters of the deployable model, including its head."""
    return params_encoder(architecture) + head_params(architecture.base, architecture.head, num_labels, head)


def params_active(architecture: Architecture, num_labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The number of parameters used for one token: all except those of experts to which it is not routed."""
    idle = _idle_params(architecture)
    if head.may_have_experts:
        idle_experts = architecture.head.experts - 1
        idle += idle_experts * _prediction_layer(architecture.base, head.of(num_labels))
    return params(architecture, num_labels, head) - idle


def params_encoder(architecture: Architecture) -> int:
    """`params` without the head, as MoEBERT, MiniMoE (table 5) and MicroBERT (table 1) count their baselines."""
    base = architecture.base
    layers = sum(layer_params(base, layer) for layer in architecture.layers)
    # The LayerNorm that `embedding_params` subtracts is not counted in a layer that is left out.
    missing = base.norm_size if not base.first_norm and architecture.layers[0].left_out else 0
    return embedding_params(base, architecture.embedding) + layers + missing


def params_effective(architecture: Architecture) -> int:
    """MoEBERT's effective parameters: `params_active` without the head."""
    return params_encoder(architecture) - _idle_params(architecture)


def params_minimoe(architecture: Architecture) -> int:
    """The parameters as MiniMoE counts its students (table 5): the encoder plus the query, key and value maps on top of
    it that are used in distillation only.
    """
    width = architecture.base.width
    return params_encoder(architecture) + 3 * _linear(width, width)


def params_published(architecture: Architecture, teacher_width: int = 768) -> int:
    """The parameters as counted in EfficientBERT's tables, and for TinyBERT and the student in MicroBERT's table 1.

    This includes the linear map from the student's width to the teacher's, which is used in distillation only, excludes
    the head, and assumes that the input of `project` is as wide as the output of `expand`. A `gate`, which the papers
    do not have, counts like a second `expand`.
    """
    base = architecture.base
    ffns = sum(ffn.stack * _block_params(base, ffn, project=ffn.inner(base)) for ffn in architecture.ffns)
    attentions = sum(_attention_params(base, layer) for layer in architecture.layers)
    embeddings = embedding_params(base, architecture.embedding)
    return embeddings + attentions + ffns + _linear(base.width, teacher_width)


def embedding_params(base: Base, part: Embedding = FULL) -> int:
    """The parameters outside the layers and the head."""
    if part.rank is not None:
        words = part.rank * (base.vocabulary + base.width)
    elif base.embedding is None:
        words = base.vocabulary * base.width
    else:
        mapped = 3 * base.embedding if base.trigrams else base.embedding
        words = base.vocabulary * base.embedding + _linear(mapped, base.width)
    relative = (base.relative_positions + 2) * base.width if base.relative_positions else 0
    absolute = (base.positions + base.token_types + 4 * base.box_positions) * base.table_width
    absolute += base.embeddings_norm * (1 + base.norm_biases) * base.table_width
    # The last LayerNorm, and the missing one of the lowest attention, which `layer_params` does not know to be lowest.
    norms = base.norm_size * (base.pre_norm - (not base.first_norm))
    return words + absolute + relative + norms + base.position_biases * base.heads


def layer_params(base: Base, layer: Layer) -> int:
    """The parameters of a layer's attention and FFN, experts, gates and LayerNorms included."""
    return _attention_params(base, layer) + ffn_params(base, layer.ffn)


def head_params(base: Base, part: PredictionHead, num_labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The head's parameters, without the word embedding that a head of masked words shares."""
    outputs = head.of(num_labels)
    if head.vocabulary:
        inner = base.embedding or base.width
        before = _linear(base.width, inner) + 2 * inner * (not base.dense_heads) + base.vocabulary
        return before * base.dense_word_head + base.vocabulary * inner * (not base.tied)
    if not head.pooled:
        return _linear(base.width, outputs) + base.dense_heads * _linear(base.width, base.width)
    pooler = _linear(base.width, base.width)
    if not outputs:
        return pooler
    if part.experts == 1:
        return pooler + _linear(base.width, outputs)
    return pooler + part.experts * _prediction_layer(base, outputs) + _gate(base.width, part.experts)


def ffn_params(base: Base, ffn: FFN) -> int:
    """The parameters of all blocks of one layer, their experts, gates and LayerNorms included."""
    return ffn.stack * _block_params(base, ffn, project_width(base, ffn))


def project_width(base: Base, ffn: FFN) -> int:
    """The actual input width of `project`, in channels."""
    number = ffn.graph.find("project")
    widths = ffn.graph.widths(base.width, ffn.inner(base), base.mismatch)
    return widths[ffn.graph.nodes[number].inputs[0]]


def macs_linear(architecture: Architecture, tokens: int = 128) -> int:
    """MACs of the encoder's linear maps, without gates, for one sequence of `tokens` tokens. MiniMoE reports these at
    128 tokens as GFLOPs.
    """
    base = architecture.base
    return sum(
        tokens * _attention_maps(base, layer.attention) + _maps_macs(base, layer.ffn, tokens)
        for layer in architecture.layers
    )


def speedup(architecture: Architecture) -> float | None:
    """MACs of the dense base model's linear maps, divided by those of this architecture: MoEBERT's "x2 speedup". None
    if all layers are left out.
    """
    macs_of_layers = macs_linear(architecture)
    return macs_linear(Architecture.uniform(architecture.base)) / macs_of_layers if macs_of_layers else None


def flops(architecture: Architecture, tokens: int = 128) -> int:
    """FLOPs as counted in the tables of TinyBERT and MicroBERT, for one sequence of `tokens` tokens: two for each MAC
    of the encoder's linear maps, of the attention products, and of one further map (d -> d) applied to every token.
    """
    base = architecture.base
    products = sum(_products(base, layer.attention, tokens) for layer in architecture.layers)
    return 2 * (macs_linear(architecture, tokens) + products + tokens * base.width**2)


def ffn_macs(base: Base, ffn: FFN, tokens: int = 128) -> int:
    """MACs of the linear maps and gates of all blocks of one layer for one sequence of `tokens` tokens."""
    experts = ffn.experts
    gate = _gate(base.width, experts.count) if experts.gated else 0
    decisions = 1 if experts.kind.by_sentence else tokens
    return _maps_macs(base, ffn, tokens) + decisions * ffn.stack * gate


def layer_macs(base: Base, layer: Layer, tokens: int = 128) -> int:
    """MACs of a layer's linear maps, gates and attention products for one sequence of `tokens` tokens."""
    attention = layer.attention
    maps = _attention_maps(base, attention) + _gate(base.width, attention.experts)
    return tokens * maps + _products(base, attention, tokens) + ffn_macs(base, layer.ffn, tokens)


def macs(architecture: Architecture, tokens: int = 128, num_labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """`macs_linear` plus gates, attention products, factorized embedding and head, for one sequence."""
    base = architecture.base
    layers = sum(layer_macs(base, layer, tokens) for layer in architecture.layers)
    embedding = architecture.embedding
    of_head = head_macs(base, architecture.head, tokens, num_labels, head, embedding)
    return embedding_macs(base, embedding, tokens) + layers + of_head


def embedding_macs(base: Base, part: Embedding = FULL, tokens: int = 128) -> int:
    """The MACs outside the layers and the head: those of a factorized embedding, or of one of smaller rank."""
    mapped = (3 if base.trigrams else 1) * (base.embedding or 0)
    return tokens * (mapped + (part.rank or 0)) * base.width


def head_macs(
    base: Base,
    part: PredictionHead,
    tokens: int = 128,
    num_labels: int = 3,
    head: HeadCost = CLASSIFIER,
    embedding: Embedding = FULL,
) -> int:
    """The head's MACs for one sequence: a pooler with a classifier processes one token, other heads all tokens. The
    `embedding` is also the output embedding of a head that predicts words.
    """
    outputs = head.of(num_labels)
    if head.vocabulary:
        if embedding.rank is not None and base.tied:
            before = base.width**2 * base.dense_word_head
            return tokens * (before + embedding.rank * (base.width + base.vocabulary))
        inner = base.embedding or base.width
        return tokens * inner * (base.width * base.dense_word_head + base.vocabulary)
    if not head.pooled:
        return tokens * base.width * (outputs + base.dense_heads * base.width)
    several = part.experts > 1 and head.may_have_experts
    routed = base.width**2 + _gate(base.width, part.experts) if several else 0
    return (tokens if base.late_pooling else 1) * (base.width**2 + routed + base.width * outputs)


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _prediction_layer(base: Base, outputs: int) -> int:
    """The parameters of one expert of a head that has several."""
    return _linear(base.width, base.width) + _linear(base.width, outputs)


def _idle_params(architecture: Architecture) -> int:
    """The parameters of the encoder's experts to which a token is not routed."""
    base = architecture.base
    idle = 0
    for layer in architecture.layers:
        attention, ffn = layer.attention, layer.ffn
        idle += (attention.experts - 1) * 4 * _linear(base.width, base.width)
        idle += ffn.stack * (ffn.experts.count - ffn.experts.top_k) * _maps_params(base, ffn, project_width(base, ffn))
    return idle


def _attention_width(base: Base, attention: Attention) -> int:
    """The channels of all heads."""
    return attention.heads * base.width // base.heads


def _attention_maps(base: Base, attention: Attention) -> int:
    """The weights of the maps of one expert, which are also their MACs for one token."""
    return 4 * base.width * _attention_width(base, attention)


def _products(base: Base, attention: Attention, tokens: int) -> int:
    """MACs of the attention products: queries with keys, and probabilities with values. With relative positions, their
    queries and keys are computed, too, and multiplied with the keys and queries of the tokens.
    """
    relative = 2 * base.relative_positions * (base.width + tokens)
    return (2 * tokens**2 + relative) * _attention_width(base, attention)


def _gate(width: int, experts: int) -> int:
    """The parameters of a gate, which are also its MACs for one token; a single expert has no gate."""
    return width * experts if experts > 1 else 0


def _attention_params(base: Base, layer: Layer) -> int:
    """The parameters of a layer's attention, its LayerNorm included."""
    if layer.left_out:
        return 0
    attention = layer.attention
    biases = 0 if base.biases == "none" else 3 * _attention_width(base, attention) + base.width
    maps = attention.experts * (_attention_maps(base, attention) + biases)
    return maps + base.norm_size + _gate(base.width, attention.experts)


def _block_params(base: Base, ffn: FFN, project: int) -> int:
    experts = ffn.experts
    gate = _gate(base.width, experts.count) if experts.gated else 0
    return experts.count * _maps_params(base, ffn, project) + gate + base.norm_size


def _maps_params(base: Base, ffn: FFN, project: int) -> int:
    """The parameters of the linear maps of one expert of one block."""
    inner_maps, inner, biases = 1 + ffn.graph.gated, ffn.inner(base), base.biases
    weights = (inner_maps * inner + project) * base.width
    return weights + (biases == "all") * inner_maps * inner + (biases != "none") * base.width


def _maps_macs(base: Base, ffn: FFN, tokens: int) -> int:
    inner_maps = 1 + ffn.graph.gated
    channels = inner_maps * ffn.inner(base) + project_width(base, ffn)
    return tokens * ffn.stack * ffn.experts.top_k * base.width * channels

"""What an architecture costs in closed form: parameters and multiply-accumulates (MACs).

The model is BERT as Hugging Face builds it: word, position and token-type embeddings with a LayerNorm; per layer the
linear maps for query, key, value and output with a LayerNorm; per block `expand` (d -> e), `gate` (d -> e) where the
graph has one, `project` (w -> d, where w is the width of the value it is really applied to) and a LayerNorm; and a
head. A sentence-level head has a pooler and a classifier; a token-level head (tags, or the start and
end of an answer) a classifier alone; a masked-LM head has a linear map and a LayerNorm before the output embedding,
which is tied to the word embedding, and a bias for each word. All linear maps have biases. Each expert has its own copy
of all linear maps of a block (or of an attention); a gate (d -> E, without bias) chooses among the experts. Hash
routing tables do not count as parameters, and the MACs that a capacity saves are not subtracted. A layer without an FFN
has only its attention.

`labels` is the number of classes or tags; other heads have a fixed number of outputs. Papers count differently;
functions that follow a paper name it.
"""

from dataclasses import dataclass

from search_spaces.architecture import Architecture, Genes
from search_spaces.base import Base


@dataclass(frozen=True)
class HeadCost:
    """What the cost of a prediction head depends on. Every task type has one (`distill.tasks.types.TaskType.head`).

    Attributes:
        pooled: whether it is applied to the pooled state of a sentence rather than to all tokens; only such a head may
            have experts.
        outputs: its number of outputs; None means one per label.
        vocabulary: whether it predicts words, from a map and a LayerNorm, with the word embedding as its last map.
    """

    pooled: bool = False
    outputs: int | None = None
    vocabulary: bool = False

    def describe(self, labels: int) -> str:
        """The head in words, for a task with this number of labels."""
        if self.vocabulary:
            return "with the head of a masked language model"
        count = self.outputs or labels
        outputs = f"{count} output{'s' * (count > 1)}"
        return f"with pooler and {outputs}" if self.pooled else f"with {outputs} for each token"


CLASSIFIER = HeadCost(pooled=True)
"""The head that classifies sentences."""


def params(architecture: Architecture, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The number of stored parameters of the deployable model, including its head."""
    return params_encoder(architecture) + head_params(architecture.base, labels, head)


def params_active(architecture: Architecture, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The number of parameters used for one token: all except those of experts to which it is not routed."""
    base = architecture.base
    idle = 0
    if head.pooled:
        idle = (base.head_experts - 1) * _prediction_layer(base, head.outputs or labels)
    return params(architecture, labels, head) - _idle_params(architecture) - idle


def params_encoder(architecture: Architecture) -> int:
    """`params` without the head, as MoEBERT, MiniMoE (table 5) and MicroBERT (table 1) count their baselines."""
    base = architecture.base
    ffn = sum(ffn_params(base, genes) for genes in architecture.layers)
    return _embedding_params(base) + base.depth * _attention_params(base) + ffn


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
    ffn = sum(genes.stack * _block_params(base, genes, project=genes.inner(base)) for genes in architecture.layers)
    encoder = _embedding_params(base) + base.depth * _attention_params(base)
    return encoder + ffn + _linear(base.width, teacher_width)


def fixed_params(base: Base, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The parameters of the deployable model outside its FFNs."""
    return _embedding_params(base) + base.depth * _attention_params(base) + head_params(base, labels, head)


def head_params(base: Base, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The head's parameters, without the word embedding that a head of masked words shares."""
    outputs = head.outputs or labels
    if head.vocabulary:
        inner = base.embedding or base.width
        return _linear(base.width, inner) + 2 * inner + base.vocabulary
    if not head.pooled:
        return _linear(base.width, outputs)
    pooler = _linear(base.width, base.width)
    if base.head_experts == 1:
        return pooler + _linear(base.width, outputs)
    return pooler + base.head_experts * _prediction_layer(base, outputs) + _gate(base.width, base.head_experts)


def ffn_params(base: Base, genes: Genes) -> int:
    """The parameters of all blocks of one layer, their experts, gates and LayerNorms included."""
    return genes.stack * _block_params(base, genes, project_width(base, genes))


def project_width(base: Base, genes: Genes) -> int:
    """The actual input width of `project`, in channels."""
    number = genes.graph.find("project")
    widths = genes.graph.widths(base.width, genes.inner(base), base.mismatch)
    return widths[genes.graph.nodes[number].inputs[0]]


def macs_linear(architecture: Architecture, tokens: int = 128) -> int:
    """MACs of the encoder's linear maps, without gates, for one sequence of `tokens` tokens. MiniMoE reports these at
    128 tokens as GFLOPs.
    """
    base = architecture.base
    attention = base.depth * 4 * base.width**2
    return tokens * attention + sum(_maps_macs(base, genes, tokens) for genes in architecture.layers)


def speedup(architecture: Architecture) -> float:
    """MACs of the dense base model's linear maps, divided by those of this architecture: MoEBERT's "x2 speedup"."""
    return macs_linear(Architecture.uniform(architecture.base)) / macs_linear(architecture)


def flops(architecture: Architecture, tokens: int = 128) -> int:
    """FLOPs as counted in the tables of TinyBERT and MicroBERT, for one sequence of `tokens` tokens: two for each MAC
    of the encoder's linear maps, of the attention products, and of one further map (d -> d) applied to every token.
    """
    base = architecture.base
    return 2 * (macs_linear(architecture, tokens) + _products(base, tokens) + tokens * base.width**2)


def ffn_macs(base: Base, genes: Genes, tokens: int = 128) -> int:
    """MACs of the linear maps and gates of all blocks of one layer for one sequence of `tokens` tokens."""
    experts = genes.experts
    gate = _gate(base.width, experts.count) if experts.gated else 0
    decisions = 1 if experts.kind.by_sentence else tokens
    return _maps_macs(base, genes, tokens) + decisions * genes.stack * gate


def macs(architecture: Architecture, tokens: int = 128, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """`macs_linear` plus gates, attention products, factorised embedding and head, for one sequence."""
    base = architecture.base
    gates = base.depth * _gate(base.width, base.attention_experts)
    attention = tokens * (base.depth * 4 * base.width**2 + gates) + _products(base, tokens)
    embedding = tokens * 3 * (base.embedding or 0) * base.width
    ffn = sum(ffn_macs(base, genes, tokens) for genes in architecture.layers)
    return ffn + attention + embedding + head_macs(base, tokens, labels, head)


def fixed_macs(base: Base, tokens: int = 128, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The MACs of the deployable model outside its FFNs, for one sequence."""
    return macs(Architecture.uniform(base, stack=0), tokens, labels, head)


def head_macs(base: Base, tokens: int = 128, labels: int = 3, head: HeadCost = CLASSIFIER) -> int:
    """The head's MACs for one sequence: a pooler with a classifier processes one token, other heads all tokens."""
    outputs = head.outputs or labels
    if head.vocabulary:
        return tokens * (base.embedding or base.width) * (base.width + base.vocabulary)
    if not head.pooled:
        return tokens * base.width * outputs
    experts = base.width**2 + _gate(base.width, base.head_experts) if base.head_experts > 1 else 0
    return base.width**2 + experts + base.width * outputs


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _prediction_layer(base: Base, outputs: int) -> int:
    """The parameters of one expert of a head that has several."""
    return _linear(base.width, base.width) + _linear(base.width, outputs)


def _idle_params(architecture: Architecture) -> int:
    """The parameters of the encoder's experts to which a token is not routed."""
    base = architecture.base
    idle = (base.attention_experts - 1) * 4 * _linear(base.width, base.width) * base.depth
    for genes in architecture.layers:
        unused = genes.experts.count - genes.experts.top_k
        idle += genes.stack * unused * _maps_params(base, genes, project_width(base, genes))
    return idle


def _products(base: Base, tokens: int) -> int:
    """MACs of the attention products of all layers: queries with keys, and probabilities with values."""
    return base.depth * 2 * tokens**2 * base.width


def _gate(width: int, experts: int) -> int:
    """The parameters of a gate, which are also its MACs for one token; a single expert has no gate."""
    return width * experts if experts > 1 else 0


def _attention_params(base: Base) -> int:
    experts = base.attention_experts
    return experts * 4 * _linear(base.width, base.width) + 2 * base.width + _gate(base.width, experts)


def _block_params(base: Base, genes: Genes, project: int) -> int:
    experts = genes.experts
    gate = _gate(base.width, experts.count) if experts.gated else 0
    return experts.count * _maps_params(base, genes, project) + gate + 2 * base.width


def _maps_params(base: Base, genes: Genes, project: int) -> int:
    """The parameters of the linear maps of one expert of one block."""
    inner_maps = 1 + genes.graph.gated
    return inner_maps * _linear(base.width, genes.inner(base)) + _linear(project, base.width)


def _maps_macs(base: Base, genes: Genes, tokens: int) -> int:
    inner_maps = 1 + genes.graph.gated
    channels = inner_maps * genes.inner(base) + project_width(base, genes)
    return tokens * genes.stack * genes.experts.top_k * base.width * channels


def _embedding_params(base: Base) -> int:
    if base.embedding is None:
        words = base.vocabulary * base.width
    else:
        words = base.vocabulary * base.embedding + _linear(3 * base.embedding, base.width)
    return words + (base.positions + base.token_types) * base.width + 2 * base.width

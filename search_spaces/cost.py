"""What an architecture costs in closed form: parameters, multiply-accumulates (MACs), element-wise
operations.

The model is BERT as Hugging Face builds it: word, position and token-type embeddings with a LayerNorm; per
layer the linear maps for query, key, value and output with a LayerNorm; per block `expand` (d -> e), `gate`
(d -> e) where the graph has one, `project` (w -> d, where w is the width of the value it is really applied to)
and a LayerNorm; a pooler and a classifier. All linear maps have biases.
"""

from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.operations import OPERATIONS


def params(architecture: Architecture, labels: int = 3) -> int:
    """All stored parameters of the deployable classifier, pooler and head included."""
    ffn = sum(ffn_params(architecture.base, genes) for genes in architecture.layers)
    return fixed_params(architecture.base, labels) + ffn


def params_active(architecture: Architecture, labels: int = 3) -> int:
    """The parameters that take part in computing one token; all of them, as long as every FFN is dense."""
    return params(architecture, labels)


def params_published(architecture: Architecture, teacher_width: int = 768) -> int:
    """The count of the EfficientBERT paper's tables.

    It includes the linear map from the student's width to the teacher's, which only distillation uses, leaves
    out pooler and classifier, and takes the input of `project` to be as wide as the output of `expand`. A
    `gate`, which the paper does not have, counts like a second `expand`.
    """
    base = architecture.base
    ffn = sum(
        genes.stack * _block_params(base, genes, project=genes.inner(base)) for genes in architecture.layers
    )
    encoder = _embedding_params(base) + base.depth * _attention_params(base.width)
    return encoder + ffn + _linear(base.width, teacher_width)


def fixed_params(base: Base, labels: int = 3) -> int:
    """Everything of the deployable classifier but the FFNs."""
    head = _linear(base.width, base.width) + _linear(base.width, labels)
    return _embedding_params(base) + base.depth * _attention_params(base.width) + head


def ffn_params(base: Base, genes: Genes) -> int:
    """The parameters of all blocks of one layer, their LayerNorms included."""
    return genes.stack * _block_params(base, genes, project_width(base, genes))


def project_width(base: Base, genes: Genes) -> int:
    """The real input width of `project`, in channels."""
    number = genes.graph.find("project")
    widths = genes.graph.widths(base.width, genes.inner(base), base.mismatch)
    return widths[genes.graph.nodes[number].inputs[0]]


def macs_linear(architecture: Architecture, tokens: int = 128) -> int:
    """MACs of the encoder's linear maps for one sequence of `tokens` tokens."""
    base = architecture.base
    attention = base.depth * 4 * base.width**2
    return tokens * attention + sum(ffn_macs(base, genes, tokens) for genes in architecture.layers)


def ffn_macs(base: Base, genes: Genes, tokens: int = 128) -> int:
    """MACs of the linear maps of all blocks of one layer for one sequence of `tokens` tokens."""
    inner_maps = 1 + genes.graph.gated
    return tokens * genes.stack * base.width * (inner_maps * genes.inner(base) + project_width(base, genes))


def macs(architecture: Architecture, tokens: int = 128, labels: int = 3) -> int:
    """`macs_linear` plus attention products, factorised embedding, pooler and classifier, for one
    sequence.
    """
    base = architecture.base
    attention = base.depth * 2 * tokens**2 * base.width
    embedding = tokens * 3 * (base.embedding or 0) * base.width
    head = base.width**2 + base.width * labels
    return macs_linear(architecture, tokens) + attention + embedding + head


def elementwise(architecture: Architecture, tokens: int = 128) -> int:
    """Scalar operations of the graphs' unary and binary operations for one sequence; see
    `Operation.flops`.
    """
    base = architecture.base
    total = 0
    for genes in architecture.layers:
        widths = genes.graph.widths(base.width, genes.inner(base), base.mismatch)
        for node in genes.graph.nodes[1:]:
            # With mismatch "wide" the channels beyond the narrower input pass through and cost nothing.
            channels = min(widths[number] for number in node.inputs)
            total += genes.stack * channels * OPERATIONS[node.op].flops
    return tokens * total


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _attention_params(width: int) -> int:
    return 4 * _linear(width, width) + 2 * width


def _block_params(base: Base, genes: Genes, project: int) -> int:
    inner_maps = 1 + genes.graph.gated
    inner = inner_maps * _linear(base.width, genes.inner(base))
    return inner + _linear(project, base.width) + 2 * base.width


def _embedding_params(base: Base) -> int:
    if base.embedding is None:
        words = base.vocabulary * base.width
    else:
        words = base.vocabulary * base.embedding + _linear(3 * base.embedding, base.width)
    return words + (base.positions + base.token_types) * base.width + 2 * base.width

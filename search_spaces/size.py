"""What the file of an exported model takes, in closed form and in bytes: its weights, see `search_spaces.cost`, and a
little for their names.

In float32 a parameter has four bytes. In int8 (dynamic quantization of an ONNX model, `nas.onnx.int8`), each weight of
a linear layer or an embedding has one byte, each output channel of a linear layer a scale (four bytes) and a zero point
(one), and biases and LayerNorms keep their four. All experts are stored.
"""

from dataclasses import dataclass
from functools import partial

from search_spaces import cost
from search_spaces.base import Base
from search_spaces.layer import Embedding, Layer, PredictionHead
from search_spaces.limits import Limit

FLOAT, SCALE_AND_ZERO = 4, 5
INT8 = "onnx-int8"


@dataclass(frozen=True)
class Description:
    """The bytes that a file takes beside its weights, measured: names, shapes and, in ONNX, the operations. Those of an
    expert are in addition to those of what has it.
    """

    model: int
    attention: int
    block: int
    expert: int


# By the runtime of `deployment`.
DESCRIPTIONS = {
    "torch": Description(1_000, 1_200, 700, 0),
    "onnx": Description(10_000, 7_100, 3_350, 2_000),
    INT8: Description(12_500, 9_500, 4_650, 2_300),
}


def embedding_bytes(base: Base, part: Embedding, runtime: str) -> int:
    """The bytes of the embeddings."""
    # The map of an embedding of smaller rank has no bias, but scales.
    scales = (runtime == INT8) * (part.rank is not None) * SCALE_AND_ZERO * base.width
    map_biases = 0 if base.embedding is None else base.width
    others = base.pre_norm - (not base.first_norm) + bool(base.relative_positions)
    norms = base.embeddings_norm * (1 + base.norm_biases) * base.table_width + base.norm_size * others
    weights = _bytes(cost.embedding_params(base, part), map_biases, map_biases, norms, runtime)
    return weights + scales


def layer_bytes(base: Base, layer: Layer, runtime: str) -> int:
    """The bytes of a layer."""
    attention, ffn = layer.attention, layer.ffn
    width = attention.heads * base.width // base.heads
    of_attention = 0 if layer.left_out else attention.experts * (3 * width + base.width)
    inner = (1 + ffn.graph.gated) * ffn.inner(base) if ffn.stack else 0
    mapped = of_attention + ffn.stack * ffn.experts.count * (inner + base.width)
    biases = {"all": mapped, "not inner": of_attention + ffn.stack * base.width, "none": 0}[base.biases]
    norms = base.norm_size * ((not layer.left_out) + ffn.stack)
    of_ffn, of_heads = ffn.stack * _several(ffn.experts.count), _several(attention.experts)
    channels = mapped + of_heads + of_ffn * ffn.experts.gated  # gates have no bias
    weights = _bytes(cost.layer_params(base, layer), channels, biases, norms, runtime)
    hashed = ffn.experts.count > 1 and not ffn.experts.gated
    described = DESCRIPTIONS[runtime]
    names = ffn.stack * described.block + (not layer.left_out) * described.attention
    experts = (of_ffn + of_heads) * described.expert + hashed * base.vocabulary  # a table has a byte for each token
    return weights + names + experts


def head_bytes(base: Base, part: PredictionHead, runtime: str, num_labels: int, head: cost.HeadCost) -> int:
    """The bytes of a head of this kind."""
    params = cost.head_params(base, part, num_labels, head)
    if head.vocabulary:
        inner = (base.embedding or base.width) * base.dense_word_head
        words = base.vocabulary * base.dense_word_head
        channels = inner + base.vocabulary * (not base.tied)
        return _bytes(params, channels, inner, 2 * inner + words, runtime)
    pooler = base.width if head.pooled or base.dense_heads else 0
    experts = _several(part.experts) if head.may_have_experts else 0
    biases = pooler + head.of(num_labels) * max(1, experts) + experts * base.width
    return _bytes(params, biases + experts, biases, 0, runtime) + experts * DESCRIPTIONS[runtime].expert


def _several(experts: int) -> int:
    """The number of experts, 0 for a dense part."""
    return experts if experts > 1 else 0


def _bytes(params: int, channels: int, biases: int, norms: int, runtime: str) -> int:
    """The bytes of so many parameters.

    Args:
        channels: the output channels of linear maps, of which `biases` have a bias.
        norms: the parameters of LayerNorms, and other biases.
    """
    kept = biases + norms
    int8 = params - kept + FLOAT * kept + SCALE_AND_ZERO * channels
    return int8 if runtime == INT8 else FLOAT * params


def size_limit(maximum: int, runtime: str, num_labels: int, head: cost.HeadCost) -> Limit:
    """The limit on the bytes of the file in this runtime, of models with this prediction head."""
    return Limit(
        "size",
        DESCRIPTIONS[runtime].model,
        partial(layer_bytes, runtime=runtime),
        maximum,
        partial(head_bytes, runtime=runtime, num_labels=num_labels, head=head),
        partial(embedding_bytes, runtime=runtime),
    )

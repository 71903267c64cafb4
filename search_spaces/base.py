"""The base of an architecture: the parts of the encoder that are not searched."""

from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any

from foundation.errors import shortened
from search_spaces.checks import ArchitectureError, as_fraction, check_integer
from search_spaces.graph import MISMATCH

# Upper bounds, far larger than any encoder and small enough that sums of sizes fit into machine integers.
LARGEST = {
    "depth": 256,
    "width": 65_536,
    "heads": 65_536,
    "inner": 1_048_576,
    "vocabulary": 16_777_216,
    "positions": 1_048_576,
    "token_types": 65_536,
    "embedding": 65_536,
    "position_biases": 65_536,
    "relative_positions": 1_048_576,
    "box_positions": 65_536,
}
# The sizes that may be 0; and the fields that files do not contain if they have these values, the defaults, so that
# files and cache keys from before these fields stay the same.
MAY_BE_ZERO = ("positions", "token_types", "position_biases", "relative_positions", "box_positions")
LEFT_OUT = {
    **{"trigrams": True, "position_biases": 0, "relative_positions": 0, "box_positions": 0},
    **{"pre_norm": False, "biases": "all", "embeddings_norm": True, "norm_biases": True, "first_norm": True},
    **{"attention_capacity": None, "dense_heads": False, "late_pooling": False, "dense_word_head": True, "tied": True},
}
MOST_EXPERTS = 64
GATE_SCALES = ("relative", "probability")
# The values of the fields of a base that have a choice.
CHOICES = {
    "gelu": ("tanh", "erf"),
    "biases": ("all", "not inner", "none"),
    "mismatch": MISMATCH,
    "gate_scale": GATE_SCALES,
    "capacity_per": ("sentence", "batch"),
}


@dataclass(frozen=True)
class Base:
    """The parts of the encoder that are not searched.

    Args:
        depth: number of Transformer layers.
        width: channels of the hidden states, d.
        heads: attention heads of a layer.
        inner: channels of the FFN at expansion 1.
        vocabulary, positions, token_types: rows of the embedding tables; some models have no positions or token types.
        embedding: None for a word embedding of full width; a size for a factorized one.
        trigrams: what a factorized embedding is, without effect if there is none: MobileBERT's, where the embeddings of
            the previous, this and the next word are concatenated and mapped to the width; otherwise ELECTRA's, where
            all embeddings have the smaller size, and their normalized sum is mapped to the width.
        position_biases: rows of MPNet's table of relative positions, which has a value for each head and is shared by
            all layers; 0: there is none.
        relative_positions: rows of DeBERTa's table of relative positions, which is as wide as the model, has a
            LayerNorm, and is shared by all layers; 0: there is none.
        box_positions: rows of each of LayoutLM's four tables for the boxes of words on a page (left or right, upper or
            lower, height, width); 0: there are none.
        pre_norm: whether the LayerNorms of attention and FFN are before them, and one more after the last layer;
            otherwise they are after the residual connections.
        biases: which linear maps of the layers have them: "all"; "not inner", those of attention and `project`, but not
            `expand` and `gate` (GTE); or "none".
        embeddings_norm: whether the embeddings have a LayerNorm.
        norm_biases: whether LayerNorms have biases.
        first_norm: whether the lowest attention has a LayerNorm. ModernBERT's has none, as one follows the embeddings.
        dense_heads: whether heads for single tokens, too, begin with a linear map and a LayerNorm, without biases.
        late_pooling: whether a head for sentences is applied to all tokens, and its results are averaged (EuroBERT).
        dense_word_head: whether a head for masked words begins with a linear map and a LayerNorm, and has a bias.
        tied: whether the output embedding of a head for masked words is the word embedding.
        gelu: the form of the operation `gelu`, "tanh", or "erf" as in a base copied from a model with the exact GELU.
        mismatch: how a binary operation treats different widths, see `FFNGraph.widths`.
        gate_scale: by what the output of an expert behind a gate is multiplied: "relative", its probability times E /
            top_k, which is 1 if the gate is undecided, so that a mixture starts close to the dense layer it is split
            from; or "probability", the probability alone, as in MoEBERT (equations 2 and 3), MiniMoE and Switch.
        gate_jitter: amplitude j of the noise, uniform from 1 - j to 1 + j, by which the input of a gate is multiplied
            in training. The default is Switch's. MiniMoE's released code adds noise up to 0.1 to the logits instead.
        capacity_per: what an expert's `capacity` is counted over: the tokens of each "sentence", so that a sentence's
            result does not depend on its batch; or all tokens of a "batch", as in Switch and MiniMoE (appendix B).
        attention_capacity: `Experts.capacity` of the experts of every attention, likewise. Tokens beyond it have zeros
            as query, key and value, and pass through the residual connection alone. None means no limit.

    Raises:
        ArchitectureError: a value is of the wrong type or size, or the heads do not divide the width.
    """

    depth: int
    width: int
    heads: int
    inner: int
    vocabulary: int = 30522
    positions: int = 512
    token_types: int = 2
    embedding: int | None = None
    trigrams: bool = True
    position_biases: int = 0
    relative_positions: int = 0
    box_positions: int = 0
    pre_norm: bool = False
    biases: str = "all"
    embeddings_norm: bool = True
    norm_biases: bool = True
    first_norm: bool = True
    dense_heads: bool = False
    late_pooling: bool = False
    dense_word_head: bool = True
    tied: bool = True
    gelu: str = "tanh"
    mismatch: str = "narrow"
    gate_scale: str = "relative"
    gate_jitter: float = 0.01
    capacity_per: str = "sentence"
    attention_capacity: Fraction | None = None

    def __post_init__(self) -> None:
        for name, largest in LARGEST.items():
            value = getattr(self, name)
            if name == "embedding" and value is None:
                continue
            check_integer(f"base.{name}", value, largest, smallest=0 if name in MAY_BE_ZERO else 1)
        for name in (field.name for field in fields(self) if field.type is bool):
            if not isinstance(value := getattr(self, name), bool):
                raise ArchitectureError(f"base.{name}: must be true or false, not {shortened(value)}")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                expected = " or ".join(map(repr, choices))
                raise ArchitectureError(f"base.{name}: must be {expected}, not {shortened(value)}")
        jitter = self.gate_jitter
        if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter < 1:
            raise ArchitectureError(f"base.gate_jitter: must be a number from 0 to below 1, not {shortened(jitter)}")
        if self.attention_capacity is not None:
            capacity = as_fraction("base.attention_capacity", self.attention_capacity)
            if capacity <= 0:
                raise ArchitectureError(f"base.attention_capacity: must be above 0, not {capacity}")
            object.__setattr__(self, "attention_capacity", capacity)
        if self.width % self.heads:
            raise ArchitectureError(f"base.heads: {self.heads} heads do not divide the width {self.width}")

    @property
    def table_width(self) -> int:
        """The channels of the embedding tables for positions and token types."""
        return self.width if self.embedding is None or self.trigrams else self.embedding

    @property
    def norm_size(self) -> int:
        """The parameters of a LayerNorm."""
        return self.width * (1 + self.norm_biases)

    def to_json(self) -> dict[str, Any]:
        """JSON-serializable values, the fields by their names without those that are left out."""
        values = asdict(self)
        if self.attention_capacity is not None:
            values["attention_capacity"] = str(self.attention_capacity)
        return {name: value for name, value in values.items() if (name, value) not in LEFT_OUT.items()}

    def differences(self, other: "Base") -> str:
        """The fields in which this base differs from `other`, for an error message: "depth (6 instead of 12)" is 6 in
        this base and 12 in `other`. Empty if there are none.
        """
        return ", ".join(
            f"{field.name} ({mine} instead of {theirs})"
            for field in fields(Base)
            if (mine := getattr(self, field.name)) != (theirs := getattr(other, field.name))
        )

    def with_gates_of(self, other: "Base") -> "Base":
        """This base with the gates and capacities of `other`: they belong to an architecture's experts, and not to the
        model from which it inherits its weights.
        """
        names = ("gate_scale", "gate_jitter", "capacity_per", "attention_capacity")
        return replace(self, **{name: getattr(other, name) for name in names})

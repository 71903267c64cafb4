"""What a student's configuration has beyond that of its encoder family."""

from dataclasses import dataclass
from typing import Any

from .anatomy import Family
from .families import FAMILIES, add

# The version of the meaning of these attributes: increase it when an older reader would compute something else.
# Checkpoints of before it was recorded are of version 1.
VERSION = 1


@dataclass(init=False, repr=False, eq=False, kw_only=True)
class StudentConfig:
    """A mixin for the configuration of a family, which describes the feed-forward networks of every layer.

    Attributes:
        ffn: one entry for each layer, `{"formula", "program", "widths", "stack", "inner"}`. `program` lists the
            operations in the order of computation as `[name, [inputs]]`, where value 0 is the input of the block and
            value i + 1 the result of operation i; `widths` are the channels of all values, beginning with the input. A
            layer with experts also has `"experts"`: `{"count", "routing", "top_k", "capacity"}`, as in
            `search_spaces.architecture.Experts`. A layer without an FFN has stack 0.
        gelu: `"tanh"` or `"erf"`, the form of the operation `gelu`.
        mismatch: `"narrow"` or `"wide"`: what a binary operation does with inputs of different widths.
        attention_heads: the number of attention heads that pruning has left in each layer, of which there may be none;
            `None` if all layers have `num_attention_heads`.
        kept_heads: for each layer which of the teacher's heads, by their numbers from 0, its heads are, in their order;
            `None` if all layers have all heads in the teacher's order, and in a student with random weights.
        attention_experts: experts of every layer's attention, among which a gate chooses for each token, or a list with
            their number in each layer.
        embedding_rank: the rank of the word embedding, which is a table of this width and a linear map to that of the
            model; `None` for a table of the model's width.
        gate_scale: `"relative"` or `"probability"`: by what the output of an expert behind a gate is multiplied, its
            probability times count / top_k, or its probability.
        capacity_per: `"sentence"` or `"batch"`: whether an expert's capacity is a fraction of the tokens of each
            sentence or of all tokens of the batch.
        attention_capacity: the capacity of each expert of an attention, such as `"5/4"`; `None` for no limit.
        router_jitter_noise: amplitude j of the noise, uniform from 1 - j to 1 + j, by which the input of a gate is
            multiplied in training (Switch).
        family: the description (`Family.described`) of a type of encoders that was added at run time; otherwise `None`.
        ffn_version: the version of these attributes.

    Raises:
        ValueError: the attributes are of a later version.
    """

    _auto_class = "AutoConfig"

    ffn: list | None = None
    gelu: str = "tanh"
    mismatch: str = "narrow"
    attention_heads: list | None = None
    kept_heads: list | None = None
    attention_experts: int | list = 1
    embedding_rank: int | None = None
    gate_scale: str = "relative"
    capacity_per: str = "sentence"
    attention_capacity: str | None = None
    router_jitter_noise: float = 0.01
    family: dict | None = None
    ffn_version: int = VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)  # type: ignore[misc]  # of the family's configuration
        if self.family and self.model_type not in FAMILIES:  # type: ignore[attr-defined]
            add(Family.from_description(self.family))
        if self.ffn_version > VERSION:
            raise ValueError(f"ffn_version: {self.ffn_version} is unknown; the newest known one is {VERSION}")


def configuration_fault(config: Any) -> str:
    """Why no model can be built from a configuration; empty if one can."""
    heads, layers = config.attention_heads, config.num_hidden_layers
    if not config.ffn or len(config.ffn) != layers:
        return (
            f"config.ffn describes {len(config.ffn or ())} layers but num_hidden_layers is {layers}: build the "
            "configuration from an architecture"
        )
    experts, family = config.attention_experts, FAMILIES[config.model_type]
    if isinstance(experts, list) and len(experts) != layers:
        return f"config.attention_experts must be a number, or a list of {layers} of them, not {experts!r}"
    if experts != 1 and not family.attention_experts:
        return f"config.attention_experts must be 1 in a model of type {config.model_type!r}, not {experts!r}"
    if heads is not None:
        most = config.num_attention_heads
        if (
            not isinstance(heads, list | tuple)
            or len(heads) != layers
            or not all(type(count) is int and 0 <= count <= most for count in heads)
        ):
            return f"config.attention_heads must be a list of {layers} whole numbers from 0 to {most}, not {heads!r}"
        for layer, count in enumerate(heads):
            if count < most and attention_experts(config, layer) > 1:
                return f"config.attention_heads[{layer}] must be {most}, as attention_experts is above 1 there"
    if fault := _fault_of_kept_heads(config):
        return fault
    if (rank := config.embedding_rank) is not None:
        if type(rank) is not int or not 0 < rank < config.hidden_size:
            return f"config.embedding_rank must be a whole number from 1 to {config.hidden_size - 1}, not {rank!r}"
        if getattr(config, "embedding_size", None) not in (None, config.hidden_size):
            return (
                f"config.embedding_rank must be None, not {rank}, as embedding_size already makes the embedding smaller"
            )
    if is_routed(config) and (chunk := getattr(config, "chunk_size_feed_forward", 0)):
        return f"chunk_size_feed_forward is {chunk}: layers of experts process whole sentences, so it must be 0"
    return ""


def _fault_of_kept_heads(config: Any) -> str:
    kept, layers, most = config.kept_heads, config.num_hidden_layers, config.num_attention_heads
    if kept is None:
        return ""
    if not isinstance(kept, list | tuple) or len(kept) != layers:
        return f"config.kept_heads must be a list of {layers} lists, one for each layer, not {kept!r}"
    for layer, (heads, count) in enumerate(zip(kept, config.attention_heads or [most] * layers, strict=True)):
        if (
            not isinstance(heads, list | tuple)
            or not all(type(head) is int and 0 <= head < most for head in heads)
            or not len(heads) == len(set(heads)) == count
        ):
            return (
                f"config.kept_heads[{layer}] must be a list of {count} different whole numbers from 0 to {most - 1}, "
                f"not {heads!r}"
            )
    return ""


def attention_experts(config: Any, layer: int) -> int:
    """The number of experts of a layer's attention."""
    experts: Any = config.attention_experts
    count: int = experts[layer] if isinstance(experts, list) else experts
    return count


def is_left_out(config: Any, layer: int) -> bool:
    """Whether a layer has neither heads nor an FFN, so that its output is its input."""
    return config.attention_heads is not None and not config.attention_heads[layer] and not config.ffn[layer]["stack"]


def is_routed(config: Any) -> bool:
    """Whether an attention or an FFN has experts."""
    return any(attention_experts(config, number) > 1 or ffn.get("experts") for number, ffn in enumerate(config.ffn))

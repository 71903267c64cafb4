"""Where the parts of an encoder are.

Everything that reads or changes a part of a model, a name of its state dict or a key of its configuration asks its
family; `families` has all of them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

# The units by which candidates are sliced: inner channels of an FFN, and attention heads.
CHANNELS, HEADS = "channels", "heads"
# The sizes of BERT's configuration, see `Family.sizes`.
SIZES = {
    "depth": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "token_types": "type_vocab_size",
}


def _no_fault(config: Any) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the parts of an encoder are. The paths of layers, embeddings and `final_norm` are relative to the base
    model, `word_head` and `decoder` to the whole model, and all others to a layer. A student's paths in its FFN contain
    "{}", the number of the block. A "key" is one of the configuration.

    Attributes:
        model_type: as in a configuration.
        layers: the list of layers.
        embeddings: the module with all embeddings; `embeddings_norm` is its LayerNorm, if it has one.
        words: the word embedding; in a student of lower rank, its child `word_map` follows the table.
        expand, activation, project: the three modules of the FFN, in a layer. Any module that maps the model's width to
            itself can replace the FFN: it takes the place of `expand`, and identities those of the other two. A student
            has no `activation`.
        gate: the linear map whose outputs are multiplied by those of the activation, if there is one. Then `ffn` is the
            module that another one can replace.
        biases: which linear maps of a layer have them, see `search_spaces.base.Base`.
        norm_biases: whether LayerNorms have biases.
        rms_norm: whether RMSNorms stand in the place of all LayerNorms.
        first_norm: whether the lowest attention has a LayerNorm.
        dense_heads: whether all heads begin with a linear map and a LayerNorm, for single tokens, too.
        dense_word_head: whether the head for masked words begins with them, and has a bias.
        layer_types: whether layers differ in which tokens they attend to, as the configuration says.
        pre_norm: whether the LayerNorms of attention and FFN are before them, and one, `final_norm`, after the last
            layer; otherwise they are after the residual connections.
        norm: the LayerNorm of the FFN, in a layer.
        adds_residuals: whether the layer itself adds the inputs of attention and FFN to what they return, and
            normalizes the sums; otherwise modules below it do.
        attention_dropout: in a layer that adds the residuals, the dropout of what the attention returns, if any.
        output_dropout: in a layer, the dropout in the attention that is an identity if its probability is 0, if any. In
            students it never is, so that it can be set.
        attention: in a layer, the module with the attention, and `attention_norm` its LayerNorm.
        self_attention: in a layer, the module that is passed to transformers' attention functions.
        query, key, value, output: the linear maps of the attention, in a layer.
        fused: the linear maps of the encoder that compute several of the maps above, with the names of these in the
            order of its outputs. Students have them as separate maps.
        attention_arguments: how many positional arguments after the hidden states a layer passes on to its attention;
            None: all.
        heads_attribute: the attribute of `self_attention` with the number of heads.
        attention_interface: whether the encoder uses transformers' attention functions, passes other arguments on to
            its layers, and these return tensors. In transformers all three go together; the layers of other encoders
            return tuples.
        rotary: whether queries and keys are rotated by their positions.
        attention_experts: whether students may have attention with experts.
        word_head: the modules of a masked language model that map hidden states to logits of words, relative to the
            model; the last one is, or contains, the output embedding `decoder`.
        sizes: field of `search_spaces.base.Base` -> key of the configuration.
        unshared: keys that count layers, or heads of keys and values, with weights of their own (`num_hidden_groups`)
            -> the size, "depth" or "heads", that students have there. In a teacher several may share weights.
        activation_key: the key of the activation; `word_head_activation` says whether the head for masked words has
            that one, too.
        dropouts: the keys of dropout, that after the FFN first, then that of the attention; None: there is none.
        head_dropout: the key of the dropout before a classifier of sentences; None: that of the layers.
        epsilon: the key of LayerNorm's epsilon, or the epsilon of all models.
        other_keys: other keys that a student takes from its teacher.
        has_positions: whether there is a table of absolute positions, or the key that says so.
        fault: tells why a model with this configuration is not supported; returns "" if it is.
        embedding_size: the key of the size of the embeddings. If that is not the width of the model, the linear map
            `embedding_map` follows their LayerNorm.
        first_position: the row of the first token in the table of positions; None: pad_token_id + 1.
        since: the oldest version of transformers with which students were loaded; tested are 5.1.0, 5.2.0, 5.10.4,
            5.23.0 and 5.24.0.
        students_of: if this is the family of our own students, the `model_type` of the encoders that they learn from;
            otherwise None.
    """

    model_type: str
    layers: str = "encoder.layer"
    embeddings: str = "embeddings"
    embeddings_norm: str | None = "embeddings.LayerNorm"
    words: str = "embeddings.word_embeddings"
    word_map: str = "embeddings.word_embeddings.map"
    expand: str = "intermediate.dense"
    activation: str | None = "intermediate.intermediate_act_fn"
    project: str = "output.dense"
    gate: str | None = None
    ffn: str = ""
    biases: str = "all"
    norm_biases: bool = True
    rms_norm: bool = False
    first_norm: bool = True
    dense_heads: bool = False
    dense_word_head: bool = True
    layer_types: bool = False
    pre_norm: bool = False
    final_norm: str = ""
    norm: str = "output.LayerNorm"
    adds_residuals: bool = False
    attention_dropout: str | None = None
    output_dropout: str | None = None
    attention: str = "attention"
    attention_norm: str = "attention.output.LayerNorm"
    self_attention: str = "attention.self"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    attention_arguments: int | None = None
    heads_attribute: str = "num_attention_heads"
    attention_interface: bool = True
    rotary: bool = False
    attention_experts: bool = True
    word_head: tuple[str, ...] = ("cls",)
    decoder: str = "cls.predictions.decoder"
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES, hash=False)
    unshared: Mapping[str, str] = field(default_factory=dict, hash=False)
    activation_key: str = "hidden_act"
    word_head_activation: bool = True
    dropouts: tuple[str | None, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    head_dropout: str | None = "classifier_dropout"
    epsilon: str | float = "layer_norm_eps"
    other_keys: tuple[str, ...] = ()
    has_positions: bool | str = True
    fault: Callable[[Any], str] = _no_fault
    embedding_size: str | None = None
    embedding_map: str = "embeddings_project"
    first_position: int | None = 0
    since: tuple[int, ...] = (5, 1)
    students_of: str | None = None

    def students(self) -> "Family":
        """The family of the students of this one, whose FFNs are stacks of blocks."""
        return replace(
            self,
            model_type=f"nas_{self.model_type}",
            students_of=self.model_type,
            expand="ffn.{}.expand",
            activation=None,
            gate="ffn.{}.gate",
            ffn="",
            project="ffn.{}.project",
            norm="ffn.{}.LayerNorm",
        )

    def described(self) -> dict[str, Any]:
        """The fields that differ from their defaults, JSON-serializable, without `fault`."""
        default = type(self)(model_type="")
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "fault"}
        return {name: value for name, value in values.items() if value != getattr(default, name)}

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> "Family":
        """The inverse of `described`. Raises TypeError for an unknown field."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in described.items()
        }
        fused = {whole: tuple(maps) for whole, maps in values.pop("fused", {}).items()}
        return cls(**values, fused=fused)

    @cached_property
    def _in_layer(self) -> re.Pattern[str]:
        return re.compile(rf"((?:.*\.)?{re.escape(self.layers)}\.)(\d+)\.(.+)")

    def split(self, name: str) -> tuple[str, int, str] | None:
        """What stands before the number of the layer in the name of a parameter, this number, and the name in the
        layer; None for a parameter outside of layers.
        """
        match = self._in_layer.fullmatch(name)
        return (match[1], int(match[2]), match[3]) if match else None

    def prefix(self, names: Iterable[str]) -> str:
        """What stands before the number of the layer in the names of a state dict."""
        return next(parts[0] for name in names if (parts := self.split(name)))

    def slices(self, block: int = 0) -> dict[str, tuple[str, int]]:
        """The tensors of a dense layer that have a dimension of channels (of this block of a student) or of heads: the
        name in the layer -> `CHANNELS` or `HEADS`, and the number of the dimension. Not every layer has all of them: a
        gate or biases may be missing.

        The dimension of `project` is as wide as the value that it is applied to, which in a student's graph may have
        fewer or more channels than `expand`.
        """
        inner = [self.expand] + ([self.gate] if self.gate else [])
        maps = [
            *((path.format(block), CHANNELS, 0) for path in inner),
            (self.project.format(block), CHANNELS, 1),
            *((path, HEADS, 0) for path in (self.query, self.key, self.value)),
            (self.output, HEADS, 1),
        ]
        result = {f"{path}.weight": (unit, dimension) for path, unit, dimension in maps}
        return result | {f"{path}.bias": (unit, 0) for path, unit, dimension in maps if dimension == 0}

    def renamed(self, other: "Family", name: str) -> str:
        """The name that a parameter of this family has in a model of `other`, where one of the two is the family of the
        other's students. A teacher's FFN corresponds to the lowest block of a student.
        """
        parts = self.split(name)
        if parts is None:
            return name
        prefix, layer, inside = parts
        for part in ("expand", "gate", "project", "norm"):
            mine, theirs = getattr(self, part), getattr(other, part)
            if mine and theirs and inside.startswith(path := mine.format(0) + "."):
                inside = f"{theirs.format(0)}.{inside.removeprefix(path)}"
                break
        return f"{prefix}{layer}.{inside}"

    def separated(self, weights: Mapping[str, Any]) -> dict[str, Any]:
        """A state dict of an encoder with every fused tensor divided into those of its maps."""
        result = dict(weights)
        for name in weights:
            for fused, maps in self.fused.items():
                before, found, kind = name.rpartition(f".{fused}.")
                if found:
                    parts = result.pop(name).chunk(len(maps))
                    result |= {f"{before}.{path}.{kind}": part for path, part in zip(maps, parts, strict=True)}
        return result

    def joined(self, weights: Mapping[str, Any], join: Callable[[list[Any]], Any]) -> dict[str, Any]:
        """The inverse of `separated`; `join` is `torch.cat`."""
        result = dict(weights)
        for name in weights:
            for fused, (first, *others) in self.fused.items():
                before, found, kind = name.rpartition(f".{first}.")
                if found:
                    names = [name, *(f"{before}.{path}.{kind}" for path in others)]
                    result[f"{before}.{fused}.{kind}"] = join([result.pop(each) for each in names])
        return result

    def size(self, config: Any, name: str) -> int:
        """The size in a configuration that is the field `name` of `Base`; 0 if the family has no such key."""
        if name == "positions":
            there = self.has_positions
            if not (getattr(config, there) if isinstance(there, str) else there):
                return 0
        return int(getattr(config, self.sizes[name])) if name in self.sizes else 0

    def relative_positions(self, config: Any) -> int:
        """The rows of a table of relative positions, with vectors of the model's width, that all layers share."""
        if not getattr(config, "relative_attention", False):
            return 0
        buckets, most = (getattr(config, name, -1) for name in ("position_buckets", "max_relative_positions"))
        return 2 * next(size for size in (buckets, most, config.max_position_embeddings) if size > 0)

    def embedding(self, config: Any) -> int | None:
        """The size of embeddings that are mapped to the width of the model; None if they are not."""
        size = getattr(config, self.embedding_size) if self.embedding_size else None
        return None if size == self.size(config, "width") else size

    @property
    def experts(self) -> bool:
        """Whether students may have experts: these need biases, and the tokens as an argument of the layer."""
        return self.attention_interface and self.biases == "all"

    @property
    def shares_position_biases(self) -> bool:
        """Whether all layers share a table of relative positions with a value for each head."""
        return "position_biases" in self.sizes

    def norm_epsilon(self, config: Any) -> float:
        """The epsilon of the LayerNorms of a model with this configuration."""
        return float(getattr(config, self.epsilon) if isinstance(self.epsilon, str) else self.epsilon)

    def positions(self, config: Any) -> int:
        """The largest number of tokens of a sentence."""
        first = (config.pad_token_id or 0) + 1 if self.first_position is None else self.first_position
        return int(getattr(config, self.sizes["positions"])) - first

    def inputs(self, config: Any) -> tuple[str, ...]:
        """The tensors of a batch that a model takes. Segment ids are left out if there is only one."""
        segments = ("token_type_ids",) if self.size(config, "token_types") > 1 else ()
        return ("input_ids", "attention_mask", *segments)

    @property
    def kept_keys(self) -> tuple[str, ...]:
        """The keys of the configuration that a student takes from its teacher."""
        keys = (*self.dropouts, self.head_dropout, self.epsilon, *self.other_keys)
        return tuple(key for key in keys if isinstance(key, str))

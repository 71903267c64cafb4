"""Families of encoders: one value for each `model_type` of transformers says where its parts are.

Everything that reads or changes a part of a model, a name of its state dict or a key of its configuration asks its
family. To support another one of a known kind, add its row to `FAMILIES` and the module of its students to
`distill.encoders.students`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from foundation.errors import UserError

# What the dimensions of tensors that candidates slice consist of: inner channels of an FFN, and attention heads.
CHANNELS, HEADS = "channels", "heads"
# Names in a layer that only students have: the gates of a block ("{}" is its number) and of the attention, and the
# routing table; and the prefix of the names in a head of experts.
BLOCK_GATE, ATTENTION_GATE, TABLE = "ffn.{}.router.weight", "attention.router.weight", "router.table"
EXPERT_HEAD = "classifier."
# The output embeddings of masked language models, which may be tied to the word embedding.
DECODERS = ("cls.predictions.decoder", "lm_head.decoder")
_IN_BLOCK = re.compile(r"ffn\.(\d+)\.(\w+)\.(\w+)")


class FamilyError(UserError, ValueError):
    """An encoder is of no known family, or not what its family says."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Where the parts of an encoder are. Paths are relative to the base model or, where it says "in a layer", to one of
    its layers. A student's paths in its FFN contain "{}", the number of the block.

    Attributes:
        model_type: as in a configuration.
        layers: the list of layers.
        embeddings: the module whose output is the input of the lowest layer; `embeddings_norm` is its last part.
        words: the word embedding; in a student of lower rank, its child `word_map` follows the table.
        expand, activation, project: the three modules of the FFN, in a layer. Any module that maps the model's width to
            itself can replace the FFN: it takes the place of `expand`, and identities those of the other two. A student
            has no `activation`.
        norm: the LayerNorm after the residual connection of the FFN, in a layer.
        attention: in a layer, the module with attention's residual connection and LayerNorm, `attention_norm`.
        self_attention: in a layer, the module that is passed to transformers' attention functions.
        query, key, value, output: the linear maps of the attention, in a layer.
        sizes: field of `search_spaces.base.Base` -> key of the configuration.
        activation_key: the configuration's key of the activation.
        dropouts: its keys of the dropout in layers.
        head_dropout: its key of the dropout before the head, which may be None.
        epsilon: its key of LayerNorm's epsilon.
        positions_after_padding: whether the first token has the position pad_token_id + 1, so that the rows before it
            in the table of positions are not for tokens.
        students_of: if this is the family of our own students, the `model_type` of the encoders that they learn from;
            otherwise None.
    """

    model_type: str
    layers: str = "encoder.layer"
    embeddings: str = "embeddings"
    embeddings_norm: str = "embeddings.LayerNorm"
    words: str = "embeddings.word_embeddings"
    word_map: str = "embeddings.word_embeddings.map"
    expand: str = "intermediate.dense"
    activation: str | None = "intermediate.intermediate_act_fn"
    project: str = "output.dense"
    norm: str = "output.LayerNorm"
    attention: str = "attention"
    attention_norm: str = "attention.output.LayerNorm"
    self_attention: str = "attention.self"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    sizes: Mapping[str, str] = field(
        default_factory=lambda: {
            "depth": "num_hidden_layers",
            "width": "hidden_size",
            "heads": "num_attention_heads",
            "inner": "intermediate_size",
            "vocabulary": "vocab_size",
            "positions": "max_position_embeddings",
            "token_types": "type_vocab_size",
        },
        hash=False,
    )
    activation_key: str = "hidden_act"
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    head_dropout: str = "classifier_dropout"
    epsilon: str = "layer_norm_eps"
    positions_after_padding: bool = False
    students_of: str | None = None

    def students(self) -> "Family":
        """The family of the students of this one, whose FFNs are stacks of blocks."""
        return replace(
            self,
            model_type=f"nas_{self.model_type}",
            students_of=self.model_type,
            expand="ffn.{}.expand",
            activation=None,
            project="ffn.{}.project",
            norm="ffn.{}.LayerNorm",
        )

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
        name in the layer -> `CHANNELS` or `HEADS`, and the number of the dimension.

        The dimension of `project` is as wide as the value that it is applied to, which in a student's graph may have
        fewer or more channels than `expand`.
        """
        inner = [self.expand] + ([self.expand.replace("expand", "gate")] if self.students_of else [])
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
        for mine, theirs in ((self.expand, other.expand), (self.project, other.project), (self.norm, other.norm)):
            path = mine.format(0) + "."
            if inside.startswith(path):
                inside = f"{theirs.format(0)}.{inside.removeprefix(path)}"
                break
        return f"{prefix}{layer}.{inside}"

    def size(self, config: Any, name: str) -> int:
        """The size in a configuration that is the field `name` of `Base`."""
        return int(getattr(config, self.sizes[name]))

    def positions(self, config: Any) -> int:
        """The largest number of tokens of a sentence."""
        before = (config.pad_token_id or 0) + 1 if self.positions_after_padding else 0
        return self.size(config, "positions") - before

    def inputs(self, config: Any) -> tuple[str, ...]:
        """The tensors of a batch that a model takes. Segment ids are left out if there is only one."""
        segments = ("token_type_ids",) if self.size(config, "token_types") > 1 else ()
        return ("input_ids", "attention_mask", *segments)


def in_block(inside: str) -> tuple[int, str, str] | None:
    """The block, the module and the tensor of a name in a student's layer, such as (1, "expand", "weight"); None for
    what is in no block.
    """
    match = _IN_BLOCK.fullmatch(inside)
    return (int(match[1]), match[2], match[3]) if match else None


_LIKE_BERT = ("bert", "ernie")
_LIKE_ROBERTA = ("roberta", "xlm-roberta", "camembert", "data2vec-text")
_TEACHERS = (
    *(Family(model_type=name) for name in _LIKE_BERT),
    *(Family(model_type=name, positions_after_padding=True) for name in _LIKE_ROBERTA),
)
FAMILIES: dict[str, Family] = {
    family.model_type: family for teacher in _TEACHERS for family in (teacher, teacher.students())
}


def supported(students: bool = False) -> tuple[str, ...]:
    """The model types that are supported, with those of our own students or without."""
    return tuple(name for name, family in FAMILIES.items() if students or family.students_of is None)


def family_of(model: Any) -> Family:
    """The family of a model or of a Hugging Face configuration.

    Raises:
        FamilyError: it is not supported.
    """
    model_type = getattr(model, "config", model).model_type
    if model_type not in FAMILIES:
        raise FamilyError(f"encoders of type {model_type!r} are not supported: use one of {', '.join(supported())}")
    return FAMILIES[model_type]


def family_of_weights(names: Iterable[str]) -> Family:
    """A family of students whose layers have parameters with these names. Families with equal paths slice alike.

    Raises:
        FamilyError: there is none.
    """
    names = tuple(names)
    for family in FAMILIES.values():
        if family.students_of and any(family.split(name) for name in names):
            return family
    raise FamilyError("these are not the weights of a student")

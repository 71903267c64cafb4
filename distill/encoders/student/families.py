"""Where the parts of encoders are, by the `model_type` of transformers.

Everything that reads or changes a part of a model, a name of its state dict or a key of its configuration asks its
family. To support another one of a known kind, add its row to `FAMILIES`.

This file ships inside exported checkpoints, so it imports nothing else of this project.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
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
        embeddings: the module with all embeddings; `embeddings_norm` is its LayerNorm.
        words: the word embedding; in a student of lower rank, its child `word_map` follows the table.
        expand, activation, project: the three modules of the FFN, in a layer. Any module that maps the model's width to
            itself can replace the FFN: it takes the place of `expand`, and identities those of the other two. A student
            has no `activation`.
        gate: the linear map whose outputs are multiplied by those of the activation, if there is one. Then `ffn` is the
            module that another one can replace.
        biases: which linear maps of a layer have them, see `search_spaces.base.Base`.
        norm_biases: whether LayerNorms have biases.
        first_norm: whether the lowest attention has a LayerNorm.
        dense_heads: whether all heads begin with a linear map and a LayerNorm, for single tokens, too.
        layer_types: whether layers differ in which tokens they attend to, as the configuration says.
        pre_norm: whether the LayerNorms of attention and FFN are before them, and one, `final_norm`, after the last
            layer; otherwise they are after the residual connections.
        norm: the LayerNorm of the FFN, in a layer.
        adds_residuals: whether the layer itself adds the inputs of attention and FFN to what they return, and
            normalizes the sums; otherwise modules below it do.
        attention_dropout: in a layer that adds the residuals, the dropout of what the attention returns, if any.
        attention: in a layer, the module with the attention, and `attention_norm` its LayerNorm.
        self_attention: in a layer, the module that is passed to transformers' attention functions.
        query, key, value, output: the linear maps of the attention, in a layer.
        fused: the linear maps of the encoder that compute several of the maps above, with the names of these in the
            order of its outputs. Students have them as separate maps.
        heads_attribute: the attribute of `self_attention` with the number of heads.
        attention_interface: whether the encoder uses transformers' attention functions, passes other arguments on to
            its layers, and these return tensors. In transformers all three go together; the layers of other encoders
            return tuples.
        rotary: whether queries and keys are rotated by their positions.
        attention_experts: whether students may have attention with experts.
        word_head: the modules of a masked language model that map hidden states to logits of words, relative to the
            model; the last one is, or contains, the output embedding `decoder`.
        sizes: field of `search_spaces.base.Base` -> key of the configuration.
        activation_key: the key of the activation; `word_head_activation` says whether the head for masked words has
            that one, too.
        dropouts: the keys of the dropout in layers, that after the FFN first.
        head_dropout: the key of the dropout before a classifier of sentences; None: that of the layers.
        epsilon: the key of LayerNorm's epsilon, or the epsilon of all models.
        other_keys: other keys that a student takes from its teacher.
        has_positions: whether there is a table of absolute positions, or the key that says so.
        fault: tells why a model with this configuration is not supported; returns "" if it is.
        embedding_size: the key of the size of the embeddings. If that is not the width of the model, the linear map
            `embedding_map` follows their LayerNorm.
        first_position: the row of the first token in the table of positions; None: pad_token_id + 1.
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
    gate: str | None = None
    ffn: str = ""
    biases: str = "all"
    norm_biases: bool = True
    first_norm: bool = True
    dense_heads: bool = False
    layer_types: bool = False
    pre_norm: bool = False
    final_norm: str = ""
    norm: str = "output.LayerNorm"
    adds_residuals: bool = False
    attention_dropout: str | None = None
    attention: str = "attention"
    attention_norm: str = "attention.output.LayerNorm"
    self_attention: str = "attention.self"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    heads_attribute: str = "num_attention_heads"
    attention_interface: bool = True
    rotary: bool = False
    attention_experts: bool = True
    word_head: tuple[str, ...] = ("cls",)
    decoder: str = "cls.predictions.decoder"
    sizes: Mapping[str, str] = field(default_factory=lambda: SIZES, hash=False)
    activation_key: str = "hidden_act"
    word_head_activation: bool = True
    dropouts: tuple[str, ...] = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    head_dropout: str | None = "classifier_dropout"
    epsilon: str | float = "layer_norm_eps"
    other_keys: tuple[str, ...] = ()
    has_positions: bool | str = True
    fault: Callable[[Any], str] = _no_fault
    embedding_size: str | None = None
    embedding_map: str = "embeddings_project"
    first_position: int | None = 0
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
        """The size in a configuration that is the field `name` of `Base`; 0 if there are no such tables."""
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
        """Whether students may have experts: these have biases, and get the tokens by other arguments of a layer."""
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


_BERT = Family(model_type="bert")
_ROBERTA = replace(
    _BERT,
    model_type="roberta",
    first_position=None,
    word_head_activation=False,
    word_head=("lm_head",),
    decoder="lm_head.decoder",
)
_DISTILBERT = Family(
    model_type="distilbert",
    layers="transformer.layer",
    expand="ffn.lin1",
    activation="ffn.activation",
    project="ffn.lin2",
    norm="output_layer_norm",
    adds_residuals=True,
    attention_norm="sa_layer_norm",
    self_attention="attention",
    query="attention.q_lin",
    key="attention.k_lin",
    value="attention.v_lin",
    output="attention.out_lin",
    heads_attribute="n_heads",
    attention_experts=False,
    word_head=("vocab_transform", "activation", "vocab_layer_norm", "vocab_projector"),
    decoder="vocab_projector",
    sizes={
        "depth": "n_layers",
        "width": "dim",
        "heads": "n_heads",
        "inner": "hidden_dim",
        "vocabulary": "vocab_size",
        "positions": "max_position_embeddings",
    },
    activation_key="activation",
    dropouts=("dropout", "attention_dropout"),
    head_dropout="seq_classif_dropout",
    epsilon=1e-12,
    other_keys=("qa_dropout", "sinusoidal_pos_embds"),
)
_ELECTRA = replace(
    _BERT,
    model_type="electra",
    word_head=("generator_predictions", "generator_lm_head"),
    word_head_activation=False,
    decoder="generator_lm_head",
    embedding_size="embedding_size",
)
_MPNET = replace(
    _ROBERTA,
    model_type="mpnet",
    attention_norm="attention.LayerNorm",
    self_attention="attention.attn",
    query="attention.attn.q",
    key="attention.attn.k",
    value="attention.attn.v",
    output="attention.attn.o",
    attention_interface=False,
    attention_experts=False,
    sizes={name: key for name, key in SIZES.items() if name != "token_types"}
    | {"position_biases": "relative_attention_num_buckets"},
    head_dropout=None,
    first_position=2,
)


def _fault_of_ernie(config: Any) -> str:
    return "use_task_id is true: models with embeddings of tasks are not supported" if config.use_task_id else ""


def _fault_of_deberta(config: Any) -> str:
    if not getattr(config, "legacy", True):
        return "legacy is false: models with that head for masked words are not supported"
    if getattr(config, "conv_kernel_size", 0):
        return "conv_kernel_size is above 0: models with a convolution are not supported"
    if getattr(config, "embedding_size", config.hidden_size) != config.hidden_size:
        return "embedding_size is not hidden_size: models with smaller embeddings are not supported"
    if not getattr(config, "relative_attention", False):
        return ""
    if not getattr(config, "share_att_key", False):
        return "share_att_key is false: models with other maps for positions than for words are not supported"
    if "layer_norm" not in getattr(config, "norm_rel_ebd", "none") or {*(config.pos_att_type or ())} != {"c2p", "p2c"}:
        return 'norm_rel_ebd must be "layer_norm", and pos_att_type "c2p|p2c"'
    return ""


_DEBERTA = replace(
    _BERT,
    model_type="deberta-v2",
    query="attention.self.query_proj",
    key="attention.self.key_proj",
    value="attention.self.value_proj",
    attention_interface=False,
    attention_experts=False,
    head_dropout="cls_dropout",
    other_keys=(
        *("max_position_embeddings", "position_biased_input", "relative_attention", "max_relative_positions"),
        *("position_buckets", "pos_att_type", "share_att_key", "norm_rel_ebd"),
        *("pooler_dropout", "pooler_hidden_act", "pooler_hidden_size", "legacy"),
    ),
    has_positions="position_biased_input",
    fault=_fault_of_deberta,
)
_ROBERTA_PRELAYERNORM = replace(
    _ROBERTA,
    model_type="roberta-prelayernorm",
    pre_norm=True,
    final_norm="LayerNorm",
    norm="intermediate.LayerNorm",
    attention_norm="attention.LayerNorm",
    attention_experts=False,
)
_JINA = Family(
    model_type="jina_embeddings_v3",
    layers="layers",
    expand="mlp.fc1",
    activation="mlp.activation_fn",
    project="mlp.fc2",
    norm="post_mlp_layernorm",
    adds_residuals=True,
    attention_dropout="post_attention_dropout",
    rotary=True,
    attention="self_attn",
    attention_norm="post_attention_layernorm",
    self_attention="self_attn",
    query="self_attn.q_proj",
    key="self_attn.k_proj",
    value="self_attn.v_proj",
    output="self_attn.o_proj",
    attention_experts=False,
    word_head=("lm_head",),
    word_head_activation=False,
    decoder="lm_head.decoder",
    other_keys=("max_position_embeddings", "rope_parameters"),
    has_positions=False,
)
_NOMIC = replace(
    _JINA,
    model_type="nomic_bert",
    expand="mlp.gate_proj",
    activation="mlp.act_fn",
    gate="mlp.up_proj",
    project="mlp.down_proj",
    ffn="mlp",
    biases="none",
    word_head=("cls",),
    word_head_activation=True,
    decoder="cls.predictions.decoder",
)
_GTE = replace(
    _NOMIC,
    model_type="gte",
    biases="not inner",
    word_head=("lm_head",),
    word_head_activation=False,
    decoder="lm_head.decoder",
)


def _fault_of_modernbert(config: Any) -> str:
    for key, value in (("attention", False), ("mlp", False), ("norm", False), ("classifier", False), ("decoder", True)):
        if bool(getattr(config, f"{key}_bias")) is not value:
            return f"{key}_bias must be {str(value).lower()}"
    return ""


_MODERNBERT = Family(
    model_type="modernbert",
    layers="layers",
    embeddings_norm="embeddings.norm",
    words="embeddings.tok_embeddings",
    word_map="embeddings.tok_embeddings.map",
    expand="mlp.Wi.expand",
    activation="mlp.act",
    gate="mlp.Wi.gate",
    project="mlp.Wo",
    ffn="mlp",
    biases="none",
    norm_biases=False,
    first_norm=False,
    dense_heads=True,
    layer_types=True,
    pre_norm=True,
    final_norm="final_norm",
    norm="mlp_norm",
    adds_residuals=True,
    attention="attn",
    attention_norm="attn_norm",
    self_attention="attn",
    query="attn.Wqkv.query",
    key="attn.Wqkv.key",
    value="attn.Wqkv.value",
    output="attn.Wo",
    fused={
        "attn.Wqkv": ("attn.Wqkv.query", "attn.Wqkv.key", "attn.Wqkv.value"),
        "mlp.Wi": ("mlp.Wi.expand", "mlp.Wi.gate"),
    },
    rotary=True,
    attention_experts=False,
    word_head=("head", "decoder"),
    decoder="decoder",
    sizes={name: key for name, key in SIZES.items() if name != "token_types"},
    activation_key="hidden_activation",
    word_head_activation=False,
    dropouts=("mlp_dropout", "attention_dropout"),
    epsilon="norm_eps",
    other_keys=(
        *("max_position_embeddings", "layer_types", "local_attention", "rope_parameters", "embedding_dropout"),
        *("classifier_pooling", "classifier_activation", "initializer_cutoff_factor"),
        *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
    ),
    has_positions=False,
    fault=_fault_of_modernbert,
)
_TEACHERS = (
    _BERT,
    replace(_BERT, model_type="ernie", fault=_fault_of_ernie),
    *(replace(_ROBERTA, model_type=name) for name in ("roberta", "xlm-roberta", "camembert", "data2vec-text")),
    _ELECTRA,
    _DISTILBERT,
    _MPNET,
    _DEBERTA,
    _JINA,
    _NOMIC,
    _GTE,
    _ROBERTA_PRELAYERNORM,
    _MODERNBERT,
)
FAMILIES: dict[str, Family] = {
    family.model_type: family for teacher in _TEACHERS for family in (teacher, teacher.students())
}

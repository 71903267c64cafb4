"""The families of encoders, by the `model_type` of transformers. To support another one, add it to `_TEACHERS`, or at
run time by `add_family`.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .anatomy import SIZES, Family

_WITHOUT_SEGMENTS = {name: key for name, key in SIZES.items() if name != "token_types"}

_BERT = Family(model_type="bert")
_ROBERTA = replace(
    _BERT,
    model_type="roberta",
    first_position=None,
    word_head_activation=False,
    word_head=("lm_head",),
    decoder="lm_head.decoder",
)
_LAYOUTLM = replace(
    _BERT,
    model_type="layoutlm",
    since=(5, 23),
    sizes=SIZES | {"box_positions": "max_2d_position_embeddings"},
    head_dropout=None,
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
    dropouts=("dropout", "attention_dropout", "qa_dropout"),
    head_dropout="seq_classif_dropout",
    epsilon=1e-12,
    other_keys=("sinusoidal_pos_embds",),
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
    sizes=_WITHOUT_SEGMENTS | {"position_biases": "relative_attention_num_buckets"},
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
    dropouts=("hidden_dropout_prob", "attention_probs_dropout_prob", "pooler_dropout"),
    head_dropout="cls_dropout",
    other_keys=(
        *("max_position_embeddings", "position_biased_input", "relative_attention", "max_relative_positions"),
        *("position_buckets", "pos_att_type", "share_att_key", "norm_rel_ebd"),
        *("pooler_hidden_act", "pooler_hidden_size", "legacy"),
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
_XLM_ROBERTA_XL = replace(
    _ROBERTA,
    model_type="xlm-roberta-xl",
    embeddings_norm=None,
    pre_norm=True,
    final_norm="encoder.LayerNorm",
    norm="LayerNorm",
    attention_norm="attention.self_attn_layer_norm",
    attention_experts=False,
)
_MEGATRON_BERT = replace(
    _BERT,
    model_type="megatron-bert",
    embeddings_norm=None,
    pre_norm=True,
    final_norm="encoder.ln",
    norm="ln",
    attention_norm="attention.ln",
    attention_arguments=1,
    attention_interface=False,
    attention_experts=False,
    head_dropout=None,
)
_JINA = Family(
    model_type="jina_embeddings_v3",
    since=(5, 10, 4),
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
    since=(5, 23),
    biases="not inner",
    word_head=("lm_head",),
    word_head_activation=False,
    decoder="lm_head.decoder",
)


def _unlike(config: Any, wanted: Mapping[str, Any]) -> str:
    """The first key that has another value than wanted, as a message; "" if there is none."""
    for key, value in wanted.items():
        if getattr(config, key) != value:
            return f"{key} must be {json.dumps(value)}"
    return ""


def _fault_of_eurobert(config: Any) -> str:
    size = config.hidden_size // config.num_attention_heads
    return _unlike(config, {"attention_bias": False, "mlp_bias": False, "head_dim": size})


_EUROBERT = replace(
    _NOMIC,
    model_type="eurobert",
    embeddings="embed_tokens",
    embeddings_norm=None,
    words="embed_tokens",
    word_map="embed_tokens.map",
    norm_biases=False,
    rms_norm=True,
    pre_norm=True,
    final_norm="norm",
    norm="post_attention_layernorm",
    attention_dropout=None,
    attention_norm="input_layernorm",
    word_head=("lm_head",),
    dense_word_head=False,
    decoder="lm_head",
    sizes=_WITHOUT_SEGMENTS,
    unshared={"num_key_value_heads": "heads"},
    dropouts=(None, "attention_dropout"),
    head_dropout=None,
    epsilon="rms_norm_eps",
    other_keys=("max_position_embeddings", "rope_parameters", "classifier_pooling", "bos_token_id", "eos_token_id"),
    fault=_fault_of_eurobert,
)


def _fault_of_albert(config: Any) -> str:
    if config.embedding_size == config.hidden_size:
        return "embedding_size is hidden_size: models whose embeddings are as wide as their layers are not supported"
    return _unlike(config, {"inner_group_num": 1})


_ALBERT = replace(
    _BERT,
    model_type="albert",
    layers="encoder.albert_layer_groups",
    expand="albert_layers.0.ffn",
    activation="albert_layers.0.activation",
    project="albert_layers.0.ffn_output",
    norm="albert_layers.0.full_layer_layer_norm",
    attention="albert_layers.0.attention",
    attention_norm="albert_layers.0.attention.LayerNorm",
    self_attention="albert_layers.0.attention",
    query="albert_layers.0.attention.query",
    key="albert_layers.0.attention.key",
    value="albert_layers.0.attention.value",
    output="albert_layers.0.attention.dense",
    attention_experts=False,
    word_head=("predictions",),
    decoder="predictions.decoder",
    unshared={"num_hidden_groups": "depth"},
    head_dropout="classifier_dropout_prob",
    embedding_size="embedding_size",
    embedding_map="encoder.embedding_hidden_mapping_in",
    fault=_fault_of_albert,
)


def _fault_of_modernbert(config: Any) -> str:
    without = dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), False)
    return _unlike(config, {**without, "decoder_bias": True})


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
    output_dropout="attn.out_drop",
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
    sizes=_WITHOUT_SEGMENTS,
    activation_key="hidden_activation",
    word_head_activation=False,
    dropouts=("mlp_dropout", "attention_dropout", "embedding_dropout"),
    epsilon="norm_eps",
    other_keys=(
        *("max_position_embeddings", "layer_types", "local_attention", "rope_parameters"),
        *("classifier_pooling", "classifier_activation", "initializer_cutoff_factor"),
        *("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"),
    ),
    has_positions=False,
    fault=_fault_of_modernbert,
)
_TEACHERS = (
    _BERT,
    replace(_BERT, model_type="ernie", fault=_fault_of_ernie),
    _LAYOUTLM,
    *(replace(_ROBERTA, model_type=name) for name in ("roberta", "xlm-roberta", "camembert", "data2vec-text")),
    _ELECTRA,
    _DISTILBERT,
    _MPNET,
    _DEBERTA,
    _JINA,
    _NOMIC,
    _GTE,
    _ROBERTA_PRELAYERNORM,
    _XLM_ROBERTA_XL,
    _MEGATRON_BERT,
    _MODERNBERT,
    _EUROBERT,
    _ALBERT,
)
FAMILIES: dict[str, Family] = {}


def add(family: Family) -> None:
    """Add the family of a type of encoders, and that of its students."""
    FAMILIES.update({each.model_type: each for each in (family, family.students())})


for _family in _TEACHERS:
    add(_family)
# The types that every checkpoint's copy of this file has.
SHIPPED = frozenset(FAMILIES)

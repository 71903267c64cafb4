"""Weights of BERTs under the names of other families, which then compute the same."""

import copy
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoModelForSequenceClassification,
    BertForSequenceClassification,
    BertModel,
    PreTrainedModel,
)

from distill.encoders.family import supported
from distill.encoders.student.anatomy import SIZES, Family
from distill.encoders.student.families import FAMILIES
from tests.tiny import batch, shaken

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# The classes of BERT, the encoder alone first -> how they are called.
CLASSES: dict[type, str] = {getattr(transformers, f"Bert{head}"): head for head in KINDS}
# By the output embedding of a family, where it has what BERT has at "cls.predictions". RoBERTa's head has a bias twice,
# as BERT's has.
WORD_HEADS = {
    "lm_head.decoder": {
        "transform.dense": "lm_head.dense",
        "transform.LayerNorm": "lm_head.layer_norm",
        "decoder": "lm_head.decoder",
        "bias": "lm_head.bias",
    },
    "generator_lm_head": {
        "transform.dense": "generator_predictions.dense",
        "transform.LayerNorm": "generator_predictions.LayerNorm",
        "decoder": "generator_lm_head",
    },
    "vocab_projector": {
        "transform.dense": "vocab_transform",
        "transform.LayerNorm": "vocab_layer_norm",
        "decoder": "vocab_projector",
    },
}
# How the two linear maps of a classifier of sentences are called; those of BERT are the pooler's and the classifier's.
ONE_HEAD = ("classifier.dense", "classifier.out_proj")
CLASSIFIERS = {
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet", "electra"), ONE_HEAD),
    "distilbert": ("pre_classifier", "classifier"),
    "deberta-v2": ("pooler.dense", "classifier"),
}
# What the published models of version 3 of DeBERTa have.
RELATIVE = {
    "relative_attention": True,
    "position_biased_input": False,
    "max_relative_positions": -1,
    "position_buckets": 8,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "type_vocab_size": 0,
}
# The types whose classifiers of sentences have other activations, so that they compute something else.
OWN_CLASSIFIER = ("electra", "distilbert")


def comparable(cls: type, model_type: str) -> bool:
    """Whether a model of another type computes what a BERT of this class with the same weights does."""
    return cls is not BertForSequenceClassification or model_type not in OWN_CLASSIFIER


def sentences(*arguments: int, **settings: int) -> dict[str, Tensor]:
    """As `tests.tiny.batch`, without the token id 1, which an MPNet takes for padding."""
    given = batch(*arguments, **settings)
    given["input_ids"][given["input_ids"] == 1] = 2
    return given


def same(one: Tensor, other: Tensor, model_type: str) -> bool:
    """Whether results of a BERT and of a model of another type are equal; where attention or the sum of the embeddings
    is computed in another order, but for rounding.
    """
    if FAMILIES[model_type].attention_interface and model_type != "layoutlm":
        return torch.equal(one, other)
    return bool(torch.allclose(one, other, rtol=1e-4, atol=1e-4))


@torch.no_grad()
def twins(model: PreTrainedModel, model_type: str) -> tuple[PreTrainedModel, Any]:
    """A BERT, and a model of another type with its weights. If that has no segments, the BERT's become equal."""
    if "token_types" not in FAMILIES[model_type].sizes:
        model.base_model.embeddings.token_type_embeddings.weight.zero_()
    return model, renamed(model, model_type)


def renamed(model: PreTrainedModel, model_type: str) -> Any:
    """The model of another type with the weights of a BERT. Where positions begin after the padding token, which has
    the id 0, they are moved by one; where there are no segments, all words are of the first one. An MPNet takes the id
    1 for padding, and has no biases of relative positions.
    """
    family, bert = FAMILIES[model_type], FAMILIES["bert"]
    first = 1 if family.first_position is None else family.first_position
    positions = model.config.max_position_embeddings + first
    settings = {family.sizes[name]: getattr(model.config, key) for name, key in SIZES.items() if name in family.sizes}
    settings |= {family.sizes["positions"]: positions, family.activation_key: model.config.hidden_act}
    settings |= dict(zip(family.dropouts, (getattr(model.config, key) for key in bert.dropouts), strict=False))
    if isinstance(family.epsilon, str):
        settings[family.epsilon] = model.config.layer_norm_eps
    if family.embedding_size:
        settings[family.embedding_size] = model.config.hidden_size
    same = ("id2label", "label2id", "problem_type", "bos_token_id", "eos_token_id", "initializer_range")
    names = {name: getattr(model.config, name) for name in same}
    if family.has_positions is not True:
        settings |= {"relative_attention": False, family.has_positions: True, "pooler_hidden_act": "tanh"}
    config = CONFIG_MAPPING[model_type](**settings, **names, pad_token_id=0)
    prefix_of_class = type(config).__name__.removesuffix("Config")
    result = getattr(transformers, prefix_of_class + CLASSES[type(model)])(config).eval()
    types_D = model.base_model.embeddings.token_type_embeddings.weight[0]
    weights: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("position_embeddings.weight"):
            tensor = torch.cat((torch.zeros_like(tensor[:first]), tensor))
            if "token_types" not in family.sizes:
                tensor = tensor + types_D
        weights[_renamed(name, family, f"{result.base_model_prefix}.", type(model))] = tensor.clone()
    there = result.state_dict()
    if family.shares_position_biases:
        (biases,) = (name for name in there if name.endswith("relative_attention_bias.weight"))
        weights[biases] = torch.zeros_like(there[biases])
    # Boxes of words on a page, and a pooler that a LayoutLM has below every head.
    extra = ("_position_embeddings.weight", "pooler.dense.weight", "pooler.dense.bias")
    added = {name for name in there if name not in weights and name.endswith(extra)}
    weights |= {name: torch.zeros_like(there[name]) for name in added}
    missing = set(there) - set(weights)
    assert not missing, missing
    unknown = set(weights) - set(there)
    assert all("pooler" in name or "token_type" in name or name == "cls.predictions.bias" for name in unknown), unknown
    result.load_state_dict({name: tensor for name, tensor in weights.items() if name in there}, strict=True)
    return result


def _renamed(name: str, family: Family, prefix: str, cls: type) -> str:
    """The name of a BERT's parameter in a model of a family whose base model has this prefix."""
    bert = FAMILIES["bert"]
    if parts := bert.split(name):
        before, layer, inside = parts
        for part in ("query", "key", "value", "output", "attention_norm", "expand", "project", "norm"):
            path = f"{getattr(bert, part)}."
            if inside.startswith(path):
                inside = f"{getattr(family, part)}.{inside.removeprefix(path)}"
                break
        before = before.removesuffix(f"{bert.layers}.").replace("bert.", prefix)
        return f"{before}{family.layers}.{layer}.{inside}"
    module, _, kind = name.rpartition(".")
    inside = name.removeprefix("cls.predictions.")
    if inside != name:
        of = next((mine for mine in WORD_HEADS.get(family.decoder, {}) if inside.startswith(mine)), None)
        return name if of is None else WORD_HEADS[family.decoder][of] + inside.removeprefix(of)
    if cls is BertForSequenceClassification and family.model_type in CLASSIFIERS:
        inner, outer = CLASSIFIERS[family.model_type]
        if module in ("bert.pooler.dense", "classifier"):
            return f"{inner if 'pooler' in module else outer}.{kind}"
    return name.replace("bert.", prefix, 1) if cls is not BertModel else name


def sizes_of(model: PreTrainedModel) -> dict[str, int]:
    """The sizes of a BERT, by the keys of its configuration."""
    return {key: getattr(model.config, key) for key in SIZES.values()}


# The types whose weights cannot be those of a BERT.
OF_THEIR_OWN = (
    *("jina_embeddings_v3", "nomic_bert", "gte", "roberta-prelayernorm", "xlm-roberta-xl", "megatron-bert"),
    *("modernbert", "eurobert", "albert"),
)


def of_every_kind(model: BertForSequenceClassification) -> dict[str, Any]:
    """Models of types that differ in more than their names, by a name: those with the weights of a BERT, the MPNet also
    with random biases of relative positions; and, with random weights, an ELECTRA whose embeddings are smaller than its
    width, a DeBERTa of version 3, and encoders with rotary positions, with gates, without biases, and with
    LayerNorms before attention and FFN.
    """
    models = {name: renamed(model, name) for name in ("roberta", "electra", "distilbert", "mpnet")}
    small, relative = (copy.deepcopy(renamed(model, name).config) for name in ("electra", "deberta-v2"))
    small.embedding_size = small.hidden_size * 2 // 3
    relative.update(RELATIVE)
    depth, heads = model.config.num_hidden_layers, model.config.num_attention_heads
    local = {"layer_types": ["full_attention", "sliding_attention"] * (depth // 2), "local_attention": 4}
    euro = {"num_key_value_heads": heads, "bos_token_id": None, "eos_token_id": None, "mask_token_id": 4}

    def random(model_type: str, **settings: Any) -> Any:
        sizes = {key: size for key, size in sizes_of(model).items() if key in FAMILIES[model_type].sizes.values()}
        sizes |= {"max_position_embeddings": model.config.max_position_embeddings}
        labels = {"num_labels": model.config.num_labels, "pad_token_id": 0}
        return of(CONFIG_MAPPING[model_type](**sizes, **labels, **settings))

    def of(config: Any) -> Any:
        return shaken(AutoModelForSequenceClassification.from_config(config)).eval()

    with torch.random.fork_rng():
        torch.manual_seed(0)
        models |= {"small electra": of(small), "deberta-v2": of(relative)}
        models |= {"pre-norm": random("roberta-prelayernorm"), "nomic": random("nomic_bert"), "gte": random("gte")}
        models |= {"modernbert": random("modernbert", **local), "jina": random("jina_embeddings_v3")}
        torch.nn.init.normal_(models["mpnet"].mpnet.encoder.relative_attention_bias.weight)
        models |= {name: random(name) for name in ("layoutlm", "xlm-roberta-xl", "megatron-bert")}
        models["eurobert"] = random("eurobert", **euro)
        models["albert"] = random("albert", embedding_size=small.embedding_size, num_hidden_groups=depth)
    return {"bert": model, **models}


# The other types, and with each the classes with a head: a LayoutLM's for questions also takes the boxes of a page.
OTHERS = [name for name in supported() if name not in ("bert", *OF_THEIR_OWN)]
PAIRS = [(name, cls) for name in OTHERS for cls in list(CLASSES)[1:] if (name, CLASSES[cls]) != ("layoutlm", KINDS[-1])]


def as_roberta(model: PreTrainedModel) -> Any:
    """The RoBERTa with the weights of a BERT."""
    return renamed(model, "roberta")

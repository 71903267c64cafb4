"""Weights of BERTs under the names of other families, which then compute the same."""

from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, BertConfig, BertForSequenceClassification, PreTrainedModel

from distill.encoders.family import FAMILIES

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# The classes of BERT, the encoder alone first -> how they are called.
CLASSES: dict[type, str] = {getattr(transformers, f"Bert{head}"): head for head in KINDS}
# RoBERTa's masked-LM head has a bias twice, as BERT's has.
HEADS = {
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.decoder.": "lm_head.decoder.",
    "cls.predictions.bias": "lm_head.bias",
}
CLASSIFIER = {"bert.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}


def renamed(model: PreTrainedModel, model_type: str) -> Any:
    """The model of another type with the weights of a BERT. Where positions begin after the padding token, which has
    the id 0, they are moved by one; both segment types are kept.
    """
    own = BertConfig().to_dict()
    settings = {name: value for name, value in model.config.to_dict().items() if name in own and name != "model_type"}
    settings.pop("architectures")
    settings.pop("num_labels", None)
    after_padding = FAMILIES[model_type].positions_after_padding
    positions = model.config.max_position_embeddings + after_padding
    config = CONFIG_MAPPING[model_type](**settings | {"max_position_embeddings": positions, "pad_token_id": 0})
    prefix_of_class = type(config).__name__.removesuffix("Config")
    result = getattr(transformers, prefix_of_class + CLASSES[type(model)])(config).eval()
    names = {}
    if after_padding:
        names = HEADS | (CLASSIFIER if isinstance(model, BertForSequenceClassification) else {})
    weights = {}
    for name, tensor in model.state_dict().items():
        prefix = next((prefix for prefix in names if name.startswith(prefix)), None)
        base = f"{result.base_model_prefix}."
        new = name.replace("bert.", base, 1) if prefix is None else names[prefix] + name.removeprefix(prefix)
        if after_padding and name.endswith("position_embeddings.weight"):
            tensor = torch.cat((torch.zeros_like(tensor[:1]), tensor))
        weights[new] = tensor.clone()
    result.load_state_dict(weights, strict=True)
    return result


def as_roberta(model: PreTrainedModel) -> Any:
    """The RoBERTa with the weights of a BERT."""
    return renamed(model, "roberta")

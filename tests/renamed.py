"""Weights of BERTs under the names of RoBERTa, which then computes the same."""

from typing import Any

import torch
import transformers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel, RobertaConfig

KINDS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
# The classes of BERT, the encoder alone first -> those of RoBERTa.
CLASSES: dict[type, type] = {
    getattr(transformers, f"Bert{head}"): getattr(transformers, f"Roberta{head}") for head in KINDS
}
# RoBERTa's masked-LM head has a bias twice, as BERT's has.
HEADS = {
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.decoder.": "lm_head.decoder.",
    "cls.predictions.bias": "lm_head.bias",
}
CLASSIFIER = {"bert.pooler.dense.": "classifier.dense.", "classifier.": "classifier.out_proj."}


def as_roberta(model: PreTrainedModel) -> Any:
    """The RoBERTa with the weights of a BERT: positions are moved by one, since its padding token has the id 0, and
    both segment types are kept.
    """
    own = BertConfig().to_dict()
    settings = {name: value for name, value in model.config.to_dict().items() if name in own and name != "model_type"}
    settings.pop("architectures")
    settings.pop("num_labels", None)
    positions = model.config.max_position_embeddings + 1
    config = RobertaConfig(**settings | {"max_position_embeddings": positions, "pad_token_id": 0})
    result = CLASSES[type(model)](config).eval()
    names = HEADS | (CLASSIFIER if isinstance(model, BertForSequenceClassification) else {})
    weights = {}
    for name, tensor in model.state_dict().items():
        prefix = next((prefix for prefix in names if name.startswith(prefix)), None)
        new = name.replace("bert.", "roberta.", 1) if prefix is None else names[prefix] + name.removeprefix(prefix)
        if name.endswith("position_embeddings.weight"):
            tensor = torch.cat((torch.zeros_like(tensor[:1]), tensor))
        weights[new] = tensor.clone()
    result.load_state_dict(weights, strict=True)
    return result

"""Configuration of a BERT whose feed-forward networks follow a searched architecture.

The files of this folder ship inside every exported checkpoint, so they import torch, transformers and each other, and
nothing else of this project.
"""

from typing import Any

from transformers import BertConfig

MODELING = "modeling_nas_bert"
# The version of the meaning of `NasBertConfig`'s attributes: increase it when an older reader would compute something
# else. Checkpoints of before it was recorded are of version 1.
VERSION = 1


class NasBertConfig(BertConfig):
    """A `BertConfig` plus the feed-forward networks of every layer.

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
        attention_experts: experts of every layer's attention, among which a gate chooses for each token.
        head_experts: prediction layers of a sequence classifier, among which a gate chooses for each sentence.
        gate_scale: `"relative"` or `"probability"`: by what the output of an expert behind a gate is multiplied, its
            probability times count / top_k, or its probability.
        capacity_per: `"sentence"` or `"batch"`: whether an expert's capacity is a share of the tokens of each sentence
            or of all tokens of the batch.
        router_jitter_noise: amplitude j of the noise, uniform from 1 - j to 1 + j, by which the input of a gate is
            multiplied in training (Switch).
        embedding_size: the width of a factorised word embedding over trigrams (MobileBERT), or `None`.
        ffn_version: the version of these attributes.

    Raises:
        ValueError: the attributes are of a later version.
    """

    model_type = "nas_bert"
    _auto_class = "AutoConfig"

    ffn: list | None = None
    gelu: str = "tanh"
    mismatch: str = "narrow"
    embedding_size: int | None = None
    attention_heads: list | None = None
    attention_experts: int = 1
    head_experts: int = 1
    gate_scale: str = "relative"
    capacity_per: str = "sentence"
    router_jitter_noise: float = 0.01
    trigram_input: bool = True
    normalization_type: str = "layer_norm"
    ffn_version: int = VERSION

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.ffn_version > VERSION:
            raise ValueError(f"ffn_version: {self.ffn_version} is unknown; the newest known one is {VERSION}")


AUTO_MAP = {
    "AutoConfig": "configuration_nas_bert.NasBertConfig",
    "AutoModel": f"{MODELING}.NasBertModel",
    "AutoModelForMaskedLM": f"{MODELING}.NasBertForMaskedLM",
    "AutoModelForSequenceClassification": f"{MODELING}.NasBertForSequenceClassification",
    "AutoModelForTokenClassification": f"{MODELING}.NasBertForTokenClassification",
    "AutoModelForQuestionAnswering": f"{MODELING}.NasBertForQuestionAnswering",
}

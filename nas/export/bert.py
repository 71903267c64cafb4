"""Students as ordinary BERTs, which need no code of their own, where their layers can be expressed as BERT's."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    PreTrainedModel,
)
from transformers.activations import ACT2FN

from distill.tasks.types import task_type_of
from nas.export.checkpoint import ExportError
from nas.export.onnx import TOLERANCE, padded_batch

CLASSES = {
    f"Nas{cls.__name__}": cls
    for cls in (
        BertForMaskedLM,
        BertForQuestionAnswering,
        BertForSequenceClassification,
        BertForTokenClassification,
    )
}
# The operations whose name in BERT's `hidden_act` is another one; gelu has a name for each of its forms.
HIDDEN_ACT = {"swish": "silu"}
GELU_FORMS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}


def why_not(config: Any) -> str:
    """Why a student with this configuration cannot be expressed as a BERT; empty if it can."""
    if config.embedding_size is not None:
        return "its word embedding is factorised"
    if config.attention_experts > 1 or config.head_experts > 1:
        return f"its {'attention' if config.attention_experts > 1 else 'head'} has experts"
    if config.attention_heads is not None:
        return f"attention heads have been pruned, and all layers of BERT have {config.num_attention_heads}"
    activations = {}
    for number, genes in enumerate(config.ffn, start=1):
        if genes["stack"] != 1:
            blocks = "no FFN" if not genes["stack"] else f"{genes['stack']} blocks"
            return f"layer {number} has {blocks}, and every layer of BERT has one"
        if genes.get("experts"):
            return f"layer {number} has experts"
        operations = [op for op, _ in genes["program"]]
        chain = [inputs for _, inputs in genes["program"]] == [[0], [1], [2]]
        if not chain or (operations[0], operations[2]) != ("expand", "project"):
            return f"layer {number} computes {genes['formula']}, and BERT's layers project(activation(expand(x)))"
        activations[number] = operations[1]
    if len(set(activations.values())) > 1:
        first, other = list(dict.fromkeys(activations.values()))[:2]
        return f"its layers have different activations ({first} and {other}), and BERT has one for all"
    activation = hidden_act(config)
    return "" if activation in ACT2FN else f"transformers has no hidden_act for {activation}"


def hidden_act(config: Any) -> str:
    """The value of BERT's `hidden_act` for the activation of a student's first layer."""
    activation = config.ffn[0]["program"][1][0]
    return GELU_FORMS[config.gelu] if activation == "gelu" else HIDDEN_ACT.get(activation, activation)


@dataclass(frozen=True)
class AsBert:
    """A student as an ordinary BERT.

    Attributes:
        added: how many of its parameters are zeros that widen narrower layers to the widest.
    """

    model: PreTrainedModel
    added: int

    def __str__(self) -> str:
        """What the conversion costs."""
        if not self.added:
            return "the same parameters and operations as the student's"
        total = sum(parameter.numel() for parameter in self.model.parameters())
        more = self.added / (total - self.added)
        return (
            f"BERT has one inner width for all layers: {self.added:,} parameters ({more:.1%} more) "
            f"are zeros, which widen the narrower FFNs to {self.model.config.intermediate_size} channels and are "
            "computed like all others"
        )


def as_bert(student: PreTrainedModel) -> AsBert:
    """The student as an ordinary BERT with equal logits. Layers are widened by channels of zero weights to the width of
    the widest one, which does not change what they compute.

    Raises:
        ExportError: it cannot be expressed as a BERT.
    """
    config = student.config
    if fault := why_not(config):
        raise ExportError(f"--as bert: this student cannot be an ordinary BERT: {fault}; export it without --as")
    widest = max(genes["inner"] for genes in config.ffn)
    settings = {name: value for name, value in config.to_dict().items() if name in BertConfig().to_dict()}
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "num_labels"):
        settings.pop(name, None)
    bert_config = BertConfig(**settings | {"intermediate_size": widest, "hidden_act": hidden_act(config)})
    model = CLASSES[type(student).__name__](bert_config).eval()
    weights: dict[str, Tensor] = {}
    added = 0
    for name, tensor in student.state_dict().items():
        widened = tensor
        if ".ffn.0.expand." in name:
            widened = pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, widest - tensor.shape[0]))
        elif name.endswith(".ffn.0.project.weight"):
            widened = pad(tensor, (0, widest - tensor.shape[1]))
        added += widened.numel() - tensor.numel()
        weights[_bert_name(name)] = widened
    model.load_state_dict(weights, strict=True)
    _check(student, model)
    return AsBert(model, added)


def _bert_name(name: str) -> str:
    """The name in transformers' BERT of a parameter of a student."""
    name = name.replace(".ffn.0.expand.", ".intermediate.dense.")
    return name.replace(".ffn.0.project.", ".output.dense.").replace(".ffn.0.LayerNorm.", ".output.LayerNorm.")


@torch.inference_mode()
def _check(student: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise ExportError if the two models do not have equal logits."""
    batch = padded_batch(student.config, 4, min(16, student.config.max_position_embeddings))
    task_type = task_type_of(student)
    assert task_type is not None
    expected, actual = (task_type.logits(either(**batch)) for either in (student, model))
    difference = float((actual - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ExportError(f"--as bert: the logits differ by {difference:.2g}: this is a fault of the export")

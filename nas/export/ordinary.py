"""Students as ordinary checkpoints of their family, which need no code of their own, where their layers can be
expressed as the family's.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.activations import ACT2FN

from distill.encoders.family import CHANNELS, FAMILIES, family_of
from distill.encoders.student.configuration import attention_experts
from nas.export.checkpoint import ExportError, type_of_head
from nas.onnx.model import TOLERANCE, padded_batch

# The operations that have another name in a configuration; gelu has one for each of its forms.
OTHER_NAMES = {"swish": "silu"}
GELU_FORMS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}


def reason_against(config: Any) -> str:
    """Why a student with this configuration cannot be an ordinary checkpoint of its family; empty if it can."""
    family = FAMILIES[str(family_of(config).students_of)]
    if getattr(config, "embedding_size", None) is not None:
        return "its word embedding is factorized"
    if any(attention_experts(config, layer) > 1 for layer in range(config.num_hidden_layers)):
        return "its attention has experts"
    if getattr(config, "head_experts", 1) > 1:
        return "its head has experts"
    if config.attention_heads is not None:
        heads = family.size(config, "heads")
        return f"attention heads have been pruned, and all layers of a {family.model_type} model have {heads}"
    activations = {}
    for number, ffn in enumerate(config.ffn, start=1):
        if ffn["stack"] != 1:
            blocks = "no FFN" if not ffn["stack"] else f"{ffn['stack']} blocks"
            return f"layer {number} has {blocks}, and every layer of a {family.model_type} model has one"
        if ffn.get("experts"):
            return f"layer {number} has experts"
        operations = [op for op, _ in ffn["program"]]
        chain = [inputs for _, inputs in ffn["program"]] == [[0], [1], [2]]
        if not chain or (operations[0], operations[2]) != ("expand", "project"):
            return f"layer {number} computes {ffn['formula']}, and not project(activation(expand(x)))"
        activations[number] = operations[1]
    if len(set(activations.values())) > 1:
        first, other = list(dict.fromkeys(activations.values()))[:2]
        return f"its layers have different activations ({first} and {other}), and a {family.model_type} model has one"
    activation = activation_of(config)
    return "" if activation in ACT2FN else f"transformers has no {family.activation_key} for {activation}"


def activation_of(config: Any) -> str:
    """The name in transformers of the activation of a student's first layer."""
    activation = config.ffn[0]["program"][1][0]
    return GELU_FORMS[config.gelu] if activation == "gelu" else OTHER_NAMES.get(activation, activation)


@dataclass(frozen=True)
class OrdinaryForm:
    """A student as an ordinary checkpoint.

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
            f"all layers have one inner width: {self.added:,} parameters ({more:.1%} more) are zeros, which widen the "
            f"narrower FFNs to {family_of(self.model).size(self.model.config, 'inner')} channels and are computed like "
            "all others"
        )


def ordinary_form(student: PreTrainedModel, form: str) -> OrdinaryForm:
    """The student as an ordinary checkpoint with equal logits. Layers are widened by channels of zero weights to the
    width of the widest one, which does not change what they compute.

    Args:
        form: the `model_type` of its family.

    Raises:
        ExportError: it cannot be expressed as one.
    """
    config, family = student.config, family_of(student)
    if form != family.students_of:
        raise ExportError(
            f"--as {form}: this is a student of the family {family.students_of!r}: give --as {family.students_of}"
        )
    if reason := reason_against(config):
        raise ExportError(
            f"--as {form}: this student cannot be an ordinary checkpoint: {reason}; export it without --as"
        )
    ordinary = FAMILIES[form]
    widest = max(ffn["inner"] for ffn in config.ffn)
    config_class = CONFIG_MAPPING[form]
    settings = {name: value for name, value in config.to_dict().items() if name in config_class().to_dict()}
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "num_labels"):
        settings.pop(name, None)
    settings |= {ordinary.sizes["inner"]: widest, ordinary.activation_key: activation_of(config)}
    model = type_of_head(student).model.from_config(config_class(**settings)).eval()
    weights: dict[str, Tensor] = {}
    added = 0
    slices = family.slices()
    for name, tensor in student.state_dict().items():
        parts = family.split(name)
        unit, dimension = slices.get(parts[2] if parts else "", (None, 0))
        if unit == CHANNELS:
            shape = list(tensor.shape)
            shape[dimension] = widest - shape[dimension]
            added += math.prod(shape)
            tensor = torch.cat((tensor, tensor.new_zeros(shape)), dimension)
        weights[family.renamed(ordinary, name)] = tensor
    model.load_state_dict(weights, strict=True)
    _check(student, model)
    return OrdinaryForm(model, added)


@torch.inference_mode()
def _check(student: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise ExportError if the two models do not have equal logits."""
    batch = padded_batch(student.config, 4, min(16, family_of(student).positions(student.config)))
    task_type = type_of_head(student)
    expected, actual = (task_type.logits(either(**batch)) for either in (student, model))
    difference = float((actual - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        raise ExportError(
            f"--as {model.config.model_type}: the logits differ from the student's by {difference:.2g}; this is a bug "
            "in the export"
        )

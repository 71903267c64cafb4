"""Students as ordinary checkpoints of their family, which need no code of their own, where their layers can be
expressed as the family's: missing heads, channels and FFNs become zeros, layers that compute nothing are dropped, and
word embeddings of lower rank are multiplied out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.activations import ACT2FN

from distill.encoders.family import decoders, family_of
from distill.encoders.heads import UNKNOWN, heads_of
from distill.encoders.student.anatomy import CHANNELS, HEADS, Family
from distill.encoders.student.configuration import attention_experts, is_left_out
from distill.encoders.student.families import FAMILIES
from distill.tasks.types import MASKED_LM
from distill.tasks.types.embeddings import POOLING
from distill.training.reranker import SETTINGS
from nas.export.checkpoint import ExportError
from nas.onnx.model import TOLERANCE, padded_batch, type_of_head
from search_spaces.architecture import Architecture
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN
from supernet.build import ACTIVATIONS
from supernet.order.importance import channels_of_heads

# Stands beside CHANNELS and HEADS for the parameters of a word embedding that is multiplied out.
WORDS = "words"
# The operations that have another name in a configuration; gelu has one for each of its forms.
OTHER_NAMES = {"swish": "silu"}
GELU_FORMS = {"erf": "gelu", "tanh": "gelu_pytorch_tanh"}


def remaining_layers(config: Any) -> list[int]:
    """The numbers of a student's layers without those that are left out. The lowest one stays where it alone lacks a
    LayerNorm, so that no other can take its place.
    """
    first = [] if family_of(config).first_norm else [0]
    return sorted({*first, *(layer for layer in range(config.num_hidden_layers) if not is_left_out(config, layer))})


def reason_against(config: Any) -> str:
    """Why a student with this configuration cannot be an ordinary checkpoint of its family; empty if it can."""
    family = FAMILIES[str(family_of(config).students_of)]
    if not family.embedding_size and getattr(config, "embedding_size", None) is not None:
        return "its word embedding is factorized"
    if any(attention_experts(config, layer) > 1 for layer in range(config.num_hidden_layers)):
        return "its attention has experts"
    if getattr(config, "head_experts", 1) > 1:
        return "its head has experts"
    layers = remaining_layers(config)
    if not layers:
        return "all of its layers are left out"
    activations = {}
    for number, ffn in ((layer + 1, config.ffn[layer]) for layer in layers if config.ffn[layer]["stack"]):
        if ffn["stack"] > 1:
            return f"layer {number} has {ffn['stack']} blocks, and every layer of a {family.model_type} model has one"
        if ffn.get("experts"):
            return f"layer {number} has experts"
        graph = FFNGraph.parse(ffn["formula"])
        if not graph.activation or graph.gated != bool(family.gate):
            form = "mul(activation(expand(x)),gate(x))" if family.gate else "activation(expand(x))"
            return f"layer {number} computes {ffn['formula']}, and not project({form})"
        activations[number] = graph.activation
    if len(set(activations.values())) > 1:
        first, other = list(dict.fromkeys(activations.values()))[:2]
        return f"its layers have different activations ({first} and {other}), and a {family.model_type} model has one"
    activation = activation_of(config)
    return "" if activation in ACT2FN else f"transformers has no {family.activation_key} for {activation}"


def activation_of(config: Any) -> str:
    """The name in transformers of the activation of a student's FFNs; gelu's if it has none."""
    activation = next((FFNGraph.parse(ffn["formula"]).activation for ffn in config.ffn if ffn["stack"]), "gelu")
    return GELU_FORMS[config.gelu] if activation == "gelu" else OTHER_NAMES.get(activation, activation)


@dataclass(frozen=True)
class OrdinaryForm:
    """A student as an ordinary checkpoint.

    Attributes:
        padding: how many of its parameters are not the student's: by `CHANNELS` and `HEADS`, those that give every FFN
            the channels of the widest one, and every attention all heads; by `WORDS`, those that a word embedding of
            full rank has more.
    """

    model: PreTrainedModel
    padding: Mapping[str, int]

    @property
    def added(self) -> int:
        """How many of its parameters are not the student's."""
        return sum(self.padding.values())

    def __str__(self) -> str:
        """What the conversion costs."""
        if not self.added:
            return "the same parameters and operations as the student's"
        family, config = family_of(self.model), self.model.config
        total = sum(parameter.numel() for parameter in self.model.parameters())
        parts = [
            f"{self.padding[unit]:,} give every {part} {family.size(config, size)} {unit}"
            for unit, part, size in ((HEADS, "attention", "heads"), (CHANNELS, "FFN", "inner"))
            if self.padding[unit]
        ]
        whole = " and its word embedding has the full rank" if WORDS in self.padding else ""
        parts += [f"{self.padding[WORDS]:,} multiply out the word embedding"] if whole else []
        return (
            f"all layers of a {family.model_type} model have the same sizes{whole}, so {self.added:,} parameters "
            f"({self.added / (total - self.added):.1%} more) are padding, which is computed like all others: "
            + " and ".join(parts)
        )


def ordinary_form(student: PreTrainedModel, form: str) -> OrdinaryForm:
    """The student as an ordinary checkpoint with equal logits. Attentions are widened by heads of zero weights to all
    heads, each at its place among the teacher's if that is known, and FFNs by channels of zero weights to the width of
    the widest one, which does not change what they compute. Layers without heads and without an FFN are dropped, and a
    word embedding of lower rank is multiplied out.

    Where LayerNorms follow them, an ordinary layer normalizes after its attention and after its FFN; a student's layer
    without an FFN only once. The scale and shift of its LayerNorm move behind the FFN of zeros. Then the first
    LayerNorm has neither, so that normalizing again changes nothing but for epsilon: a relative change of
    epsilon / 2 · (1 - 1 / variance).

    Args:
        form: the `model_type` of its family.

    Raises:
        ExportError: it cannot be expressed as one.
    """
    config, family = student.config, family_of(student)
    if family.students_of is None:
        raise ExportError(
            f"--as {form}: the model is an ordinary {family.model_type} checkpoint already: leave out --as"
        )
    if form != family.students_of:
        raise ExportError(
            f"--as {form}: this is a student of the family {family.students_of!r}: give --as {family.students_of}"
        )
    if reason := reason_against(config):
        raise ExportError(
            f"--as {form}: this student cannot be an ordinary checkpoint: {reason}; export it without --as"
        )
    activations = activation_of(config), getattr(config, family.activation_key)
    is_one = len({ACTIVATIONS.get(name, name) for name in activations}) == 1
    if type_of_head(student).name == MASKED_LM and family.word_head_activation and not is_one:
        raise ExportError(
            f"--as {form}: its FFNs compute {activations[0]} and its head {activations[1]}, and a {form} model has one "
            "activation for both; export it without --as"
        )
    ordinary, layers = FAMILIES[form], remaining_layers(config)
    config_class = CONFIG_MAPPING[form]
    known = {*config_class().to_dict(), *family.kept_keys, POOLING, SETTINGS}
    settings = {name: value for name, value in config.to_dict().items() if name in known}
    for name in ("model_type", "architectures", "auto_map", "transformers_version", "num_labels"):
        settings.pop(name, None)
    settings |= {
        ordinary.sizes["depth"]: len(layers),
        ordinary.sizes["inner"]: max(1, *(config.ffn[layer]["inner"] for layer in layers)),
        ordinary.activation_key: activation_of(config),
    }
    if family.layer_types:
        settings["layer_types"] = [config.layer_types[layer] for layer in layers]
    model = type_of_head(student).model.from_config(config_class(**settings)).eval()
    given = _renamed(student, ordinary, layers)
    weights: dict[str, Tensor] = {}
    padding = {HEADS: 0, CHANNELS: 0}
    if config.embedding_rank is not None:
        words, low = (either.get_input_embeddings() for either in (model, student))
        padding[WORDS] = sum(p.numel() for p in words.parameters()) - sum(p.numel() for p in low.parameters())
    slices, most = ordinary.slices(), config.num_attention_heads
    for name, whole in ordinary.separated(model.state_dict()).items():
        tensor = given.pop(name, None)
        inside = parts[2] if (parts := ordinary.split(name)) else ""
        weights[name] = torch.zeros_like(whole)
        unit, dimension = slices.get(inside, (CHANNELS, 0))
        if tensor is not None and unit == HEADS:
            assert parts is not None
            heads = heads_of(config)[layers[parts[1]]]
            places = range(len(heads)) if UNKNOWN in heads else heads
            channels = channels_of_heads(torch.tensor(places, dtype=torch.long), config.hidden_size // most)
            weights[name].index_copy_(dimension, channels, tensor)
        elif tensor is not None:
            weights[name][tuple(map(slice, tensor.shape))] = tensor
        elif inside == f"{ordinary.attention_norm}.weight":
            weights[name].fill_(1)
        # What a layer without an FFN lacks beside the channels, biases and a LayerNorm, counts as theirs.
        padding[unit] += whole.numel() - (0 if tensor is None else tensor.numel())
    model.load_state_dict(ordinary.joined(weights | given, torch.cat), strict=True)
    _check(student, model)
    return OrdinaryForm(model, padding)


def _renamed(student: PreTrainedModel, ordinary: Family, layers: list[int]) -> dict[str, Tensor]:
    """The weights of a student without those of other layers than these, by their names in its ordinary form."""
    family = family_of(student)
    result = {}
    for name, tensor in _of_full_rank(student).items():
        name = family.renamed(ordinary, name)
        if parts := ordinary.split(name):
            prefix, layer, inside = parts
            if layer not in layers:
                continue
            if not student.config.ffn[layer]["stack"] and not family.pre_norm:
                inside = inside.replace(f"{ordinary.attention_norm}.", f"{ordinary.norm}.")
            name = f"{prefix}{layers.index(layer)}.{inside}"
        result[name] = tensor
    return result


def _of_full_rank(student: PreTrainedModel) -> dict[str, Tensor]:
    """The weights of a student with its word embedding, and a decoder that is tied to it, multiplied out."""
    weights, prefix = student.state_dict(), student.base_model_prefix + "." if student.base_model is not student else ""
    for path in (prefix + family_of(student).words, *decoders()):
        if (word_map := weights.pop(f"{path}.map.weight", None)) is not None:
            weights[f"{path}.weight"] = weights[f"{path}.weight"] @ word_map.t()
    return weights


def ordinary_architecture(architecture: Architecture, config: Any) -> Architecture:
    """The architecture of the ordinary form of a student, by which its costs are counted.

    Args:
        config: the configuration of the ordinary form.
    """
    family = family_of(config)
    base = replace(architecture.base, depth=family.size(config, "depth"), inner=family.size(config, "inner"))
    graph = next((ffn.graph for ffn in architecture.ffns if ffn.stack), FFN().graph)
    return Architecture.uniform(base, graph)


@torch.inference_mode()
def _check(student: PreTrainedModel, model: PreTrainedModel) -> None:
    """Raise ExportError if the two models do not have equal logits."""
    batch = padded_batch(student.config, 4, min(16, family_of(student).positions(student.config)))
    task_type = type_of_head(student)
    expected, actual = (task_type.logits(either(**batch), batch, either.config) for either in (student, model))
    difference = float((actual - expected).abs().max())
    if not difference <= TOLERANCE * max(1.0, float(expected.abs().max())):
        twice = not family_of(student).pre_norm and not all(
            student.config.ffn[layer]["stack"] for layer in remaining_layers(student.config)
        )
        epsilon = family_of(student).norm_epsilon(student.config)
        cause = f"layers without an FFN are normalized twice, with the epsilon {epsilon:g}; export it without --as"
        raise ExportError(
            f"--as {model.config.model_type}: the logits differ from the student's by {difference:.2g}: "
            + (cause if twice else "this is a bug in the export")
        )

"""Models from architectures, and supernets that are initialised from a teacher or with random weights."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from distill.memory import physical_memory
from distill.objectives.outputs import INPUTS
from distill.tasks.types import TaskType, classification, task_type_of
from distill.training.teacher import TeacherError
from search_spaces import cost
from search_spaces.architecture import DENSE, Architecture, Experts
from search_spaces.base import Base
from search_spaces.errors import UserError
from search_spaces.graph import GELU, FFNGraph
from search_spaces.operations import BINARY, UNARY
from supernet.model.configuration_nas_bert import AUTO_MAP, NasBertConfig
from supernet.model.ffn import EXPORTED_OPERATIONS
from supernet.model.modeling_nas_bert import (
    NasBertForMaskedLM,
    NasBertForQuestionAnswering,
    NasBertForSequenceClassification,
    NasBertForTokenClassification,
    NasBertModel,
    export_fault,
)

# The classes of students by transformers' auto class, which a task type names.
STUDENTS: dict[str, type[PreTrainedModel]] = {
    str(model._auto_class): model
    for model in (
        NasBertModel,
        NasBertForMaskedLM,
        NasBertForSequenceClassification,
        NasBertForTokenClassification,
        NasBertForQuestionAnswering,
    )
}
INHERITED = (
    "id2label",
    "label2id",
    "problem_type",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "layer_norm_eps",
    "pad_token_id",
)

# For each `hidden_act` of a teacher: the activation of the base graph, and the form of gelu.
ACTIVATIONS: dict[str, tuple[str, str]] = {
    "gelu": ("gelu", "erf"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", "tanh"),
    "silu": ("swish", "tanh"),
    "swish": ("swish", "tanh"),
}

# What loads a checkpoint from here on takes these classes, not the code in the checkpoint's folder.
AutoConfig.register("nas_bert", NasBertConfig)
for auto_class, model in STUDENTS.items():
    getattr(transformers, auto_class).register(NasBertConfig, model, exist_ok=True)


def config_of(architecture: Architecture, labels: int = 2, template: PretrainedConfig | None = None) -> NasBertConfig:
    """The Hugging Face configuration that describes `architecture` completely.

    Args:
        labels: the number of outputs.
        template: configuration, usually of the supernet or the teacher, from which settings outside the architecture
            are copied (label names, dropout, epsilon of LayerNorm, padding token). Without it, `BertConfig`'s defaults
            are used.
    """
    base = architecture.base
    ffn = []
    for genes in architecture.layers:
        inner = genes.inner(base)
        layer = {
            "formula": genes.formula,
            "program": [[node.op, list(node.inputs)] for node in genes.graph.nodes[1:]],
            "widths": list(genes.graph.widths(base.width, inner, base.mismatch)),
            "stack": genes.stack,
            "inner": inner,
        }
        if genes.experts != DENSE:
            layer["experts"] = expert_settings(genes.experts)
        ffn.append(layer)
    config = NasBertConfig(
        vocab_size=base.vocabulary,
        hidden_size=base.width,
        num_hidden_layers=base.depth,
        num_attention_heads=base.heads,
        intermediate_size=base.inner,
        hidden_act="gelu" if base.gelu == "erf" else "gelu_pytorch_tanh",
        max_position_embeddings=base.positions,
        type_vocab_size=base.token_types,
        num_labels=labels,
        ffn=ffn,
        gelu=base.gelu,
        mismatch=base.mismatch,
        embedding_size=base.embedding,
        attention_experts=base.attention_experts,
        head_experts=base.head_experts,
        gate_scale=base.gate_scale,
        router_jitter_noise=base.gate_jitter,
        capacity_per=base.capacity_per,
        auto_map=AUTO_MAP,
    )
    for name in INHERITED if template is not None else ():
        setattr(config, name, getattr(template, name))
    return config


def expert_settings(experts: Experts) -> dict[str, Any]:
    """The value of the key `experts` in a layer's entry of `NasBertConfig.ffn`."""
    capacity = None if experts.capacity is None else str(experts.capacity)
    return {"count": experts.count, "routing": experts.routing, "top_k": experts.top_k, "capacity": capacity}


class ExportError(UserError, ValueError):
    """A model cannot be exported."""


class SizeError(UserError, ValueError):
    """A model does not fit into memory."""


def check_memory(architecture: Architecture) -> None:
    """Check that the weights fit into this machine's memory, before any of it is allocated.

    Raises:
        SizeError: they do not.
    """
    params = cost.params_encoder(architecture)
    memory = physical_memory()
    if 4 * params > memory:
        raise SizeError(
            f"the architecture has {params:,} parameters, {4 * params / 1e9:,.0f} GB in float32, and this machine has "
            f"{memory / 1e9:,.0f} GB of memory: choose a smaller base"
        )


def added_operations() -> list[str]:
    """The operations that were added at run time. They belong to the cache key of whatever draws or measures all
    operations.
    """
    return sorted({*UNARY, *BINARY} - EXPORTED_OPERATIONS)


def check_exportable(architecture: Architecture) -> None:
    """Raise ExportError if a checkpoint of this architecture would lack code, see `export_fault`.

    Call this before training a model: otherwise `save_pretrained` raises only after the training.
    """
    ffn = config_of(architecture).ffn
    assert ffn is not None
    if fault := export_fault(ffn):
        raise ExportError(fault)


def build(
    architecture: Architecture,
    task_type: TaskType | None = classification.TYPE,
    labels: int = 2,
    template: PretrainedConfig | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> PreTrainedModel:
    """A model of `architecture` with the given weights, or with random ones.

    Args:
        task_type: what its head predicts; None: it has no head.
        labels, template: as for `config_of`.
        weights: a complete state dict, such as the one that `supernet.inherit.inherit` returns.

    Raises:
        SizeError: the model does not fit into this machine's memory.
    """
    check_memory(architecture)
    config = config_of(architecture, labels, template)
    student = student_class(task_type)
    if weights is None:
        return student(config)
    with no_init_weights():  # random weights take several times as long as the rest
        model = student(config)
    model.tie_weights()
    model.load_state_dict(weights, strict=True)
    return model


def student_class(task_type: TaskType | None) -> type[PreTrainedModel]:
    """The class of students for tasks of this type; None: without a head."""
    return STUDENTS["AutoModel" if task_type is None else task_type.model.__name__]


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` into `model`. Raises RuntimeError if names or shapes differ from the model's state dict."""
    model.load_state_dict(dict(weights), strict=True)


def set_dropout(model: PreTrainedModel, probability: float) -> None:
    """Set the probability of every dropout module of the model, and those in its configuration."""
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = probability
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def base_of_teacher(config: Any) -> tuple[Base, FFNGraph]:
    """The base and the base graph of a student that starts as a copy of a BERT with this configuration.

    Raises:
        TeacherError: the teacher's activation is not among the operations.
    """
    if config.hidden_act not in ACTIVATIONS:
        raise TeacherError(f"the teacher's hidden_act is {config.hidden_act!r}; supported are {', '.join(ACTIVATIONS)}")
    activation, gelu = ACTIVATIONS[config.hidden_act]
    base = Base(
        depth=config.num_hidden_layers,
        width=config.hidden_size,
        heads=config.num_attention_heads,
        inner=config.intermediate_size,
        vocabulary=config.vocab_size,
        positions=config.max_position_embeddings,
        token_types=config.type_vocab_size,
        gelu=gelu,
    )
    return base, FFNGraph.parse(f"project({activation}(expand(x)))")


def full_architecture(base: Base, graph: FFNGraph, stack: int) -> Architecture:
    """The architecture of the supernet: `stack` blocks of full width in every layer."""
    return Architecture.uniform(base, graph=graph, stack=stack)


def from_scratch(
    base: Base,
    stack: int,
    labels: int = 2,
    template: PretrainedConfig | None = None,
    task_type: TaskType | None = classification.TYPE,
) -> PreTrainedModel:
    """A supernet with random weights, for the base models of the papers."""
    return build(full_architecture(base, GELU, stack), task_type, labels, template)


def from_teacher(
    teacher: PreTrainedModel,
    stack: int,
    block_inputs: list[tuple[float, float]] | None = None,
    mismatch: str = "narrow",
) -> PreTrainedModel:
    """A supernet that approximates the function of its teacher, or computes exactly that if it has one block per layer.

    The lowest block of each layer is a copy of the teacher's FFN. Further blocks are initialised close to the identity:
    `project` is zero, and the weight and bias of their LayerNorm are the standard deviation and the mean of their
    input, averaged over tokens.

    Args:
        teacher: a BERT with any head, as `distill.training.teacher.load_model` checks and loads it.
        stack: number of blocks in every layer.
        block_inputs: standard deviation and mean of each layer's output, from `layer_output_statistics`; required if
            `stack` is above 1.
        mismatch: the setting of the supernet's base, see `Base`.

    Raises:
        TeacherError: the teacher's activation is not among the operations.
        ValueError: `block_inputs` are missing.
    """
    base, graph = base_of_teacher(teacher.config)
    base = replace(base, mismatch=mismatch)
    supernet = build(full_architecture(base, graph, stack), task_type_of(teacher), template=teacher.config)
    weights = supernet.state_dict()
    for name, tensor in teacher.state_dict().items():
        weights[_student_name(name)] = tensor.clone()
    if stack > 1:
        if block_inputs is None:
            raise ValueError("a supernet of several blocks needs block_inputs: layer_output_statistics(...)")
        for layer, (deviation, mean) in enumerate(block_inputs):
            for block in range(1, stack):
                prefix = f"bert.encoder.layer.{layer}.ffn.{block}."
                weights[prefix + "project.weight"] = torch.zeros_like(weights[prefix + "project.weight"])
                weights[prefix + "project.bias"] = torch.zeros_like(weights[prefix + "project.bias"])
                weights[prefix + "LayerNorm.weight"] = torch.full_like(weights[prefix + "LayerNorm.weight"], deviation)
                weights[prefix + "LayerNorm.bias"] = torch.full_like(weights[prefix + "LayerNorm.bias"], mean)
    load_weights(supernet, weights)
    return supernet


def _student_name(name: str) -> str:
    """The name in a `NasBertModel` of a parameter of transformers' BERT."""
    name = name.replace(".intermediate.dense.", ".ffn.0.expand.")
    if ".attention." not in name:
        name = name.replace(".output.dense.", ".ffn.0.project.").replace(".output.LayerNorm.", ".ffn.0.LayerNorm.")
    return name


@torch.no_grad()
def layer_output_statistics(teacher: PreTrainedModel, batches: list[dict[str, Tensor]]) -> list[tuple[float, float]]:
    """The standard deviation over channels and the mean of every layer's output, averaged over the valid tokens.

    Args:
        batches: tensors (B, T) by name, with an `attention_mask`.
    """
    totals = torch.zeros(teacher.config.num_hidden_layers, 2, dtype=torch.float64)
    tokens = 0
    for batch in batches:
        inputs = {name: batch[name] for name in INPUTS if name in batch}
        states = teacher(**inputs, output_hidden_states=True).hidden_states[1:]
        mask_BT = batch["attention_mask"].bool()
        tokens += int(mask_BT.sum())
        for layer, state_BTD in enumerate(states):
            valid_ND = state_BTD[mask_BT].double()
            totals[layer, 0] += valid_ND.std(dim=-1, unbiased=False).sum()
            totals[layer, 1] += valid_ND.mean(dim=-1).sum()
    return [(float(deviation), float(mean)) for deviation, mean in totals / tokens]

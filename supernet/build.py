"""Models from architectures, and supernets that are initialized from a teacher or with random weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from distill.encoders.family import family_of
from distill.encoders.heads import UNKNOWN, heads_of
from distill.encoders.parts import model_inputs
from distill.encoders.student.anatomy import SIZES, Family
from distill.encoders.student.ffn import EXPORTED_OPERATIONS
from distill.encoders.student.student import export_fault
from distill.encoders.students import class_of, student_config, student_family
from distill.tasks.types import CLASSIFICATION, TASK_TYPES, TaskType, task_type_of
from distill.tasks.types.embeddings import POOLING
from distill.training.reranker import SETTINGS
from distill.training.teacher import TeacherError
from foundation.errors import UserError
from foundation.memory import physical_memory
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import FFNGraph, base_graph
from search_spaces.layer import DENSE, Experts
from search_spaces.operations import BINARY, UNARY

# What a student takes from its teacher's configuration, in addition to the keys that its family names.
INHERITED = (
    "id2label",
    "label2id",
    "problem_type",
    "pad_token_id",
    "tie_word_embeddings",
    POOLING,
    SETTINGS,
)
# The values of an architecture for which only some families have the modules, and the keys of their configurations.
OF_SOME_FAMILIES = {"base.embedding": "embedding_size", "head.experts": "head_experts"}

# For each activation of a teacher: that of the base graph, and the form of gelu.
ACTIVATIONS: dict[str, tuple[str, str]] = {
    "gelu": ("gelu", "erf"),
    "gelu_new": ("gelu", "tanh"),
    "gelu_pytorch_tanh": ("gelu", "tanh"),
    "relu": ("relu", "tanh"),
    "silu": ("swish", "tanh"),
    "swish": ("swish", "tanh"),
}


def fields_of_family(family: Family) -> dict[str, Any]:
    """The fields of a base that follow from the family alone."""
    names = ("pre_norm", "biases", "norm_biases", "first_norm", "dense_heads", "dense_word_head")
    return {"embeddings_norm": bool(family.embeddings_norm)} | {name: getattr(family, name) for name in names}


def fields_of_heads(config: Any) -> dict[str, Any]:
    """The fields of a base that say how prediction heads pool, and whether the output embedding is tied."""
    return {
        "late_pooling": getattr(config, "classifier_pooling", None) == "late",
        "tied": getattr(config, "tie_word_embeddings", True),
    }


class BuildError(UserError, ValueError):
    """The students of a family of encoders cannot have an architecture."""


class ExportError(UserError, ValueError):
    """A model cannot be exported."""


class SizeError(UserError, ValueError):
    """A model does not fit into memory."""


def config_of(architecture: Architecture, num_labels: int = 2, template: PretrainedConfig | None = None) -> Any:
    """The Hugging Face configuration that describes `architecture` completely.

    Args:
        num_labels: the number of outputs.
        template: configuration, usually that of the supernet or the teacher, which determines the student's family and
            the settings outside the architecture (label names, dropout, epsilon of LayerNorm, padding token). Without
            it, the student is one of BERT with transformers' defaults. The student's heads are the leading ones of the
            template's.

    Raises:
        BuildError: the family has no modules for a value of the architecture.
    """
    base, family = architecture.base, student_family(template)
    heads = [layer.attention.heads for layer in architecture.layers]
    experts = [layer.attention.experts for layer in architecture.layers]
    config = student_config(
        family,
        **{key: getattr(base, name) for name, key in family.sizes.items()},
        **{family.activation_key: "gelu" if base.gelu == "erf" else "gelu_pytorch_tanh"},
        num_labels=num_labels,
        ffn=ffn_settings(architecture),
        gelu=base.gelu,
        mismatch=base.mismatch,
        attention_heads=None if set(heads) == {base.heads} else heads,
        kept_heads=_kept_heads(heads, base.heads, template),
        embedding_rank=architecture.embedding.rank,
        attention_experts=experts[0] if len(set(experts)) == 1 else experts,
        gate_scale=base.gate_scale,
        router_jitter_noise=base.gate_jitter,
        capacity_per=base.capacity_per,
        attention_capacity=None if base.attention_capacity is None else str(base.attention_capacity),
    )

    def refused(name: str, value: object) -> BuildError:
        of = f"students of encoders of the type {family.students_of!r}"
        return BuildError(f"{name} is {value}: {of} cannot have it")

    for key, name in family.unshared.items():
        setattr(config, key, getattr(base, name))
    for name, key in OF_SOME_FAMILIES.items():
        value = attrgetter(name)(architecture)
        if hasattr(config, key):
            setattr(config, key, (base.embedding or base.width) if key == family.embedding_size else value)
        elif value not in (None, 1):
            raise refused(name, value)
    if base.token_types and "token_types" not in family.sizes:
        raise refused("base.token_types", base.token_types)
    wanted = fields_of_family(family)
    if template is not None:
        wanted["relative_positions"] = family.relative_positions(template)
    for name, value in wanted.items():
        if getattr(base, name) != value:
            of = f"for students of encoders of the type {family.students_of!r}"
            raise BuildError(f"base.{name} must be {json.dumps(value)} {of}, not {json.dumps(getattr(base, name))}")
    tables = {"positions": family.size(config if template is None else template, "positions")}
    for name, size in (tables | {"position_biases": int(family.shares_position_biases)}).items():
        if bool(size) != bool(getattr(base, name)):
            raise refused(f"base.{name}", getattr(base, name))
    if base.embedding and base.trigrams == bool(family.embedding_size):
        raise refused("base.trigrams", str(base.trigrams).lower())
    if not family.experts and any(ffn.experts != DENSE for ffn in architecture.ffns):
        raise refused("ffn.experts.count", max(ffn.experts.count for ffn in architecture.ffns))
    if not family.attention_experts and set(experts) != {1}:
        raise refused("attention.experts", max(experts))
    if template is not None:
        for name in (*INHERITED, family.activation_key, *family.kept_keys):
            # transformers saves some keys of DeBERTa only where they are given; ModernBERT's pattern of layers is that
            # of its class for another depth.
            kept: Any = getattr(template, name, None)
            if hasattr(template, name) and (name != "layer_types" or len(kept) == base.depth):
                setattr(config, name, kept)
    if fault := family.fault(config):
        raise BuildError(f"students of encoders of the type {family.students_of!r}: {fault}")
    return config


def _kept_heads(counts: Sequence[int], most: int, template: PretrainedConfig | None) -> list[list[int]] | None:
    """`StudentConfig.kept_heads` of a student that has this many leading heads of each layer of the template; None too
    if that says nothing, as of a template with fewer heads. If the student is n times as deep, each of the template's
    layers is repeated n times in a row, as `supernet.cut` does.
    """
    if template is None or template.num_attention_heads != most:
        return None
    of_layers = heads_of(template)
    if len(set(of_layers)) == 1:
        of_layers = of_layers[:1]
    repeats, rest = divmod(len(counts), len(of_layers))
    if rest:
        return None
    kept = [list(of_layers[layer // repeats][:count]) for layer, count in enumerate(counts)]
    known = all(len(heads) == count and UNKNOWN not in heads for heads, count in zip(kept, counts, strict=True))
    return None if not known or all(heads == list(range(most)) for heads in kept) else kept


def ffn_settings(architecture: Architecture) -> list[dict[str, Any]]:
    """The value of `StudentConfig.ffn`."""
    base, result = architecture.base, []
    for ffn in architecture.ffns:
        inner = ffn.inner(base)
        settings = {
            "formula": ffn.formula,
            "program": [[node.op, list(node.inputs)] for node in ffn.graph.nodes[1:]],
            "widths": list(ffn.graph.widths(base.width, inner, base.mismatch)),
            "stack": ffn.stack,
            "inner": inner,
        }
        if ffn.experts != DENSE:
            settings["experts"] = expert_settings(ffn.experts)
        result.append(settings)
    return result


def expert_settings(experts: Experts) -> dict[str, Any]:
    """The value of the key `experts` in a layer's entry of `StudentConfig.ffn`."""
    capacity = None if experts.capacity is None else str(experts.capacity)
    return {"count": experts.count, "routing": experts.routing, "top_k": experts.top_k, "capacity": capacity}


def check_memory(architecture: Architecture) -> None:
    """Check that the weights fit into this machine's memory, before any memory is allocated.

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
    if fault := export_fault(ffn_settings(architecture)):
        raise ExportError(fault)


def build(
    architecture: Architecture,
    task_type: TaskType | None = TASK_TYPES[CLASSIFICATION],
    num_labels: int = 2,
    template: PretrainedConfig | None = None,
    weights: Mapping[str, Tensor] | None = None,
) -> PreTrainedModel:
    """A model of `architecture` with the given weights, or with random ones.

    Args:
        task_type: what its head predicts; None: it has no head.
        num_labels, template: as for `config_of`.
        weights: a complete state dict, such as the one that `supernet.inherit.inherit` returns.

    Raises:
        SizeError: the model does not fit into this machine's memory.
    """
    check_memory(architecture)
    config = config_of(architecture, num_labels, template)
    student = class_of(family_of(config), AutoModel if task_type is None else task_type.model)
    if weights is None:
        return student(config)
    with no_init_weights():  # random weights take several times as long as the rest
        model = student(config)
    model.tie_weights()
    model.load_state_dict(weights, strict=True)
    return model


def set_dropout(model: PreTrainedModel, probability: float) -> None:
    """Set the probability of every dropout of the model, and those in its configuration."""
    family = family_of(model)
    for name in filter(None, (*family.dropouts, family.head_dropout)):
        if getattr(model.config, name, None) is not None:  # otherwise it is another one
            setattr(model.config, name, probability)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        elif "attention_dropout" in vars(module):  # a number, in the attention of some families
            module.attention_dropout = probability


def base_of_teacher(config: Any) -> tuple[Base, FFNGraph]:
    """The base and the base graph of a student that starts as a copy of an encoder with this configuration.

    Raises:
        TeacherError: the teacher's activation is not among the operations.
    """
    family = family_of(config)
    name = getattr(config, family.activation_key)
    if name not in ACTIVATIONS:
        raise TeacherError(f"the teacher's {family.activation_key} is {name!r}; supported are {', '.join(ACTIVATIONS)}")
    activation, gelu = ACTIVATIONS[name]
    sizes: dict[str, Any] = {field: family.size(config, field) for field in {**SIZES, **family.sizes}}
    embedding = family.embedding(config)
    sizes |= {"relative_positions": family.relative_positions(config)}
    sizes |= fields_of_heads(config) | fields_of_family(family)
    base = Base(**sizes, embedding=embedding, trigrams=embedding is None, gelu=gelu)
    return base, base_graph(activation, bool(family.gate))


def from_teacher(
    teacher: PreTrainedModel,
    stack: int,
    block_inputs: list[tuple[float, float]] | None = None,
    mismatch: str = "narrow",
) -> PreTrainedModel:
    """A supernet that approximates its teacher's function, or computes exactly that function with one block per layer.

    The lowest block of each layer is a copy of the teacher's FFN. Further blocks are initialized close to the identity:
    `project` is zero, and, where it follows, the weight and bias of their LayerNorm are the standard deviation and the
    mean of their input, averaged over tokens.

    Args:
        teacher: an encoder with any head, as `distill.training.teacher.load_model` checks and loads it.
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
    supernet = build(Architecture.uniform(base, graph, stack), task_type_of(teacher), template=teacher.config)
    weights, family = supernet.state_dict(), family_of(supernet)
    for name, tensor in family_of(teacher).separated(teacher.state_dict()).items():
        weights[family_of(teacher).renamed(family, name)] = tensor.clone()
    if stack > 1:
        if block_inputs is None:
            raise ValueError("a supernet of several blocks needs block_inputs: layer_output_statistics(...)")
        for layer, (deviation, mean) in enumerate(block_inputs):
            for block in range(1, stack):
                project, norm = (
                    f"{family.prefix(weights)}{layer}.{path.format(block)}" for path in (family.project, family.norm)
                )
                for name, value in (("weight", deviation), ("bias", mean)):
                    if (of_project := f"{project}.{name}") in weights:
                        weights[of_project] = torch.zeros_like(weights[of_project])
                    if not family.pre_norm:
                        weights[f"{norm}.{name}"] = torch.full_like(weights[f"{norm}.{name}"], value)
    supernet.load_state_dict(weights)
    return supernet


@torch.no_grad()
def layer_output_statistics(teacher: PreTrainedModel, batches: list[dict[str, Tensor]]) -> list[tuple[float, float]]:
    """The standard deviation over channels and the mean of every layer's output, averaged over the valid tokens.

    Args:
        batches: tensors (B, T) by name, with an `attention_mask`.
    """
    totals = torch.zeros(teacher.config.num_hidden_layers, 2, dtype=torch.float64)
    tokens = 0
    for batch in batches:
        states = teacher(**model_inputs(teacher, batch), output_hidden_states=True).hidden_states[1:]
        mask_BT = batch["attention_mask"].bool()
        tokens += int(mask_BT.sum())
        for layer, state_BTD in enumerate(states):
            valid_ND = state_BTD[mask_BT].double()
            totals[layer, 0] += valid_ND.std(dim=-1, unbiased=False).sum()
            totals[layer, 1] += valid_ND.mean(dim=-1).sum()
    return [(float(deviation), float(mean)) for deviation, mean in totals / tokens]

"""Reads the weights of checkpoints: all that a model needs must be in the files, with its shapes, and finite."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from distill.files import read_json
from search_spaces.architecture import LARGEST
from search_spaces.errors import UserError, shortened

# What transformers raises for damaged files of a checkpoint, depending on the damage.
UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ArithmeticError),
    *(SafetensorError, StrictDataclassError),
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# The sizes in a configuration, with the names that search_spaces has for them.
SIZES = {
    "num_hidden_layers": "depth",
    "hidden_size": "width",
    "num_attention_heads": "heads",
    "intermediate_size": "inner",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
}
LARGEST_CLASSES = 65_536


class WeightsError(UserError, ValueError):
    """The files of a checkpoint cannot be read, or do not have the weights of the model that they describe."""


def reason(error: BaseException) -> str:
    """The first line of an error's text, or its type."""
    lines = str(error).strip().splitlines()
    return lines[0][:300] if lines else type(error).__name__


def check_config(config: Any) -> None:
    """Check that the sizes and the names in a Hugging Face configuration are such as an encoder has.

    Raises:
        WeightsError: one is not.
    """
    for name, value in (("architectures", config.architectures or ()), ("id2label", config.id2label.values())):
        if not isinstance(value, Iterable) or not all(isinstance(item, str) for item in value):
            raise WeightsError(f"config.json: {name} must be names, not {shortened(getattr(config, name))}")
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"):
        value = getattr(config, name, None)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise WeightsError(f"config.json: {name} must be from 0 to 1, not {shortened(value)}")
    bounds = {name: LARGEST[own] for name, own in SIZES.items()} | {"num_labels": LARGEST_CLASSES}
    for name, largest in bounds.items():
        value = getattr(config, name, None)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
            raise WeightsError(f"config.json: {name} must be from 1 to {largest:,}, not {shortened(value)}")
    if config.hidden_size % config.num_attention_heads:
        heads = config.num_attention_heads
        raise WeightsError(f"config.json: {heads} num_attention_heads do not divide the hidden_size")
    pad = getattr(config, "pad_token_id", None)
    if pad is not None and not (isinstance(pad, int) and 0 <= pad < config.vocab_size):
        raise WeightsError(f"config.json: pad_token_id must be below the vocab_size, not {shortened(pad)}")
    if set(config.id2label) != set(range(config.num_labels)):
        raise WeightsError(f"config.json: id2label must name the classes 0 to {config.num_labels - 1}")


def load_weights(model_class: Any, source: str, config: Any, *, new_head: bool = True) -> tuple[PreTrainedModel, Any]:
    """Load a model in float32 with the weights of a checkpoint; returns it with transformers' loading info.

    Args:
        model_class: a class of transformers, or one of its `AutoModelFor...`.
        source: a folder, or a name on the hub.
        new_head: whether what is outside the encoder may be missing or of another shape. It is then newly initialised,
            as is a missing pooler.

    Raises:
        WeightsError: there are no readable weights, some are missing, of another shape, or not finite.
    """
    check_config(config)
    if (Path(source) / WEIGHTS).exists() or (Path(source) / INDEX).exists():
        stored = dict(_shapes(Path(source)))
        # Before memory is allocated for a model that the files do not contain.
        _check(_empty(model_class, config), stored, new_head)
    try:
        model, info = model_class.from_pretrained(
            source,
            config=config,
            dtype=torch.float32,
            ignore_mismatched_sizes=new_head,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except UNREADABLE as error:
        raise WeightsError(reason(error)) from None
    lacking = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    for name in lacking:
        if _needed(model, name, new_head):
            raise WeightsError(f"{name} is missing, or of another shape than config.json says")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise WeightsError(f"{name} has values that are not finite")
    return model, info


def _needed(model: PreTrainedModel, name: str, new_head: bool) -> bool:
    prefix = f"{model.base_model_prefix}."
    return not new_head or (name.startswith(prefix) and not name.startswith(f"{prefix}pooler."))


def _empty(model_class: Any, config: Any) -> PreTrainedModel:
    """The model without memory for its weights."""
    make = getattr(model_class, "from_config", model_class)
    try:
        with torch.device("meta"), no_init_weights():
            model: PreTrainedModel = make(config)
    except UNREADABLE as error:
        raise WeightsError(f"config.json describes no model: {reason(error)}") from None
    return model


def _check(model: nn.Module, stored: dict[str, tuple[int, ...]], new_head: bool) -> None:
    """Check that the files have a weight of the right shape wherever a model needs one. Old checkpoints may have other
    names, which `from_pretrained` translates, so only the sum of the sizes is compared.
    """
    assert isinstance(model, PreTrainedModel)
    needed = sum(value.numel() for name, value in model.named_parameters() if _needed(model, name, new_head))
    present = sum(torch.Size(shape).numel() for shape in stored.values())
    if needed > present:
        raise WeightsError(f"config.json describes {needed:,} weights, and the files have {present:,}")


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of all tensors in the safetensors files of a checkpoint.

    Raises:
        WeightsError: one cannot be read, or the index names a file elsewhere.
    """
    names = {WEIGHTS}
    if not (folder / WEIGHTS).exists():
        index = read_json(folder / INDEX)
        places = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
            raise WeightsError(f"{INDEX} has no weight_map from tensors to files")
        names = set(places.values())
        for name in names:
            if Path(name).name != name:
                raise WeightsError(f"{INDEX} names {shortened(name)}, which is not a file of this folder")
    for name in sorted(names):
        try:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (it is no mapping)
                    yield key, tuple(file.get_slice(key).get_shape())
        except UNREADABLE as error:
            raise WeightsError(f"{name}: {reason(error)}") from None

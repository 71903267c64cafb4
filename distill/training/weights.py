"""Reads the weights of checkpoints: all that a model needs must be in the files, with its shapes, and finite."""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from distill.encoders.family import family_of
from distill.encoders.unshare import shared_config, unshared
from distill.training.model_folder import wrapped
from foundation.errors import UserError, reason, shortened
from foundation.files import read_json
from search_spaces.base import LARGEST, MAY_BE_ZERO

# What transformers raises for damaged files of a checkpoint, depending on the damage.
UNREADABLE = (
    *(OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ArithmeticError),
    *(SafetensorError, StrictDataclassError),
)
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_CLASSES = 65_536


class WeightsError(UserError, ValueError):
    """The files of a checkpoint cannot be read, the configuration has a value that no encoder has, or the weights are
    not those of the model that it describes.
    """


def check_config(config: Any) -> None:
    """Check that sizes, dropout probabilities, token ids and names in a Hugging Face configuration are those of an
    encoder.

    Raises:
        WeightsError: one is not.
    """
    names, labels = config.architectures or [], config.id2label
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise WeightsError(f"config.json: architectures must be a list of strings, not {shortened(names)}")
    if not all(isinstance(label, str) for label in labels.values()):
        raise WeightsError(f"config.json: the values of id2label must be strings, not {shortened(labels)}")
    family = family_of(config)
    for name in filter(None, (*family.dropouts, family.head_dropout)):
        value = getattr(config, name, None)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise WeightsError(f"config.json: {name} must be from 0 to 1, not {shortened(value)}")
    bounds = {key: LARGEST[name] for name, key in family.sizes.items()} | {"num_labels": MAX_CLASSES}
    may_be_zero = [family.sizes.get(name) for name in MAY_BE_ZERO]
    for name, largest in bounds.items():
        value = getattr(config, name, None)
        _check_whole(name, value, int(name not in may_be_zero), largest)
    width, heads = (family.size(config, name) for name in ("width", "heads"))
    if width % heads:
        keys = family.sizes
        raise WeightsError(f"config.json: {keys['width']} {width} must be a multiple of {keys['heads']} {heads}")
    pad = getattr(config, "pad_token_id", None)
    if pad is not None:
        _check_whole("pad_token_id", pad, 0, config.vocab_size - 1)
    if set(labels) != set(range(config.num_labels)):
        raise WeightsError(
            f"config.json: id2label must name the classes 0 to {config.num_labels - 1}, not {shortened(list(labels))}"
        )


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise WeightsError(
            f"config.json: {name} must be a whole number from {least} to {most:,}, not {shortened(value)}"
        )


def load_weights(model_class: Any, source: str, config: Any, *, strict: bool = False) -> tuple[PreTrainedModel, Any]:
    """Load a model in float32 with the weights of a checkpoint; returns it with transformers' loading info.

    Args:
        model_class: a class of transformers, or one of its `AutoModelFor...`.
        source: a folder, or a name on the hub.
        strict: whether all weights must be there. Otherwise only those of the base model must, except the pooler's; a
            pooler or head that is missing or of another shape is newly initialized.

    Raises:
        WeightsError: as `check_config`; or there are no readable weights, some are missing, of another shape, or not
            finite.
    """
    check_config(config)
    if (Path(source) / WEIGHTS).exists() or (Path(source) / INDEX).exists():
        # Before memory is allocated for a model that the files do not contain.
        _check_size(model_class, shared_config(config, source), Path(source), strict)
    try:
        model, info = model_class.from_pretrained(
            source,
            config=shared_config(config, source),
            dtype=torch.float32,
            ignore_mismatched_sizes=not strict,
            output_loading_info=True,
            trust_remote_code=False,
        )
    except (UnpicklingError, EOFError):  # whose text proposes to run the code
        raise WeightsError(
            "pytorch_model.bin is damaged, or holds more than tensors, which could run code and is not read; save the "
            "model as safetensors"
        ) from None
    except UNREADABLE as error:
        raise WeightsError(reason(error)) from None
    lacking = sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
    for name in lacking:
        if _needed(model, name, strict):
            why = wrapped(name, info["unexpected_keys"])
            raise WeightsError(f"{name} is missing, or of another shape than config.json says{why}")
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise WeightsError(f"{name} has values that are not finite")
    return unshared(model, config), info


def _needed(model: PreTrainedModel, name: str, strict: bool) -> bool:
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    return strict or (name.startswith(prefix) and not name.startswith(f"{prefix}pooler."))


def _check_size(model_class: Any, config: Any, folder: Path, strict: bool) -> None:
    """Check that the files have at least as many values as the model needs. Names and shapes are compared after
    loading, because `from_pretrained` translates the names of old checkpoints.
    """
    try:
        with torch.device("meta"), no_init_weights():
            model: PreTrainedModel = getattr(model_class, "from_config", model_class)(config)
            model.tie_weights()  # what the files have once
    except UNREADABLE as error:
        raise WeightsError(f"config.json describes no model: {reason(error)}") from None
    needed = sum(value.numel() for name, value in model.named_parameters() if _needed(model, name, strict))
    present = sum(dict(_sizes(folder)).values())
    if needed > present:
        raise WeightsError(f"config.json describes {needed:,} weights, and the files have {present:,}")


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    """The names of all tensors, and the numbers of their values, in the safetensors files of a checkpoint.

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
                    yield key, prod(file.get_slice(key).get_shape())
        except UNREADABLE as error:
            raise WeightsError(f"{name}: {reason(error)}") from None

"""What a model's folder says, and would be passed over: why it cannot be read, what is refused, and what gets a line.
A description is "" if there is nothing to say.
"""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from distill.encoders.family import family_of
from foundation.errors import UserError
from foundation.files import read_json

# Buffers that older versions saved with the weights.
BUFFERS = ("position_ids", "token_type_ids", "inv_freq")
WRAPPERS = {
    "module.": "DataParallel: save its attribute module",
    "_orig_mod.": "torch.compile: save the model itself",
    "base_model.model.": "peft: save what merge_and_unload returns",
}


def why_unreadable(source: str, folder: Path) -> str:
    """Why there is no model at this place, if it is a place on this machine."""
    if folder.is_file():
        return f"it is a file; give its folder, {folder.parent}"
    if not folder.is_dir():
        is_path = (
            source.startswith((".", "/", "~")) or source.count("/") > 1 or ("/" in source and folder.parent.is_dir())
        )
        return "there is no such folder" * is_path
    inner = sorted(file.parent.name for file in folder.glob("*/config.json") if _has_type(file))
    if (folder / "config.json").is_file() and (_has_type(folder / "config.json") or not inner):
        return ""
    if inner:
        return f"the model is in its folder {inner[0]!r}: give {folder / inner[0]}"
    names = ", ".join(sorted(file.name for file in folder.iterdir())[:10]) or "nothing"
    return f"the folder has no config.json; it has {names}"


def _has_type(file: Path) -> bool:
    try:
        config = read_json(file)
    except UserError:  # its own reader says what is wrong with it
        return True
    return isinstance(config, dict) and "model_type" in config


def unsupported(config: Any, folder: Path) -> str:
    """What the configuration or the folder has that would not be computed."""
    if any(folder.glob("adapter_*")) or any(folder.glob("*/adapter_config.json")):
        return (
            "is an adapter, or has one, which is not read: merge it into its model (merge_and_unload of peft), save "
            "that, and give its folder"
        )
    if getattr(config, "pruned_heads", None):
        return (
            "has pruned_heads in its config.json, which transformers no longer reads: give the model before its heads "
            "were pruned, and prune it here"
        )
    positions, family = getattr(config, "position_embedding_type", None), family_of(config)
    if positions not in (None, "absolute") and family.has_positions is True and not family.rotary:
        return (
            f"has position_embedding_type {positions!r} in its config.json, which transformers no longer computes for "
            f"the type {config.model_type!r}"
        )
    return ""


def unused(model: Any, names: Collection[str]) -> tuple[list[str], list[str]]:
    """Of the names of weights in a file that a model does not have, those in the encoder's layers, and all others that
    are in the encoder.
    """
    family, prefix = family_of(model), f"{model.base_model_prefix}."
    children = {name for name, _ in model.base_model.named_children()} - {"pooler"}
    inner = {name: name.removeprefix(prefix) for name in sorted(names) if not name.endswith(BUFFERS)}
    in_layers = [name for name, inside in inner.items() if inside.startswith(f"{family.layers}.")]
    others = [name for name, inside in inner.items() if inside.split(".")[0] in children and name not in in_layers]
    return in_layers, others


def wrapped(lacking: str, names: Collection[str]) -> str:
    """In what a model was when it was saved, if a weight that it lacks has a longer name in the file."""
    longer = min((name for name in names if name.endswith(f".{lacking}")), default="")
    kinds = (f": it was saved from inside {why}" for start, why in WRAPPERS.items() if longer.startswith(start))
    return f"; the file has {longer}{next(kinds, '')}" if longer else ""


def tokenizer_notes(tokenizer: Any, config: Any) -> list[str]:
    """Lines about a tokenizer that does not fit its model."""
    result = []
    if tokenizer.num_special_tokens_to_add() == 0:
        result.append("its tokenizer adds no special tokens such as [CLS]")
    if config.pad_token_id not in (None, tokenizer.pad_token_id):
        result.append(
            f"its tokenizer pads with the token id {tokenizer.pad_token_id}, and pad_token_id of its config.json is "
            f"{config.pad_token_id}"
        )
    normalizer, words = tokenizer.backend_tokenizer.normalizer, tokenizer.get_vocab()
    if normalizer is not None and normalizer.normalize_str("A") == "a":
        special = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
        cased = [word for word in words if word != word.lower() and not re.fullmatch(r"\[.*\]|<.*>", word)]
        if (count := len(set(cased) - special)) > len(words) // 1000:
            result.append(
                f"its tokenizer lower-cases text, so that it never finds {count:,} of {len(words):,} tokens, which "
                "have capital letters: do_lower_case in one of its files may be wrong"
            )
    return result

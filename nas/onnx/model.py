"""ONNX models: export, inference, and the check that they compute what the torch model computes."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from distill.encoders.family import family_of
from distill.encoders.parts import model_inputs
from distill.objectives.outputs import Batch
from distill.tasks.types import TaskType, task_type_of
from supernet.build import ExportError

TOLERANCE = 1e-4
VECTORS = "sentence_embedding"
# The sizes of the batches on which ONNX is compared with torch, as (sentences, tokens), where the model can read so
# many. Eager attention takes memory with the square of the tokens: 1 GB for a layer and two sentences of 2,048.
SIZES = ((1, 1), (1, 8), (3, 13), (8, 32), (2, 1_024))
_EXAMPLE = (3, 7)


def check_installed() -> None:
    """Raise ExportError if the packages of the extra `onnx` are not installed."""
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            import_module(name)
    except ImportError as error:
        raise ExportError(f"{error}: ONNX needs the extra onnx: pip install 'ffn-nas[onnx]'") from None


def version() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


class _ByPosition(nn.Module):
    """A model with positional inputs and a tuple of outputs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model
        self.task_type = type_of_head(model)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        batch = dict(zip(family_of(self.model).inputs(self.model.config), inputs, strict=True))
        outputs = self.model(**batch)
        if self.task_type.pool is not None:
            return (self.task_type.logits(outputs, batch, self.model.config),)
        return tuple(outputs[name] for name in self.task_type.outputs)


def output_names(task_type: TaskType) -> tuple[str, ...]:
    """The names of an ONNX model's outputs: the torch model's, or that of the vectors of a sentence encoder."""
    return task_type.outputs if task_type.pool is None else (VECTORS,)


def type_of_head(model: PreTrainedModel) -> TaskType:
    """The task type of a model with a head; only such models are exported."""
    task_type = task_type_of(model)
    assert task_type is not None
    return task_type


def export_onnx(model: PreTrainedModel, path: Path) -> None:
    """Write a model in eval mode as one ONNX file. The number of sentences and their length are dynamic.

    The inputs are those of `Family.inputs`, int64 (B, T); the output is `logits`, `start_logits` and `end_logits` of a
    model for question answering, or `sentence_embedding` of a sentence encoder.
    """
    batch = padded_batch(model.config, *_EXAMPLE)
    longest = family_of(model).positions(model.config)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
    # The eager attention becomes plain products and a softmax; the fused one comes with a case for rows without tokens.
    attention = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad(), quiet():
            program = torch.onnx.export(
                _ByPosition(model).eval(),
                tuple(batch.values()),
                dynamo=True,
                verbose=False,
                input_names=list(batch),
                output_names=list(output_names(type_of_head(model))),
                dynamic_shapes=((axes,) * len(batch),),
            )
            assert program is not None
            # Where each node comes from, with paths of this machine, is a large part of a small file.
            for node in program.model.graph.all_nodes():
                node.metadata_props.clear()
            program.save(path, external_data=False)
    finally:
        model.set_attn_implementation(attention)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence what the libraries say about themselves: about missing torchvision, and about names of axes."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            for category in (UserWarning, FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        logging.disable(before)


def padded_batch(config: Any, sentences: int, tokens: int) -> Batch:
    """Random sentences whose lengths differ: the first has `tokens` tokens, the last of several has one."""
    generator = torch.Generator().manual_seed(tokens)
    lengths = torch.linspace(tokens, 1, sentences).long()
    mask_BT = (torch.arange(tokens) < lengths[:, None]).long()
    padding = config.pad_token_id or 0
    ids_BT = torch.randint(config.vocab_size, (sentences, tokens), generator=generator)
    family = family_of(config)
    types_BT = torch.randint(max(1, family.size(config, "token_types")), (sentences, tokens), generator=generator)
    batch = {
        "input_ids": torch.where(mask_BT.bool(), ids_BT, padding),
        "attention_mask": mask_BT,
        "token_type_ids": types_BT * mask_BT,
    }
    return model_inputs(config, batch)


class OnnxModel:
    """An ONNX model in onnxruntime on the CPU, with as many threads as torch uses.

    Args:
        profiles: a folder in which onnxruntime writes how long each node takes.
    """

    def __init__(self, path: Path, profiles: Path | None = None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        if profiles is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(profiles / path.stem)
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(self, batch: Batch) -> list[Tensor]:
        """All outputs for a batch, of which only the model's inputs are used."""
        inputs = {node.name: batch[node.name].numpy() for node in self.session.get_inputs()}
        return [torch.from_numpy(array) for array in self.session.run(None, inputs)]

    def logits(self, batch: Batch) -> Tensor:
        """The logits, in the shape that `distill.tasks.types.base.TaskType` documents."""
        outputs = self.run(batch)
        return torch.stack(outputs, dim=1) if len(outputs) > 1 else outputs[0]


@torch.inference_mode()
def verify(model: PreTrainedModel, onnx: OnnxModel) -> float:
    """Compare an ONNX model with the torch model on batches of several sizes, with padding, and return the largest
    difference of a logit.

    Raises:
        ExportError: a difference exceeds `TOLERANCE`, absolute or relative to the logit, whichever is larger.
    """
    known = type_of_head(model)
    largest, longest = 0.0, family_of(model).positions(model.config)
    for sentences, tokens in SIZES:
        batch = padded_batch(model.config, sentences, min(tokens, longest))
        expected = known.logits(model(**batch), batch, model.config)
        actual = onnx.logits(batch)
        real = _real(expected, known, batch)
        differences = (actual - expected).abs()[real]
        bound = TOLERANCE * expected.abs()[real].clamp(min=1)
        if not bool((differences <= bound).all()):
            shape = " x ".join(map(str, batch["input_ids"].shape))
            raise ExportError(
                f"the ONNX model differs from the torch model by {float(differences.max()):.2g} on a batch of {shape} "
                f"tokens, which is more than {TOLERANCE}; this is a bug in the export, and nothing was written"
            )
        largest = max(largest, float(differences.max()))
    return largest


def _real(logits: Tensor, known: TaskType, batch: Batch) -> Tensor:
    """True for the logits that are not of padding."""
    mask_BT = batch["attention_mask"].bool()
    if known.of_positions:
        mask_BT = mask_BT[:, None]
    elif logits.dim() == 3:
        mask_BT = mask_BT[..., None]
    else:
        return torch.ones_like(logits, dtype=torch.bool)
    return mask_BT.expand_as(logits)

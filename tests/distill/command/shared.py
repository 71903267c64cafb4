"""What the tests of `python -m distill` share."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor
from transformers import BertTokenizerFast

ROOT = Path(__file__).parents[3]
WORDS = [f"w{number}" for number in range(45)]
CLASSES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
TAGS = {0: "O", 1: "B-X", 2: "I-X"}
FOUR = {"num_hidden_layers": 4, "max_position_embeddings": 40}
# Runs the command in this process and returns what was measured.
Distil = Callable[..., dict[str, Any]]


def with_tokenizer(model: Any, folder: Path, words: list[str] = WORDS) -> None:
    model.save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

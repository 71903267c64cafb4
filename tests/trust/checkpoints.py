"""The tokenizer of tiny checkpoints, and changes of their settings."""

import json
from pathlib import Path

from transformers import BertTokenizerFast

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]


def save_tokenizer(folder: Path) -> None:
    """Save a tokenizer of `WORDS` to the folder of a checkpoint."""
    BertTokenizerFast(vocab={word: number for number, word in enumerate(WORDS)}).save_pretrained(folder)


def changed(file: Path, **settings: object) -> None:
    """Change settings in a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))

"""What a model's folder says, and would be passed over."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertTokenizerFast

from distill.training.teacher import TeacherError, load_config, load_model, load_tokenizer, load_unchanged
from foundation.errors import UserError
from tests.tiny import bert, saved

Weights = dict[str, Tensor]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcd"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT with a classifier of two classes, and its tokenizer."""
    return saved(bert(1, labels=2), tmp_path / "model", "abcd")


def load(folder: Path) -> None:
    load_tokenizer(str(folder))
    load_model(str(folder), ("a", "b"), new_head=False)


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def renamed(start: str) -> Callable[[Weights], Weights]:
    return lambda weights: {start + name: tensor for name, tensor in weights.items()}


def with_lora(weights: Weights) -> Weights:
    return weights | {"bert.encoder.layer.0.attention.self.query.lora_A.default.weight": torch.ones(2, 24)}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (renamed("module."), "the file has module.bert.* saved from inside DataParallel: save its attribute module"),
        (renamed("_orig_mod."), "the file has _orig_mod.bert.* saved from inside torch.compile"),
        (renamed("base_model.model."), "saved from inside peft: save what merge_and_unload returns"),
        (renamed("model."), "is missing, or .*; the file has model.bert.embeddings"),
        (with_lora, "has weights that would not be used, such as bert.encoder.layer.0.attention.self.query.lora_A"),
    ],
)
def test_weights_that_are_not_the_models(changed: Callable[[Weights], Weights], said: str, folder: Path) -> None:
    load(folder)
    file = folder / "model.safetensors"
    save_file(changed(load_file(file)), file, metadata={"format": "pt"})
    for read in (load, lambda folder: load_unchanged(str(folder))):
        with pytest.raises(TeacherError, match=said):
            read(folder)


def test_an_encoder_without_a_head_has_all_weights_but_the_poolers(folder: Path) -> None:
    bert(1).base_model.save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    without_pooler = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    save_file(without_pooler, file, metadata={"format": "pt"})
    assert load_unchanged(str(folder)).pooler is None
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(TeacherError, match=r"encoder.layer.1.output.dense.bias is missing"):
        load_unchanged(str(folder))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_hidden_layers": 1}, "has weights that would not be used, such as bert.encoder.layer.1."),
        ({"position_embedding_type": "relative_key"}, "has position_embedding_type 'relative_key' in its config.json"),
        ({"position_embedding_type": "alibi"}, "has position_embedding_type 'alibi' in its config.json"),
        ({"pruned_heads": {"0": [1]}}, "has pruned_heads in its config.json"),
    ],
)
def test_what_a_configuration_says(settings: dict[str, Any], said: str, folder: Path) -> None:
    change(folder / "config.json", **settings)
    with pytest.raises(TeacherError, match=re.escape(said)):
        load(folder)


def test_weights_of_the_embedding_that_are_not_used_get_a_line(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = folder / "model.safetensors"
    more = {
        "bert.embeddings.task_embeddings.weight": torch.ones(2, 24),
        "bert.embeddings.position_ids": torch.ones(1, 20),
    }
    save_file(load_file(file) | more, file, metadata={"format": "pt"})
    load(folder)
    assert "the weights bert.embeddings.task_embeddings.weight of its encoder are not used" in caplog.text


def test_places_without_a_model(folder: Path, tmp_path: Path) -> None:
    inner = tmp_path / "sentence" / "0_Transformer"
    shutil.copytree(folder, inner)
    (inner.parent / "modules.json").write_text("[]")
    (inner.parent / "config.json").write_text('{"__version__": "0.2"}')
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "model.safetensors").touch()
    for place, said in (
        (tmp_path / "nowhere", "there is no such folder"),
        ("./nowhere", "there is no such folder"),
        (folder / "config.json", f"it is a file; give its folder, {folder}"),
        (inner.parent, f"the model is in its folder '0_Transformer': give {inner}"),
        (tmp_path / "adapter", "it is an adapter: merge it into its model"),
        (tmp_path / "none", "the folder has no config.json; it has model.safetensors"),
    ):
        with pytest.raises(UserError, match=re.escape(f"no model at '{place}': {said}")):
            load_config(str(place))
    (folder / "adapter_model.safetensors").touch()
    with pytest.raises(TeacherError, match="is an adapter, or has one"):
        load_config(str(folder))


def test_tokenizers(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load_tokenizer(str(folder)).model_max_length == 20  # the positions
    change(folder / "config.json", pad_token_id=7)
    load_tokenizer(str(folder))
    assert "its tokenizer pads with the token id 0, and pad_token_id of its config.json is 7" in caplog.text
    cased = {word: number for number, word in enumerate([*WORDS, "Paris", "Rome", "rome"])}
    BertTokenizerFast(vocab=cased, do_lower_case=False).save_pretrained(folder)
    load_tokenizer(str(folder))
    assert "lower-cases" not in caplog.text
    other = folder.rename(folder.parent / "other")
    BertTokenizerFast(vocab=cased, do_lower_case=True).save_pretrained(other)
    load_tokenizer(str(other))
    assert "lower-cases text, so that it never finds 2 of 12 tokens" in caplog.text
    file = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(file | {"post_processor": None}))
    (other / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(TeacherError, match=r"has no padding token: set pad_token in its tokenizer_config.json"):
        load_tokenizer(str(other))
    (other / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}')
    load_tokenizer(str(other))
    assert "adds no special tokens such as [CLS]" in caplog.text

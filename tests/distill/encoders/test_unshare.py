"""Teachers that share weights, and the same models with weights of their own in every layer and head."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForSequenceClassification,
    EuroBertConfig,
    EuroBertForMaskedLM,
    EuroBertForSequenceClassification,
)

from distill.tasks.types import task_type_of
from distill.training.teacher import TeacherError, load_config, load_model
from search_spaces import Architecture, cost
from supernet.build import base_of_teacher, from_teacher
from tests.tiny import batch, shaken

SIZES = {
    **{"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48},
    **{"max_position_embeddings": 32, "num_labels": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
}


def albert(cls: type = AlbertForSequenceClassification, groups: int = 1, **settings: Any) -> Any:
    return shaken(cls(AlbertConfig(**{**SIZES, "embedding_size": 16, "num_hidden_groups": groups, **settings}))).eval()


def eurobert(cls: type = EuroBertForSequenceClassification, heads: int = 2, **settings: Any) -> Any:
    config = EuroBertConfig(**{**SIZES, "num_key_value_heads": heads, "mask_token_id": 3, **settings})
    return shaken(cls(config)).eval()


def logits(model: Any) -> torch.Tensor:
    given = {name: tensor for name, tensor in batch().items() if name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return model(**given).logits[given["attention_mask"].bool()] if model.config.is_mlm else model(**given).logits


@pytest.mark.parametrize(
    ("model", "key", "count"),
    [
        (albert(), "num_hidden_groups", 4),
        (albert(groups=2), "num_hidden_groups", 4),
        (albert(groups=4), "num_hidden_groups", 4),
        (albert(AlbertForMaskedLM), "num_hidden_groups", 4),
        (eurobert(), "num_key_value_heads", 4),
        (eurobert(heads=1), "num_key_value_heads", 4),
        (eurobert(EuroBertForMaskedLM), "num_key_value_heads", 4),
        (eurobert(EuroBertForMaskedLM, tie_word_embeddings=True), "num_key_value_heads", 4),
    ],
)
def test_teachers_compute_what_they_did(model: Any, key: str, count: int, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    assert getattr(load_config(str(tmp_path)), key) == count
    task = task_type_of(model)
    assert task is not None
    loaded = load_model(str(tmp_path), ["LABEL_0", "LABEL_1"], task.name, new_head=False).eval()
    assert getattr(loaded.config, key) == count
    model.config.is_mlm = loaded.config.is_mlm = task.name == "masked_lm"
    assert torch.allclose(logits(loaded), logits(model), atol=1e-5)
    base, _ = base_of_teacher(loaded.config)
    student = from_teacher(loaded, stack=1).eval()
    student.config.is_mlm = loaded.config.is_mlm
    assert torch.allclose(logits(student), logits(model), atol=1e-5)
    architecture = Architecture.uniform(base, base_of_teacher(loaded.config)[1])
    sizes = [sum(parameter.numel() for parameter in each.parameters()) for each in (loaded, student)]
    assert sizes == [cost.params(architecture, 2, task.head)] * 2


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (albert(groups=3), "num_hidden_groups is 3, which does not divide num_hidden_layers, 4; such models"),
        (albert(inner_group_num=2), "inner_group_num must be 1"),
        (albert(embedding_size=24), "embedding_size is hidden_size"),
        (eurobert(attention_bias=True), "attention_bias must be false"),
        (eurobert(head_dim=8), "head_dim must be 6"),
    ],
)
def test_what_is_not_supported(model: Any, said: str, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=said):
        load_config(str(tmp_path))

"""A tiny sentence encoder and a tiny reranker, as sentence-transformers saves them."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

from tests import requirements
from tests.nas.tiny_study import TinyStudy
from tests.tiny import shaken

PROMPTS = {"query": "ba: ", "document": "do: "}


def become_sentence_encoder(folder: Path, head: str | None = None) -> Path:
    """Write modules that pool the states of the encoder in this folder.

    Args:
        head: see `names_head`.
    """
    kinds = {"Transformer": "", "Pooling": "1_Pooling"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder if head is None else names_head(folder, head)


def names_head(folder: Path, head: str) -> Path:
    """Let the config.json of an encoder name this class, as many on the hub do, such as all-mpnet-base-v2."""
    config = json.loads((folder / "config.json").read_text()) | {"architectures": [head]}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def encoder(folder: Path, kind: str = "SentenceTransformer", **settings: Any) -> Any:
    """What sentence-transformers loads from the folder."""
    requirements.module("sentence_transformers", "demo")
    import sentence_transformers

    return getattr(sentence_transformers, kind)(str(folder), device="cpu", **settings)


def save_sentence_encoder(study: TinyStudy, folder: Path, mode: str = "mean", dense: int | None = None) -> Any:
    """Save a random sentence encoder with the tokenizer of the tiny study; returns the SentenceTransformer.

    Args:
        mode: of its pooling.
        dense: the width of the vectors after a further module; None: there is none.
    """
    requirements.module("sentence_transformers", "demo")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    plain = folder.with_name(f"{folder.name}-plain")
    config = BertConfig.from_pretrained(study.teacher)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        shaken(BertModel(config), seed=1, scale=0.1).save_pretrained(plain)
        AutoTokenizer.from_pretrained(study.teacher).save_pretrained(plain)
        modules: list[Any] = [Transformer(str(plain), max_seq_length=24), Pooling(config.hidden_size, mode)]
        modules += [Dense(config.hidden_size, dense)] if dense else []
        made = SentenceTransformer(modules=[*modules, Normalize()], prompts=PROMPTS, device="cpu")
    made.save(str(folder))
    assert isinstance(made[0].auto_model, AutoModel.from_pretrained(plain).__class__)
    return made


def leave_case_to_sentence_transformers(folder: Path, file: str = "sentence_bert_config.json") -> None:
    """Let sentence-transformers lower-case texts instead of the tokenizer in this folder."""
    for name, value in (("tokenizer_config.json", False), (file, True)):
        stored = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps(stored | {"do_lower_case": value}))


def save_reranker(study: TinyStudy, folder: Path) -> None:
    """Save a random CrossEncoder without a sigmoid, with the tokenizer of the tiny study."""
    requirements.module("sentence_transformers", "demo")
    from sentence_transformers import CrossEncoder

    plain = folder.with_name("plain")
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = BertConfig.from_pretrained(study.teacher, num_labels=1)
        shaken(BertForSequenceClassification(config), seed=1, scale=0.1).save_pretrained(plain)
    AutoTokenizer.from_pretrained(study.teacher).save_pretrained(plain)
    CrossEncoder(str(plain), device="cpu", activation_fn=torch.nn.Identity(), max_length=24).save(str(folder))

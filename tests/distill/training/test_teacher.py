"""Teachers: refused, fine-tuned, kept, and their outputs on disk."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from transformers import BertConfig, DebertaV2Config, GPT2Config, NomicBertConfig, PretrainedConfig, T5Config

from distill.encoders.parts import encoder_layers, part
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS
from distill.tasks.types import CLASSIFICATION, QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from distill.training.teacher import TeacherError, load_config, load_model, load_tokenizer, source_fingerprint
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from tests.distill.objectives.test_outputs import routed
from tests.renamed import of_every_kind, sentences
from tests.tiny import SIZES, batch, bert, inputs

EVERYTHING = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES, RELATIONS})


@pytest.mark.parametrize("config", [T5Config(), GPT2Config()])
def test_other_shapes_are_refused(tmp_path: Path, config: PretrainedConfig) -> None:
    config.save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=f"is of type '{config.model_type}'; supported are bert, .*roberta"):
        load_config(str(tmp_path))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size is above 0: models with a convolution are not supported"),
        ({"embedding_size": 8}, "embedding_size is not hidden_size: models with smaller"),
        ({"share_att_key": False}, "share_att_key is false"),
        ({"norm_rel_ebd": "none"}, "norm_rel_ebd must be"),
        ({"pos_att_type": ["c2p"]}, 'pos_att_type "c2p|p2c"'),
    ],
)
def test_some_models_of_a_type_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    published = {"relative_attention": True, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    published |= {"pos_att_type": ["c2p", "p2c"]}
    DebertaV2Config(**SIZES, **published).save_pretrained(tmp_path)
    load_config(str(tmp_path))
    DebertaV2Config(**SIZES, **published | changes).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=f"^the model '.*': .*{re.escape(said)}"):
        load_config(str(tmp_path))


def test_quantized_models_and_adapters_are_refused(tmp_path: Path) -> None:
    BertConfig(**SIZES, quantization_config={"quant_method": "bitsandbytes"}).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=r"^the model '.*' is quantized: give the checkpoint that it was made from$"):
        load_config(str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(TeacherError, match=r"^the model '.*' is an adapter, or has one, .*: merge it into its model"):
        load_config(str(tmp_path))


def test_the_classes_of_a_teacher_that_is_kept(tmp_path: Path) -> None:
    """Capital letters make no difference, the order does."""
    teacher = bert(labels=2)
    teacher.config.id2label, teacher.config.label2id = {0: "NO", 1: "YES"}, {"NO": 0, "YES": 1}
    teacher.save_pretrained(tmp_path)
    kept = load_model(str(tmp_path), ["no", "yes"], new_head=False).eval()
    assert kept.config.id2label == {0: "no", 1: "yes"}
    assert torch.equal(kept(**inputs(batch())).logits, teacher.eval()(**inputs(batch())).logits)
    with pytest.raises(TeacherError, match="has the classes NO, YES; the task's are yes, no, in this order"):
        load_model(str(tmp_path), ["yes", "no"], new_head=False)
    other = load_model(str(tmp_path), ["a", "b", "c"])
    assert other.classifier.weight.shape == (3, 24)
    assert torch.equal(other.bert.pooler.dense.weight, teacher.bert.pooler.dense.weight)
    teacher.base_model.save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match="has no trained head for this task: fine-tune it first"):
        load_model(str(tmp_path), ["no", "yes"], new_head=False)


def test_types_without_a_class_for_a_task(tmp_path: Path) -> None:
    NomicBertConfig(**SIZES).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match=r"'nomic_bert', for which transformers has no model for question"):
        load_model(str(tmp_path), [], QUESTION_ANSWERING)


def test_decoders_are_refused(tmp_path: Path) -> None:
    BertConfig(**SIZES, is_decoder=True).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match="is a decoder; an encoder is needed"):
        load_config(str(tmp_path))


def test_chunks_of_feed_forward_networks_change_nothing(tmp_path: Path) -> None:
    """A length that the size of the chunks does not divide."""
    teacher = bert(labels=2)
    teacher.save_pretrained(tmp_path)
    expected = teacher(**inputs(batch(2, 7))).logits
    teacher.config.chunk_size_feed_forward = 4
    teacher.config.save_pretrained(tmp_path)
    loaded = load_model(str(tmp_path), ["no", "yes"]).eval()
    torch.testing.assert_close(loaded(**inputs(batch(2, 7))).logits, expected)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"hidden_size": 24}', '{"model_type": "no-such-type"}'])
def test_no_model_there(tmp_path: Path, content: str | None) -> None:
    folder = tmp_path / "teacher"
    if content is not None:
        folder.mkdir()
        (folder / "config.json").write_text(content)
    for load in (load_config, lambda source: load_model(source, ["no", "yes"])):
        with pytest.raises(TeacherError, match="no model at" if content is None else "cannot be read") as caught:
            load(str(folder))
        assert len(str(caught.value).splitlines()) == 1


def test_no_weights_or_tokenizer(tmp_path: Path) -> None:
    BertConfig(**SIZES).save_pretrained(tmp_path)
    for content in (None, b"", b"not a file of tensors"):
        if content is not None:
            (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(TeacherError, match="has no readable weights") as caught:
            load_model(str(tmp_path), ["no", "yes"])
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(TeacherError, match="has no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_live_teacher(accelerator: Accelerator) -> None:
    model = bert().train()
    teacher = LiveTeacher(model, EVERYTHING, accelerator)
    first, second = teacher(0, batch()), teacher(1, batch())
    assert torch.equal(first.logits, second.logits)  # no dropout
    assert not first.logits.requires_grad
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("kind", [CLASSIFICATION, REGRESSION, TOKEN_CLASSIFICATION, QUESTION_ANSWERING])
@pytest.mark.parametrize("needs", [{LOGITS}, {HIDDEN_STATES}, {RELATIONS}, EVERYTHING])
def test_saved_outputs_are_the_live_ones(tmp_path: Path, accelerator: Accelerator, needs: set[str], kind: str) -> None:
    bert().save_pretrained(tmp_path / "teacher")
    teacher = load_model(str(tmp_path / "teacher"), ("a", "b", "c"), kind)
    live = LiveTeacher(teacher, frozenset(needs), accelerator)
    batches = [batch(4, 9, seed=1), batch(2, 5, seed=2), batch(1, 1, seed=3)]
    save_outputs(live, batches, tmp_path / "outputs.safetensors")
    saved = SavedTeacher(tmp_path / "outputs.safetensors")
    for step in (2, 0, 1, 0):
        expected, actual = live(step, batches[step]), saved(step, batches[step])
        assert torch.equal(actual.logits, expected.logits.half())
        assert actual.task_type == expected.task_type == kind
        for name in (HIDDEN_STATES, ATTENTION_SCORES, RELATIONS):
            theirs, ours = getattr(expected, name), getattr(actual, name)
            assert len(theirs) == len(ours)
            for a, b in zip(theirs, ours, strict=True):
                assert torch.equal(a.half(), b)


def test_states_that_are_too_large_for_float16(tmp_path: Path, accelerator: Accelerator) -> None:
    """As some encoders have them before their last LayerNorm."""
    teacher = of_every_kind(bert())["pre-norm"]
    with torch.no_grad():
        part(encoder_layers(teacher)[0], "output.dense").weight.mul_(1e5)
    live = LiveTeacher(teacher, frozenset({HIDDEN_STATES}), accelerator)
    save_outputs(live, [sentences()], tmp_path / "outputs.safetensors")
    expected, saved = live(0, sentences()), SavedTeacher(tmp_path / "outputs.safetensors")(0, sentences())
    assert float(expected.hidden_states[1].abs().max()) > torch.finfo(torch.float16).max
    for a, b in zip(expected.hidden_states, saved.hidden_states, strict=True):
        torch.testing.assert_close(b.float(), a.float(), rtol=1e-2, atol=1e-2)


def test_routings_are_not_saved(tmp_path: Path, accelerator: Accelerator) -> None:
    live = LiveTeacher(routed({0: 4}), frozenset({ROUTINGS}), accelerator)
    assert live(0, batch()).routings
    save_outputs(live, [batch()], tmp_path / "outputs.safetensors")
    saved = SavedTeacher(tmp_path / "outputs.safetensors")
    assert saved.names == [{"0.logits"}]
    assert saved(0, batch()).routings == ()


def test_saved_outputs_of_other_batches(tmp_path: Path, accelerator: Accelerator) -> None:
    live = LiveTeacher(bert(), frozenset({LOGITS}), accelerator)
    save_outputs(live, [batch(4)], tmp_path / "outputs.safetensors")
    saved = SavedTeacher(tmp_path / "outputs.safetensors")
    with pytest.raises(ValueError, match="saved outputs of batch 0 are for 4 sentences, not 3"):
        saved(0, batch(3))
    with pytest.raises(ValueError, match="the saved teacher outputs end before batch 1"):
        saved(1, batch(4))


def test_fingerprints_of_teachers(tmp_path: Path) -> None:
    bert(seed=1).save_pretrained(tmp_path / "one")
    bert(seed=2).save_pretrained(tmp_path / "two")
    assert source_fingerprint(str(tmp_path / "one")) == source_fingerprint(str(tmp_path / "one"))
    assert source_fingerprint(str(tmp_path / "one")) != source_fingerprint(str(tmp_path / "two"))
    assert source_fingerprint("some/hub-name") != source_fingerprint("some/other-name")

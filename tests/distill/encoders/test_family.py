"""Families: the same weights under the names of another family compute the same; other types are refused."""

from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    PreTrainedModel,
    RobertaConfig,
)

from distill.encoders.family import FamilyError, family_of, supported
from distill.encoders.parts import encoder_layers, layer_inputs, model_inputs, output_layer, word_head
from distill.encoders.student.anatomy import CHANNELS, HEADS
from distill.encoders.student.families import FAMILIES
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, run
from distill.tasks.types import QUESTION_ANSWERING
from tests.renamed import CLASSES, OTHERS, PAIRS, as_roberta, comparable, of_every_kind, renamed, same, sentences, twins
from tests.tiny import SIZES, batch, bert, inputs, shaken

EVERY_KIND = of_every_kind(bert())


def model(cls: type, **settings: Any) -> PreTrainedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(cls(BertConfig(**{**SIZES, **settings}))).eval()  # type: ignore[return-value]


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa", "scored"])
@pytest.mark.parametrize(("other", "cls"), PAIRS)
def test_renamed_weights_compute_the_same(cls: type, attention: str, other: str) -> None:
    needs = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES, RELATIONS})
    both = twins(model(cls), other)
    for one in both:
        if family_of(one).attention_interface:
            one.set_attn_implementation(attention)
    given = sentences()
    mine, theirs = (run(one, given, needs) for one in both)
    # Padding has another position.
    real_BT = given["attention_mask"].bool()
    places: dict[str, Any] = {
        "hidden_states": real_BT,
        "relations": real_BT,
        "attention_scores": (real_BT[:, None, :, None] & real_BT[:, None, None]).expand(
            -1, SIZES["num_attention_heads"], -1, -1
        ),
    }
    for name, real in places.items():
        pairs = list(zip(getattr(mine, name), getattr(theirs, name), strict=True))
        assert pairs and all(same(one[real], theirs[real], other) for one, theirs in pairs)
    assert mine.task_type == theirs.task_type
    real = {2: slice(None), 3: real_BT}[mine.logits.dim()]
    if mine.task_type == QUESTION_ANSWERING:
        real = real_BT[:, None].expand(-1, 2, -1)
    assert same(mine.logits[real], theirs.logits[real], other) == comparable(cls, other)
    for one in both:
        first = run(one, given, frozenset({HIDDEN_STATES})).hidden_states[0]
        assert torch.equal(layer_inputs(one, given)[0], first)


@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_scores_do_not_depend_on_the_attention(name: str) -> None:
    """Fused attention keeps none, so that they are computed again, and collecting them changes no output."""
    one = EVERY_KIND[name]
    given, scores = sentences(), []
    expected = one(**model_inputs(one, given)).logits
    for attention in ("sdpa", "eager", "scored") if family_of(one).attention_interface else ("eager",):
        one.set_attn_implementation(attention)
        outputs = run(one, given, frozenset({ATTENTION_SCORES, RELATIONS}))
        torch.testing.assert_close(outputs.logits, expected, rtol=1e-6, atol=1e-6)
        assert one.config._attn_implementation == attention and len(outputs.relations) == 3
        scores.append(outputs.attention_scores)
    for found in scores:
        assert len(found) == one.config.num_hidden_layers
        for mine, theirs in zip(found, scores[-1], strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cls", CLASSES)
def test_the_parts_are_transformers_own(cls: type) -> None:
    given = model(cls)
    for one in (given, *(renamed(given, other) for other in OTHERS)):
        layers = encoder_layers(one)
        assert len(layers) == one.config.num_hidden_layers
        family = family_of(one)
        prefix = family.prefix(one.state_dict())
        names = {family.split(name)[2] for name in one.state_dict() if family.split(name)}  # type: ignore[index]
        assert {f"{prefix}0.{name}" for name in names} <= set(one.state_dict())
        for name, (unit, dimension) in family.slices().items():
            size = layers[0].get_parameter(name).shape[dimension]
            assert size == {CHANNELS: family.size(one.config, "inner"), HEADS: one.config.hidden_size}[unit]


def test_the_head() -> None:
    for cls, places in {
        BertForSequenceClassification: ("classifier", "classifier.out_proj"),
        BertForTokenClassification: ("classifier", "classifier"),
        BertForQuestionAnswering: ("qa_outputs", "qa_outputs"),
    }.items():
        given = model(cls)
        assert (output_layer(given), output_layer(as_roberta(given))) == places
    for one in (model(BertForMaskedLM), *(renamed(model(BertForMaskedLM), other) for other in OTHERS)):
        states = one.base_model(**inputs(batch())).last_hidden_state
        assert torch.equal(word_head(one)(states), one(**inputs(batch())).logits)


def test_positions_and_inputs() -> None:
    usable = ((BertConfig(max_position_embeddings=20), 20), (RobertaConfig(max_position_embeddings=20), 18))
    for config, positions in usable:
        assert family_of(config).positions(config) == positions
    one_type = RobertaConfig(type_vocab_size=1)
    assert family_of(one_type).inputs(one_type) == ("input_ids", "attention_mask")
    assert list(model_inputs(bert(), batch())) == ["input_ids", "attention_mask", "token_type_ids"]
    longest = as_roberta(bert())
    ids = torch.randint(1, 50, (1, family_of(longest).positions(longest.config) + 1))
    assert longest(ids[:, 1:]).logits.isfinite().all()
    with pytest.raises((IndexError, RuntimeError)):
        longest(ids)


def test_students_are_families_of_the_same_kind() -> None:
    for name in supported():
        teacher, student = FAMILIES[name], FAMILIES[f"nas_{name}"]
        assert student.students_of == name and student.slices(2)["ffn.2.project.weight"] == (CHANNELS, 1)
        inside = f"{name}.{teacher.layers}.1."
        for one, other in ((teacher.expand, "ffn.0.expand"), (teacher.norm, "ffn.0.LayerNorm")):
            renamed = teacher.renamed(student, f"{inside}{one}.weight")
            assert renamed == f"{inside}{other}.weight"
            assert student.renamed(teacher, renamed) == f"{inside}{one}.weight"
        kept = f"{inside}{teacher.output}.bias"
        assert teacher.renamed(student, kept) == kept


def test_other_types() -> None:
    with pytest.raises(FamilyError, match=r"^encoders of type 'gpt2' are not supported: use one of bert, .*roberta"):
        family_of(GPT2Config())

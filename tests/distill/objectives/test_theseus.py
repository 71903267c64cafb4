"""BERT-of-Theseus: which layers compute, which learn, and what is left."""

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from distill.encoders.parts import encoder_layers, model_inputs
from distill.objectives import hard_labels
from distill.objectives.theseus import Replacement, replacing
from distill.tasks.encoding import Encoded
from distill.training.distillation import distil
from distill.training.loop import train
from distill.training.recipe import Recipe
from distill.training.students import some_layers
from distill.training.teacher import TeacherError
from search_spaces import FFN, Architecture, Attention, Layer
from supernet.build import base_of_teacher, build
from tests.renamed import of_every_kind
from tests.tiny import NO_DROPOUT, batch, bert, inputs, shaken


def pair() -> tuple[Any, Any]:
    """A student of two layers, all random, and a teacher of four."""
    return bert(1, **NO_DROPOUT), bert(2, num_hidden_layers=4)


def drawn(*standing_in: bool) -> Replacement:
    replacement = Replacement([True] * len(standing_in), 10, 0, start=0.3, until=0.75)
    replacement.standing_in = standing_in
    return replacement


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    ("standing_in", "layers"),
    [((False, False), "t0 t1 t2 t3"), ((True, False), "s0 t2 t3"), ((False, True), "t0 t1 s1")],
)
def test_layers_that_do_not_stand_in_are_the_teachers(
    standing_in: tuple[bool, ...], layers: str, implementation: str
) -> None:
    student, teacher = pair()
    student.set_attn_implementation(implementation)
    expected = bert(2, num_hidden_layers=len(layers.split()))
    sources = {"s": student, "t": teacher}
    for layer, (whose, number) in zip(expected.base_model.encoder.layer, layers.split(), strict=True):
        layer.load_state_dict(sources[whose].base_model.encoder.layer[int(number)].state_dict())
    expected.base_model.pooler.load_state_dict(teacher.base_model.pooler.state_dict())
    expected.classifier.load_state_dict(teacher.classifier.state_dict())
    expected.base_model.embeddings.load_state_dict(teacher.base_model.embeddings.state_dict())
    with replacing(student.train(), teacher, drawn(*standing_in)):
        found = student(**inputs(batch())).logits
        alone = student.eval()(**inputs(batch())).logits
    torch.testing.assert_close(found, expected(**inputs(batch())).logits)
    assert torch.equal(alone, student(**inputs(batch())).logits)
    assert not torch.allclose(alone, found)


def test_only_its_own_layers_learn(accelerator: Accelerator) -> None:
    student, teacher = pair()
    before = {name: weight.clone() for name, weight in teacher.state_dict().items()}
    own = {name: weight.clone() for name, weight in student.state_dict().items()}
    replacement = Replacement([True] * 2, 6, 0, start=0.3, until=0.75)
    batches = (batch(8, seed=seed) for seed in range(6))
    with replacing(student, teacher, replacement):
        train(
            student,
            replacement.drawn(batches),
            hard_labels(),
            Recipe(steps=6, learning_rate=1e-2, freeze_embeddings=True),
            accelerator=accelerator,
        )
    for name, weight in student.state_dict().items():
        if ".encoder.layer." in name:
            assert not torch.equal(weight, own[name]) or name.endswith("key.bias"), name
        else:
            assert torch.equal(weight, before[name]), name
    assert all(torch.equal(weight, before[name]) for name, weight in teacher.state_dict().items())
    assert all(parameter.requires_grad for name, parameter in student.named_parameters() if "word_emb" not in name)


def test_rate_rises_and_draws_follow_it() -> None:
    replacement = Replacement([True] * 3, 1000, 0, start=0.25, until=0.5)
    assert [replacement.rate(step) for step in (0, 250, 500, 999)] == [0.25, 0.625, 1.0, 1.0]
    counts: Counter[int] = Counter()
    for step, _ in enumerate(replacement.drawn([{}] * 1000)):
        assert any(replacement.standing_in)
        counts[step // 100] += sum(replacement.standing_in)
    assert counts[9] == 300
    expected = [sum(3 * replacement.rate(step) for step in range(100 * part, 100 * part + 100)) for part in range(5)]
    for part, value in enumerate(expected):
        # One is drawn where none would be: at most (1 - rate) ** 3 more a batch.
        assert value - 30 < counts[part] < value + 30 + 100 * (1 - replacement.rate(100 * part)) ** 3


@pytest.mark.parametrize("accumulate", [1, 2])
def test_accumulated_batches_do_not_shorten_the_schedule(
    accumulate: int, accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: dict[int, float] = {}
    rate = Replacement.rate
    monkeypatch.setattr(Replacement, "rate", lambda self, step: rates.setdefault(step, rate(self, step)))
    student, teacher = pair()
    recipe = Recipe(steps=4, batch_size=2, gradient_accumulation_steps=accumulate)
    settings = {"start": 0.2, "until": 0.5}
    ids = np.tile(np.array([2, 7, 9, 3], np.int32), 8)
    texts = Encoded(ids, np.zeros(32, np.int8), np.arange(0, 33, 4), np.arange(8) % 3)
    tokens = SimpleNamespace(pad_token_id=0)
    distil(student, teacher, texts, "theseus", settings, recipe, accelerator=accelerator, tokenizer=tokens)
    first_of_steps = [rates[step * accumulate] for step in range(4)]
    assert first_of_steps == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_draws_hang_on_the_step_alone() -> None:
    def draws(first: int) -> list[tuple[bool, ...]]:
        replacement = Replacement([True] * 4, 20, 7, start=0.3, until=0.75)
        return [replacement.standing_in for _ in replacement.drawn([{}] * 20)][first:]

    assert draws(0)[5:] == draws(5)


def test_a_layer_that_is_left_out_does_not_stand_in_alone(accelerator: Accelerator) -> None:
    """It has nothing to learn, so that a batch in which only such layers stand in would have no gradient."""
    teacher = bert(2, num_hidden_layers=4)
    student = left_out(teacher, [1, 2])
    replacement = Replacement([True, False, False, True], 20, 0, start=0.0, until=1.0)
    batches = (batch(2, seed=seed) for seed in range(20))
    with replacing(student, teacher, replacement):
        train(student, replacement.drawn(batches), hard_labels(), Recipe(steps=20), accelerator=accelerator)
    with (
        pytest.raises(ValueError, match="all layers of the student are left out, and nothing else is trained"),
        replacing(left_out(teacher, range(4)), teacher, replacement),
    ):
        pass


def left_out(teacher: Any, layers: Iterable[int]) -> Any:
    """A student of which these layers have neither heads nor an FFN."""
    base, _ = base_of_teacher(teacher.config)
    whole, nothing = Layer(Attention(base.heads)), Layer(Attention(0), FFN(stack=0))
    architecture = Architecture(base, tuple(nothing if layer in layers else whole for layer in range(base.depth)))
    return shaken(build(architecture, num_labels=3, template=teacher.config))


@pytest.mark.parametrize(
    ("student", "reason"),
    [
        (lambda: bert(hidden_size=16), "they are 16 wide, not 24: take a student of the teacher's width"),
        (lambda: bert(vocab_size=60), r"embeddings\.word_embeddings\.weight must have the teacher's shape"),
        (lambda: bert(num_hidden_layers=3), "4 teacher layers cannot be shared out evenly to 3 student layers"),
        (lambda: bert(labels=5), r"classifier\.weight must have the teacher's shape"),
    ],
)
def test_shapes_that_do_not_fit(student: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason), replacing(student(), pair()[1], drawn(True, True)):
        pass


@torch.no_grad()
def test_some_layers_of_a_teacher() -> None:
    teacher = bert(2, num_hidden_layers=4)
    for chosen in ([0, 1, 2, 3], [1, 3], [0]):
        student = some_layers(teacher, chosen).eval()
        hidden = teacher.base_model.embeddings(batch()["input_ids"], batch()["token_type_ids"])
        for layer in chosen:
            mask = torch.where(batch()["attention_mask"] == 0, torch.finfo(torch.float32).min, 0.0)[:, None, None, :]
            teacher.set_attn_implementation("eager")
            hidden = teacher.base_model.encoder.layer[layer](hidden, mask)
        expected = teacher.classifier(teacher.base_model.pooler(hidden))
        torch.testing.assert_close(student(**inputs(batch())).logits, expected)
    shaken(student)
    assert not torch.equal(student.classifier.weight, teacher.classifier.weight)  # a copy


@torch.no_grad()
@pytest.mark.parametrize("chosen", [[0], [1, 3]])
def test_some_layers_of_a_teacher_that_had_shared_them(chosen: list[int]) -> None:
    """An ALBERT, whose layers have weights of their own once it is loaded."""
    teacher = of_every_kind(bert(2, num_hidden_layers=4, **NO_DROPOUT))["albert"]
    student = some_layers(teacher, chosen)
    assert len(encoder_layers(student)) == student.config.num_hidden_groups == len(chosen)
    for layer, number in zip(encoder_layers(student), chosen, strict=True):
        expected = encoder_layers(teacher)[number].state_dict()
        assert all(torch.equal(weight, expected[name]) for name, weight in layer.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("name", ["mpnet", "deberta-v2"])
def test_layers_that_return_tuples(name: str) -> None:
    teacher = of_every_kind(bert(2, num_hidden_layers=4, **NO_DROPOUT))[name]
    student = shaken(some_layers(teacher, [0, 1]))
    given = model_inputs(teacher, batch())
    with replacing(student.train(), teacher, drawn(False, False)):  # type: ignore[arg-type]
        torch.testing.assert_close(student(**given).logits, teacher(**given).logits)


def test_layers_of_several_types() -> None:
    teacher = of_every_kind(bert(2, num_hidden_layers=4))["modernbert"]
    student = some_layers(teacher, [0, 1])
    with (
        pytest.raises(ValueError, match="attend to different tokens, so that they cannot stand in for one another"),
        replacing(student, teacher, drawn(True, True)),
    ):
        pass
    with pytest.raises(TeacherError, match=r"^the lowest layer of a 'modernbert' model has no .*: take first:2$"):
        some_layers(teacher, [1, 3])

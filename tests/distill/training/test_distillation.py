"""An objective by its name: what it trains, in which phases, and from what."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from distill.objectives import OBJECTIVES
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS
from distill.tasks.encoding import Encoded
from distill.tasks.types import IGNORED
from distill.training.checkpoint import Checkpoint
from distill.training.distillation import SavedOutputs, distil, masked, phase_recipes
from distill.training.recipe import Recipe
from distill.training.students import some_layers
from distill.training.teacher_outputs import LiveTeacher
from tests.tiny import NO_DROPOUT, SIZES, batch, bert, shaken, tokenizer

# Of four heads of width 6.
FITTING: dict[str, dict[str, Any]] = {"minimoe": {"relation_heads": 8}, "minilmv2": {"relation_heads": 6}}
# No draws that change the loss: a student that stands alone, and banks that are not random for long.
STEADY: dict[str, dict[str, Any]] = {"theseus": {"start": 1.0}, "codir": {"momentum": 0.0, "negatives": 8}}
WITHOUT_TEXT = ("none", "kd", "pkd", "codir", "theseus")


@pytest.fixture
def tokens() -> Any:
    return tokenizer()


def rows(count: int = 24, labels: bool = True, seed: int = 0) -> Encoded:
    """Sentences [CLS] w ... [SEP]: is the first word of the later half?"""
    rng = np.random.default_rng(seed)
    sentences = [[2, *rng.integers(5, 50, rng.integers(1, 8)), 3] for _ in range(count)]
    ids = np.concatenate(sentences).astype(np.int32)
    offsets = np.cumsum([0, *map(len, sentences)])
    classes = np.array([sentence[1] >= 27 for sentence in sentences], np.int64)
    return Encoded(ids, np.zeros(len(ids), np.int8), offsets, classes if labels else None)


def teacher(**changes: object) -> Any:
    return bert(7, labels=2, num_hidden_layers=4, **changes)


def student(seed: int = 8, **changes: object) -> Any:
    return bert(seed, labels=2, **{**NO_DROPOUT, **changes})


def language_model(layers: int, seed: int, **changes: object) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForMaskedLM(BertConfig(**{**SIZES, **NO_DROPOUT, "num_hidden_layers": layers, **changes}))
    return shaken(model, seed).eval()


def weights(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differing(model: Any, before: dict[str, Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_lowers_its_own_loss(name: str, accelerator: Accelerator, tokens: Any) -> None:
    """The same few rows again and again; the teacher, which is sure of what it says, stays as it is."""
    model, source, losses = student(), teacher(), []
    source.classifier.weight.data *= 8
    before = weights(source)
    distil(
        model,
        source,
        rows(8),
        name,
        {**FITTING, **STEADY}.get(name, {}),
        Recipe(steps=40, batch_size=8, learning_rate=3e-3, warmup_ratio=0.0),
        accelerator=accelerator,
        tokenizer=tokens,
        after_step=lambda step, loss: losses.append((step, loss)),
    )
    assert [step for step, _ in losses] == list(range(1, 41))
    values = [loss for _, loss in losses]
    phase = round(40 * 10 / 13) if name == "tinybert" else 40
    # CoDIR's banks are random for the first steps; cross-entropies with a teacher stay above its entropy.
    first = 10 if name == "codir" else 0
    for part, share in ((values[first:phase], 0.9), (values[phase:], 0.99)):
        assert not part or sum(part[-3:]) < share * sum(part[:3]), part
    assert not differing(source, before)


@pytest.mark.parametrize("name", sorted(set(OBJECTIVES) - set(WITHOUT_TEXT)))
def test_text_teaches_all_but_the_head(name: str, accelerator: Accelerator, tokens: Any) -> None:
    model = student(hidden_size=16) if name not in ("minilm",) else student()
    before = weights(model)
    settings = {**OBJECTIVES[name].settings_without_labels(), **({"relation_heads": 8} if name in FITTING else {})}
    recipe = Recipe(steps=3, batch_size=8, learning_rate=1e-3, weight_decay=0.0)
    source = teacher()
    distil(model, source, rows(labels=False), name, settings, recipe, accelerator=accelerator, tokenizer=tokens)
    changed = differing(model, before)
    assert "bert.encoder.layer.1.attention.self.query.weight" in changed
    assert not {part for part in changed if part.startswith(("classifier", "bert.pooler"))}


@pytest.mark.parametrize("name", WITHOUT_TEXT)
def test_what_text_cannot_teach(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} learns from labels and predictions"):
        OBJECTIVES[name].settings_without_labels()


def test_what_the_settings_are() -> None:
    one = {"distill": 1.0, "labels": 1.0, "hidden": 1.0, "prediction": 1.0}
    of_papers = {
        "kd": {"alpha": 0.5, "temperature": 2.0, "balance": 0.0},
        "theseus": {"balance": 0.0, "start": 0.3, "until": 0.75},
        "moebert": {**one, "layers": "all", "balance": 0.01, "paper_compatible": False},
        "minilm": {"attention": 1.0, "values": 1.0, "labels": 0.0, "balance": 0.0, "teacher_layer": 0},
        "minilmv2": {"relation": 1.0, "labels": 0.0, "balance": 0.0, "relation_heads": 48, "teacher_layer": 0},
        "minimoe": {"relation": 1.0, "labels": 0.0, "balance": 0.01, "relation_heads": 32, "teacher_layer": 0},
    }
    assert {name: OBJECTIVES[name].defaults for name in of_papers} == of_papers
    assert "rows" not in OBJECTIVES["codir"].defaults
    for name in OBJECTIVES:
        given = {} if name == "codir" else {**OBJECTIVES[name].defaults, **FITTING.get(name, {})}
        assert OBJECTIVES[name].make(given, student().config, teacher().config, rows()).terms


def test_labels_where_papers_have_none() -> None:
    assert OBJECTIVES["minilm"].settings_with_labels({"values": 2.0}) == {"labels": 1.0, "values": 2.0}
    assert OBJECTIVES["minilm"].settings_with_labels({"labels": 0.0}) == {"labels": 0.0}
    assert OBJECTIVES["kd"].settings_with_labels({}) == {}
    configs = student().config, teacher().config
    named = lambda found: {term.name for term in found.terms}  # noqa: E731
    assert "labels" in named(OBJECTIVES["minilm"].make({}, *configs, rows()))
    assert "labels" not in named(OBJECTIVES["minilm"].make({}, *configs, rows(labels=False)))
    assert "labels" not in named(OBJECTIVES["minilm"].make({"labels": 0.0}, *configs, rows()))


def test_a_teacher_is_missing(accelerator: Accelerator, tokens: Any) -> None:
    with pytest.raises(ValueError, match="kd needs a teacher: give one, or choose an objective that learns without"):
        OBJECTIVES["kd"].make({}, student().config, None)
    rest: Any = {"accelerator": accelerator, "tokenizer": tokens}
    with pytest.raises(ValueError, match="theseus needs a teacher: give one"):
        distil(student(), None, rows(), "theseus", {}, Recipe(steps=1), **rest)
    with pytest.raises(ValueError, match="3 student layers"):
        distil(student(num_hidden_layers=3), teacher(), rows(), "moebert", {}, Recipe(steps=1), **rest)


def test_making_leaves_the_random_state() -> None:
    """And learned projections hang on the seed alone."""
    configs = student(hidden_size=16).config, teacher().config
    state = torch.get_rng_state()
    found = [OBJECTIVES["tinybert"].make({}, *configs, seed=seed).state_dict() for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert not torch.equal(found[0]["projections.hidden.weight"], found[2]["projections.hidden.weight"])


def phases(name: str, settings: dict[str, Any], recipe: Recipe) -> list[tuple[Any, Recipe]]:
    return [(phase.settings, part) for phase, part in phase_recipes(OBJECTIVES[name].phases(settings), recipe)]


def test_phases() -> None:
    recipe = Recipe(steps=130, learning_rate=5e-5)
    assert phases("kd", {"alpha": 1.0}, recipe) == [({"alpha": 1.0}, recipe)]
    (first, first_recipe), (second, second_recipe) = phases("tinybert", {"hidden": 2.0}, recipe)
    assert (first, second) == ({"hidden": 2.0, "phase": "intermediate"}, {"hidden": 2.0, "phase": "prediction"})
    assert (first_recipe.steps, first_recipe.learning_rate) == (100, 5e-5)
    assert (second_recipe.steps, second_recipe.learning_rate) == (30, pytest.approx(3e-5))
    assert [part.steps for _, part in phases("tinybert", {"phase": "prediction"}, recipe)] == [130]
    for steps in (0, 1, 7):
        assert sum(part.steps for _, part in phases("tinybert", {}, Recipe(steps=steps))) == steps
    # Only the last one stops early.
    recipe = Recipe(steps=130, early_stopping_patience=3, eval_steps=10)
    assert [part.early_stopping_patience for _, part in phases("tinybert", {}, recipe)] == [None, 3]


def test_projections_carry_over(accelerator: Accelerator, tokens: Any) -> None:
    """From phase to phase, and from call to call."""

    def trained(settings: dict[str, Any], steps: int, given: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        recipe = Recipe(steps=steps, batch_size=8, learning_rate=1e-2, weight_decay=0.0)
        return distil(
            student(hidden_size=16),
            teacher(),
            rows(),
            "tinybert",
            settings,
            recipe,
            accelerator=accelerator,
            tokenizer=tokens,
            projections=given,
        ).projections

    name = "projections.hidden.weight"
    start = OBJECTIVES["tinybert"].make({}, student(hidden_size=16).config, teacher().config).state_dict()[name]
    both = trained({}, 13)
    assert not torch.equal(both[name], start)
    untouched = trained({"phase": "intermediate"}, 0, both)
    assert torch.equal(untouched[name], both[name])
    assert torch.equal(trained({"phase": "prediction"}, 2, both)[name], both[name])
    further = trained({"phase": "intermediate"}, 3, both)
    assert not torch.equal(further[name], both[name])
    assert torch.allclose(further[name], both[name], atol=0.05)
    assert not torch.allclose(further[name], start, atol=0.05)


def test_saved_outputs_stand_in_for_the_teacher(accelerator: Accelerator, tokens: Any) -> None:
    source = teacher()
    needs = frozenset({HIDDEN_STATES, ATTENTION_SCORES, LOGITS})
    saved = SavedOutputs(source.config, LiveTeacher(source, needs, accelerator))
    found = []
    for given, stand_in in ((source, None), (None, saved)):
        model = student()
        recipe = Recipe(steps=6, batch_size=8, learning_rate=1e-3)
        rest: Any = {"accelerator": accelerator, "tokenizer": tokens, "saved_outputs": stand_in}
        distil(model, given, rows(), "tinybert", {}, recipe, **rest)
        found.append(weights(model))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_goes_on_in_the_phase_it_was_in(
    accumulate: int, accelerator: Accelerator, tokens: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With projections, dropout, and a state that is kept every four steps."""
    monkeypatch.setattr("distill.training.distillation.Checkpoint", functools.partial(Checkpoint, every=4))
    small = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}

    def trained(state_folder: Path | None, stop: int = 0) -> dict[str, Tensor]:
        model = bert(1, labels=2, **small)

        def after_step(step: int, _loss: float) -> None:
            if step == stop:
                raise Interrupted

        learned = distil(
            model,
            bert(2, labels=2, **{**small, "hidden_size": 12}),
            rows(8),
            "tinybert",
            {},
            Recipe(steps=20, batch_size=2, learning_rate=1e-3, gradient_accumulation_steps=accumulate),
            accelerator=accelerator,
            tokenizer=tokens,
            after_step=after_step,
            state_folder=state_folder,
        )
        return {**weights(model), **learned.projections, "losses": torch.tensor(learned.losses)}

    expected = trained(None)
    for stop_at, phase_states in ((9, 1), (20, 2)):
        with pytest.raises(Interrupted):
            trained(tmp_path / "state", stop_at)
        assert len(list((tmp_path / "state").iterdir())) == phase_states
    resumed = trained(tmp_path / "state")
    assert expected.keys() == resumed.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(resumed[name], weight, rtol=0, atol=0)


# Masked language models.


def texts(count: int = 6, seed: int = 0) -> Iterator[dict[str, Tensor]]:
    """Sentences between [CLS] and [SEP], then padding."""
    for step in itertools.count(seed):
        given = batch(count, 12, seed=step)
        lengths = torch.linspace(12, 4, count).long()
        mask_BT = (torch.arange(12) < lengths[:, None]).long()
        ids_BT = torch.randint(5, 50, (count, 12), generator=torch.Generator().manual_seed(step)) * mask_BT
        ids_BT[:, 0] = 2
        ids_BT[torch.arange(count), lengths - 1] = 3
        yield {**given, "input_ids": ids_BT, "attention_mask": mask_BT, "rows": torch.arange(count)}


def test_masking_hangs_on_seed_and_step_alone(tokens: Any) -> None:
    def taken(seed: int, first: int = 0) -> list[dict[str, Tensor]]:
        torch.manual_seed(first)  # of others
        return list(itertools.islice(masked(texts(), tokens, seed), 5))

    state = torch.get_rng_state()
    next(masked(texts(), tokens, 0))
    assert torch.equal(torch.get_rng_state(), state)
    one, same, other = taken(3), taken(3, 1), taken(4)
    for a, b, c in zip(one, same, other, strict=True):
        assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        assert not torch.equal(a["labels"], c["labels"])
    assert not torch.equal(one[0]["labels"] != IGNORED, one[1]["labels"] != IGNORED)


def test_what_is_masked(tokens: Any) -> None:
    """15 % of the words; of these 80 % are masked, 10 % replaced, 10 % left; and nothing else."""
    counts: dict[str, int] = dict.fromkeys(("words", "chosen", "masked", "same"), 0)
    for given, found in itertools.islice(zip(texts(40), masked(texts(40), tokens, 0), strict=False), 60):
        assert found.keys() == given.keys()
        for name in ("attention_mask", "token_type_ids", "rows"):
            assert torch.equal(found[name], given[name])
        chosen = found["labels"] != IGNORED
        word = given["input_ids"] >= 5
        assert not (chosen & ~word).any()
        assert torch.equal(found["labels"][chosen], given["input_ids"][chosen])
        assert torch.equal(found["input_ids"][~chosen], given["input_ids"][~chosen])
        counts["words"] += int(word.sum())
        counts["chosen"] += int(chosen.sum())
        counts["masked"] += int((found["input_ids"][chosen] == tokens.mask_token_id).sum())
        counts["same"] += int((found["input_ids"] == given["input_ids"])[chosen].sum())
    assert counts["words"] > 10_000
    assert counts["chosen"] / counts["words"] == pytest.approx(0.15, abs=0.015)
    assert counts["masked"] / counts["chosen"] == pytest.approx(0.8, abs=0.04)
    assert counts["same"] / counts["chosen"] == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_words_are_learned_by_every_objective(name: str, accelerator: Accelerator, tokens: Any) -> None:
    """The head too, which is tied to the embedding."""
    model, source = language_model(2, 1), language_model(4, 2)
    before = weights(model)
    recipe = Recipe(steps=4, batch_size=12, learning_rate=1e-3, warmup_ratio=0.0)
    settings = FITTING.get(name, {})
    rest: Any = {"accelerator": accelerator, "tokenizer": tokens}
    distil(model, source, rows(labels=False), name, settings, recipe, **rest)
    changed = differing(model, before)
    assert "bert.encoder.layer.1.attention.self.query.weight" in changed
    head = "cls.predictions.transform.dense.weight"
    assert head in changed
    assert torch.equal(model.state_dict()[head], source.state_dict()[head]) == (name == "theseus")
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight


def test_layers_of_a_language_model_keep_its_tie() -> None:
    source = language_model(4, 2)
    model = some_layers(source, [1, 3])
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.cls.predictions.bias, source.cls.predictions.bias)

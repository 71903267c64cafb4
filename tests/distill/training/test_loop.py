"""The training loop: it learns, stops where it must, and repeats itself exactly."""

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from distill.objectives import Objective, Term, efficientbert, hard_labels, microbert
from distill.objectives.outputs import LOGITS, Outputs, run
from distill.training.checkpoint import Checkpoint, CheckpointError
from distill.training.evaluation import batch_logits
from distill.training.loop import Diverged, make_accelerator, train
from distill.training.recipe import MixedPrecision, Recipe
from distill.training.teacher_outputs import LiveTeacher
from tests.accelerate_state import reset_accelerate
from tests.tiny import NO_DROPOUT, batch, bert


def task(seed: int) -> dict[str, Tensor]:
    """Is the first word's id above 25?"""
    given = batch(16, 6, seed=seed)
    return {**given, "labels": (given["input_ids"][:, 0] > 25).long()}


def tiny(**changes: object) -> torch.nn.Module:
    return bert(labels=2, num_hidden_layers=1, **changes)


def predict(model: nn.Module, batches: list[dict[str, Tensor]], accelerator: Accelerator) -> Tensor:
    return torch.cat(batch_logits(model, batches, accelerator=accelerator))


def test_learns(accelerator: Accelerator) -> None:
    model = tiny()
    recipe = Recipe(steps=150, learning_rate=5e-3)
    calls: list[tuple[int, float]] = []
    losses = train(
        model,
        (task(seed) for seed in range(150)),
        hard_labels(),
        recipe,
        accelerator=accelerator,
        after_step=lambda step, loss: calls.append((step, loss)),
    )
    assert calls == list(enumerate(losses, start=1))
    fresh = [task(seed) for seed in range(1000, 1010)]
    correct = predict(model, fresh, accelerator).argmax(dim=1) == torch.cat([b["labels"] for b in fresh])
    assert correct.float().mean() > 0.95


def test_same_seed_same_losses(accelerator: Accelerator) -> None:
    def losses(seed: int, after_step: Callable[[nn.Module], object] = nn.Module.train) -> list[float]:
        model, recipe = tiny(), Recipe(steps=5, learning_rate=1e-3)
        others: Any = {"accelerator": accelerator, "seed": seed, "after_step": lambda *_: after_step(model)}
        return train(model, map(task, range(5)), hard_labels(), recipe, **others)

    assert losses(1) == losses(1) == losses(1, nn.Module.eval)
    assert losses(1) != losses(2)  # dropout


@pytest.mark.parametrize(
    ("recipe", "needed"), [(Recipe(steps=4), 4), (Recipe(steps=3, gradient_accumulation_steps=2), 6)]
)
def test_too_few_batches(recipe: Recipe, needed: int, accelerator: Accelerator) -> None:
    with pytest.raises(ValueError, match=f"{needed} batches are needed; there were {needed - 1}"):
        train(tiny(), map(task, range(needed - 1)), hard_labels(), recipe, accelerator=accelerator)


def test_missing_teacher(accelerator: Accelerator) -> None:
    model = tiny()
    with pytest.raises(ValueError, match="pass its outputs"):
        train(model, [task(0)], efficientbert(model.config, model.config), Recipe(steps=1), accelerator=accelerator)


def test_a_weight_that_is_no_number(accelerator: Accelerator) -> None:
    model = tiny()
    model.classifier.weight.data[0, 0] = float("nan")
    with pytest.raises(Diverged, match="the loss is nan at step 1"):
        train(model, [task(0)], hard_labels(), Recipe(steps=1), accelerator=accelerator)
    with pytest.raises(Diverged, match="logits are not finite"):
        predict(model, [task(0)], accelerator)


def test_a_learning_rate_out_of_reason(accelerator: Accelerator) -> None:
    recipe = Recipe(steps=8, learning_rate=1e36, warmup_ratio=0.0)
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) at step [2-8]"):
        train(tiny(), map(task, range(8)), hard_labels(), recipe, accelerator=accelerator)


def test_a_last_step_that_spoils_the_weights(accelerator: Accelerator) -> None:
    recipe = Recipe(steps=1, learning_rate=1.0, weight_decay=1e40, warmup_ratio=0.0)
    with pytest.raises(Diverged, match="weights are not finite after 1 steps"):
        train(tiny(), [task(0)], hard_labels(), recipe, accelerator=accelerator)


def test_weight_decay_spares_biases_and_norms(accelerator: Accelerator) -> None:
    """With a gradient of zero, decay is all that AdamW does."""
    model = tiny()
    model.experts = nn.ParameterDict({"weight": torch.ones(2, 3, 4), "bias": torch.ones(2, 3)})

    def still(student: Outputs, _teacher: Outputs | None, _batch: dict[str, Tensor]) -> Tensor:
        return 0 * (student.logits.sum() + sum(tensor.sum() for tensor in model.experts.values()))

    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    recipe = Recipe(steps=1, learning_rate=0.1, warmup_ratio=0.0, weight_decay=0.5)
    nothing = Objective([Term("nothing", 1.0, frozenset({LOGITS}), still)])
    train(model, [task(0)], nothing, recipe, accelerator=accelerator)
    for name, parameter in model.named_parameters():
        spared = name.endswith("bias") or "LayerNorm" in name
        torch.testing.assert_close(parameter.detach(), before[name] * (1.0 if spared else 0.95), msg=name)


def test_steps_are_those_of_adam(accelerator: Accelerator) -> None:
    """On clipped gradients, at a rate that rises over the first half of the steps and falls to 0."""
    recipe = Recipe(steps=4, learning_rate=1e-3, warmup_ratio=0.5, weight_decay=0.0, max_grad_norm=0.01)
    model, other = (tiny(**NO_DROPOUT) for _ in range(2))
    train(model, map(task, range(4)), hard_labels(), recipe, accelerator=accelerator)
    assert model.config._attn_implementation == other.config._attn_implementation
    other.train()
    adam = torch.optim.Adam(other.parameters())
    for seed, rate in enumerate((0.0, 0.5, 1.0, 0.5)):
        adam.zero_grad()
        other(**task(seed)).loss.backward()
        assert torch.nn.utils.clip_grad_norm_(other.parameters(), recipe.max_grad_norm) > recipe.max_grad_norm
        adam.param_groups[0]["lr"] = rate * recipe.learning_rate
        adam.step()
    for mine, reference in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-4, atol=2e-5)


def test_the_critic_learns_before_the_student(accelerator: Accelerator) -> None:
    """From the same outputs; the student's loss is by the critic that has learned. Its rate is 0 in the first step."""
    student, teacher = tiny(**NO_DROPOUT), tiny(num_attention_heads=3)
    made = lambda: microbert(student.config, teacher.config, critic_learning_rate=1e-2)  # noqa: E731
    objective, expected, before = seeded(made), seeded(made), copy.deepcopy(student)
    recipe, taught_by = Recipe(steps=2, warmup_ratio=1.0), LiveTeacher(teacher, objective.teacher_needs, accelerator)
    losses = train(student, map(task, range(2)), objective, recipe, accelerator=accelerator, teacher=taught_by)
    adam = torch.optim.Adam(expected.critic.parameters(), lr=1e-2)
    for seed, loss in enumerate(losses):
        adam.zero_grad()
        outputs = run(before, task(seed), expected.needs), taught_by(seed, task(seed)), task(seed)
        expected.critic.loss(*outputs).backward()
        adam.step()
        assert loss == pytest.approx(expected(*outputs).item(), rel=1e-5)
    for mine, reference in zip(objective.critic.parameters(), expected.critic.parameters(), strict=True):
        torch.testing.assert_close(mine, reference, rtol=0, atol=1e-3)


@pytest.mark.parametrize("frozen", [True, False])
def test_freezing_the_word_embedding(accelerator: Accelerator, frozen: bool) -> None:
    model = tiny()
    words = model.get_input_embeddings().weight.detach().clone()
    recipe = Recipe(steps=3, warmup_ratio=0.0, freeze_embeddings=frozen)
    train(model, map(task, range(3)), hard_labels(), recipe, accelerator=accelerator)
    assert torch.equal(words, model.get_input_embeddings().weight) == frozen
    assert model.get_input_embeddings().weight.requires_grad


@pytest.mark.parametrize("mixed_precision", get_args(MixedPrecision))
def test_precisions(mixed_precision: MixedPrecision, accelerator: Accelerator) -> None:
    """In the chosen precision training works, and what is computed is in float32, or near it."""
    full = predict(tiny(), [task(0)], accelerator)
    reset_accelerate()
    chosen = make_accelerator("cpu", mixed_precision)
    assert chosen.device.type == "cpu"
    assert chosen.mixed_precision in (("no", "bf16") if mixed_precision == "auto" else (mixed_precision,))
    predicted = predict(tiny(), [task(0)], chosen)
    torch.testing.assert_close(predicted, full, rtol=0.1, atol=0.1)
    assert torch.equal(predicted, full) == (chosen.mixed_precision == "no")
    losses = train(tiny(), map(task, range(3)), hard_labels(), Recipe(steps=3), accelerator=chosen)
    assert all(map(math.isfinite, losses))


def test_accumulated_batches_are_one_larger_batch(accelerator: Accelerator) -> None:
    """Halves of equal size, without dropout: the mean of their gradients is the whole's."""

    def weights(parts: int) -> dict[str, Tensor]:
        model = tiny(**NO_DROPOUT)
        size = 16 // parts
        batches = [
            {name: tensor[start : start + size] for name, tensor in task(seed).items()}
            for seed in range(3)
            for start in range(0, 16, size)
        ]
        recipe = Recipe(steps=3, learning_rate=1e-3, gradient_accumulation_steps=parts)
        assert recipe.batches == len(batches)
        losses = train(model, batches, hard_labels(), recipe, accelerator=accelerator)
        assert len(losses) == 3
        return {**model.state_dict(), "losses": torch.tensor(losses)}

    whole, halves = weights(1), weights(2)
    for name, tensor in whole.items():
        torch.testing.assert_close(halves[name], tensor, rtol=1e-3, atol=2e-4)


class Interrupted(Exception):
    pass


STOPPING = Recipe(steps=12, learning_rate=1e-3, early_stopping_patience=2, eval_steps=2)


@pytest.mark.parametrize("interrupted_at", [None, 3, 5, 7, 8])
def test_early_stopping(accelerator: Accelerator, tmp_path: Path, interrupted_at: int | None) -> None:
    """Scores 1, 3, 2, 3 after 2, 4, 6 and 8 steps: two evaluations without a better one, and the weights of step 4."""
    given: list[int] = []
    steps_done: list[int] = []

    def trained(model: nn.Module, stop_at: int | None = None) -> list[float]:
        def score() -> float:
            given.append(steps_done[-1] + 1)
            return {2: 1.0, 4: 3.0, 6: 2.0, 8: 3.0}[given[-1]]

        def after_step(step: int, _loss: float) -> None:
            steps_done.append(step)
            if step == stop_at:
                raise Interrupted

        checkpoint = Checkpoint(tmp_path / "state.pt", every=1)
        others: Any = {"accelerator": accelerator, "after_step": after_step, "checkpoint": checkpoint, "score": score}
        return train(model, map(task, range(12)), hard_labels(), STOPPING, **others)

    if interrupted_at:
        with pytest.raises(Interrupted):
            trained(tiny(), interrupted_at)
    model = tiny()
    losses = trained(model)
    assert (len(losses), given) == (8, [2, 4, 6, 8])
    if interrupted_at:  # also a run that had stopped by itself
        again = tiny()
        assert trained(again) == losses
        assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in again.state_dict().items())
    whole, reference = Recipe(steps=12, learning_rate=1e-3), tiny()

    def until_the_fourth(step: int, _loss: float) -> None:
        if step == 4:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(
            reference, map(task, range(12)), hard_labels(), whole, accelerator=accelerator, after_step=until_the_fourth
        )
    assert all(torch.equal(weight, model.state_dict()[name]) for name, weight in reference.state_dict().items())


def test_the_last_step_is_evaluated(accelerator: Accelerator) -> None:
    scores = iter((3.0, 1.0, 2.0))
    given: list[float] = []

    def score() -> float:
        given.append(next(scores))
        return given[-1]

    recipe = Recipe(steps=5, learning_rate=1e-3, early_stopping_patience=9, eval_steps=2)
    model = tiny()
    train(model, map(task, range(5)), hard_labels(), recipe, accelerator=accelerator, score=score)
    assert given == [3.0, 1.0, 2.0], "after 2, 4 and 5 steps"


def test_early_stopping_needs_a_score(accelerator: Accelerator) -> None:
    with pytest.raises(ValueError, match="early stopping needs a score"):
        train(tiny(), map(task, range(12)), hard_labels(), STOPPING, accelerator=accelerator)
    without_interval = Recipe(steps=1, early_stopping_patience=1)
    with pytest.raises(ValueError, match="early stopping needs eval_steps"):
        train(tiny(), [task(0)], hard_labels(), without_interval, accelerator=accelerator, score=lambda: 0.0)


def test_checkpoint_of_another_run(accelerator: Accelerator, tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "state.pt", every=1)

    def trained(model: nn.Module) -> list[float]:
        recipe = Recipe(steps=1)
        return train(model, [task(0)], hard_labels(), recipe, accelerator=accelerator, checkpoint=checkpoint)

    trained(tiny())
    with pytest.raises(ValueError, match=r"state\.pt: the state of another training run .*; remove it"):
        trained(tiny(hidden_size=16))
    whole = checkpoint.path.read_bytes()
    for damaged in (b"", whole[:1000], whole[:-1000], b"text", b"\x80\x04cos\nsystem\n."):
        checkpoint.path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"state\.pt: damaged \(.*\); remove it to train from the beginning"):
            trained(tiny())


def seeded(make: Callable[[], Objective]) -> Objective:
    torch.manual_seed(0)
    return make()

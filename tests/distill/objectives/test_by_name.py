"""What all objectives by name have in common, on real models."""

from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForQuestionAnswering, BertForTokenClassification

from distill.objectives import OBJECTIVES, Critic, Objective, Term
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS, Outputs, run
from distill.training.loop import train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from supernet.build import build
from tests.distill.objectives.test_outputs import routed
from tests.tiny import SIZES, architectures, batch, bert, shaken

EVERYTHING = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES, RELATIONS, ROUTINGS})
# What their settings do not say for these models.
OWN: dict[str, dict[str, Any]] = {
    "minimoe": {"relation_heads": 4},
    "minilmv2": {"relation_heads": 4},
    "codir": {"rows": 16, "labels": [0, 1, 2, 0] * 4, "negatives": 6},
}
# Those that learn from nothing but the attention of the last layer, or from states alone.
WITHOUT_LOGITS = ("tinybert", "minimoe", "minilm", "minilmv2")


def made(name: str, student: Any, teacher: Any, **settings: Any) -> Objective:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return OBJECTIVES[name].factory(student.config, teacher.config, **{**OWN.get(name, {}), **settings})


def numbered(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {**given, "rows": torch.arange(len(given["input_ids"]))}


@pytest.mark.parametrize(
    # Layers that stand in for the teacher's have its width.
    ("name", "width"),
    [(name, width) for name in OBJECTIVES for width in (24, 16) if width == 24 or name != "theseus"],
)
def test_what_is_asked_for_is_enough_and_all_of_it_is_used(name: str, width: int) -> None:
    student, teacher = bert(1, hidden_size=width), bert(2, num_hidden_layers=4)
    objective, given = made(name, student, teacher).eval(), numbered(batch())
    torch.manual_seed(3)
    full = objective(run(student, given, EVERYTHING), run(teacher, given, EVERYTHING), given)
    slim = run(student, given, objective.needs)
    target = run(teacher, given, objective.teacher_needs) if objective.needs_teacher else None
    torch.manual_seed(3)
    loss = objective(slim, target, given)
    torch.testing.assert_close(loss, full)
    assert LOGITS in objective.needs or name in WITHOUT_LOGITS
    # Each need is some term's, whose value changes with it or whose gradient reaches it.
    for need in objective.needs - {LOGITS, ROUTINGS}:
        tensors = [tensor for tensor in getattr(slim, need) if tensor.requires_grad]
        gradients = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
        assert any(gradient is not None and gradient.any() for gradient in gradients)
    loss.backward()
    assert student.base_model.embeddings.word_embeddings.weight.grad.abs().sum() > 0
    assert all(parameter.grad.abs().sum() > 0 for parameter in objective.parameters())
    assert (objective.critic is not None) == (name == "microbert")


@pytest.mark.parametrize("name", OBJECTIVES)
def test_more_padding_changes_nothing(name: str) -> None:
    student, teacher = bert(1), bert(2, num_hidden_layers=4)
    objective, given = made(name, student, teacher).eval(), numbered(batch())
    values = []
    for extra in (0, 4):
        longer = {
            key: nn.functional.pad(tensor, (0, extra)) if tensor.dim() == 2 else tensor for key, tensor in given.items()
        }
        torch.manual_seed(3)
        with torch.no_grad():
            outputs = [run(model, longer, EVERYTHING) for model in (student, teacher)]
            values.append(objective(*outputs, longer))
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_balance(name: str) -> None:
    """Gates learn from every objective."""
    student, teacher = routed({0: 4, 1: 3}), bert(2, num_hidden_layers=4)
    objective, given = made(name, student, teacher, balance=0.5).eval(), numbered(batch())
    without = made(name, student, teacher, balance=0.0).eval()
    assert objective.needs == without.needs | {ROUTINGS}
    assert objective.teacher_needs == without.teacher_needs
    outputs = [run(model, given, EVERYTHING) for model in (student, teacher)]
    losses = []
    for goal in (objective, without):
        torch.manual_seed(3)
        losses.append(goal(*outputs, given))
    balance = next(term for term in objective.terms if term.name == "balance")
    torch.testing.assert_close(losses[0], losses[1] + 0.5 * balance.loss(outputs[0], None, given))
    plain = Outputs(outputs[0].logits, outputs[0].kind)
    assert balance.loss(plain, None, given) == 0


def models(head: type, **sizes: Any) -> tuple[Any, Any]:
    """A student and a teacher of the same task."""
    found = []
    for seed, depth in ((0, 2), (1, 4)):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            found.append(shaken(head(BertConfig(**{**SIZES, "num_hidden_layers": depth, **sizes})), seed).eval())
    return found[0], found[1]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("head", [BertForTokenClassification, BertForMaskedLM, BertForQuestionAnswering])
def test_other_tasks(name: str, head: type) -> None:
    student, teacher = models(head, **({"num_labels": 5} if head is BertForTokenClassification else {}))
    given = numbered(batch())
    mask = given["attention_mask"]
    given["labels"] = given["input_ids"].remainder(5).masked_fill(mask == 0, -100)
    if head is BertForQuestionAnswering:
        given["labels"] = torch.zeros(4, 2, dtype=torch.int64)
    objective = made(name, student, teacher, **({"labels": None} if name == "codir" else {}))
    target = run(teacher, given, objective.teacher_needs)
    objective(run(student, given, objective.needs), target, given).backward()
    assert student.base_model.encoder.layer[0].attention.self.value.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", OBJECTIVES)
def test_trains_a_searched_model(name: str, accelerator: Accelerator) -> None:
    student, teacher = shaken(build(next(architectures(1)), labels=3)), bert(2, num_hidden_layers=6)
    objective, given = made(name, student, teacher), numbered(batch())
    before = {key: parameter.detach().clone() for key, parameter in objective.named_parameters()}
    losses = train(
        student,
        [given] * 12,
        objective,
        Recipe(steps=12, learning_rate=3e-3),
        accelerator=accelerator,
        teacher=LiveTeacher(teacher, objective.teacher_needs, accelerator),
    )
    assert losses[-1] < losses[0]
    assert not any(torch.equal(before[key], parameter) for key, parameter in objective.named_parameters())


@pytest.mark.parametrize("name", OBJECTIVES)
def test_saved_teachers(name: str, accelerator: Accelerator, tmp_path: Any) -> None:
    """Half-precision outputs from disk."""
    student, teacher = bert(1), bert(2, num_hidden_layers=4)
    objective, given = made(name, student, teacher).eval(), numbered(batch())
    live = LiveTeacher(teacher, objective.teacher_needs, accelerator)
    save_outputs(live, [given], tmp_path / "outputs.safetensors")
    losses = []
    for source in (live, SavedTeacher(tmp_path / "outputs.safetensors")):
        torch.manual_seed(3)
        losses.append(objective(run(student, given, objective.needs), source(0, given), given))
    assert losses[0].dtype == losses[1].dtype == torch.float32
    torch.testing.assert_close(losses[0], losses[1], rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_bfloat16(name: str) -> None:
    """Under autocast the loss is near, and its gradients are finite."""
    width = 24 if name == "theseus" else 16
    student, teacher, given = bert(1, hidden_size=width), bert(2, num_hidden_layers=4), numbered(batch())
    objective = made(name, student, teacher).eval()
    losses = []
    for enabled in (False, True):
        torch.manual_seed(3)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            target = run(teacher, given, EVERYTHING)
            loss = objective(run(student, given, EVERYTHING), target, given)
            critic: Critic | None = objective.critic
            if critic:
                loss = loss + critic.loss(run(student, given, EVERYTHING), target, given)
        losses.append(loss)
    assert losses[1].dtype == torch.float32
    torch.testing.assert_close(losses[0], losses[1], rtol=0.1, atol=0.1)
    losses[1].backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in [*student.parameters(), *objective.parameters()])


def test_no_terms() -> None:
    unused = Term("nothing", 0.0, EVERYTHING, lambda *_: torch.tensor(1.0), EVERYTHING)
    objective = Objective([unused])
    assert (objective.terms, objective.needs, objective.teacher_needs) == ([], frozenset(), frozenset())
    assert objective(Outputs(torch.zeros(2, 3)), None, {}) == 0

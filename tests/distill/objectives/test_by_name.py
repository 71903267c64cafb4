"""What all objectives by name have in common, on real models."""

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from distill.objectives import OBJECTIVES, Critic, Objective, Term
from distill.objectives.outputs import (
    ATTENTION_SCORES,
    HIDDEN_STATES,
    LOGITS,
    RELATIONS,
    ROUTINGS,
    Outputs,
    of_layers,
    run,
)
from tests.distill.objectives.test_outputs import routed
from tests.tiny import batch, bert

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
    plain = Outputs(outputs[0].logits, outputs[0].task_type)
    assert balance.loss(plain, None, given) == 0


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


STATES = of_layers(HIDDEN_STATES, [4])


@pytest.mark.parametrize(
    ("name", "settings", "needs", "teacher_needs"),
    [
        ("kd", {}, {LOGITS}, {LOGITS}),
        ("kd", {"alpha": 0.0}, {LOGITS}, set()),
        ("moebert", {"distill": 0.0}, {LOGITS, ROUTINGS}, set()),
        ("pkd", {"layers": "last", "alpha": 0.0}, {LOGITS, HIDDEN_STATES}, of_layers(HIDDEN_STATES, [3])),
        ("pkd", {"beta": 0.0}, {LOGITS}, {LOGITS}),
        ("distilbert", {}, {LOGITS, HIDDEN_STATES}, {LOGITS} | STATES),
        ("distilbert", {"cosine": 0.0}, {LOGITS}, {LOGITS}),
        ("distilbert", {"soft": 0.0, "labels": 0.0}, {HIDDEN_STATES}, STATES),
        ("microbert", {"alignment": 0.0, "adversarial": 0.0, "balance": 0.0}, {LOGITS}, {LOGITS}),
        ("microbert", {"alignment": 0.0, "soft": 0.0, "labels": 0.0, "balance": 0.0}, {HIDDEN_STATES}, STATES),
        ("codir", {"contrastive": 0.0}, {LOGITS}, {LOGITS}),
        ("minilm", {"attention": 0.0, "values": 0.0, "labels": 1.0}, {LOGITS}, set()),
        (
            "efficientbert",
            {"hidden": 0.0, "embedding": 0.0, "prediction": 0.0},
            {ATTENTION_SCORES},
            of_layers(ATTENTION_SCORES, [2, 4]),
        ),
    ],
)
def test_a_weight_of_zero_needs_nothing(
    name: str, settings: dict[str, Any], needs: set[str], teacher_needs: set[str]
) -> None:
    configs = bert(hidden_size=16), bert(num_hidden_layers=4)
    objective = made(name, *configs, **settings)
    assert objective.needs == needs
    assert objective.teacher_needs == teacher_needs
    assert objective.needs_teacher == bool(teacher_needs)


FRACTION, POSITIVE = "must be between 0 and 1", "must be a finite number above 0"
WEIGHT = "a weight must be a finite number of at least 0"
DIVISORS = "must divide the student's 24 channels and the teacher's 24: choose one of 1, 2, 3, 4, 6, 8, 12, 24"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        *((name, {"balance": -1.0}, f"balance=-1.0: {WEIGHT}") for name in OBJECTIVES),
        *(
            (name, {setting: -1}, f"{setting}=-1: {WEIGHT}")
            for name in ("efficientbert", "tinybert")
            for setting in ("attention", "hidden", "embedding", "prediction")
        ),
        *(
            ("moebert", {setting: -0.5}, f"{setting}=-0.5: {WEIGHT}")
            for setting in ("distill", "labels", "hidden", "prediction")
        ),
        ("none", {"balance": math.inf}, f"balance=inf: {WEIGHT}"),
        ("pkd", {"beta": -1}, f"beta=-1: {WEIGHT}"),
        ("distilbert", {"cosine": math.nan}, f"cosine=nan: {WEIGHT}"),
        ("minimoe", {"relation": -1}, f"relation=-1: {WEIGHT}"),
        ("microbert", {"embedding": -0.1}, f"embedding=-0.1: {WEIGHT}"),
        ("microbert", {"adversarial": -1.0}, f"adversarial=-1.0: {WEIGHT}"),
        ("codir", {"contrastive": -1.0}, f"contrastive=-1.0: {WEIGHT}"),
        ("kd", {"alpha": 1.5}, f"alpha=1.5: {FRACTION}"),
        ("pkd", {"alpha": -0.1}, f"alpha=-0.1: {FRACTION}"),
        ("theseus", {"until": 1.5}, f"until=1.5: {FRACTION}"),
        ("codir", {"beta": 2.0}, f"beta=2.0: {FRACTION}"),
        ("codir", {"momentum": -0.5}, f"momentum=-0.5: {FRACTION}"),
        ("kd", {"temperature": math.nan}, f"temperature=nan: {POSITIVE}"),
        ("distilbert", {"temperature": -2}, f"temperature=-2: {POSITIVE}"),
        ("efficientbert", {"temperature": 0}, f"temperature=0: {POSITIVE}"),
        ("tinybert", {"temperature": 0, "phase": "prediction"}, f"temperature=0: {POSITIVE}"),
        ("microbert", {"temperature": -1.0}, f"temperature=-1.0: {POSITIVE}"),
        ("microbert", {"critic_learning_rate": 0.0}, f"critic_learning_rate=0.0: {POSITIVE}"),
        ("codir", {"temperature": 0.0}, f"temperature=0.0: {POSITIVE}"),
        ("codir", {"contrast_temperature": 0.0}, f"contrast_temperature=0.0: {POSITIVE}"),
        ("codir", {"negatives": 0}, "negatives=0: from 1 to 65,536 are possible"),
        ("codir", {"negatives": 65_537}, "negatives=65537: from 1 to 65,536 are possible"),
        ("codir", {"pooling": "max"}, "pooling='max': choose one of mean, cls"),
        ("codir", {"rows": 1, "labels": None}, "rows=1: at least 2 training rows are needed, to tell one from another"),
        ("codir", {"labels": [0, 1]}, "labels: 16 rows need as many, not (2,); or None"),
        ("codir", {"labels": [1] * 16}, "labels: all 16 rows are of class 1, so none has a negative; use None"),
        ("tinybert", {"phase": "hidden"}, "phase='hidden': choose one of intermediate, prediction"),
        (
            "microbert",
            {"layers": "all"},
            "layers='all': choose one of average, overlapping, last, released, released_last",
        ),
        ("microbert", {"adversarial_form": "log"}, "adversarial_form='log': choose one of non_saturating, minimax"),
        ("microbert", {"critic_input": "states"}, "critic_input='states': choose one of cls_state, logits"),
        ("minilmv2", {"relation_heads": 5}, f"relation_heads=5 {DIVISORS}"),
        ("minimoe", {"relation_heads": 5}, f"relation_heads=5 {DIVISORS}"),
        ("minimoe", {"relation_heads": 0}, f"relation_heads=0 {DIVISORS}"),
        *(
            (name, {"teacher_layer": layer}, f"teacher_layer={layer}: the teacher has 4 layers: 1 to 4, or 0, the last")
            for name in ("minilm", "minilmv2", "minimoe")
            for layer in (5, -1)
        ),
    ],
)
def test_settings_out_of_range(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        made(name, bert(), bert(num_hidden_layers=4), **settings)


@pytest.mark.parametrize("name", ["efficientbert", "tinybert", "moebert", "microbert", "codir", "theseus"])
def test_depths_that_do_not_divide(name: str) -> None:
    with pytest.raises(ValueError, match="5 teacher layers cannot be shared out evenly to 2 student layers"):
        made(name, bert(), bert(num_hidden_layers=5))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("efficientbert", "set its weight to 0 or change the heads"),
        ("tinybert", "set its weight to 0 or change the heads"),
        ("minilm", "give the student 4 heads, or take minilmv2, whose relation heads are independent of them"),
    ],
)
def test_head_counts_that_differ(name: str, advice: str) -> None:
    with pytest.raises(ValueError, match=f"needs? equal head counts: student 3, teacher 4; {advice}$"):
        made(name, bert(num_attention_heads=3), bert(num_hidden_layers=4))


def test_no_terms() -> None:
    unused = Term("nothing", 0.0, EVERYTHING, lambda *_: torch.tensor(1.0), EVERYTHING)
    objective = Objective([unused])
    assert (objective.terms, objective.needs, objective.teacher_needs) == ([], frozenset(), frozenset())
    assert objective(Outputs(torch.zeros(2, 3)), None, {}) == 0

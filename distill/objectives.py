"""Objectives: weighted terms, each naming the outputs it needs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from distill import layer_maps, losses
from distill.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, Batch, Outputs


@dataclass(frozen=True)
class Term:
    """One summand: `loss(student, teacher, batch)` times `weight`; `needs` names outputs of both sides."""

    name: str
    weight: float
    needs: frozenset[str]
    loss: Callable[[Outputs, Outputs | None, Batch], Tensor]


class Objective(nn.Module):
    """A weighted sum of terms, with the learned projections they use, which no exported model contains."""

    def __init__(
        self, terms: list[Term], projections: dict[str, nn.Module] | None = None, teacher: bool = True
    ) -> None:
        super().__init__()
        self.terms = terms
        self.projections = nn.ModuleDict(projections or {})
        self.needs = frozenset[str]().union(*(term.needs for term in terms))
        self.needs_teacher = teacher

    def forward(self, student: Outputs, teacher: Outputs | None, batch: Batch) -> Tensor:
        """The scalar loss of one batch."""
        total = student.logits.new_zeros((), dtype=student.logits.float().dtype)
        for term in self.terms:
            total = total + term.weight * term.loss(student, teacher, batch)
        return total


def hard_labels() -> Objective:
    """Cross-entropy with the labels: fine-tuning without a teacher."""

    def loss(student: Outputs, _teacher: Outputs | None, batch: Batch) -> Tensor:
        return F.cross_entropy(student.logits.float(), batch["labels"])

    return Objective([Term("labels", 1.0, frozenset({LOGITS}), loss)], teacher=False)


def efficientbert(
    student: Any,
    teacher: Any,
    *,
    attention: float = 1.0,
    hidden: float = 1.0,
    embedding: float = 1.0,
    prediction: float = 1.0,
    temperature: float = 1.0,
) -> Objective:
    """EfficientBERT's objective, equation 4: sum over layers (L_attn + L_hidn) + L_embd + gamma L_pred.

    Student layer m learns from teacher layer m N / M. The transforms W_h and W_e are learned where the widths
    differ and the identity where they agree; the released code has one transform for both. `prediction` is
    gamma: 0 in the paper's pre-training, 1 in its fine-tuning. A term of weight 0 is not computed.

    Args:
        student, teacher: Hugging Face configurations.

    Raises:
        ValueError: head counts differ while attention is used, or the student's depth does not divide the
            teacher's.
    """
    layers = layer_maps.uniform(student.num_hidden_layers, teacher.num_hidden_layers)
    if attention and student.num_attention_heads != teacher.num_attention_heads:
        raise ValueError(
            f"the attention term needs equal head counts: student {student.num_attention_heads}, "
            f"teacher {teacher.num_attention_heads}; set its weight to 0 or change the heads"
        )
    projections: dict[str, nn.Module] = {}
    if student.hidden_size != teacher.hidden_size:
        projections = {
            name: nn.Linear(student.hidden_size, teacher.hidden_size) for name in ("hidden", "embedding")
        }

    def project(name: str, state: Tensor) -> Tensor:
        return objective.projections[name](state) if projections else state

    def attention_loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        pairs = zip(s.attention_scores, (t.attention_scores[n - 1] for n in layers), strict=True)
        return sum_of(losses.attention_mse(a, b, batch["attention_mask"]) for a, b in pairs)

    def hidden_loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        pairs = zip(s.hidden_states[1:], (t.hidden_states[n] for n in layers), strict=True)
        return sum_of(losses.hidden_mse(project("hidden", a), b, batch["attention_mask"]) for a, b in pairs)

    def embedding_loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        state = project("embedding", s.hidden_states[0])
        return losses.hidden_mse(state, t.hidden_states[0], batch["attention_mask"])

    def prediction_loss(s: Outputs, t: Outputs | None, _batch: Batch) -> Tensor:
        assert t is not None
        return losses.soft_cross_entropy(s.logits, t.logits, temperature)

    terms = [
        Term("attention", attention, frozenset({ATTENTION_SCORES}), attention_loss),
        Term("hidden", hidden, frozenset({HIDDEN_STATES}), hidden_loss),
        Term("embedding", embedding, frozenset({HIDDEN_STATES}), embedding_loss),
        Term("prediction", prediction, frozenset({LOGITS}), prediction_loss),
    ]
    objective = Objective([term for term in terms if term.weight], projections)
    return objective


def sum_of(values: Any) -> Tensor:
    total, *others = values
    for value in others:
        total = total + value
    return total

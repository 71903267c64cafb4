"""Objectives: weighted terms, each naming the outputs it needs."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distill import layer_maps, losses
from distill.kinds import hard_loss
from distill.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS, Batch, Outputs


@dataclass(frozen=True)
class Term:
    """One summand: `loss(student, teacher, batch)` times `weight`.

    `needs` names the student's outputs it takes, `teacher_needs` the teacher's.
    """

    name: str
    weight: float
    needs: frozenset[str]
    loss: Callable[[Outputs, Outputs | None, Batch], Tensor]
    teacher_needs: frozenset[str] = frozenset()


class Objective(nn.Module):
    """A weighted sum of terms, with the learned projections they use, which no exported model contains.

    A term of weight 0 is left out. `needs` and `teacher_needs` are what the terms need of either side.
    """

    def __init__(self, terms: Iterable[Term], projections: dict[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.terms = [term for term in terms if term.weight]
        self.projections = nn.ModuleDict(projections or {})
        self.needs = frozenset[str]().union(*(term.needs for term in self.terms))
        self.teacher_needs = frozenset[str]().union(*(term.teacher_needs for term in self.terms))

    @property
    def needs_teacher(self) -> bool:
        """Whether any term compares with a teacher."""
        return bool(self.teacher_needs)

    def forward(self, student: Outputs, teacher: Outputs | None, batch: Batch) -> Tensor:
        """The scalar loss of one batch."""
        total = student.logits.new_zeros((), dtype=student.logits.float().dtype)
        for term in self.terms:
            total = total + term.weight * term.loss(student, teacher, batch)
        return total


def hard_labels() -> Objective:
    """Cross-entropy with the labels: fine-tuning without a teacher."""
    return Objective([_labels(1.0)])


def efficientbert(
    student: Any,
    teacher: Any,
    *,
    attention: float = 1.0,
    hidden: float = 1.0,
    embedding: float = 1.0,
    prediction: float = 1.0,
    temperature: float = 1.0,
    balance: float = 0.0,
) -> Objective:
    """EfficientBERT's objective, equation 4: sum over layers (L_attn + L_hidn) + L_embd + gamma L_pred.

    Student layer m learns from teacher layer m N / M. The transforms W_h and W_e are learned where the widths
    differ and the identity where they agree; the released code has one transform for both. `prediction` is
    gamma: 0 in the paper's pre-training, 1 in its fine-tuning. A term of weight 0 is not computed.

    Args:
        student, teacher: Hugging Face configurations.
        balance: weight of the load balance of a student's routers, which the paper does not have.

    Raises:
        ValueError: head counts differ while attention is used, or the student's depth does not divide the
            teacher's.
    """
    embeddings, *layers = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)
    if attention and student.num_attention_heads != teacher.num_attention_heads:
        raise ValueError(
            f"the attention term needs equal head counts: student {student.num_attention_heads}, "
            f"teacher {teacher.num_attention_heads}; set its weight to 0 or change the heads"
        )

    def attention_loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        pairs = ((s.attention_scores[m - 1], t.attention_scores[n - 1]) for m, n in layers)
        return sum_of(losses.attention_mse(a, b, batch["attention_mask"]) for a, b in pairs)

    def prediction_loss(s: Outputs, t: Outputs | None, _batch: Batch) -> Tensor:
        assert t is not None
        return losses.soft_cross_entropy(s.logits, t.logits, temperature)

    transforms = _transforms(student, teacher, [embeddings, *layers])
    terms = [
        Term("attention", attention, frozenset({ATTENTION_SCORES}), attention_loss, frozenset({ATTENTION_SCORES})),
        _hidden("hidden", hidden, layers, transforms),
        _hidden("embedding", embedding, [embeddings], transforms),
        Term("prediction", prediction, frozenset({LOGITS}), prediction_loss, frozenset({LOGITS})),
        _balance(balance),
    ]
    return Objective(terms, transforms)


def moebert(
    student: Any,
    teacher: Any,
    *,
    distill: float = 1.0,
    labels: float = 1.0,
    hidden: float = 1.0,
    prediction: float = 1.0,
    layers: str = "all",
    balance: float = 0.01,
    paper_compatible: bool = False,
) -> Objective:
    """MoEBERT's objective, section 3.3 with equations 5 to 7: CE(labels) + lambda (L_trm + L_pred).

    L_trm is the sum over the chosen states, the embedding output among them, of the mean square error with the
    teacher's; L_pred is the symmetric KL divergence of the predictions. A student of fewer layers learns from the last
    layer of each group of the teacher's, a narrower one through learned transforms as in `efficientbert`; the paper's
    has the teacher's shape.

    The released code means the error over padding too (`paper_compatible`), keeps dropout in the teacher, and sums the
    balance loss over the layers, with a weight of 0 by default; its routing is by hashing, which has none.

    Args:
        student, teacher: Hugging Face configurations.
        distill: lambda, 1 to 5 in the paper, depending on the task.
        hidden, prediction: further weights of L_trm and L_pred.
        layers: "all" states, "alternate" (every second one, with the last) or the "last": the paper's figure 3b.
        balance: weight of the load balance of the student's routers.
        paper_compatible: mean the error of states over all positions; how far a batch is padded then matters.

    Raises:
        ValueError: the student's depth does not divide the teacher's, or the choice of layers is unknown.
    """

    def prediction_loss(s: Outputs, t: Outputs | None, _batch: Batch) -> Tensor:
        assert t is not None
        return losses.symmetric_kl(s.logits, t.logits)

    pairs = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers, layers)
    transforms = _transforms(student, teacher, pairs)
    terms = [
        _labels(labels),
        _hidden("hidden", distill * hidden, pairs, transforms, padding=paper_compatible),
        Term("prediction", distill * prediction, frozenset({LOGITS}), prediction_loss, frozenset({LOGITS})),
        _balance(balance),
    ]
    return Objective(terms, transforms)


def minimoe(
    student: Any,
    teacher: Any,
    *,
    relation: float = 1.0,
    labels: float = 0.0,
    balance: float = 0.01,
    relation_heads: int = 32,
) -> Objective:
    """MiniMoE's objective, section 3.2, whose relations are those of MiniLMv2:

        mean over A in {query, key, value} of KL(rel(A of the teacher) || rel(A of the student)),
        rel(A) = softmax(A A^T / sqrt(width / R)) in each of R relation heads,

    per head and valid query row. The teacher's A are those of its last layer. The student's come from an auxiliary
    block on its last hidden state, three linear maps which are learned with it and not exported: so the experts of the
    last layer learn too.

    The paper sums the three and divides by width / R without the root. The released code takes mean and root as here,
    but applies dropout to the student's probabilities, adds 1e-7 to both sides', and -10,000 to the scores of masked
    keys.

    Args:
        student, teacher: Hugging Face configurations.
        labels: weight of the cross-entropy with labels; the paper distils without.
        balance: weight of the load balance of the student's routers.
        relation_heads: R.

    Raises:
        ValueError: R does not divide both widths.
    """
    widths = student.hidden_size, teacher.hidden_size
    if relation_heads < 1 or any(width % relation_heads for width in widths):
        common = math.gcd(*widths)
        fitting = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
        raise ValueError(
            f"relation_heads={relation_heads} must divide the student's width {widths[0]} and the teacher's "
            f"{widths[1]}: choose one of {fitting}"
        )
    names = ("query", "key", "value")
    auxiliary: dict[str, nn.Module] = {name: nn.Linear(widths[0], widths[0]) for name in names}

    def relation_loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        pairs = ((auxiliary[name](s.hidden_states[-1]), b) for name, b in zip(names, t.relations, strict=True))
        return sum_of(losses.relation_kl(a, b, batch["attention_mask"], relation_heads) for a, b in pairs) / len(names)

    terms = [
        Term("relation", relation, frozenset({HIDDEN_STATES}), relation_loss, frozenset({RELATIONS})),
        _labels(labels),
        _balance(balance),
    ]
    return Objective(terms, auxiliary)


def _labels(weight: float) -> Term:
    def loss(student: Outputs, _teacher: Outputs | None, batch: Batch) -> Tensor:
        return hard_loss(student.logits, batch, student.kind)

    return Term("labels", weight, frozenset({LOGITS}), loss)


def _balance(weight: float) -> Term:
    """Mean over the gated routers; 0 where there are none."""

    def loss(student: Outputs, _teacher: Outputs | None, _batch: Batch) -> Tensor:
        if not student.routings:
            return student.logits.new_zeros(())
        return sum_of(losses.balance(*routing) for routing in student.routings) / len(student.routings)

    return Term("balance", weight, frozenset({ROUTINGS}), loss)


def _transforms(student: Any, teacher: Any, pairs: Iterable[tuple[int, int]]) -> dict[str, nn.Module]:
    """W_h and W_e for the student's states in `pairs`; none where the widths agree."""
    if student.hidden_size == teacher.hidden_size:
        return {}
    names = dict.fromkeys(_transform_of(state) for state, _ in pairs)
    return {name: nn.Linear(student.hidden_size, teacher.hidden_size) for name in names}


def _transform_of(state: int) -> str:
    return "hidden" if state else "embedding"


def _hidden(
    name: str,
    weight: float,
    pairs: Sequence[tuple[int, int]],
    transforms: dict[str, nn.Module],
    padding: bool = False,
) -> Term:
    """Sum over pairs (student state, teacher state) of their mean square error, over padding too if asked for."""

    def loss(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        mask_BT = torch.ones_like(batch["attention_mask"]) if padding else batch["attention_mask"]

        def student_state(m: int) -> Tensor:
            state = s.hidden_states[m]
            return transforms[_transform_of(m)](state) if transforms else state

        return sum_of(losses.hidden_mse(student_state(m), t.hidden_states[n], mask_BT) for m, n in pairs)

    return Term(name, weight, frozenset({HIDDEN_STATES}), loss, frozenset({HIDDEN_STATES}))


def sum_of(values: Iterable[Tensor]) -> Tensor:
    total, *others = values
    for value in others:
        total = total + value
    return total

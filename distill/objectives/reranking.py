"""The objective of rerankers: the teacher's scores, their differences among the passages of a query, and the states of
all layers.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional as F

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_weights
from distill.objectives.outputs import LOGITS, Batch, Outputs
from distill.tasks.encoding import Encoded


def reranking(
    student: Any,
    teacher: Any,
    *,
    score: float = 1.0,
    margin: float = 0.0,
    hidden: float = 1.0,
    balance: float = 0.0,
    rows: Encoded | None = None,
) -> Objective:
    """score L_score + margin L_margin + hidden L_hidden, without labels.

    L_score is the mean square error of the student's scores of pairs of a query and a passage with the teacher's.
    L_margin is MarginMSE (Hofstätter et al., 2020, equation 4): the mean of ((s_i - s_j) - (t_i - t_j))^2 over all
    pairs of passages i and j of one query in a batch, 0 if there are none. L_hidden is the sum over layers of the mean
    squared error of the hidden states, as in `efficientbert`.

    Args:
        score, margin, hidden: weights.

    Raises:
        ValueError: the student's depth does not divide the teacher's; or there is a margin, and rows of other tasks.
    """
    check_weights(hidden=hidden)
    if margin and rows is not None and rows.groups is None:
        raise ValueError("reranking: margin compares the passages of a query, and these rows have none: set it to 0")
    layers = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)[1:] if hidden else []
    maps = terms.transforms(student, teacher, [m for m, _ in layers])
    logits = frozenset({LOGITS})
    return Objective(
        [
            terms.soft_labels("score", score, F.mse_loss),
            Term("margin", margin, logits, _margins, logits),
            terms.hidden("hidden", hidden, layers, maps),
            terms.balance(balance),
        ],
        maps,
    )


def _margins(student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
    losses.check_logits(student.logits, teacher.logits)
    error_B = (student.logits.float() - teacher.logits.float())[:, 0]
    groups_B = batch["groups"]
    same_BB = (groups_B[:, None] == groups_B).triu(diagonal=1)
    return (error_B[:, None] - error_B)[same_BB].square().sum() / same_BB.sum().clamp(min=1)

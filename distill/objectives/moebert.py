"""MoEBERT's objective."""

from typing import Any

import torch

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, check_weights


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

    L_trm is the sum over the chosen states (B, T, width), which include the embedding output, of the mean square error
    with the teacher's states over valid tokens and channels. L_pred is the symmetric KL divergence of the predictions,
    mean over sentences, labeled tokens or answer boundaries; for a regression it is the mean square error with the
    teacher's prediction. A student with fewer layers learns from the last layer of each group of the teacher's, a
    narrower one through learned transforms as in `efficientbert`; the paper's student has the teacher's shape.

    The released code also averages the error over padding, and lets answers start and end there (`paper_compatible`);
    it keeps the teacher's dropout, and sums the balance loss over the layers, with a default weight of 0; its hash
    routing has no such loss.

    Args:
        distill: lambda, 1 to 5 in the paper, depending on the task.
        hidden, prediction: additional weights of L_trm and L_pred, multiplied by lambda.
        layers: "all" states, "alternate" (every second one, including the last) or only the "last", as in the paper's
            figure 3b.
        paper_compatible: average the error of the states over all positions, so that the loss depends on the padding.
            For question answering, CE and L_pred are those of distributions over all positions, padding included.

    Raises:
        ValueError: the student's depth does not divide the teacher's.
    """
    check_weights(distill=distill, hidden=hidden, prediction=prediction)
    pairs = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers, layers)
    maps = terms.transforms(student, teacher, [m for m, _ in pairs])
    label_term = terms.labels(labels)
    prediction_term = terms.soft_labels("prediction", distill * prediction, losses.symmetric_kl)
    if paper_compatible:
        label_term, prediction_term = (
            terms.with_answers(term, positions=torch.ones_like) for term in (label_term, prediction_term)
        )
    states = terms.hidden("hidden", distill * hidden, pairs, maps, padding=paper_compatible)
    return Objective([label_term, states, prediction_term, terms.balance(balance)], maps)

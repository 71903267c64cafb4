"""Objectives on predictions: hard labels, soft labels, and soft labels with a few states."""

from functools import partial
from typing import Any

from torch import Tensor

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_fractions, check_positive, check_weights, sum_of
from distill.objectives.outputs import HIDDEN_STATES, Batch, Outputs, of_layers


def hard_labels() -> Objective:
    """Cross-entropy with the labels: fine-tuning without a teacher."""
    return Objective([terms.labels(1.0)])


def none(student: Any, teacher: Any = None, *, balance: float = 0.0) -> Objective:
    """The loss with the labels only: cross-entropy, mean over sentences, labeled tokens or answer boundaries; for a
    regression the mean square error.
    """
    return Objective([terms.labels(1.0), terms.balance(balance)])


def kd(student: Any, teacher: Any, *, alpha: float = 0.5, temperature: float = 2.0, balance: float = 0.0) -> Objective:
    """Knowledge distillation (Hinton et al., 2015, section 2), in the form on which PKD and CoDIR build:

        (1 - alpha) CE(labels) + alpha T^2 KL(teacher || student),

    with the KL divergence of the probabilities softmax(logits / T), (N, C), summed over C. Like CE, it is a mean over
    the N sentences, labeled tokens (all tokens if the batch has no labels) or answer boundaries. A regression uses the
    mean square errors with the label and with the teacher's prediction instead, without T. The paper gives no general
    alpha and T.

    Args:
        alpha: weight of the teacher's predictions, from 0 to 1; with 1 no labels are needed.
        temperature: T.
    """
    return Objective([*labels_and_predictions(alpha, temperature), terms.balance(balance)])


def pkd(
    student: Any,
    teacher: Any,
    *,
    alpha: float = 0.5,
    beta: float = 100.0,
    temperature: float = 10.0,
    layers: str = "skip",
    balance: float = 0.0,
    paper_compatible: bool = False,
) -> Objective:
    """Patient Knowledge Distillation (Sun et al., 2019): `kd` + beta L_PT,

        L_PT = mean over (student layer, teacher layer) of MSE(s / |s|, t / |t|),

    where s and t, (B, width), are the [CLS] states. As in the released code this is a mean over sentences, channels and
    layers; the paper has a sum over all three, but its values of beta belong to the mean. All of the student's layers
    but the last take part. A narrower student learns through one learned transform; the paper's student has the
    teacher's width. alpha, T and beta are from the paper's grids (0.2, 0.5, 0.7; 5, 10, 20; 10, 100, 500, 1000).

    Args:
        alpha, temperature: as in `kd`; alpha = 1 needs no labels.
        beta: weight of L_PT.
        layers: "skip" or "last", see `distill.objectives.layer_maps.patient`.
        paper_compatible: average KL over the classes too, as in the released code.
    """
    check_weights(beta=beta)
    pairs = layer_maps.patient(student.num_hidden_layers, teacher.num_hidden_layers, layers) if beta else ()
    maps = terms.transforms(student, teacher, [m for m, _ in pairs])

    def patience(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        mask_BT = batch["attention_mask"]
        sides = ((terms.transformed(s, m, maps), t.hidden_states[n]) for m, n in pairs)
        return sum_of(losses.normalized_mse(a, b, mask_BT) for a, b in sides) / len(pairs)

    states = frozenset({HIDDEN_STATES})
    teacher_needs = of_layers(HIDDEN_STATES, (n for _, n in pairs))
    return Objective(
        [
            *labels_and_predictions(alpha, temperature, paper_compatible),
            Term("patience", beta, states, patience, teacher_needs),
            terms.balance(balance),
        ],
        maps,
    )


def distilbert(
    student: Any,
    teacher: Any,
    *,
    soft: float = 5.0,
    labels: float = 2.0,
    cosine: float = 1.0,
    temperature: float = 2.0,
    balance: float = 0.0,
    paper_compatible: bool = False,
) -> Objective:
    """DistilBERT (Sanh et al., 2019, section 2): soft T^2 KL(teacher || student) + labels CE + cosine L_cos.

    L_cos = 1 - cos(s, t) of the last hidden states (B, T, width), mean over valid tokens. KL and CE are as in `kd`; the
    labels are those of a task or, on masked text, the masked words (the paper's L_mlm). Weights and T are those of the
    released code. A narrower student learns the states through a learned transform; the paper's student has the
    teacher's width.

    Args:
        soft, labels, cosine: weights.
        temperature: T.
        paper_compatible: KL at every token of a text, as in the released code, instead of the labeled tokens only.
    """
    check_positive(temperature=temperature)
    last = student.num_hidden_layers
    maps = terms.transforms(student, teacher, [last] if cosine else [])

    def directions(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        return losses.cosine_distance(terms.transformed(s, last, maps), t.hidden_states[-1], batch["attention_mask"])

    states = frozenset({HIDDEN_STATES})
    return Objective(
        [
            terms.soft_labels("soft", soft, partial(losses.soft_kl, temperature=temperature), paper_compatible),
            terms.labels(labels),
            Term("cosine", cosine, states, directions, of_layers(HIDDEN_STATES, [teacher.num_hidden_layers])),
            terms.balance(balance),
        ],
        maps,
    )


def labels_and_predictions(alpha: float, temperature: float, mean_over_classes: bool = False) -> list[Term]:
    """The two terms of `kd`."""
    check_fractions(alpha=alpha)
    check_positive(temperature=temperature)
    compare = partial(losses.soft_kl, temperature=temperature)
    return [
        terms.labels(1 - alpha),
        terms.soft_labels("soft", alpha, compare, mean_over_classes=mean_over_classes),
    ]

"""Objectives on all layers: EfficientBERT's and TinyBERT's."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from distill.encoders.family import windows_of
from distill.encoders.heads import heads_of
from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_choice, check_positive, check_weights, sum_of
from distill.objectives.heads import OTHERS, check_heads, places
from distill.objectives.outputs import ATTENTION_SCORES, Batch, Outputs, of_layers
from distill.objectives.spec import ObjectivePhase, Settings
from distill.tasks.types import predicts_numbers

# TinyBERT's two phases on a task: 10 epochs at 5e-5, then 3 at 3e-5.
INTERMEDIATE, PREDICTION = 10 / 13, 3 / 13
PREDICTION_RATE = 3 / 5


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
    always_transform: bool = False,
    paper_compatible: bool = False,
) -> Objective:
    """EfficientBERT's objective, equation 4: sum over layers (L_attn + L_hidn) + L_embd + gamma L_pred.

    L_attn is the mean square error of the attention scores (B, H, T, T) before the softmax, over heads and pairs of
    valid tokens; L_hidn and L_embd are that of hidden states and embedding output (B, T, width), over valid tokens and
    channels. L_pred is the cross-entropy with the teacher's probabilities at the temperature, mean over sentences,
    labeled tokens or answer boundaries; for a regression it is the mean square error with the teacher's prediction.
    Layer m of the M student layers learns from layer m N / M of the N teacher layers. The transforms W_h and W_e are
    learned if the widths differ, otherwise they are the identity. `prediction` is gamma: 0 in the paper's pre-training,
    1 in its fine-tuning. A term of weight 0 is not computed.

    A student with fewer heads compares each of them with the same head of the teacher's layer, and H in the mean is the
    number of its heads in that layer. A layer without heads has no L_attn. Where one of the two layers attends only to
    tokens nearby, L_attn is that of the pairs that are this near.

    Args:
        always_transform: W_h and W_e are learned even if the widths agree, as in the released code.
        paper_compatible: as in the released code, W_h and W_e are the same transform; the means include states of
            padding and scores of padding queries, and those of padding keys as 0 on both sides; L_pred is also averaged
            over the classes, and for a regression it is the mean square error with the label. For question answering,
            L_pred is the sum of those for an answer's first and last token, each averaged over all positions; the first
            token, which stands for no answer, is not among the choices.

    Raises:
        ValueError: the models have different numbers of heads while attention is used, no layer of the student has one,
            or the teacher lacks one; or the student's depth does not divide the teacher's.
    """
    embeddings, *layers = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)
    maps = terms.transforms(student, teacher, range(len(layers) + 1), paper_compatible, always_transform)
    prediction_term = _prediction(student, prediction, temperature, paper_compatible, gold=paper_compatible)
    if paper_compatible:
        # The start and end terms are added, not averaged.
        prediction_term = terms.with_answers(prediction_term, _behind_first, factor=2.0)
    return Objective(
        [
            _attention(attention, layers, student, teacher, paper_compatible),
            terms.hidden("hidden", hidden, layers, maps, padding=paper_compatible),
            terms.hidden("embedding", embedding, [embeddings], maps, padding=paper_compatible),
            prediction_term,
            terms.balance(balance),
        ],
        maps,
    )


def tinybert(
    student: Any,
    teacher: Any,
    *,
    phase: str = "intermediate",
    attention: float = 1.0,
    hidden: float = 1.0,
    embedding: float = 1.0,
    prediction: float = 1.0,
    temperature: float = 1.0,
    balance: float = 0.0,
    always_transform: bool = False,
    paper_compatible: bool = False,
) -> Objective:
    """TinyBERT's objective (Jiao et al., 2020, section 3.1), in two successive training phases:

        "intermediate": sum over layers (attention L_attn + hidden L_hidn) + embedding L_embd,
        "prediction":   prediction L_pred, no labels,

    with the losses of `efficientbert`, except that for a regression L_pred is the mean square error with the label,
    without a teacher, as in the released code. W_h and W_e are two transforms, as in the paper. The second phase has no
    transforms.

    Args:
        attention, hidden, embedding: weights of the first phase.
        prediction, temperature: weight and temperature of the second phase.
        always_transform: W_h and W_e are learned even if the widths agree.
        paper_compatible: as in the released code, W_h and W_e are the same transform, and means include padding and
            classes as described in `efficientbert`. TinyBERT's code has no question answering; L_pred is then averaged
            over all positions.

    Raises:
        ValueError: as `efficientbert`.
    """
    check_choice("phase", phase, ("intermediate", "prediction"))
    check_weights(prediction=prediction)
    if phase == "intermediate":
        return efficientbert(
            student,
            teacher,
            attention=attention,
            hidden=hidden,
            embedding=embedding,
            prediction=0.0,
            balance=balance,
            always_transform=always_transform,
            paper_compatible=paper_compatible,
        )
    prediction_term = _prediction(student, prediction, temperature, paper_compatible, gold=True)
    return Objective([prediction_term, terms.balance(balance)])


def tinybert_phases(settings: Settings) -> tuple[ObjectivePhase, ...]:
    """Both phases, unless the setting `phase` chooses one."""
    if "phase" in settings:
        return (ObjectivePhase(settings),)
    return (
        ObjectivePhase({**settings, "phase": "intermediate"}, INTERMEDIATE),
        ObjectivePhase({**settings, "phase": "prediction"}, PREDICTION, PREDICTION_RATE),
    )


def _attention(
    weight: float, layers: Sequence[tuple[int, int]], student: Any, teacher: Any, paper_compatible: bool
) -> Term:
    """L_attn, summed over the pairs of layers of which the student's has heads."""
    own, taught = heads_of(student), heads_of(teacher)
    windows, taught_windows = windows_of(student), windows_of(teacher)
    layers = [(m, n) for m, n in layers if own[m - 1]]
    if weight:
        _check_attention(student, teacher, layers)

    def loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        errors = [s.logits.new_zeros(())]  # what a slice of a one-shot supernet has without any head
        for m, n in layers:
            if not s.heads or s.heads[m - 1]:
                chosen = places(s, m, taught[n - 1])
                scores = t.attention_scores[n - 1] if chosen is None else t.attention_scores[n - 1][:, chosen]
                window = min((w for w in (windows[m - 1], taught_windows[n - 1]) if w is not None), default=None)
                compared = s.attention_scores[m - 1], scores, batch["attention_mask"]
                errors.append(losses.attention_mse(*compared, paper_compatible, window))
        return sum_of(errors)

    teacher_needs = of_layers(ATTENTION_SCORES, (n for _, n in layers))
    return Term("attention", weight, frozenset({ATTENTION_SCORES}), loss, teacher_needs, by_heads=True)


def _check_attention(student: Any, teacher: Any, layers: Sequence[tuple[int, int]]) -> None:
    """Raise ValueError if there is nothing to compare, or if a head cannot be compared."""
    what, remedy = "the attention term of efficientbert and tinybert", f"set attention=0, or {OTHERS}"
    if student.num_attention_heads != teacher.num_attention_heads:
        raise ValueError(
            f"the attention term needs equal head counts: student {student.num_attention_heads}, "
            f"teacher {teacher.num_attention_heads}; set its weight to 0 or change the heads"
        )
    if not layers:
        count = student.num_hidden_layers
        raise ValueError(f"{what}: none of the student's {count} layers has an attention head: keep one, {remedy}")
    for pair in layers:
        check_heads(student, teacher, *pair, what, remedy)


def _behind_first(mask_BT: Tensor) -> Tensor:
    """The attention mask without the first token."""
    return torch.cat((torch.zeros_like(mask_BT[:, :1]), mask_BT[:, 1:]), dim=1)


def _prediction(student: Any, weight: float, temperature: float, mean_over_classes: bool, gold: bool) -> Term:
    """Cross-entropy with the teacher's probabilities; with `gold`, a regression uses the label loss instead."""
    check_positive(temperature=temperature)
    if gold and predicts_numbers(student):
        return terms.labels(weight, "prediction")
    compare = partial(losses.soft_cross_entropy, temperature=temperature)
    return terms.soft_labels("prediction", weight, compare, mean_over_classes=mean_over_classes)

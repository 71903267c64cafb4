"""Losses between a student's and a teacher's outputs, computed in float32.

Padding is ignored, whatever its values (except with `paper_compatible`); for input that is only padding the losses are
0. Losses of hidden states, of attention scores and of logits raise ValueError if student and teacher differ in shape.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.objectives.outputs import dot_products

# Number of elements in a chunk of `SumOfSquares`: 1 MiB in float32.
PIECE = 2**18


def attention_mse(
    student_BHTT: Tensor,
    teacher_BHTT: Tensor,
    mask_BT: Tensor,
    paper_compatible: bool = False,
    window: int | None = None,
) -> Tensor:
    """Mean square error of attention scores (TinyBERT's L_attn; EfficientBERT, equation 1).

    The mean is over sentences, heads and the pairs of valid query and key positions.

    Args:
        window: the largest distance of a key from its query in these layers; pairs that are farther apart are excluded
            as padding is. None: there is none.
        paper_compatible: as in the released code of both papers, which adds the mask to the scores and then replaces
            all scores of -100 and below by 0: padding is excluded as a key but not as a query, and the mean is over all
            pairs.
    """
    _check_shapes(student_BHTT, teacher_BHTT, "attention scores need equal head counts and lengths")
    if paper_compatible:
        masked_B1TT = ~(mask_BT[:, None, None, :].bool() & _within(window, mask_BT))
        student, teacher = (
            scores.float().masked_fill(masked_B1TT | (scores <= -100), 0.0) for scores in (student_BHTT, teacher_BHTT)
        )
        return F.mse_loss(student, teacher)
    valid_B1TT = _valid_pairs(mask_BT) & _within(window, mask_BT)
    return _mean_square(student_BHTT, teacher_BHTT, valid_B1TT, student_BHTT.shape[1])


def hidden_mse(student_BTD: Tensor, teacher_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean square error of hidden states over valid tokens and channels (EfficientBERT, equation 2)."""
    _check_widths(student_BTD, teacher_BTD)
    return _mean_square(student_BTD, teacher_BTD, mask_BT[:, :, None].bool(), student_BTD.shape[-1])


def _check_shapes(student: Tensor, teacher: Tensor, what: str, advice: str = "") -> None:
    if student.shape != teacher.shape:
        raise ValueError(f"{what}: student {tuple(student.shape)}, teacher {tuple(teacher.shape)}{advice}")


def _check_widths(student_BTD: Tensor, teacher_BTD: Tensor) -> None:
    _check_shapes(student_BTD, teacher_BTD, "hidden states need equal widths", "; project the student's first")


def check_logits(student_NC: Tensor, teacher_NC: Tensor) -> None:
    """Raise ValueError if the shapes differ."""
    _check_shapes(student_NC, teacher_NC, "soft labels need equal shapes")


def _mean_square(student: Tensor, teacher: Tensor, valid: Tensor, copies: int) -> Tensor:
    """The mean square error over the elements that `valid` selects, each of which stands for `copies` elements."""
    return SumOfSquares.apply(student, teacher, valid) / (valid.sum().clamp(min=1) * copies)


class SumOfSquares(torch.autograd.Function):
    """The sum of the squared differences between student and teacher where `valid` is True.

    On a CPU it is computed in chunks that fit into a core's cache, and the differences are stored in the student's
    precision: operations on whole tensors take several times as long there, mostly because of memory traffic. The
    teacher gets no gradient.
    """

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, valid: Tensor) -> Tensor:
        masked = not valid.all()
        differences = torch.empty_like(student)
        total = torch.zeros((), device=student.device)
        rows = len(student)
        if student.device.type == "cpu":
            rows = max(1, PIECE * rows // max(1, student.numel()))
        pieces = (tensor.split(rows) for tensor in (student, teacher, valid, differences))
        for student_piece, teacher_piece, valid_piece, difference_piece in zip(*pieces, strict=True):
            difference = student_piece.float() - teacher_piece
            if masked:
                # Do not multiply by 0 instead: half-precision states of padding may be infinite.
                difference.masked_fill_(~valid_piece, 0.0)
            difference_piece.copy_(difference)
            total += difference.square_().sum()
        ctx.save_for_backward(differences)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (difference,) = ctx.saved_tensors
        return difference * (2 * gradient), None, None


def _valid_pairs(mask_BT: Tensor) -> Tensor:
    """A mask (B, 1, T, T) that is True where both positions are valid."""
    valid_BT = mask_BT.bool()
    return valid_BT[:, None, :, None] & valid_BT[:, None, None, :]


def _within(window: int | None, mask_BT: Tensor) -> Tensor:
    """A mask (T, T) that is True where positions are at most as far apart as the window says."""
    places_T = torch.arange(mask_BT.shape[1], device=mask_BT.device)
    distances_TT = (places_T[:, None] - places_T).abs()
    return distances_TT <= (mask_BT.shape[1] if window is None else window)


def cosine_distance(student_BTD: Tensor, teacher_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - cosine of hidden states, mean over valid tokens (DistilBERT's L_cos)."""
    _check_widths(student_BTD, teacher_BTD)
    student_ND, teacher_ND = (states[mask_BT.bool()].float() for states in (student_BTD, teacher_BTD))
    return mean_of_rows(1 - F.cosine_similarity(student_ND, teacher_ND, dim=-1))


def normalized_mse(student_BTD: Tensor, teacher_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean square error of the first tokens' states of length 1, over sentences and channels (PKD's L_PT)."""
    _check_widths(student_BTD, teacher_BTD)
    valid_B = mask_BT.any(dim=1)
    student_ND, teacher_ND = (F.normalize(s[:, 0][valid_B].float(), dim=-1) for s in (student_BTD, teacher_BTD))
    return mean_of_rows((student_ND - teacher_ND).square().mean(dim=-1))


def pooled_mse(student_BTD: Tensor, teacher_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean square error of three features of each sentence, over sentences, features and channels (MicroBERT, equation
    8).

    The features are the first token's state, and the mean and the maximum over the valid tokens.
    """
    _check_widths(student_BTD, teacher_BTD)
    valid_B3 = mask_BT.any(dim=1)[:, None].expand(-1, 3)
    return hidden_mse(_pooled(student_BTD, mask_BT), _pooled(teacher_BTD, mask_BT), valid_B3)


def _pooled(states_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The three features of each sentence, (B, 3, D)."""
    states_BTD = states_BTD.float()
    highest_BD = states_BTD.masked_fill(mask_BT[:, :, None] == 0, torch.finfo(torch.float32).min).amax(dim=1)
    return torch.stack((states_BTD[:, 0], mean_state(states_BTD, mask_BT), highest_BD), dim=1)


def mean_state(states_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """The mean over valid tokens, (B, D)."""
    total_BD = states_BTD.float().masked_fill(mask_BT[:, :, None] == 0, 0.0).sum(dim=1)
    return total_BD / mask_BT.sum(dim=1, keepdim=True).clamp(min=1)


def soft_cross_entropy(student_NC: Tensor, teacher_NC: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy with the teacher's probabilities, mean over rows (EfficientBERT, equation 3)."""
    check_logits(student_NC, teacher_NC)
    targets_NC = F.softmax(_tempered(teacher_NC, temperature), dim=-1)
    total = F.cross_entropy(_tempered(student_NC, temperature), targets_NC, reduction="sum")
    return total / max(1, len(student_NC))


def soft_kl(student_NC: Tensor, teacher_NC: Tensor, temperature: float = 1.0) -> Tensor:
    """temperature^2 KL(teacher || student) of the probabilities at that temperature, mean over rows (Hinton et al.,
    2015).
    """
    check_logits(student_NC, teacher_NC)
    student_log, teacher_log = (
        F.log_softmax(_tempered(logits, temperature), dim=-1) for logits in (student_NC, teacher_NC)
    )
    # The sum of p d, with d = log(p / q), equals the sum of p (d - 1 + exp(-d)), whose terms are never negative. This
    # avoids cancellation at high temperatures, where the divergence is small and its factor large. For large |d|,
    # exp(-d) is computed as q / p.
    ratio_NC = teacher_log - student_log
    near_NC = teacher_log.exp() * (ratio_NC + torch.expm1(-ratio_NC.clamp(min=-1)))
    far_NC = student_log.exp() + teacher_log.exp() * (ratio_NC - 1)
    return temperature**2 * mean_of_rows(torch.where(ratio_NC > -1, near_NC, far_NC).sum(dim=-1))


def _tempered(logits_NC: Tensor, temperature: float) -> Tensor:
    """Logits over temperature, kept finite: impossible choices have the lowest float, which could become -inf."""
    return (logits_NC.float() / temperature).clamp(min=torch.finfo(torch.float32).min)


def symmetric_kl(student_NC: Tensor, teacher_NC: Tensor) -> Tensor:
    """(KL(student || teacher) + KL(teacher || student)) / 2, mean over rows (MoEBERT, equation 6)."""
    check_logits(student_NC, teacher_NC)
    student_log, teacher_log = (F.log_softmax(logits.float(), dim=-1) for logits in (student_NC, teacher_NC))
    # The sum of both directions; its terms are never negative, so there is no cancellation.
    return 0.5 * mean_of_rows(((student_log.exp() - teacher_log.exp()) * (student_log - teacher_log)).sum(dim=-1))


def mean_of_rows(values_N: Tensor) -> Tensor:
    """The sum over the number of rows; 0 if there are none."""
    return values_N.sum() / max(1, len(values_N))


def attention_kl(student: tuple[Tensor, Tensor], teacher: tuple[Tensor, Tensor], mask_BT: Tensor, heads: int) -> Tensor:
    """KL(teacher || student) of attention distributions, mean over valid query rows and heads (MiniLM's L_AT).

    `student` and `teacher` are pairs of query and key, (B, T, width) each. Keys of padding are excluded from the
    distributions.
    """
    student_log, teacher_log = (_log_relations(query, key, mask_BT, heads) for query, key in (student, teacher))
    return _mean_divergence(student_log, teacher_log, mask_BT)


def relation_kl(student_BTD: Tensor, teacher_BTE: Tensor, mask_BT: Tensor, heads: int) -> Tensor:
    """KL(teacher || student) of the relations between a sentence's tokens, mean over valid query rows and heads.

    A relation is softmax(A A^T / sqrt(width / heads)) over the valid keys, where A are queries, keys or values whose
    channels are split into `heads` relation heads, a divisor of both widths (MiniLMv2; MiniMoE, section 3.2).
    """
    student_log, teacher_log = (_log_relations(a, a, mask_BT, heads) for a in (student_BTD, teacher_BTE))
    return _mean_divergence(student_log, teacher_log, mask_BT)


def _mean_divergence(student_log_BHTT: Tensor, teacher_log_BHTT: Tensor, mask_BT: Tensor) -> Tensor:
    divergence = F.kl_div(student_log_BHTT, teacher_log_BHTT, reduction="sum", log_target=True)
    return divergence / (mask_BT.sum().clamp(min=1) * student_log_BHTT.shape[1])


def _log_relations(a_BTD: Tensor, b_BTD: Tensor, mask_BT: Tensor, heads: int) -> Tensor:
    """Log-probabilities (B, heads, T, T). Rows of padding are uniform for every model, so they have no gradient."""
    # Full precision even under autocast: the softmax turns absolute errors into relative ones.
    with torch.autocast(a_BTD.device.type, enabled=False):
        products = dot_products(a_BTD.float(), b_BTD.float(), heads)
        lowest = torch.finfo(products.dtype).min
        return F.log_softmax(products.masked_fill(~_valid_pairs(mask_BT), lowest), dim=-1)


def contrastive(anchor_ND: Tensor, positive_ND: Tensor, negatives_NKD: Tensor, temperature: float) -> Tensor:
    """InfoNCE: cross-entropy of identifying an anchor's positive among the positive and K negatives, with the scalar
    products with the anchor, divided by `temperature`, as logits; mean over anchors. Vectors have length 1.
    """
    # Full precision even under autocast: a low temperature amplifies errors.
    with torch.autocast(anchor_ND.device.type, enabled=False):
        anchor_ND = anchor_ND.float()
        positive_N1 = (anchor_ND * positive_ND.float()).sum(dim=-1, keepdim=True)
        negatives_NK = (negatives_NKD.float() @ anchor_ND[:, :, None]).squeeze(-1)
        log_NC = F.log_softmax(torch.cat((positive_N1, negatives_NK), dim=1) / temperature, dim=-1)
        return -mean_of_rows(log_NC[:, 0])


def balance(probabilities_NE: Tensor, chosen_N: Tensor) -> Tensor:
    """The load-balancing loss of one router, E sum_e f_e P_e, where f_e is the fraction of the N tokens (or sentences)
    sent to expert e, and P_e its mean probability (Switch; MiniMoE, section 3.2).

    It is 1 if f or P is uniform, E if one expert gets everything with probability 1, and 0 if N is 0. The gradient
    flows through P only.
    """
    experts = probabilities_NE.shape[-1]
    count = max(len(chosen_N), 1)
    fractions_E = F.one_hot(chosen_N, experts).sum(dim=0) / count
    means_E = probabilities_NE.float().sum(dim=0) / count
    return experts * (fractions_E * means_E).sum()

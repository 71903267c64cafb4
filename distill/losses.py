"""Losses between a student's and a teacher's outputs, in float32. Padding enters none of them, whatever its values;
where nothing but padding is left they are 0.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.outputs import dot_products


def attention_mse(student_BHTT: Tensor, teacher_BHTT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean square error of attention scores (EfficientBERT, equation 1).

    The mean is over sentences, heads and the pairs of valid query and key positions. The released code clips
    masked scores to 0 and divides by all pairs, padding included.

    Raises:
        ValueError: the head counts differ.
    """
    if student_BHTT.shape != teacher_BHTT.shape:
        raise ValueError(
            f"attention scores need equal head counts and lengths: student {tuple(student_BHTT.shape)}, "
            f"teacher {tuple(teacher_BHTT.shape)}"
        )
    return _mean_square(student_BHTT, teacher_BHTT, _valid_pairs(mask_BT), student_BHTT.shape[1])


def hidden_mse(student_BTD: Tensor, teacher_BTD: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean square error of hidden states over valid tokens and channels (EfficientBERT, equation 2).

    Raises:
        ValueError: the widths differ.
    """
    if student_BTD.shape != teacher_BTD.shape:
        raise ValueError(
            f"hidden states need equal widths: student {tuple(student_BTD.shape)}, "
            f"teacher {tuple(teacher_BTD.shape)}; project the student's first"
        )
    return _mean_square(student_BTD, teacher_BTD, mask_BT[:, :, None].bool(), student_BTD.shape[-1])


def _mean_square(student: Tensor, teacher: Tensor, valid: Tensor, copies: int) -> Tensor:
    """Mean over the elements that `valid` selects, each of its own `copies` times."""
    # Filled rather than multiplied by 0: half-precision states of padding may be infinite.
    difference = (student.float() - teacher.float()).masked_fill(~valid, 0.0)
    return difference.square().sum() / (valid.sum().clamp(min=1) * copies)


def _valid_pairs(mask_BT: Tensor) -> Tensor:
    """(B, 1, T, T): both positions are valid."""
    valid_BT = mask_BT.bool()
    return valid_BT[:, None, :, None] & valid_BT[:, None, None, :]


def soft_cross_entropy(student_BC: Tensor, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy with the teacher's probabilities, mean over sentences (EfficientBERT, equation 3).

    The released code divides by the number of classes as well.

    Raises:
        ValueError: the numbers of sentences or classes differ.
    """
    _check_logits(student_BC, teacher_BC)
    targets = F.softmax(teacher_BC.float() / temperature, dim=-1)
    return F.cross_entropy(student_BC.float() / temperature, targets)


def symmetric_kl(student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """(KL(student || teacher) + KL(teacher || student)) / 2, mean over sentences (MoEBERT, equation 6).

    Raises:
        ValueError: the numbers of sentences or classes differ.
    """
    _check_logits(student_BC, teacher_BC)
    student_log, teacher_log = (F.log_softmax(logits.float(), dim=-1) for logits in (student_BC, teacher_BC))
    # The sum of both directions; no summand is negative, so nothing cancels.
    return 0.5 * ((student_log.exp() - teacher_log.exp()) * (student_log - teacher_log)).sum(dim=-1).mean()


def _check_logits(student_BC: Tensor, teacher_BC: Tensor) -> None:
    if student_BC.shape != teacher_BC.shape:
        raise ValueError(
            f"soft labels need equal shapes: student {tuple(student_BC.shape)}, "
            f"teacher {tuple(teacher_BC.shape)}"
        )


def relation_kl(student_BTD: Tensor, teacher_BTE: Tensor, mask_BT: Tensor, heads: int) -> Tensor:
    """KL(teacher || student) of the relations between a sentence's tokens, mean over valid query rows and heads.

    A relation is softmax(A A^T / sqrt(width / heads)) over the valid keys, of queries, keys or values A whose channels
    are split anew into `heads` relation heads, a divisor of both widths (MiniLMv2; MiniMoE, section 3.2).
    """
    student_log, teacher_log = (_log_relations(states, mask_BT, heads) for states in (student_BTD, teacher_BTE))
    divergence = F.kl_div(student_log, teacher_log, reduction="sum", log_target=True)
    return divergence / (mask_BT.sum().clamp(min=1) * heads)


def _log_relations(states_BTD: Tensor, mask_BT: Tensor, heads: int) -> Tensor:
    """(B, heads, T, T). Rows of padding are uniform, hence the same for every model, without a gradient."""
    # In full precision also under autocast: the softmax makes relative errors of absolute ones.
    with torch.autocast(states_BTD.device.type, enabled=False):
        products = dot_products(states_BTD.float(), states_BTD.float(), heads)
        lowest = torch.finfo(products.dtype).min
        return F.log_softmax(products.masked_fill(~_valid_pairs(mask_BT), lowest), dim=-1)


def balance(probabilities_NE: Tensor, chosen_N: Tensor) -> Tensor:
    """E sum_e f_e P_e of one router: f_e is the share of the N tokens (or sentences) sent to expert e, P_e the mean
    probability of it (Switch; MiniMoE, section 3.2).

    1 where one of the two is uniform, E where one expert takes all with certainty, 0 where N is 0. Its gradient goes
    through P alone.
    """
    experts = probabilities_NE.shape[-1]
    count = max(len(chosen_N), 1)
    shares_E = F.one_hot(chosen_N, experts).sum(dim=0) / count
    means_E = probabilities_NE.float().sum(dim=0) / count
    return experts * (shares_E * means_E).sum()

"""Losses between a student's and a teacher's outputs. Padding enters none of them."""

import torch
from torch import Tensor
from torch.nn import functional as F


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
    valid_B1TT = (mask_BT[:, None, :, None] * mask_BT[:, None, None, :]).to(torch.float32)
    squared = (student_BHTT.float() - teacher_BHTT.float()).square() * valid_B1TT
    return squared.sum() / (valid_B1TT.sum() * student_BHTT.shape[1])


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
    valid_BT1 = mask_BT[:, :, None].to(torch.float32)
    squared = (student_BTD.float() - teacher_BTD.float()).square() * valid_BT1
    return squared.sum() / (valid_BT1.sum() * student_BTD.shape[-1])


def soft_cross_entropy(student_BC: Tensor, teacher_BC: Tensor, temperature: float = 1.0) -> Tensor:
    """Cross-entropy with the teacher's probabilities, mean over sentences (EfficientBERT, equation 3).

    The released code divides by the number of classes as well.

    Raises:
        ValueError: the numbers of sentences or classes differ.
    """
    if student_BC.shape != teacher_BC.shape:
        raise ValueError(
            f"soft labels need equal shapes: student {tuple(student_BC.shape)}, "
            f"teacher {tuple(teacher_BC.shape)}"
        )
    targets = F.softmax(teacher_BC.float() / temperature, dim=-1)
    return F.cross_entropy(student_BC.float() / temperature, targets)

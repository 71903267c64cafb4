"""MicroBERT's objective.

The weights, the critic's shape and its learning rate are those of the released code, except for the adversarial loss
L_S, which it does not have; the paper only gives the weight 1 of the labels.

Differences of paper and code from this implementation, and from each other:
- Layers. The paper averages the teacher's layers 1-3, 3-6, 6-9, 9-12 in one place, every three layers in another; the
  code averages states 0-2, 3-5, 6-8, 9-11 for student *states* 0 to 3, and uses 12 for 4. Here groups are equal and
  disjoint, 1-3 to 10-12.
- L_S. The paper minimises log(1 - D), whose gradient vanishes while D wins; the usual form used here has the same fixed
  point. The code has no such loss: the student too minimises the critic's own loss, which helps the critic, and the
  critic's gradients are never cleared. D's input is [CLS] states in the code, as here, and predictions in the paper.
- The critic's loss is the mean of its two parts, as in the paper's text; equation 13 and the code add them.
- Equation 3, on embeddings, is not used in equation 9, in the code, or here.
"""

from typing import Any

import torch
from torch import Tensor

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_positive, check_weights, sum_of
from distill.objectives.critic import Critic
from distill.objectives.outputs import HIDDEN_STATES, Batch, Outputs, of_layers
from distill.objectives.spec import ObjectiveSpec


def microbert(
    student: Any,
    teacher: Any,
    *,
    alignment: float = 0.9,
    soft: float = 0.9,
    labels: float = 1.0,
    adversarial: float = 1.0,
    temperature: float = 1.0,
    layers: str = "average",
    balance: float = 0.01,
    critic_learning_rate: float = 1e-4,
    paper_compatible: bool = False,
) -> Objective:
    """MicroBERT's objective: equation 9, with the student's part of equation 10:

        alignment L_FAL + soft L_pred + labels CE(labels) + adversarial L_S.

    L_FAL (equation 8): for each student layer, the mean square error of three features (B, 3, width), the [CLS] state
    and the mean and the maximum over valid tokens; mean over sentences, features and channels, summed over layers.
    L_pred (equation 6): cross-entropy with the teacher's probabilities at the temperature, without a factor T^2, mean
    over sentences, labelled tokens or answer boundaries; for a regression the mean square error with the teacher's
    prediction. L_S = -log D(z), mean over sentences, where z is the student's last [CLS] state and D the `Critic` that
    distinguishes it from the teacher's. A narrower student's states pass through one learned transform.

    Args:
        student, teacher: Hugging Face configurations.
        layers: student layer m learns from the "average" of the teacher's m-th group of layers, or from the "last"
            layer of that group (3, 6, 9, 12, as in the paper's other variant).
        balance: weight of the load-balancing loss of the student's routers.
        critic_learning_rate: learning rate of the critic's Adam optimiser.
        paper_compatible: as in the released code, include padding in the pooling, and average L_pred over the classes.

    Raises:
        ValueError: the student's depth does not divide the teacher's, the choice of layers is unknown, or a number is
            out of its range.
    """
    check_weights(alignment=alignment, soft=soft, labels=labels, adversarial=adversarial, balance=balance)
    check_positive(temperature=temperature, critic_learning_rate=critic_learning_rate)
    if layers not in ("average", "last"):
        raise ValueError(f"unknown choice of layers {layers!r}: choose average or last")
    depth = student.num_hidden_layers
    groups = layer_maps.groups(depth, teacher.num_hidden_layers)
    sources = groups if layers == "average" else tuple(group[-1:] for group in groups)
    maps = terms.transforms(student, teacher, [depth] if alignment or adversarial else [])

    def align(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        mask_BT = torch.ones_like(batch["attention_mask"]) if paper_compatible else batch["attention_mask"]
        averages = (torch.stack([t.hidden_states[n].float() for n in group]).mean(dim=0) for group in sources)
        pairs = enumerate(averages, start=1)
        return sum_of(losses.pooled_mse(terms.transformed(s, m, maps), average, mask_BT) for m, average in pairs)

    critic = Critic(
        teacher.hidden_size,
        lambda s: terms.transformed(s, depth, maps)[:, 0],
        lambda t: t.hidden_states[-1][:, 0],
        critic_learning_rate,
    )
    states = frozenset({HIDDEN_STATES})
    last = of_layers(HIDDEN_STATES, [teacher.num_hidden_layers])
    teacher_needs = of_layers(HIDDEN_STATES, {n for group in sources for n in group})
    return Objective(
        [
            Term("alignment", alignment, states, align, teacher_needs),
            terms.soft_cross_entropy("soft", soft, temperature, paper_compatible),
            terms.labels(labels),
            Term("adversarial", adversarial, states, lambda s, _t, batch: critic.deception(s, batch), last),
            terms.balance(balance),
        ],
        maps,
        critic if adversarial else None,
    )


MICROBERT = ObjectiveSpec(microbert, without_labels={"labels": 0.0, "soft": 0.0})

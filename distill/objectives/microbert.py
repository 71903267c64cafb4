"""MicroBERT's objective.

The weights, the critic's shape and its learning rate are those of the released code, except for the adversarial loss
L_S, which it does not have; the paper only gives the weight 1 of the labels.

What paper and code say differently, and the settings for it:
- `layers`. Section 3.2 of the paper averages the teacher's layers 1-3, 3-6, 6-9 and 9-12 ("overlapping"), section 4.1
  every three layers ("average"), and the variant with which section 4.3 compares takes layers 3, 6, 9 and 12 ("last").
  The code averages states 0-2, 3-5, 6-8, 9-11 for student *states* 0 to 3, and uses 12 for 4 ("released"); with its
  option --not_avg, which its own command has, it takes states 2, 5, 8, 11 and 12 ("released_last").
- `adversarial_form`. The paper's student minimizes log(1 - D) (equation 11: "minimax"), whose gradient vanishes while D
  wins; the usual "non_saturating" form -log D has the same fixed point. The code has no such loss: the student too
  minimizes the critic's own loss, which helps the critic, and the critic's gradients are never cleared.
- `critic_input`. The paper's D reads the models' predicted outputs, T(x) and S(x) in equation 10, without saying before
  or after a softmax. "logits" takes them as equation 6 does, where the predicted vectors z are logits. The code's D
  reads [CLS] states ("cls_state").
- `embedding`. Equations 1, 3 and 7 have a term on the embedding output, with a transform W_e of its own; equation 9,
  which sums up what is minimized, and the code do not. Its features are those of equation 3, all tokens, since the
  three of equation 8 are defined for "each layer".
- The critic's loss is the mean of its two parts, as in the paper's text; equation 13 and the code add them. With Adam
  the factor makes hardly any difference.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_choice, check_positive, sum_of
from distill.objectives.critic import ADVERSARIAL_FORMS, Critic
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, Batch, Outputs, of_layers
from distill.tasks.types import get_task_type

# The teacher's states that are averaged for each state of the student; and the choices in which the first of these is
# the embedding output. Otherwise it is that of the lowest layer.
LAYERS: dict[str, Callable[[int, int], tuple[tuple[int, ...], ...]]] = {
    "average": layer_maps.groups,
    "overlapping": layer_maps.overlapping_groups,
    "last": lambda student, teacher: tuple((layer,) for layer in layer_maps.uniform(student, teacher)),
    "released": layer_maps.groups_of_states,
    "released_last": lambda student, teacher: tuple(
        group[-1:] for group in layer_maps.groups_of_states(student, teacher)
    ),
}
WITH_EMBEDDING = ("released", "released_last")
CRITIC_INPUTS = ("cls_state", "logits")


def microbert(
    student: Any,
    teacher: Any,
    *,
    alignment: float = 0.9,
    soft: float = 0.9,
    labels: float = 1.0,
    adversarial: float = 1.0,
    embedding: float = 0.0,
    temperature: float = 1.0,
    layers: str = "average",
    adversarial_form: str = "non_saturating",
    critic_input: str = "cls_state",
    balance: float = 0.01,
    critic_learning_rate: float = 1e-4,
    paper_compatible: bool = False,
) -> Objective:
    """MicroBERT's objective: equation 9, with the student's part of equation 10 and optionally equation 3:

        alignment L_FAL + soft L_pred + labels CE(labels) + adversarial L_S + embedding L_embd.

    L_FAL (equation 8): for each student layer, or with "released" `layers` each of its states, the mean square error of
    three features (B, 3, width), the [CLS] state and the mean and the maximum over valid tokens; mean over sentences,
    features and channels, summed over layers.
    L_pred (equation 6): cross-entropy with the teacher's probabilities at the temperature, without a factor T^2, mean
    over sentences, labeled tokens or answer boundaries; for a regression the mean square error with the teacher's
    prediction. L_S = -log D(z), mean over sentences, where z is the student's last [CLS] state and D the `Critic` that
    distinguishes it from the teacher's. L_embd (equation 3): mean square error of the embedding outputs (B, T, width),
    over valid tokens and channels. A narrower student's states pass through one learned transform, its embedding output
    through another if L_embd has a weight.

    Args:
        embedding: lambda_0 of equation 1, for which the paper gives no value.
        layers: student layer m learns from the "average" of the teacher's m-th group of layers (1-3, 4-6, 7-9, 10-12),
            from the average of "overlapping" groups (1-3, 3-6, 6-9, 9-12; section 3.2), or from the "last" layer of
            each group (3, 6, 9, 12, the paper's other variant). As in the released code, states 0 to 4 of the student
            learn from the average of the teacher's states 0-2, 3-5, 6-8, 9-11 and 12 ("released"), or from 2, 5, 8, 11
            and 12 ("released_last"), where state 0 is the embedding output.
        adversarial_form: "non_saturating", L_S = -log D(z), or "minimax", L_S = log(1 - D(z)), which is negative
            (equation 11).
        critic_input: what z is: "cls_state", or the "logits" of the predictions (equation 10): (C,) for each sentence
            or labeled token, the number of a regression, or both boundaries' logits for each token of an answer's
            text. A critic of logits belongs to the classes of one task, and cannot read words (masked-LM).
        critic_learning_rate: learning rate of the critic's Adam optimizer.
        paper_compatible: as in the released code, include padding in the pooling, and average L_pred over the classes;
            L_embd then includes padding too.

    Raises:
        ValueError: the student's depth does not divide the teacher's.
    """
    check_positive(temperature=temperature, critic_learning_rate=critic_learning_rate)
    check_choice("layers", layers, LAYERS)
    check_choice("adversarial_form", adversarial_form, ADVERSARIAL_FORMS)
    check_choice("critic_input", critic_input, CRITIC_INPUTS)
    depth = student.num_hidden_layers
    sources = dict(enumerate(LAYERS[layers](depth, teacher.num_hidden_layers), start=layers not in WITH_EMBEDDING))
    mapped = [depth] if alignment or (adversarial and critic_input == "cls_state") else []
    maps = terms.transforms(student, teacher, mapped + [0] * bool(embedding))
    critic, needs, teacher_needs = _critic(critic_input, depth, teacher, maps, critic_learning_rate, adversarial_form)
    soft_loss = partial(losses.soft_cross_entropy, temperature=temperature)
    return Objective(
        [
            _alignment(alignment, sources, maps, paper_compatible),
            terms.soft_labels("soft", soft, soft_loss, mean_over_classes=paper_compatible),
            terms.labels(labels),
            Term("adversarial", adversarial, needs, lambda s, _, batch: critic.deception(s, batch), teacher_needs),
            terms.hidden("embedding", embedding, [(0, 0)], maps, padding=paper_compatible),
            terms.balance(balance),
        ],
        maps,
        critic if adversarial else None,
    )


def _alignment(weight: float, sources: Mapping[int, Sequence[int]], maps: dict[str, nn.Module], padding: bool) -> Term:
    """L_FAL. `sources` are the teacher's states that are averaged, by the student's state."""

    def align(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        mask_BT = torch.ones_like(batch["attention_mask"]) if padding else batch["attention_mask"]
        averages = {m: torch.stack([t.hidden_states[n].float() for n in group]).mean(0) for m, group in sources.items()}
        return sum_of(
            losses.pooled_mse(terms.transformed(s, m, maps), average, mask_BT) for m, average in averages.items()
        )

    averaged = of_layers(HIDDEN_STATES, {n for group in sources.values() for n in group})
    return Term("alignment", weight, frozenset({HIDDEN_STATES}), align, averaged)


def _critic(
    critic_input: str, depth: int, teacher: Any, maps: dict[str, nn.Module], learning_rate: float, form: str
) -> tuple[Critic, frozenset[str], frozenset[str]]:
    """The critic, and the outputs of the student and of the teacher that it reads: the last [CLS] states, in the
    teacher's width, or the predictions' logits.
    """
    if critic_input == "logits":
        features = partial(_predictions, width=teacher.num_labels)
        critic = Critic(teacher.num_labels, features, features, learning_rate, form)
        return critic, frozenset({LOGITS}), frozenset({LOGITS})
    critic = Critic(
        teacher.hidden_size,
        lambda s, batch: _first_tokens(terms.transformed(s, depth, maps), batch),
        lambda t, batch: _first_tokens(t.hidden_states[-1], batch),
        learning_rate,
        form,
    )
    return critic, frozenset({HIDDEN_STATES}), of_layers(HIDDEN_STATES, [teacher.num_hidden_layers])


def _first_tokens(states_BTD: Tensor, batch: Batch) -> Tensor:
    """The first tokens' states (N, D), without those of sentences that consist of padding only."""
    return states_BTD[:, 0][batch["attention_mask"].any(dim=1)]


def _predictions(outputs: Outputs, batch: Batch, width: int) -> Tensor:
    """The logits (N, width) of the sentences or tokens for which something is predicted.

    Raises:
        ValueError: there is another number of logits.
    """
    logits, mask_BT = outputs.logits, batch["attention_mask"].bool()
    if get_task_type(outputs.task_type).of_positions:
        logits_ND = logits.transpose(1, 2)[mask_BT]
    elif logits.dim() == 2:
        logits_ND = logits[mask_BT.any(dim=1)]
    else:
        distributions = get_task_type(outputs.task_type).distributions
        assert distributions is not None  # only sentences have numbers
        logits_ND = distributions(logits, batch)
    if logits_ND.shape[-1] != width:
        raise ValueError(
            f"critic_input='logits': the critic reads {width} logits at a time, and the model predicts "
            f"{logits_ND.shape[-1]:,}; the critic of masked words, or of several tasks, must read cls_state"
        )
    return logits_ND

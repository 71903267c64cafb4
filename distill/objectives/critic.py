"""The critic: a discriminator that is trained adversarially against the student."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from distill.objectives.losses import mean_of_rows
from distill.objectives.outputs import Batch, Outputs

# The forms of the student's adversarial loss, with D = sigmoid(score): -log D, whose gradient is large while the critic
# wins, and the student's part of the minimax game, log(1 - D) (Goodfellow et al., 2014).
ADVERSARIAL_FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "non_saturating": lambda scores: F.softplus(-scores),
    "minimax": lambda scores: -F.softplus(scores),
}


class Critic(nn.Module):
    """An MLP with `width`, 256, 256 and 1 units that distinguishes a teacher's features from a student's.

    In each training step, a separate optimizer with `learning_rate` must minimize `loss` before the student's loss is
    computed. MicroBERT trains an MLP of this shape with Adam and learning rate 1e-4.

    Args:
        width: of the features.
        student_features, teacher_features: map the outputs of a model and the batch to features (N, width), of
            sentences or tokens, without padding.
        form: the student's adversarial loss, a key of `ADVERSARIAL_FORMS`.
    """

    def __init__(
        self,
        width: int,
        student_features: Callable[[Outputs, Batch], Tensor],
        teacher_features: Callable[[Outputs, Batch], Tensor],
        learning_rate: float = 1e-4,
        form: str = "non_saturating",
    ) -> None:
        super().__init__()
        self.learning_rate, self.form = learning_rate, form
        self.student_features, self.teacher_features = student_features, teacher_features
        self.layers = nn.Sequential(
            nn.Linear(width, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
        )

    def loss(self, student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
        """The critic's loss: the mean of the binary cross-entropies -log D(teacher) and -log(1 - D(student)), each a
        mean over the N features. Gradients flow to the critic only.
        """
        real_ND = self.teacher_features(teacher, batch).float().detach()
        fake_ND = self.student_features(student, batch).float().detach()
        return (mean_of_rows(F.softplus(-self._scores(real_ND))) + mean_of_rows(F.softplus(self._scores(fake_ND)))) / 2

    def deception(self, student: Outputs, batch: Batch) -> Tensor:
        """The student's adversarial loss, mean over the N features. Gradients flow to all but the critic."""
        frozen = {name: parameter.detach() for name, parameter in self.layers.named_parameters()}
        fake_ND = self.student_features(student, batch).float()
        return mean_of_rows(ADVERSARIAL_FORMS[self.form](functional_call(self.layers, frozen, (fake_ND,)).float()))

    def _scores(self, features_ND: Tensor) -> Tensor:
        """The logits of D, (N, 1): softplus(-x) = -log D, softplus(x) = -log(1 - D)."""
        return self.layers(features_ND).float()

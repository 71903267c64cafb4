"""The critic: a discriminator that is trained adversarially against the student."""

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from distill.objectives.outputs import Batch, Outputs


class Critic(nn.Module):
    """An MLP with `width`, 256, 256 and 1 units that distinguishes a teacher's features from a student's.

    In each training step, a separate optimiser with `learning_rate` must minimise `loss` before the student's loss is
    computed. MicroBERT trains an MLP of this shape with Adam and learning rate 1e-4.

    Args:
        width: of the features.
        student_features, teacher_features: map the outputs of a model to its features, (B, width).
    """

    def __init__(
        self,
        width: int,
        student_features: Callable[[Outputs], Tensor],
        teacher_features: Callable[[Outputs], Tensor],
        learning_rate: float = 1e-4,
    ) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.student_features, self.teacher_features = student_features, teacher_features
        self.layers = nn.Sequential(
            nn.Linear(width, 256), nn.LeakyReLU(0.2), nn.Linear(256, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)
        )

    def loss(self, student: Outputs, teacher: Outputs, batch: Batch) -> Tensor:
        """The critic's loss: the mean of the binary cross-entropies -log D(teacher) and -log(1 - D(student)), each a
        mean over sentences. Gradients flow to the critic only.
        """
        real_ND = _of_sentences(self.teacher_features(teacher), batch).detach()
        fake_ND = _of_sentences(self.student_features(student), batch).detach()
        return (_mean_softplus(-self.layers(real_ND)) + _mean_softplus(self.layers(fake_ND))) / 2

    def deception(self, student: Outputs, batch: Batch) -> Tensor:
        """The student's adversarial loss -log D(student), mean over sentences. Gradients flow to all but the critic."""
        frozen = {name: parameter.detach() for name, parameter in self.layers.named_parameters()}
        fake_ND = _of_sentences(self.student_features(student), batch)
        return _mean_softplus(-functional_call(self.layers, frozen, (fake_ND,)))


def _of_sentences(features_BD: Tensor, batch: Batch) -> Tensor:
    """The features in float32, without those of sentences that consist of padding only."""
    return features_BD[batch["attention_mask"].any(dim=1)].float()


def _mean_softplus(scores_N1: Tensor) -> Tensor:
    """softplus(-x) = -log sigmoid(x), softplus(x) = -log(1 - sigmoid(x))."""
    return F.softplus(scores_N1.float()).sum() / max(1, len(scores_N1))

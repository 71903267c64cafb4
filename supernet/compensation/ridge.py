"""Linear and affine maps solved for in closed form, by least squares that shrink towards given weights.

Dimensions: N tokens; E channels of the input; D channels of the output.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.errors import UserError

# The strengths of the ridge that are tried, relative to inputs of unit variance.
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
# The strength if there is nothing to choose it on.
CAUTIOUS = 1.0


class CompensationError(UserError, ArithmeticError):
    """Weights cannot be solved for."""


@dataclass(frozen=True)
class Linear:
    """The map h -> W h + b."""

    weight_DE: Tensor
    bias_D: Tensor

    def __call__(self, input_NE: Tensor) -> Tensor:
        return torch.nn.functional.linear(input_NE, self.weight_DE, self.bias_D)


class Ridge:
    """The regression on one set of inputs, decomposed once and solved for any number of targets.

    The solution minimises the mean of |target - W h - b|^2 plus strength * |(W - start) diag(s)|^2, where s are the
    standard deviations of the inputs. Shrinking towards the weights of the slice rather than to zero keeps the solution
    small where the text says nothing, and unit variance makes one strength fit channels of very different sizes.

    Args:
        input_NE: inputs in float32.
        held_N: True for the rows on which the strength is chosen, and which are not fitted; not for all rows.
        weight_N: the weight of each row's squared error; None: 1.

    Raises:
        CompensationError: an input is not finite.
    """

    def __init__(self, input_NE: Tensor, held_N: Tensor, weight_N: Tensor | None = None) -> None:
        if not bool(torch.isfinite(input_NE).all()):
            raise CompensationError("the activations are not finite")
        self.root_N1 = None if weight_N is None else weight_N.sqrt()[:, None]
        self.input_NE, self.held_N = input_NE, held_N
        fit_N = ~held_N
        self.share_N = input_NE.new_ones(len(input_NE)) if weight_N is None else weight_N
        self.mean_E = self._mean(input_NE, fit_N)
        centred_NE = self._rooted(input_NE - self.mean_E)
        total = float(self.share_N.sum())
        fit_EE = (centred_NE[fit_N].t() @ centred_NE[fit_N]).double()
        held_EE = (centred_NE[held_N].t() @ centred_NE[held_N]).double()
        variance_E = (fit_EE + held_EE).diagonal() / total
        # Constant inputs keep the start's weights.
        self.scale_E = variance_E.sqrt()
        self.scale_E[variance_E <= variance_E.max() * 1e-12] = 0
        inverse_E = torch.where(self.scale_E > 0, 1 / self.scale_E, 0)
        self.inverse_E = inverse_E
        outer_EE = inverse_E[:, None] * inverse_E[None, :]
        self.centred_NE = centred_NE
        self.fit_EE = fit_EE * outer_EE / float(self.share_N[fit_N].sum())
        self.held_EE = held_EE * outer_EE / max(1e-12, float(self.share_N[held_N].sum()))
        self.fit_values_E, self.fit_vectors_EE = torch.linalg.eigh(self.fit_EE)

    def _rooted(self, rows: Tensor) -> Tensor:
        return rows if self.root_N1 is None else rows * self.root_N1

    def _mean(self, rows: Tensor, chosen_N: Tensor) -> Tensor:
        share_N1 = self.share_N[chosen_N, None]
        return (rows[chosen_N] * share_N1).sum(dim=0) / share_N1.sum()

    def solve(self, target_ND: Tensor, start: Linear) -> Linear:
        """The solution for a target (N, D), with the strength that has the least error on the held-out rows.

        Raises:
            CompensationError: a target is not finite.
        """
        if not bool(torch.isfinite(target_ND).all()):
            raise CompensationError("the targets are not finite")
        fit_N, held_N = ~self.held_N, self.held_N
        mean_D = self._mean(target_ND, fit_N)
        centred_ND = self._rooted(target_ND - mean_D)
        fit_ED = (self.centred_NE[fit_N].t() @ centred_ND[fit_N]).double() * self.inverse_E[:, None]
        held_ED = (self.centred_NE[held_N].t() @ centred_ND[held_N]).double() * self.inverse_E[:, None]
        fit_ED /= float(self.share_N[fit_N].sum())
        held_ED /= max(1e-12, float(self.share_N[held_N].sum()))
        start_ED = start.weight_DE.double().t() * self.scale_E[:, None]
        rotated_ED = self.fit_vectors_EE.t() @ (fit_ED - self.fit_EE @ start_ED)
        best: tuple[float, Tensor] | None = None
        for strength in STRENGTHS if bool(held_N.any()) else (CAUTIOUS,):
            change_ED = self.fit_vectors_EE @ (rotated_ED / (self.fit_values_E.clamp(min=0) + strength)[:, None])
            solution_ED = start_ED + change_ED
            error = float((solution_ED * (self.held_EE @ solution_ED - 2 * held_ED)).sum())
            if best is None or error < best[0]:
                best = error, solution_ED
        assert best is not None
        _, solution_ED = best
        weight_DE = (solution_ED * self.inverse_E[:, None]).t().float()
        constant_E = self.scale_E == 0
        weight_DE[:, constant_E] = start.weight_DE[:, constant_E]
        return Linear(weight_DE, mean_D - weight_DE @ self.mean_E)


def affine_change(input_ND: Tensor, target_ND: Tensor, held_N: Tensor) -> tuple[Tensor, Tensor]:
    """The factor and the shift (D,) of every channel with which factor * input + shift is closest to the target.

    Least squares on the rows that are not held out say in which direction the factors should move from 1 and the shifts
    from 0; the held-out rows say how far, from not at all to the whole way. So the result is never worse on these than
    the unchanged input. Constant channels keep the factor 1.

    Args:
        held_N: True for the held-out rows; not for all rows.

    Raises:
        CompensationError: an input or a target is not finite.
    """
    for name, values in (("activations", input_ND), ("targets", target_ND)):
        if not bool(torch.isfinite(values).all()):
            raise CompensationError(f"the {name} are not finite")
    x_ND, error_ND = input_ND.double(), (target_ND - input_ND).double()
    mean_D, mean_error_D = x_ND[~held_N].mean(dim=0), error_ND[~held_N].mean(dim=0)
    centred_ND = x_ND[~held_N] - mean_D
    variance_D = (centred_ND**2).mean(dim=0)
    covariance_D = (centred_ND * error_ND[~held_N]).mean(dim=0)
    slope_D = torch.where(variance_D > variance_D.max() * 1e-12, covariance_D / variance_D, 0)
    shift_D = mean_error_D - slope_D * mean_D
    share = 1 / (1 + CAUTIOUS)
    if bool(held_N.any()):
        change_ND = x_ND[held_N] * slope_D + shift_D
        squares = float((change_ND**2).sum())
        share = min(1.0, max(0.0, float((change_ND * error_ND[held_N]).sum()) / squares)) if squares else 0.0
    return (1 + share * slope_D).float(), (share * shift_D).float()

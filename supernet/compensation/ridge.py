"""Linear and affine maps solved for in closed form, by least squares that shrink towards given weights.

Dimensions: N tokens; E channels of the input; D channels of the output.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from foundation.errors import UserError

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

    The solution minimizes the mean of |target - W h - b|^2 plus strength * |(W - start) diag(s)|^2, where s are the
    standard deviations of the inputs. Shrinking towards the weights of the slice rather than to zero keeps the solution
    small where the text says nothing, and unit variance makes one strength fit channels of very different sizes.

    Args:
        input_NE: inputs in float32.
        held_out_N: True for the rows on which the strength is chosen, and which are not fitted; not for all rows.
        weight_N: the weight of each row's squared error; None: 1.
        with_bias: whether the map has a bias b; otherwise it is 0.

    Raises:
        CompensationError: an input is not finite.
    """

    def __init__(
        self, input_NE: Tensor, held_out_N: Tensor, weight_N: Tensor | None = None, with_bias: bool = True
    ) -> None:
        if not bool(torch.isfinite(input_NE).all()):
            raise CompensationError("the activations are not finite")
        self.weight_N = input_NE.new_ones(len(input_NE)) if weight_N is None else weight_N
        self.root_N1 = self.weight_N.sqrt()[:, None]
        self.held_out_M = torch.nonzero(held_out_N)[:, 0]
        self.total, self.held_total = float(self.weight_N.sum()), float(self.weight_N[self.held_out_M].sum())
        self.with_bias = with_bias
        self.mean_E = self._fit_mean(input_NE)
        self.centered_NE = (input_NE - self.mean_E) * self.root_N1
        self.held_ME = self.centered_NE[self.held_out_M]
        all_EE = (self.centered_NE.t() @ self.centered_NE).double()
        variance_E = all_EE.diagonal() / self.total
        # Constant inputs keep the start's weights.
        self.scale_E = variance_E.sqrt()
        self.scale_E[variance_E <= variance_E.max() * 1e-12] = 0
        self.inverse_E = torch.where(self.scale_E > 0, 1 / self.scale_E, 0)
        outer_EE = self.inverse_E[:, None] * self.inverse_E
        self.fit_EE, self.held_EE = self._means(all_EE * outer_EE, (self.held_ME.t() @ self.held_ME) * outer_EE)
        self.values_E, self.vectors_EE = torch.linalg.eigh(self.fit_EE)
        self.rotated_held_EE = self.vectors_EE.t() @ self.held_EE @ self.vectors_EE

    def _fit_mean(self, rows: Tensor) -> Tensor:
        """What is subtracted from rows: the weighted mean of those that are fitted; without a bias, nothing. Held-out
        rows are subtracted rather than the others copied, since they are few.
        """
        if not self.with_bias:
            return rows.mean(dim=0) * 0  # NaN if a row is not finite, which `solve` reports
        all_sum, held_sum = self.weight_N @ rows, self.weight_N[self.held_out_M] @ rows[self.held_out_M]
        return (all_sum - held_sum) / (self.total - self.held_total)

    def _means(self, of_all: Tensor, of_held: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted means over the fitted and over the held-out rows of what was summed over all and over these."""
        of_held = of_held.double()
        return (of_all - of_held) / (self.total - self.held_total), of_held / max(1e-12, self.held_total)

    def solve(self, target_ND: Tensor, start: Linear) -> Linear:
        """The solution for a target (N, D), with the strength that has the least error on the held-out rows.

        Raises:
            CompensationError: a target is not finite.
        """
        mean_D = self._fit_mean(target_ND)
        if not bool(torch.isfinite(mean_D).all()):
            raise CompensationError("the targets are not finite")
        centered_ND = (target_ND - mean_D) * self.root_N1
        all_ED = (self.centered_NE.t() @ centered_ND).double()
        held_ED = self.held_ME.t() @ centered_ND[self.held_out_M]
        fit_ED, held_ED = (self.inverse_E[:, None] * moments_ED for moments_ED in self._means(all_ED, held_ED))
        start_ED = start.weight_DE.double().t() * self.scale_E[:, None]
        # In the eigenvectors' basis the change of the weights is factor_E(strength) * rotated_ED, so the error on the
        # held-out rows is a quadratic form in factor_E.
        rotated_ED = self.vectors_EE.t() @ (fit_ED - self.fit_EE @ start_ED)
        slope_E = (rotated_ED * (self.vectors_EE.t() @ (self.held_EE @ start_ED - held_ED))).sum(dim=1)
        curvature_EE = self.rotated_held_EE * (rotated_ED @ rotated_ED.t())
        strengths = STRENGTHS if len(self.held_out_M) else (CAUTIOUS,)
        factors = [1 / (self.values_E.clamp(min=0) + strength) for strength in strengths]
        factor_E = min(factors, key=lambda factor_E: float(factor_E @ (curvature_EE @ factor_E + 2 * slope_E)))
        solution_ED = start_ED + self.vectors_EE @ (factor_E[:, None] * rotated_ED)
        weight_DE = (solution_ED * self.inverse_E[:, None]).t().float()
        constant_E = self.scale_E == 0
        weight_DE[:, constant_E] = start.weight_DE[:, constant_E]
        return Linear(weight_DE, mean_D - weight_DE @ self.mean_E)


def affine_change(input_ND: Tensor, target_ND: Tensor, held_out_N: Tensor) -> tuple[Tensor, Tensor]:
    """The factor and the shift (D,) of every channel with which factor * input + shift is closest to the target.

    Least squares on the rows that are not held out say in which direction the factors should move from 1 and the shifts
    from 0; the held-out rows say how far, from not at all to the whole way. So the result is never worse on these than
    the unchanged input. Constant channels keep the factor 1.

    Args:
        held_out_N: True for the held-out rows; not for all rows.

    Raises:
        CompensationError: an input or a target is not finite.
    """
    for name, values in (("activations", input_ND), ("targets", target_ND)):
        if not bool(torch.isfinite(values).all()):
            raise CompensationError(f"the {name} are not finite")
    x_ND, error_ND = input_ND.double(), (target_ND - input_ND).double()
    mean_D, mean_error_D = x_ND[~held_out_N].mean(dim=0), error_ND[~held_out_N].mean(dim=0)
    centered_ND = x_ND[~held_out_N] - mean_D
    variance_D = (centered_ND**2).mean(dim=0)
    covariance_D = (centered_ND * error_ND[~held_out_N]).mean(dim=0)
    slope_D = torch.where(variance_D > variance_D.max() * 1e-12, covariance_D / variance_D, 0)
    shift_D = mean_error_D - slope_D * mean_D
    fraction = 1 / (1 + CAUTIOUS)
    if bool(held_out_N.any()):
        change_ND = x_ND[held_out_N] * slope_D + shift_D
        squares = float((change_ND**2).sum())
        fraction = min(1.0, max(0.0, float((change_ND * error_ND[held_out_N]).sum()) / squares)) if squares else 0.0
    return (1 + fraction * slope_D).float(), (fraction * shift_D).float()

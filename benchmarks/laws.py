"""Cost models ("laws"): sums of terms that are fitted to measured seconds, and the choice of the simplest that fits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

Term = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Law:
    """Seconds as a sum of terms.

    Attributes:
        terms: functions of the variable's values, by how they are written.
        coefficients: of the terms, in their order.
        errors: standard errors of the coefficients, from the residuals.
        worst: the largest relative residual.
        left_out: relative error (root of the mean square) of each setting as predicted from the others.
    """

    terms: Mapping[str, Term]
    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    worst: float
    left_out: float

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return self.parts(values).sum(axis=0)

    def parts(self, values: np.ndarray) -> np.ndarray:
        """Seconds of each term, (terms, values)."""
        pairs = zip(self.terms.values(), self.coefficients, strict=True)
        return np.array([coefficient * term(values.astype(float)) for term, coefficient in pairs])

    @property
    def name(self) -> str:
        return " + ".join(self.terms)

    def __str__(self) -> str:
        values = (f"({c:.3g} ± {e:.1g})" for c, e in zip(self.coefficients, self.errors, strict=True))
        return " + ".join(value + f"·{term}" * (term != "1") for value, term in zip(values, self.terms, strict=True))


def fit(terms: Mapping[str, Term], values: np.ndarray, seconds: np.ndarray) -> Law:
    """The coefficients of these terms by least squares of relative residuals. There must be more values than terms."""
    design = np.stack([term(values.astype(float)) for term in terms.values()], axis=1) / seconds[:, None]
    scale = np.linalg.norm(design, axis=0)
    scaled, target = design / scale, np.ones(len(values))
    coefficients = np.linalg.lstsq(scaled, target, rcond=None)[0]
    residuals = target - scaled @ coefficients
    covariance = np.linalg.inv(scaled.T @ scaled)
    leverage = np.einsum("vt,tu,vu->v", scaled, covariance, scaled)
    variance = residuals @ residuals / (len(values) - len(terms))
    # A term that only one value determines cannot be fitted without it: the error is infinite.
    with np.errstate(divide="ignore"):
        left_out = np.sqrt(((residuals / (1 - leverage)) ** 2).mean())
    return Law(
        terms,
        tuple(coefficients / scale),
        tuple(np.sqrt(variance * np.diag(covariance)) / scale),
        worst=np.abs(residuals).max(),
        left_out=left_out,
    )


def laws(terms: Mapping[str, Term], values: np.ndarray, seconds: np.ndarray) -> list[Law]:
    """The laws of all subsets of these terms that have fewer terms than there are values and no negative coefficient,
    as no work takes negative time; those with fewer terms first, then those with the smaller error.
    """
    sizes = range(1, min(len(terms), len(values) - 1) + 1)
    chosen = (names for size in sizes for names in combinations(terms, size))
    fitted = [fit({name: terms[name] for name in names}, values, seconds) for names in chosen]
    return sorted((law for law in fitted if min(law.coefficients) >= 0), key=lambda law: (len(law.terms), law.left_out))


def simplest(fitted: Sequence[Law], noise: float) -> Law:
    """The first of these laws whose error exceeds the smallest error by no more than the noise."""
    least = min(law.left_out for law in fitted)
    return next(law for law in fitted if law.left_out <= least + noise)


def terms_of(variable: str) -> dict[str, Term]:
    """The terms that a law of this variable can have."""
    return {"1": np.ones_like, variable: lambda x: x, f"{variable}²": np.square}

"""A goal in the user's terms: the smallest budget within which a student keeps a fraction of the teacher's score."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from distill.tasks.metrics import Metric, paired_difference
from nas.config.schema import ConfigError, StudyConfig
from nas.planning.budget import base_model
from nas.planning.finalists import Confirmation
from search_spaces import cost
from search_spaces.base import Base
from search_spaces.graph import FFNGraph

# Stands for no bound on MACs or on the microseconds of a latency, within the digits that a configuration may have.
UNBOUNDED = 10**12
# Every budget leaves this fraction of what the next larger one leaves for the parts that vary.
RATIO = 0.5**0.5


@dataclass(frozen=True)
class FractionKept:
    """How much of the teacher's score students keep, on the examples of the search split.

    Attributes:
        fraction: the score of the students, the mean over their training seeds, divided by the teacher's.
        standard_error: that of the fraction, from the paired difference to the teacher on the same examples.
        confidence: that the fraction is at least the one asked for, by the normal distribution.
    """

    fraction: float
    standard_error: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.fraction:.1%} ± {self.standard_error:.1%}"

    def to_json(self) -> dict[str, float]:
        """Values that `json.dumps` accepts."""
        return {"share": self.fraction, "standard_error": self.standard_error, "confidence": self.confidence}


def fraction_kept(
    metric: Metric, teacher: np.ndarray, of_seeds: Mapping[int, Confirmation], wanted: float
) -> FractionKept | None:
    """What a confirmed architecture keeps of the teacher's score; None if no seed has a result.

    Args:
        teacher: the contributions of the examples to the teacher's metric.
        wanted: the fraction that is asked for, to which the confidence refers.

    Raises:
        ConfigError: the teacher's score is not positive, so no fraction of it means anything.
    """
    whole = metric.of_contributions(teacher).value
    if whole <= 0:
        raise ConfigError(
            f"keep: the teacher's score is {whole:.4f}, of which no fraction can be kept; train it longer (finetune), "
            "or choose another task"
        )
    pairs = [(confirmed.rows, teacher) for confirmed in of_seeds.values() if confirmed.rows is not None]
    if not pairs:
        return None
    fraction = 1 + paired_difference(metric, pairs).value / whole
    # By the delta method, the error of s / t is that of (s - fraction * t) / t.
    error = paired_difference(metric, pairs, fraction).standard_error / whole
    margin = paired_difference(metric, pairs, wanted)
    if margin.standard_error > 0:
        confidence = float(norm.cdf(margin.value / margin.standard_error))
    else:
        confidence = float(margin.value >= 0)
    return FractionKept(fraction, error, confidence)


def ladder(fixed: int, whole: int, smallest: int) -> list[int]:
    """Budgets from the whole base model down to the smallest architecture: `fixed` is the cost of what no architecture
    lacks, and each budget gives everything else `RATIO` of what the one before gives it.
    """
    budgets = []
    rest = float(whole - fixed)
    while fixed + rest >= smallest and rest >= 1:
        budgets.append(fixed + int(rest))
        rest *= RATIO
    return budgets


def last_passing(count: int, passes: Callable[[int], bool]) -> int | None:
    """The largest number below `count` that passes, by bisection, if all smaller ones pass too; None if not even 0
    passes.
    """
    low, high = -1, count - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if passes(middle) else (low, middle - 1)
    return low if low >= 0 else None


def with_budget(
    config: StudyConfig,
    base: Base,
    graph: FFNGraph,
    num_labels: int,
    head: cost.HeadCost,
    maximum: int | None,
    slack: float,
) -> StudyConfig:
    """The configuration with a budget in place of `keep`.

    Args:
        num_labels, head: of the students, see `search_spaces.cost.params`.
        maximum: the upper bound on the cost that `keep` minimizes (latencies in microseconds); None: the base model's
            parameters are the only bound.
        slack: see `nas.config.space.SpaceTable`.
    """
    assert config.keep is not None
    whole = cost.params(base_model(config, base, graph), num_labels, head)
    changes: dict[str, Any] = {"uniform": None, "max_params": config.space.max_params or whole, "slack": slack}
    if maximum is not None:
        limit = f"{maximum / 1000}ms" if config.keep.cost == "latency" else maximum
        changes[f"max_{config.keep.cost}"] = limit
    return config.with_table("space", **changes)

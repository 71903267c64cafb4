"""The finalists of a stage, which are confirmed with fresh seeds, the winner among them, and their leads over the best
baseline.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import mean, stdev
from typing import Any, TypeVar

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from distill.table import difference, plural
from distill.tasks.metrics import Metric
from nas.study import ledger
from nas.study.attributes import ROWS, attribute, goals_of
from nas.study.contributions import decode, lead_over
from nas.study.description import formula

# The origins of enqueued trials. Stored studies have these texts, by which a resumed search recognises the trials.
BASE_MODEL, UNIFORM, GLOBAL = "base model", "uniform slice", "global importance"
# The base model with fewer layers, as they are left out by hand.
FEWER_LAYERS = "fewer layers"
# The allocations by integer programming that every stage starts with, the best first.
ALLOCATED = ("MILP allocation", "MILP allocation 2", "MILP allocation 3")
# The architecture that a stage refines, and the same one with the base graph in every layer.
WINNER, WINNER_WITH_BASE_GRAPHS = "winner so far", "winner with base graphs"
# How other texts name them.
SHOWN = {WINNER: "the refined architecture", WINNER_WITH_BASE_GRAPHS: "the refined architecture with base graphs"}
# The baselines that a winner must not be worse than: not the base model, which exceeds the budget.
BASELINES = frozenset({UNIFORM, GLOBAL, FEWER_LAYERS, *ALLOCATED, WINNER, WINNER_WITH_BASE_GRAPHS})


def shown(origin: str) -> str:
    """How texts and figures name an origin."""
    return SHOWN.get(origin, origin)


@dataclass(frozen=True)
class Confirmation:
    """The result of a finalist with one fresh seed.

    Attributes:
        rows: the contributions of the rows to the score, of shape (N,) or (N, K); None in studies of earlier versions.
    """

    score: float
    rows: np.ndarray | None = None


# The confirmations of finalists: key of the function that a finalist computes -> seed -> result.
Confirmed = Mapping[str, Mapping[int, Confirmation]]


def finalists(study: optuna.Study, count: int) -> list[FrozenTrial]:
    """The trials to confirm: those of the `count` best distinct functions within the budget (of the Pareto front if
    there are two goals), and those of the best baseline, of global importance, which can gain more by training than the
    other baselines, and of the architecture that the stage refines, because the winner must not be worse.
    """
    ranked = ledger.ranked(study)
    chosen = different(front(ranked) if len(study.directions) > 1 else ranked)[:count]
    baselines = baselines_of(ranked)
    always = [trial for trial in baselines if trial.user_attrs[ledger.ORIGIN] in (GLOBAL, WINNER)]
    return different([*chosen, *baselines[:1], *always])


def baselines_of(ranked: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    return [trial for trial in ranked if trial.user_attrs[ledger.ORIGIN] in BASELINES]


def different(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    first: dict[str, FrozenTrial] = {}
    for trial in trials:
        first.setdefault(attribute(trial, ledger.FUNCTION), trial)
    return list(first.values())


T = TypeVar("T")


def front(ranked: Sequence[T], values: Callable[[T], Sequence[float]] = attrgetter("values")) -> list[T]:
    """The Pareto front: those of the trials that no other one dominates in its `values`, a score and a cost."""
    of_all = list(map(values, ranked))
    return [
        trial
        for trial, own in zip(ranked, of_all, strict=True)
        if not any(other[0] >= own[0] and other[1] <= own[1] and other != own for other in of_all)
    ]


def confirmations(study: optuna.Study, functions: Sequence[str], seeds: Sequence[int]) -> Confirmed:
    """The results with these seeds of architectures, which are given by the keys of their functions.

    Args:
        study: the study in which all stages confirm.
    """
    results: dict[str, dict[int, Confirmation]] = {function: {} for function in functions}
    for trial in ledger.scored(study):
        function, seed, rows = (attribute(trial, name) for name in (ledger.FUNCTION, ledger.SEED, ROWS))
        if function in results and seed in seeds:
            results[function][seed] = Confirmation(trial.values[0], None if rows is None else decode(rows))
    return {function: dict(sorted(of_seeds.items())) for function, of_seeds in results.items()}


def summary(ranked: list[FrozenTrial], confirmed: Confirmed, study: optuna.Study, metric: Metric) -> dict[str, Any]:
    """The content of `best.json`: what the stage's scores are ("score" or "fidelity"), the finalists with their leads
    over the best baseline, the winner (the finalist with the best mean over fresh seeds), and with two goals the Pareto
    front.

    Args:
        metric: the metric that is the score of the confirmations.
    """
    reference = reference_of(ranked, confirmed, study)
    others = confirmed[attribute(reference, ledger.FUNCTION)] if reference else {}
    origin, number = (reference.user_attrs[ledger.ORIGIN], reference.number) if reference else ("", None)
    rows = []
    for trial in ranked:
        of_seeds = confirmed[attribute(trial, ledger.FUNCTION)]
        fresh = [confirmation.score for confirmation in of_seeds.values()]
        rows.append(
            row_of(trial)
            | {
                "confirmed_scores": fresh,
                "confirmed_mean": mean(fresh) if fresh else None,
                "confirmed_deviation": stdev(fresh) if len(fresh) > 1 else None,
                "lead": lead_over(of_seeds, others, lambda rows: metric, origin, number),
            }
        )
    # A finalist that failed with every fresh seed can win only if all of them did.
    with_scores = [row for row in rows if row["confirmed_mean"] is not None]
    winner = max(with_scores or rows, key=lambda row: row["confirmed_mean"] if with_scores else row["score"])
    compared_by = goals_of(study)[0]
    result: dict[str, Any] = {"compared_by": compared_by, "winner": winner, "finalists": rows}
    if len(study.directions) > 1:
        best = different(front(ledger.ranked(study)))
        result["front"] = [row_of(trial) for trial in sorted(best, key=lambda trial: trial.values[1])]
    return result


def reference_of(ranked: Sequence[FrozenTrial], confirmed: Confirmed, study: optuna.Study) -> FrozenTrial | None:
    """The baseline among the finalists with the best mean over fresh seeds; None if none of them was confirmed."""
    functions = {attribute(trial, ledger.FUNCTION) for trial in ranked}
    candidates = [
        trial
        for trial in different(baselines_of(ledger.ranked(study)))
        if attribute(trial, ledger.FUNCTION) in functions and confirmed[attribute(trial, ledger.FUNCTION)]
    ]

    def confirmed_mean(trial: FrozenTrial) -> float:
        return mean(confirmation.score for confirmation in confirmed[attribute(trial, ledger.FUNCTION)].values())

    return max(candidates, key=confirmed_mean, default=None)


def lead_line(winner: Mapping[str, Any]) -> str | None:
    """The lead of a stage's winner in one line; None if it is not known."""
    lead = winner["lead"]
    if lead is None:
        return None
    over = shown(lead["over"])
    if lead["over_trial"] == winner["trial"]:
        return f"winner: the baseline {over.removeprefix('the ')}"
    value = difference((lead["value"], lead["standard_error"]))
    return f"winner: {value} over {over} (paired, {plural(len(lead['seeds']), 'seed')})"


def row_of(trial: FrozenTrial) -> dict[str, Any]:
    """The entry of a trial in `best.json`."""
    attributes, architecture = trial.user_attrs, ledger.architecture_of(trial)
    return {
        "trial": trial.number,
        "origin": attributes[ledger.ORIGIN],
        "score": trial.values[0],
        "standard_error": attributes["standard_error"],
        "params": attributes["params"],
        "macs": attributes["macs"],
        "formula": formula(architecture),
        "architecture": architecture.to_json(),
    }

"""The finalists of a stage, which are confirmed with fresh seeds, and the winner among them."""

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from nas.study import ledger

# The origin of the trial of the architecture that a stage refines. Stored studies have this text, by which a resumed
# search recognises the trial.
WINNER = "winner so far"


def finalists(study: optuna.Study, count: int) -> list[FrozenTrial]:
    """The trials to confirm: those of the `count` best distinct functions within the budget (of the Pareto front if
    there are two goals), and that of the architecture that the stage refines, because the winner must not be worse.
    """
    rows = ledger.ranked(study)
    if len(study.directions) > 1:
        rows = front(rows)
    chosen = different(rows)[:count]
    refined = [trial for trial in ledger.ranked(study) if trial.user_attrs[ledger.ORIGIN] == WINNER]
    known = {trial.user_attrs[ledger.FUNCTION] for trial in chosen}
    return chosen + [trial for trial in refined if trial.user_attrs[ledger.FUNCTION] not in known]


def different(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The first trial of every distinct function."""
    first: dict[str, FrozenTrial] = {}
    for trial in trials:
        first.setdefault(trial.user_attrs[ledger.FUNCTION], trial)
    return list(first.values())


def front(ranked: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The Pareto front: the trials that no other one dominates.

    Args:
        ranked: trials with two values each, a score to be maximised and a cost to be minimised.
    """
    return [
        trial
        for trial in ranked
        if not any(
            other.values[0] >= trial.values[0] and other.values[1] <= trial.values[1] and other.values != trial.values
            for other in ranked
        )
    ]


def confirmed_scores(
    study: optuna.Study, ranked: Sequence[FrozenTrial], seeds: Sequence[int]
) -> dict[str, list[float]]:
    """The scores of the finalists with these seeds, by the key of the function that they compute.

    Args:
        study: the study in which all stages confirm.
        ranked: the finalists, trials of a stage.
    """
    scores: dict[str, dict[int, float]] = {}
    for trial in ledger.scored(study):
        scores.setdefault(trial.user_attrs[ledger.FUNCTION], {})[trial.user_attrs[ledger.SEED]] = trial.values[0]
    functions = [trial.user_attrs[ledger.FUNCTION] for trial in ranked]
    return {
        function: [score for seed, score in sorted(scores.get(function, {}).items()) if seed in seeds]
        for function in functions
    }


def summary(ranked: list[FrozenTrial], confirmed: dict[str, list[float]], study: optuna.Study) -> dict[str, Any]:
    """The content of `best.json`: the finalists, the winner (the finalist with the best mean over fresh seeds), and
    with two goals the Pareto front.
    """
    rows = []
    for trial in ranked:
        fresh = confirmed[trial.user_attrs[ledger.FUNCTION]]
        rows.append(
            row_of(trial)
            | {
                "confirmed_scores": fresh,
                "confirmed_mean": mean(fresh) if fresh else None,
                "confirmed_deviation": stdev(fresh) if len(fresh) > 1 else None,
            }
        )
    # A finalist that failed with every fresh seed can win only if all of them did.
    with_scores = [row for row in rows if row["confirmed_mean"] is not None]
    winner = max(with_scores or rows, key=lambda row: row["confirmed_mean"] if with_scores else row["score"])
    result: dict[str, Any] = {"winner": winner, "finalists": rows}
    if len(study.directions) > 1:
        best = different(front(ledger.ranked(study)))
        result["front"] = [row_of(trial) for trial in sorted(best, key=lambda trial: trial.values[1])]
    return result


def row_of(trial: FrozenTrial) -> dict[str, Any]:
    """The entry of a trial in `best.json`."""
    attributes = trial.user_attrs
    return {
        "trial": trial.number,
        "origin": attributes[ledger.ORIGIN],
        "score": trial.values[0],
        "standard_error": attributes["standard_error"],
        "params": attributes["params"],
        "macs": attributes["macs"],
        "formula": attributes["formula"],
        "architecture": ledger.architecture_of(trial).to_json(),
    }

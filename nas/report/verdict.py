"""Whether searching paid off, in a sentence: the winner of a study against its baselines."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from distill.table import difference, plural, with_error
from nas.planning.finalists import WINNER, WINNER_WITH_BASE_GRAPHS, shown
from nas.report.study import FIXED_BASELINES, Stage, Study
from nas.study.contributions import lead_over, metric_of_rows

# A difference of at most this many standard errors is no evidence.
CLEAR = 2.0


def of_study(study: Study) -> str:
    """One sentence about the last stage; if that has not ended, it says what is known so far."""
    stage = study.last
    if stage.best is None:
        return _so_far(stage, study.config.stage(stage.name).confirm_seeds)
    lead = stage.best["winner"].get("lead")
    if lead is not None and lead["over"] in (WINNER, WINNER_WITH_BASE_GRAPHS):
        # The lead is over what an earlier stage found, not over a fixed baseline.
        lead = overall_lead(study) or lead
    return _sentence(lead, stage.best["winner"]["trial"], f"stage {stage.name}")


def of_stages(study: Study) -> list[str]:
    """One sentence for every stage that has ended."""
    ended = [(stage.name, stage.best["winner"]) for stage in study.stages if stage.best is not None]
    return [f"Stage {name}: {_sentence(winner.get('lead'), winner['trial'], 'the stage')}" for name, winner in ended]


def _so_far(stage: Stage, seeds: int) -> str:
    """What is known of a stage that has not ended, and will be confirmed with so many seeds."""
    unfinished = f"It is not known yet whether searching paid off: stage {stage.name} has not ended"
    if stage.leader is None:
        return f"{unfinished}, and no candidate within the budget has a score."
    best = next((c for c in stage.within_budget if c in stage.baselines), None)
    against = f"; the best baseline, {shown(best.origin)}, has {with_error(best.result)}" if best else ""
    if best is stage.leader:
        against = f", and is itself a baseline, {shown(best.origin)}"
    return (
        f"{unfinished}. So far its best candidate has a {stage.goals[0]} of {with_error(stage.leader.result)}"
        f"{against}. The best of many noisy scores is partly luck"
        + ("; the confirmation with fresh seeds will tell." if seeds else ".")
    )


def overall_lead(study: Study) -> dict[str, Any] | None:
    """The lead of the last winner over the best confirmed baseline within the budget that does not depend on a stage,
    as in best.json; None if none was confirmed with a seed of which the rows of both are known.
    """
    winner, best = study.last.leader, study.best_baseline
    if winner is None or best is None or best.origin not in FIXED_BASELINES or not study.confirmed_scores(best):
        return None
    if best.function == winner.function:
        return {"over": best.origin, "over_trial": winner.number}
    own, others = study.confirmed.get(winner.function, {}), study.confirmed[best.function]
    return lead_over(own, others, partial(metric_of_rows, study.config), best.origin, None)


def _sentence(lead: Mapping[str, Any] | None, winner: int, what: str) -> str:
    """A lead in words.

    Args:
        winner: the number of the winner's trial.
        what: what searched.
    """
    if lead is None:
        return "It is not known whether searching paid off: no baseline was confirmed on rows that were recorded."
    over = shown(lead["over"])
    if lead["over_trial"] == winner:
        return (
            f"Searching did not pay off: the winner of {what} is itself a baseline, {over}; nothing that the search "
            "found was confirmed to be better."
        )
    value, error = lead["value"], lead["standard_error"]
    seeds = plural(len(lead["seeds"]), "seed")
    numbers = f"{difference((value, error))} over {over}, the best baseline (paired on the same rows, {seeds})"
    if abs(value) <= CLEAR * error:
        return (
            f"No evidence that searching paid off: the winner of {what} has {numbers}, within two standard errors of 0."
        )
    if value < 0:
        return f"Searching did not pay off: the winner of {what} has {numbers}."
    return (
        f"Searching probably paid off: the winner of {what} has {numbers}, more than two standard errors above 0, "
        "though it was chosen by the same scores."
    )

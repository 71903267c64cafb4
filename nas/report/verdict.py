"""Whether searching paid, in a sentence: the winner of a study against its baselines."""

from collections.abc import Mapping
from statistics import mean
from typing import Any

from nas.finalists import WINNER, WINNER_WITH_BASE_GRAPHS, shown
from nas.report.data import FIXED_BASELINES, Candidate, Stage, StudyData
from nas.study.contributions import paired_lead

# A difference of at most so many standard errors is called noise.
CLEAR = 2.0


def of_study(study: StudyData) -> str:
    """One sentence about the last stage that has ended, or that it is not known yet."""
    stage = study.last
    if stage.best is None:
        return _so_far(stage)
    lead = overall_lead(study) if _refines(stage) else None
    return _sentence(lead or stage.best["winner"].get("lead"), stage.best["winner"]["trial"], f"stage {stage.name}")


def of_stages(study: StudyData) -> list[str]:
    """One sentence for every stage that has ended."""
    return [
        f"Stage {stage.name}: {_sentence(stage.best['winner'].get('lead'), stage.best['winner']['trial'], 'the stage')}"
        for stage in study.stages
        if stage.best is not None
    ]


def _so_far(stage: Stage) -> str:
    """What is known of a stage that has not ended."""
    unfinished = f"It is not known yet whether searching pays: stage {stage.name} has not ended"
    leader = stage.leader
    if leader is None:
        return f"{unfinished}, and no candidate within the budget has a score."
    baselines = [c for c in stage.baselines if c.in_budget]
    best = max(baselines, key=lambda c: c.score or 0.0, default=None)
    goal = stage.goals[0]
    against = f"; the best baseline, {shown(best.origin)}, has {score(best)}" if best else ""
    return (
        f"{unfinished}. So far its best candidate has a {goal} of {score(leader)}{against}. The best of many noisy "
        "scores is partly luck; the confirmation with fresh seeds will tell."
    )


def score(candidate: Candidate) -> str:
    """A candidate's score with its standard error."""
    error = "" if candidate.standard_error is None else f" ± {candidate.standard_error:.4f}"
    return f"{candidate.score:.4f}{error}" if candidate.score is not None else "no score"


def _refines(stage: Stage) -> bool:
    """Whether the lead of a stage's winner is over what an earlier stage found, and not over a fixed baseline."""
    lead = stage.best["winner"].get("lead") if stage.best is not None else None
    return lead is not None and lead["over"] in (WINNER, WINNER_WITH_BASE_GRAPHS)


def overall_lead(study: StudyData) -> dict[str, Any] | None:
    """The lead of the last winner over the best confirmed baseline within the budget that does not depend on a stage,
    as in best.json; None if none was confirmed with a seed of which the rows of both are known.
    """
    stage = study.last
    winner = stage.leader
    baselines = {
        c.function: c for earlier in study.stages for c in earlier.within_budget if c.origin in FIXED_BASELINES
    }
    confirmed = {function: found for function, found in study.confirmed.items() if function in baselines}
    if winner is None or not confirmed:
        return None
    best = max(confirmed, key=lambda function: mean(found.score for found in confirmed[function].values()))
    if best == winner.function:
        return {"over": baselines[best].origin, "over_trial": winner.number}
    own, other = study.confirmed.get(winner.function, {}), confirmed[best]
    pairs = {
        seed: (mine, others)
        for seed in own.keys() & other.keys()
        if (mine := own[seed].rows) is not None and (others := other[seed].rows) is not None
    }
    if not pairs:
        return None
    difference = paired_lead(study.config, list(pairs.values()))
    return {
        "over": baselines[best].origin,
        "over_trial": None,
        "value": difference.value,
        "standard_error": difference.standard_error,
        "seeds": list(pairs),
    }


def _sentence(lead: Mapping[str, Any] | None, winner: int, what: str) -> str:
    """A lead in words.

    Args:
        winner: the number of the winner's trial.
        what: what searched.
    """
    if lead is None:
        return "Whether searching paid is not known: no baseline was confirmed on rows that were recorded."
    over = shown(lead["over"])
    if lead["over_trial"] == winner:
        return (
            f"Searching did not pay: the winner of {what} is a baseline itself, {over}, and nothing that was found was "
            "confirmed to be better."
        )
    value, error = lead["value"], lead["standard_error"]
    seeds = f"{len(lead['seeds'])} seed{'s' if len(lead['seeds']) > 1 else ''}"
    numbers = f"{value:+.4f} ± {error:.4f} over {over}, the best baseline (paired on the same rows, {seeds})"
    if abs(value) <= CLEAR * error:
        return f"No evidence that searching paid: the winner of {what} has {numbers}, within two standard errors of 0."
    if value < 0:
        return f"Searching did not pay: the winner of {what} has {numbers}."
    return (
        f"Searching probably paid: the winner of {what} has {numbers}, more than two standard errors; it was chosen by "
        "the same scores."
    )

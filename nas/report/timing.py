"""Where the time of a study went."""

import re
from dataclasses import dataclass
from statistics import median

from nas.report.data import COMPLETE, FAILED, PRUNED, Candidate, StudyData, busy

_STAGE = re.compile(r"stage-(\w+) trial \d+")


@dataclass(frozen=True)
class Times:
    """The times of a stage, all in seconds.

    Attributes:
        searching: the wall time in which trials of the search were running.
        between: the wall time between them: proposing and recording, and interruptions.
        since_last: from the last trial of the stage before to the first of this one; None for the first stage.
        before_confirming: from the last trial of the search to the first confirmation.
        confirming: the wall time in which the finalists were trained.
        between_confirmations: the wall time between those trainings.
        worked: the sum of the durations of the trials by their state, which several workers spend at the same time.
        typical: the median duration of a complete trial; None if there is none.
    """

    since_last: float | None
    searching: float
    between: float
    before_confirming: float
    confirming: float
    between_confirmations: float
    worked: dict[str, float]
    typical: float | None

    def parts(self) -> dict[str, float]:
        """The wall time by what it was spent on, in order."""
        return {
            "trials running": self.searching,
            "between trials": self.between,
            "before confirming": self.before_confirming,
            "confirmations running": self.confirming,
            "between confirmations": self.between_confirmations,
        }


def times(study: StudyData) -> dict[str, Times]:
    """The times of every stage that has trials which have ended, by its name.

    The confirmations are assigned to stages by their origins; a training that an earlier stage has done is not done
    again.
    """
    result: dict[str, Times] = {}
    last: float | None = None
    for stage in study.stages:
        periods = busy(stage.candidates)
        if not periods:
            continue
        own = [trial for trial in study.confirmations if _stage_of(trial) == stage.name]
        confirming = busy(own)
        after = max(0.0, confirming[0][0] - periods[-1][1]) if confirming else 0.0
        durations = [c.seconds for c in stage.scored if c.seconds is not None]
        worked = {
            state: sum(_duration(c) for c in stage.candidates if c.state == state and c.duplicate_of is None)
            for state in (COMPLETE, PRUNED, FAILED)
        }
        worked["confirmations"] = sum(map(_duration, own))
        result[f"stage {stage.name}"] = Times(
            since_last=None if last is None else max(0.0, periods[0][0] - last),
            searching=_total(periods),
            between=_gaps(periods),
            before_confirming=after,
            confirming=_total(confirming),
            between_confirmations=_gaps(confirming),
            worked=worked,
            typical=median(durations) if durations else None,
        )
        last = max(periods[-1][1], confirming[-1][1] if confirming else 0.0)
    return result


def _duration(trial: Candidate) -> float:
    """The recorded seconds or, for a failed trial, the time between its start and its end."""
    if trial.seconds is not None:
        return trial.seconds
    return trial.span[1] - trial.span[0] if trial.span else 0.0


def _stage_of(trial: Candidate) -> str:
    match = _STAGE.fullmatch(trial.origin)
    return match[1] if match else ""


def _total(periods: list[tuple[float, float]]) -> float:
    return sum(end - start for start, end in periods)


def _gaps(periods: list[tuple[float, float]]) -> float:
    return periods[-1][1] - periods[0][0] - _total(periods) if periods else 0.0

"""Where the time of a study went."""

import re
from collections.abc import Iterable, Sequence
from statistics import median

from distill.table import Column, Table, duration
from nas.report.study import Candidate, Study

_STAGE = re.compile(r"stage-(\w+) trial \d+")


def times(study: Study) -> Table:
    """The times of every stage that has trials which have ended. The confirmations are assigned to stages by their
    origins; a training that an earlier stage has done is not done again.
    """
    columns = (
        Column("stage"),
        Column("trials running", duration),
        Column("between trials", duration),
        Column("confirmations running", duration),
        Column("a trial", "{:.2f} s".format),
        Column("all trials", duration),
    )
    rows = []
    for stage in study.stages:
        periods = busy(stage.candidates)
        if periods:
            own = [trial for trial in study.confirmations if _stage_of(trial) == stage.name]
            running = sum(end - start for start, end in periods)
            rows.append(
                (
                    stage.name,
                    running,
                    periods[-1][1] - periods[0][0] - running,
                    sum(end - start for start, end in busy(own)) if own else None,
                    median(c.seconds for c in stage.scored) if stage.scored else None,
                    sum(c.seconds for c in stage.candidates if c.duplicate_of is None),
                )
            )
    return Table(columns, rows)


def busy(candidates: Iterable[Candidate]) -> list[tuple[float, float]]:
    """The periods in which at least one of the candidates was evaluated."""
    return merged([c.span for c in candidates if c.span is not None and c.duplicate_of is None])


def merged(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The periods that pairs of start and end cover, in order."""
    result: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if result and start <= result[-1][1]:
            result[-1] = result[-1][0], max(end, result[-1][1])
        else:
            result.append((start, end))
    return result


def _stage_of(trial: Candidate) -> str:
    match = _STAGE.fullmatch(trial.origin)
    return match[1] if match else ""

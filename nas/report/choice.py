"""Which trial of a study is taken: by its number, within limits, by the fraction of the teacher's score, or the knee of
the front.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral
from statistics import mean
from typing import Any

from distill.table import Table, plural, with_error
from foundation.errors import shortened
from nas.config.schema import ConfigError
from nas.config.values import count, file_size, parse_latency
from nas.report import architecture
from nas.report.study import COMPLETE, Candidate, Stage, Study, knee
from nas.study.attributes import COSTS
from nas.study.description import formulas
from search_spaces.genes import outside_ffns
from search_spaces.numbers import proportion


def within(candidates: Sequence[Candidate], limits: Mapping[str, float]) -> list[Candidate]:
    """The candidates whose costs are within the limits.

    Args:
        limits: a cost -> its maximum.

    Raises:
        ConfigError: there is none, or the candidates do not have one of the costs.
    """
    left = list(candidates)
    for place, (name, maximum) in enumerate(limits.items()):
        with_cost = [candidate for candidate in left if name in candidate.costs]
        if not with_cost:
            raise ConfigError(
                f"--max-{name}: the trials of this study have no {name}; search with --max-{name}"
                + (f", or with --goals score,{name}" if name != "size" else "")
            )
        left = [candidate for candidate in with_cost if candidate.costs[name] <= maximum]
        if not left:
            others = _named(list(limits)[:place])
            least = COSTS[name](min(candidate.costs[name] for candidate in with_cost))
            raise ConfigError(
                f"--max-{name}: no trial{others} has at most {COSTS[name](maximum)}; the least is {least}"
            )
    return left


def _named(limits: Iterable[str]) -> str:
    """Limits as words after "trial"; empty without any."""
    options = " and ".join(f"--max-{name}" for name in limits)
    return f" within {options}" if options else ""


def cheapest_keeping(
    candidates: Sequence[Candidate], stage: Stage, fraction: float, cost: str, where: str = ""
) -> Candidate:
    """The candidate with the lowest cost that keeps this fraction of the teacher's score on the rows on which the
    candidates were scored, without an allowance for noise.

    Args:
        where: within what the candidates are, as words after "trial".

    Raises:
        ConfigError: none does, or the study does not have the teacher's score, or that is not positive.
    """
    if stage.teacher is None:
        raise ConfigError(
            "--keep: this study does not have the teacher's score, as it scores several tasks; choose by --max-params "
            "or --trial"
        )
    teacher = stage.teacher["score"]
    if teacher <= 0:
        raise ConfigError(f"--keep: the teacher's score is {teacher:.4f}, of which no fraction can be kept")
    metrics = {candidate.number: stage.metric(candidate) or 0.0 for candidate in candidates}
    enough = [candidate for candidate in candidates if metrics[candidate.number] >= fraction * teacher]
    if not enough:
        raise ConfigError(
            f"--keep: no trial{where} keeps {fraction:.1%} of the teacher's score {teacher:.4f}; the best keeps "
            f"{max(metrics.values()) / teacher:.1%}"
        )
    return min(enough, key=lambda candidate: (candidate.costs[cost], -metrics[candidate.number]))


def of_number(stage: Stage, number: int) -> Candidate:
    """The candidate of this number.

    Raises:
        ConfigError: there is none, or it has no score.
    """
    if not stage.candidates:
        raise ConfigError(f"--trial: stage-{stage.name} has no trials yet")
    if not isinstance(number, Integral):  # numbers of a data frame are numpy's
        raise ConfigError(f"--trial: must be the number of a trial, not {shortened(number)}")
    if not 0 <= number < len(stage.candidates):
        raise ConfigError(f"--trial: stage-{stage.name} has trials 0 to {len(stage.candidates) - 1}, not {number}")
    candidate = stage.candidates[number]
    if candidate.state != COMPLETE:
        reason = f": {candidate.reason}" if candidate.reason else ""
        raise ConfigError(f"--trial: trial {number} has no score ({candidate.state}{reason})")
    return candidate


def pick(
    study: Study,
    stage: str | None = None,
    trial: int | None = None,
    keep: str | float | None = None,
    limits: Mapping[str, str | int | None] | None = None,
) -> tuple[Stage, Candidate, str]:
    """The stage and the candidate that are asked for, and why the candidate was chosen.

    Args:
        stage: the name of the stage; None: the last one with a score.
        trial: the number of the candidate.
        keep: the cheapest candidate with this fraction of the teacher's score, such as "99%".
        limits: a cost -> its maximum, such as "8M" or "12ms", or None.

    Raises:
        ConfigError: no candidate is what is asked for, or a number is given with other limits.
    """
    given = {name: maximum for name, maximum in (limits or {}).items() if maximum is not None}
    others = [*(f"max-{name}" for name in given), *(["keep"] if keep is not None else [])]
    if trial is not None and others:
        raise ConfigError(f"--trial names the trial: leave out --{others[0]}")
    chosen = stage_of(study, stage)
    if trial is not None:
        return chosen, of_number(chosen, trial), "chosen by its number"
    return chosen, *choose(study, chosen, keep, limits_of(given))


def choose(study: Study, stage: Stage, keep: str | float | None, limits: Mapping[str, float]) -> tuple[Candidate, str]:
    """The candidate of a stage within the limits, and why it was chosen.

    Raises:
        ConfigError: there is none.
    """
    candidates = list(stage.scored if limits else stage.within_budget)
    if not candidates:
        within_budget = "" if limits else " within its budget"
        raise ConfigError(f"stage-{stage.name} has no trial with a score{within_budget} yet")
    candidates = within(candidates, limits)
    if keep is not None:
        try:
            fraction = float(proportion(keep))
        except ValueError as error:
            raise ConfigError(f"--keep: {error}") from None
        cost = cost_of(study, stage)
        chosen = cheapest_keeping(candidates, stage, fraction, cost, _named(limits) or " within its budget")
        those = "those within the limits" if limits else "those"
        return chosen, f"the lowest {cost} of {those} that keep {fraction:.1%} of the teacher's score"
    best = max(candidates, key=lambda candidate: candidate.score)
    if limits:
        return best, f"the best of {len(candidates)} within the limits"
    if len(stage.goals) > 1:
        front = stage.front(stage.goals[1])
        return knee(front, stage.goals[1]), f"the knee of a front of {len(front)} trials"
    if stage.best is not None and stage.leader is not None:
        return stage.leader, "the winner"
    return best, f"the best of {len(candidates)} so far"


def cost_of(study: Study, stage: Stage) -> str:
    """The cost that a stage's scores are weighed against: its second goal or, without one, what the configuration
    limits.
    """
    if len(stage.goals) > 1:
        return stage.goals[1]
    if study.config.keep is not None:
        return study.config.keep.cost
    limited = (name for name in reversed(COSTS) if getattr(study.config.space, f"max_{name}") is not None)
    return next(limited, "params")


def limits_of(given: Mapping[str, str | int]) -> dict[str, float]:
    """The limits by cost, from texts such as "8M" or "12ms".

    Raises:
        ConfigError: a limit cannot be read.
    """
    read = {"params": count, "macs": count, "latency": _microseconds, "size": file_size}
    limits = {}
    for name, text in given.items():
        try:
            limits[name] = read[name](text)
        except ValueError as error:
            raise ConfigError(f"--max-{name}: {error}") from None
    return limits


def _microseconds(text: str | int) -> float:
    limit = parse_latency(str(text))
    if limit.relative:
        raise ValueError("give a time such as '12ms'; a part of the teacher's latency is for searches")
    return float(limit.value)


def facts_of(study: Study, stage: Stage, candidate: Candidate) -> dict[str, Any]:
    """What is known of a candidate as plain values: its origin, scores, costs, and the formulas of its layers."""
    scores = {stage.goals[0]: candidate.score}
    if stage.goals[0] != "score" and (metric := stage.metric(candidate)) is not None:
        scores["score"] = metric
    facts = {
        "origin": candidate.origin,
        "scores": scores,
        "standard_error": candidate.result[1],
        "teacher": stage.teacher and stage.teacher["score"],
        "confirmed": study.confirmed_scores(candidate),
        "costs": {name: cost for name, cost in candidate.costs.items() if name in COSTS},  # latency in microseconds
        "layers": formulas(candidate.architecture),
    }
    experts = outside_ffns(candidate.architecture)
    return facts | ({"experts": experts} if experts else {})


def text_of(facts: Mapping[str, Any], candidate: Candidate) -> Iterator[str | Table]:
    """What is known of a candidate for a terminal; `facts` are those of `facts_of`."""
    (goal, value), *others = facts["scores"].items()
    scores = [f"{goal} {with_error((value, facts['standard_error']))}", *(f"{name} {x:.4f}" for name, x in others)]
    if facts["teacher"] is not None:
        scores.append(f"teacher {facts['teacher']:.4f}")
    if fresh := facts["confirmed"]:
        scores.append(f"score after training with {plural(len(fresh), 'fresh seed')} {mean(fresh):.4f}")
    yield "; ".join(scores)
    yield "; ".join(COSTS[name](cost) for name, cost in facts["costs"].items())
    if "experts" in facts:
        yield facts["experts"]
    yield architecture.layers(candidate.architecture)


def stage_of(study: Study, name: str | None) -> Stage:
    """The stage of this name, by default the last one with a score.

    Raises:
        ConfigError: it has not begun, or nothing has a score.
    """
    stages = {stage.name: stage for stage in study.stages}
    if name is not None and name not in stages:
        raise ConfigError(f"--stage: {study.folder.path} has the stages {', '.join(map(repr, stages))}, not {name!r}")
    with_scores = [stage for stage in study.stages if stage.scored]
    if name is None and not with_scores:
        raise ConfigError(f"{study.folder.path} has no trial with a score yet")
    return with_scores[-1] if name is None else stages[name]

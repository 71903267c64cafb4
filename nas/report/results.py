"""The sections of a report about scores: the result, the search, the front, agreement, and time."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from nas.finalists import shown
from nas.report import verdict
from nas.report.agreement import agreement
from nas.report.data import COMPLETE, FAILED, PRUNED, UNFINISHED, Candidate, Stage, StudyData
from nas.report.figures import losses as loss_figures
from nas.report.figures import scores as figures
from nas.report.figures import time as time_figures
from nas.report.page import Picture, Section, bullets, paragraph, table
from nas.report.timing import Times, times
from nas.results import millions

HEADER = (
    "",
    "stage/trial",
    "search score",
    "task score",
    "confirmed",
    "lead",
    "parameters",
    "active",
    "MACs",
    "latency",
)
FIRST_REASONS = 12


def result(study: StudyData) -> Section:
    """The winner beside other finalists, baselines and the teacher."""
    stage = study.last
    parts: list[str | Picture] = []
    if len([s for s in study.stages if s.best is not None]) > 1:
        parts.append(bullets(verdict.of_stages(study)))
    parts.append(table(HEADER, result_rows(study), f"Stage {stage.name}: winner, finalists, baselines and teacher"))
    parts.append(
        paragraph(
            "Search score: what the stage compared its candidates by, with its standard error. Task score: the task's "
            "metric on the same rows. Confirmed: the mean score after training with fresh seeds, and how many. Lead: "
            "the paired difference to the best confirmed baseline on the same rows; its standard error does not cover "
            "that the winner was chosen by the same scores. MACs are of a sentence of 128 tokens.",
            "note",
        )
    )
    kept = stage.best["winner"].get("kept") if stage.best is not None else None
    if kept is not None and study.config.keep is not None:
        parts.append(paragraph(kept_line(kept, study.config.keep.share)))
    if study.final is not None:
        parts.append(final_table(study.final))
    return Section("result", "Result", parts)


def kept_line(kept: Mapping[str, float], wanted: float) -> str:
    """What the winner of a search that keeps a share of the teacher's score keeps of it."""
    share = f"{kept['share']:.1%} ± {kept['standard_error']:.1%}"
    return (
        f"The winner keeps {share} of the teacher's score on the search split. It keeps at least {wanted:.1%}, which "
        f"was asked for, with a confidence of {kept['confidence']:.0%}."
    )


def result_rows(study: StudyData) -> list[list[str]]:
    """The rows of the table of results."""
    stage = study.last
    finalists = {row["trial"]: row for row in stage.best["finalists"]} if stage.best is not None else {}
    leader = stage.leader
    rows, seen = [], set()
    named: list[tuple[str, Candidate, Stage]] = []
    if leader is not None:
        what = "winner" if stage.best is not None else "best so far"
        origin = f" ({shown(leader.origin)})" if leader in stage.baselines else ""
        named.append((what + origin, leader, stage))
    named += [(f"finalist ({shown(stage.candidates[n].origin)})", stage.candidates[n], stage) for n in finalists]
    # The stages in reverse, so that a baseline is shown with its score in this stage.
    for earlier in reversed(study.stages[: study.stages.index(stage) + 1]):
        for baseline in earlier.baselines:
            beyond = "" if baseline.in_budget else ", exceeds the budget"
            named.append((shown(baseline.origin) + beyond, baseline, earlier))
    for name, candidate, of_stage in named:
        if candidate.function in seen:
            continue
        seen.add(candidate.function)
        finalist = finalists.get(candidate.number) if of_stage is stage else None
        rows.append(_row(name, candidate, of_stage, study, finalist))
    if stage.teacher:
        rows.append(_teacher(study, stage))
    return rows


def _row(
    name: str, candidate: Candidate, stage: Stage, study: StudyData, finalist: Mapping[str, Any] | None
) -> list[str]:
    metric = candidate.metrics.get(stage.teacher["task"]) if stage.teacher else None
    confirmed = study.confirmed_scores(candidate.function)
    measured = finalist.get("latency_measured_us") if finalist else None
    latency = _milliseconds(candidate.costs.get("latency"))
    return [
        name,
        f"{stage.name}/{candidate.number}",
        verdict.score(candidate),
        f"{metric:.4f}" if metric is not None and stage.goals[0] == "fidelity" else "",
        f"{mean(confirmed):.4f} ({len(confirmed)})" if confirmed else "",
        _lead(finalist, candidate.number),
        *costs(candidate.costs),
        f"{latency}; whole model {_milliseconds(measured)}" if measured else latency,
    ]


def _lead(finalist: Mapping[str, Any] | None, number: int) -> str:
    lead = finalist.get("lead") if finalist else None
    if lead is None:
        return ""
    if lead["over_trial"] == number:
        return "is the best baseline"
    return f"{lead['value']:+.4f} ± {lead['standard_error']:.4f}"


def costs(found: Mapping[str, float]) -> list[str]:
    """Parameters, active parameters if they differ, and MACs as texts."""
    params, active = found.get("params"), found.get("params_active")
    return [
        millions(params),
        millions(active) if active != params else "",
        millions(found.get("macs")),
    ]


def _milliseconds(microseconds: float | None) -> str:
    return "" if microseconds is None else f"{microseconds / 1e3:.2f} ms"


def _teacher(study: StudyData, stage: Stage) -> list[str]:
    """The teacher's row; if the base model is a copy of the teacher, these have the same costs."""
    assert stage.teacher is not None
    score = f"{stage.teacher['score']:.4f}"
    base = next((found for s in study.stages if (found := figures.of_base_model(s)) is not None), None)
    copied = base is not None and base.architecture is not None and not base.architecture.has_experts
    same = study.config.base == "teacher" and copied
    of_base = base.costs if same and base is not None else {}
    by_fidelity = stage.goals[0] == "fidelity"
    latency = _milliseconds(of_base.get("latency"))
    return ["teacher", "", "1 (by definition)" if by_fidelity else score, score if by_fidelity else "", "", "",
            *costs(of_base), latency]  # fmt: skip


def final_table(final: Mapping[str, Any]) -> str:
    """The measurements of the final training, from its metrics.json."""
    metric = final["metrics"][0]
    rows = []
    for name, row in final["models"].items():
        difference = row[metric].get("difference")
        rows.append(
            [
                name,
                f"{row[metric]['value']:.4f} ± {row[metric]['standard_error']:.4f}",
                f"{difference['value']:+.4f} ± {difference['standard_error']:.4f}" if difference else "",
                *costs(row),
                f"{row['latency_ms']:.2f} ms" if "latency_ms" in row else "",
            ]
        )
    header = ("", metric, "difference to the teacher", "parameters", "active", "MACs", "latency")
    tokens = f"; MACs and latency of a sentence of {final['tokens']} tokens" if "tokens" in final else ""
    return table(header, rows, f"After the final training, on {final['dev_rows']:,} dev rows{tokens}")


def losses(study: StudyData) -> Section | None:
    """The losses of the final training; None if they are not known."""
    found = study.final.get("losses", {}) if study.final is not None else {}
    phases = list(dict.fromkeys(phase for of_model in found.values() for phase in of_model))
    if not phases:
        return None
    panels = {
        phase: {name: of_model[phase] for name, of_model in found.items() if of_model.get(phase)} for phase in phases
    }
    lasts = [
        f"{phase}: " + ", ".join(f"{name} {points[-1][1]:.3f}" for name, points in lines.items())
        for phase, lines in panels.items()
    ]
    picture = Picture(
        "losses",
        loss_figures.over_steps(panels),
        f"Losses of the final training over its steps. At the end, {'; '.join(lasts)}.",
        "Losses of the final training; each point is a mean over successive steps. The student starts from the "
        "warmed-up supernet; the base model is trained with the same recipe. The first losses may be cut off at the "
        "top.",
    )
    return Section("losses", "Losses of the final training", [picture])


def search(study: StudyData) -> Section:
    """The scores over evaluations and time, and what became of the trials, stage by stage."""
    parts: list[str | Picture] = []
    for stage in study.stages:
        parts.append(f"<h3>Stage {stage.name}</h3>")
        parts.append(paragraph(_outcomes(stage)))
        if stage.scored:
            parts.append(
                Picture(
                    f"progress-stage-{stage.name}",
                    figures.progress(stage),
                    _progress_alt(stage),
                    f"Stage {stage.name}: {figures.score_axis(stage)} of each candidate, and the best so far within "
                    "the budget; left over evaluations, right over time. The lowest tenth may lie below the axis.",
                )
            )
        reasons = Counter((c.state, c.reason) for c in stage.candidates if c.state in (PRUNED, FAILED))
        if reasons:
            rows = [[f"{state}: {why}", f"{count:,}"] for (state, why), count in reasons.most_common(FIRST_REASONS)]
            if len(reasons) > FIRST_REASONS:
                rest = sum(count for _, count in reasons.most_common()[FIRST_REASONS:])
                rows.append([f"{len(reasons) - FIRST_REASONS} further reasons", f"{rest:,}"])
            parts.append(table(("reason", "trials"), rows, "Trials without a score"))
    return Section("search", "Best score over the search", parts)


def _outcomes(stage: Stage) -> str:
    """How many trials a stage has, by what became of them."""
    duplicates = [c for c in stage.candidates if c.duplicate_of is not None]
    own = [c for c in stage.candidates if c.duplicate_of is None]
    counts = Counter(c.state for c in own)
    parts = [f"{counts[COMPLETE]:,} complete", f"{counts[PRUNED]:,} pruned", f"{counts[FAILED]:,} failed"]
    if counts[UNFINISHED]:
        parts.append(f"{counts[UNFINISHED]:,} unfinished")
    were = "duplicate was" if len(duplicates) == 1 else "duplicates were"
    repeated = f" In addition, {len(duplicates):,} {were} not evaluated again."
    beyond = sum(not c.in_budget for c in stage.scored)
    exceeding = f" {beyond:,} of the complete ones exceed{'s' if beyond == 1 else ''} the budget." if beyond else ""
    return f"{len(own):,} trials: {', '.join(parts)}.{repeated if duplicates else ' No duplicates.'}{exceeding}"


def _progress_alt(stage: Stage) -> str:
    _, best = figures.best_so_far(stage)
    if not best:
        return f"Scores of {len(stage.scored)} candidates, none of which is within the budget."
    found = best.index(best[-1]) + 1
    return (
        f"Scores of {len(stage.scored)} candidates. The best score within the budget rises from {best[0]:.4f} to "
        f"{best[-1]:.4f}, which is reached by candidate {found} of {len(best)}."
    )


def front(study: StudyData) -> Section | None:
    """Scores against costs; None if no stage has candidates whose costs differ."""
    parts: list[str | Picture] = []
    for stage in study.stages:
        if not stage.within_budget or not stage.costs:
            continue
        cost = stage.costs[0]
        points, best = stage.front(cost), stage.knee(cost)
        knee = f"; its knee is trial {best.number} ({verdict.score(best)})" if best and len(points) > 2 else ""
        parts.append(
            Picture(
                f"front-stage-{stage.name}",
                figures.fronts(stage),
                f"Scores of {len(stage.within_budget)} candidates against {', '.join(stage.costs)}. The Pareto front "
                f"in {cost} has {len(points)} of them{knee}.",
                f"Stage {stage.name}: scores against costs, with the candidates that no other one beats in both, the "
                "knee of this front, and the baselines. A number with an arrow is the cost of a baseline "
                "beyond the axis.",
            )
        )
        rows = [
            [f"trial {p.candidate.number}", p.candidate.origin, verdict.score(p.candidate), *costs(p.candidate.costs),
             _milliseconds(p.candidate.costs.get("latency")), "knee" if p.candidate is best else ""]
            for p in points
        ]  # fmt: skip
        if len(stage.goals) > 1:
            header = ("", "origin", "score", "parameters", "active", "MACs", "latency", "knee")
            parts.append(table(header, rows, f"The front of stage {stage.name}"))
    return Section("front", "Scores against costs", parts) if parts else None


def agreement_section(study: StudyData) -> Section | None:
    """How well scores in the search rank the finalists; None before anything was confirmed."""
    kinds = agreement_kinds(study)
    if not kinds:
        return None
    lines = []
    for name, metric in kinds:
        for stage in study.stages:
            pairs = figures.confirmed_pairs(study, stage, metric)
            if pairs:
                found = agreement([pair[0] for pair in pairs], [pair[1] for pair in pairs])
                few = f"too few confirmed architectures for Kendall's tau ({len(pairs)})"
                lines.append(f"Stage {stage.name}, {name}: {found or few}.")
    picture = Picture(
        "agreement",
        figures.agreements(study, kinds),
        "Scores after training with fresh seeds against scores in the search. " + " ".join(lines),
        "Scores in the search against the means of the confirmations with fresh seeds (EfficientBERT, figure 3).",
    )
    note = (
        "Only finalists are confirmed, which are the best of the search: among them a score ranks worse than among "
        "candidates drawn at random."
    )
    return Section(
        "agreement", "Search scores against confirmed scores", [picture, bullets(lines), paragraph(note, "note")]
    )


def agreement_kinds(study: StudyData) -> list[tuple[str, str | None]]:
    """The kinds of scores in the search that can be compared with confirmed ones: what stages compared by, and where
    that is fidelity the metric of the task, too.
    """
    kinds: list[tuple[str, str | None]] = []
    for stage in study.stages:
        if not figures.confirmed_pairs(study, stage):
            continue
        wanted: list[tuple[str, str | None]] = [(f"{stage.goals[0]} in the search", None)]
        task = stage.teacher["task"] if stage.teacher else None
        if stage.goals[0] == "fidelity" and task and figures.confirmed_pairs(study, stage, task):
            wanted.append((f"score on {task} in the search", task))
        kinds += [kind for kind in wanted if kind not in kinds]
    return kinds


def time_section(study: StudyData) -> Section | None:
    """Where the time went; None before the first trial has ended."""
    found = times(study)
    if not found:
        return None
    header = ("", "complete", "pruned", "failed", "confirmations", "a trial", "wall time", "since the stage before")
    rows = [
        [
            name,
            *(duration(each.worked[key]) for key in (COMPLETE, PRUNED, FAILED, "confirmations")),
            f"{each.typical:.2f} s" if each.typical is not None else "",
            duration(sum(each.parts().values())),
            duration(each.since_last) if each.since_last is not None else "",
        ]
        for name, each in found.items()
    ]
    picture = Picture("time", time_figures.spent(found), _time_alt(found), "The wall time of the stages, in minutes.")
    note = (
        "The columns by state are sums over workers, which run at the same time; a trial: the median of the complete "
        "ones. The time between trials includes interruptions. What came before the first trial (text, teacher, "
        "supernet) is not in the ledger."
    )
    return Section("time", "Where the time went", [picture, table(header, rows), paragraph(note, "note")])


def _time_alt(found: Mapping[str, Times]) -> str:
    parts: Sequence[str] = [
        f"{name}: " + ", ".join(f"{part} {duration(value)}" for part, value in each.parts().items())
        for name, each in found.items()
    ]
    return "; ".join(parts) + "."


def duration(seconds: float) -> str:
    """Seconds as hours, minutes and seconds, such as "1 h 02 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"

"""The sections of a report."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distill.command.report import measurement_table
from distill.table import Column, Table, plural, with_error
from distill.training.evaluation import Load
from nas.planning.finalists import WINNER_WITH_BASE_GRAPHS, shown
from nas.report import figures, surface, verdict
from nas.report.drawing import svg
from nas.report.outcome import Named, entry, front_table, models_of, models_table
from nas.report.page import Part, Picture, Section, Text
from nas.report.study import COMPLETE, FAILED, PRUNED, UNFINISHED, Candidate, Stage, Study
from nas.study.description import formula
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.graph import FFNGraph

# No more reasons for missing scores, architectures, and distinct FFNs as surfaces than these are shown.
REASONS, DRAWN, SURFACES = 12, 6, 10


def result(study: Study, final: Mapping[str, Any] | None = None, trained: Architecture | None = None) -> Section:
    """The winner beside other finalists, baselines and the teacher.

    Args:
        final: the content of metrics.json of the final training; None without one.
        trained: the architecture of the final training; None if it is not known.
    """
    stage = study.last
    sentences = verdict.of_stages(study)
    entries = [entry(study, *model) for model in _result_models(study)]
    found = "finalists, winner, " if stage.best is not None else "best candidate so far, " if stage.leader else ""
    strong = len(entries) - 1 if stage.leader is not None else None
    parts: list[Part] = [
        *(sentences if len(sentences) > 1 else ()),
        models_table(entries, stage.teacher, strong, f"Stage {stage.name}: baselines, {found}teacher"),
        Text("small", _explained(study, entries)),
    ]
    kept = stage.best["winner"].get("kept") if stage.best is not None else None
    if kept is not None and study.config.keep is not None:
        parts.append(
            f"The winner keeps {kept['share']:.1%} ± {kept['standard_error']:.1%} of the teacher's score on the search "
            f"split. It keeps at least {study.config.keep.fraction:.1%}, which was asked for, with a confidence of "
            f"{kept['confidence']:.0%}."
        )
    if final is not None:
        if trained is not None and (stage.leader is None or function_key(trained) != stage.leader.function):
            winner = "winner" if stage.best is not None else "best candidate so far"
            parts.append(f"The final training is not of the {winner}, but of: {formula(trained)}.")
        parts.append(measurement_table(final, "After the final training, on "))
    return Section("result", "Result", parts)


def _explained(study: Study, entries: Sequence[Mapping[str, Any]]) -> str:
    """What the columns of the table of models are, of those that it has."""
    stage = study.last.name
    tasks = study.config.scored_tasks(stage)
    texts = ["Score: on the rows on which the stage scores candidates, with its standard error."]
    if any(row["compared_by"] == "fidelity" for row in entries):
        texts = [
            "Fidelity: how well a candidate's outputs correlate with the teacher's, on the rows on which the stage "
            "scores candidates, with its standard error. Score: the metric of the task on the same rows."
        ]
    if len(tasks) > 1:
        texts.append(f"Those of stage {stage} are means over the tasks {', '.join(tasks)}.")
    if any(row["confirmed"] is not None for row in entries):
        texts.append("After training: the mean score with fresh seeds, and how many.")
    if any(row["lead"] is not None for row in entries):
        texts.append(
            "Lead: the paired difference to the best confirmed baseline of the stage on the same rows; its standard "
            "error does not cover that the winner was chosen by the same scores."
        )
    return " ".join([*texts, "MACs are of a sentence of 128 tokens."])


def _result_models(study: Study) -> list[Named]:
    """The models of `models_of` up to the last stage that has ended, with its finalists, each function once."""
    stage = study.last
    models = [model for model in models_of(study) if model[2].name <= stage.name]
    winner = [model for model in models if model[1] is stage.leader]
    models += [(f"finalist ({shown(c.origin)})", c, stage) for c in map(stage.candidates.__getitem__, stage.finalists)]
    different: dict[str, Named] = {}
    for model in models:
        different.setdefault(model[1].function, model)
    if stage.leader:
        different.pop(stage.leader.function)
    return [*different.values(), *winner]


def search(study: Study) -> Section:
    """The scores over the search, and what became of the trials, stage by stage."""
    parts: list[Part] = []
    for stage in study.stages:
        parts += [Text("h3", f"Stage {stage.name}"), _outcomes(stage)]
        if stage.within_budget:
            _, best = figures.best_so_far(stage)
            rise = f"rises from {best[0]:.4f} to" if best[0] < best[-1] else "is"
            parts.append(
                Picture(
                    f"progress-stage-{stage.name}",
                    figures.progress(stage, study.references),
                    f"Scores of {plural(len(stage.within_budget), 'candidate')} over the evaluations. The best one "
                    f"{rise} {best[-1]:.4f}.",
                    f"Stage {stage.name}: {figures.score_axis(stage)} of each candidate within the budget, and the "
                    "best so far. The lowest tenth may lie below the axis.",
                )
            )
        elif stage.scored:
            parts.append("No candidate with a score is within the budget.")
        without = (c for c in stage.candidates if c.state in (PRUNED, FAILED) and c.duplicate_of is None)
        reasons = Counter(f"{c.state}: {c.reason}" for c in without)
        if reasons:
            rows = reasons.most_common(REASONS)
            if further := len(reasons) - len(rows):
                rows.append((plural(further, "further reason"), reasons.total() - sum(n for _, n in rows)))
            parts.append(Table((Column("reason", is_text=True), Column("trials")), rows, "Trials without a score"))
    return Section("search", "Best score over the search", parts)


def _outcomes(stage: Stage) -> str:
    """How many trials a stage has, by what became of them."""
    own = [c for c in stage.candidates if c.duplicate_of is None]
    counts = Counter(c.state for c in own)
    states = (COMPLETE, PRUNED, FAILED, *([UNFINISHED] if counts[UNFINISHED] else []))
    duplicates = len(stage.candidates) - len(own)
    return (
        f"{plural(len(own), 'trial')}: {', '.join(f'{counts[state]:,} {state}' for state in states)}. "
        f"{plural(duplicates, 'duplicate')} {'was' if duplicates == 1 else 'were'} not evaluated again."
    )


def front(study: Study) -> Section | None:
    """Scores against costs; None if no stage has candidates whose costs differ."""
    parts: list[Part] = []
    for stage in study.stages:
        if not stage.within_budget or not stage.costs:
            continue
        cost = stage.costs[0]
        best = stage.knee(cost)
        knee = f"; its knee is trial {best.number} ({with_error(best.result)})" if best else ""
        parts.append(
            Picture(
                f"front-stage-{stage.name}",
                figures.fronts(stage, study.references),
                f"Scores of {plural(len(stage.within_budget), 'candidate')} against {', '.join(stage.costs)}. The "
                f"Pareto front in {cost} has {len(stage.front(cost))} of them{knee}.",
                f"Stage {stage.name}: scores against costs, with the candidates that no other one beats in both, the "
                "knee of this front if it has at least three of them, and the baselines. A number with an arrow is the "
                "cost of a baseline beyond the axis.",
            )
        )
        if len(stage.goals) > 1:
            parts.append(front_table(study, stage, f"The front of stage {stage.name}"))
    return Section("front", "Scores against costs", parts) if parts else None


def architectures(study: Study, final: Mapping[str, Any] | None = None) -> Section | None:
    """The winner, the best baseline and the finalists, layer by layer, and how their experts share the tokens; None if
    nothing has a score.
    """
    drawn = list(_drawn(study))
    pre_norm = any(candidate.architecture.base.pre_norm for _, candidate in drawn)
    block = (
        "normalizes its input, and adds the input to its output"
        if pre_norm
        else ("adds its input to its output, and normalizes the sum")
    )
    parts: list[Part] = [
        Text(
            "small",
            "Each row is a layer, the lowest on top: how many blocks it has, how wide they are, and the graph of a "
            f"block. Every block {block}, which is not drawn. Rectangles are linear maps with their output width, "
            "rounded boxes activations, ellipses operations on two values.",
        )
    ]
    for name, candidate in drawn:
        title = f"{name.replace('-', ' ')}: trial {candidate.number} ({shown(candidate.origin)})"
        text = formula(candidate.architecture)
        caption = f"{title[0].upper()}{title[1:]}, {with_error(candidate.result)}"
        drawing = svg(candidate.architecture)
        alt = f"The layers of {title}, the lowest first: {text}"
        parts += [Picture(f"architecture-{name}", drawing, alt, caption), *_loads(candidate.loads)]
    if final is not None and (loads := final.get("expert_load")):
        parts += ["The student after the final training:", *_loads(loads)]
    return Section("architectures", "Architectures", parts) if len(parts) > 1 else None


def _drawn(study: Study) -> Iterator[tuple[str, Candidate]]:
    """The candidates to draw, each function once: the winner (or the best so far), the best baseline, and the other
    finalists.
    """
    stage = study.last
    named = [
        (f"stage-{stage.name}-{'winner' if stage.best else 'best-so-far'}", stage.leader),
        ("best-baseline", study.best_baseline),
        *((f"stage-{stage.name}-finalist-{number}", stage.candidates[number]) for number in stage.finalists),
    ]
    functions: set[str] = set()
    for name, candidate in named:
        if candidate is not None and candidate.function not in functions and len(functions) < DRAWN:
            functions.add(candidate.function)
            yield name, candidate


def _loads(loads: Sequence[Mapping[str, Any]]) -> list[Part]:
    """How the experts share the tokens."""
    texts = [str(Load(**load)) for load in loads]
    return [f"Fractions of the tokens that each expert processes: {'; '.join(texts)}."] if texts else []


def losses(final: Mapping[str, Any] | None) -> Section | None:
    """The losses of the final training; None if they are not known."""
    known = final.get("losses", {}) if final is not None else {}
    phases = dict.fromkeys(phase for of_model in known.values() for phase in of_model)
    panels = {phase: {name: lines[phase] for name, lines in known.items() if lines.get(phase)} for phase in phases}
    panels = {phase: lines for phase, lines in panels.items() if lines}  # a phase may have no steps
    if not panels:
        return None
    lasts = [
        f"{phase}: " + ", ".join(f"{name} {points[-1][1]:.3f}" for name, points in lines.items())
        for phase, lines in panels.items()
    ]
    picture = Picture(
        "losses",
        figures.over_steps(panels),
        f"Losses of the final training over its steps. At the end, {'; '.join(lasts)}.",
        "Losses of the final training; each point is a mean over successive steps. The first losses may be cut off at "
        "the top.",
    )
    return Section("losses", "Losses of the final training", [picture])


def nonlinearity(study: Study) -> Section | None:
    """The surfaces of the winner's FFNs beside the base model's; None if nothing has a score."""
    leader = study.last.leader
    if leader is None:
        return None
    winner, base_graph = leader.architecture, _base_graph(study)
    whole = "whole winner" if study.last.best else "whole best candidate so far"
    panels = {whole: surface.of_architecture(winner)}
    if base_graph is not None:
        of_base = surface.of_architecture(Architecture.uniform(winner.base, graph=base_graph))
        panels = {"whole base model": of_base} | panels | {f"base model: {base_graph}": surface.of_graph(base_graph)}
    users: dict[FFNGraph, list[str]] = {}
    for number, ffn in enumerate(winner.ffns, start=1):
        if ffn.stack and ffn.graph != base_graph:
            users.setdefault(ffn.graph, []).append(str(number))
    for graph, numbers in list(users.items())[:SURFACES]:
        panels[f"layer{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {graph}"] = surface.of_graph(graph)
    endless = [title for title, values in panels.items() if not surface.fits(values)]
    panels = {title: values for title, values in panels.items() if title not in endless}
    if not panels:
        return None
    picture = Picture(
        "surfaces",
        figures.surfaces(panels),
        f"The output of FFNs as a function of two inputs from {surface.LOWEST:g} to {surface.HIGHEST:g}: "
        f"{'; '.join(panels)}.",
        "The output of FFNs over two input channels (EfficientBERT, figure 5).",
    )
    note = Text(
        "small",
        "Linear maps add up their two input channels, and the value is the mean of the outputs. In whole models "
        "every block is the mean of its input and its output, and attention is left out."
        + (f" Not drawn, as its values exceed all numbers in float32: {'; '.join(endless)}." if endless else ""),
    )
    return Section("nonlinearity", "Nonlinearity of the FFNs", [picture, note])


def _base_graph(study: Study) -> FFNGraph | None:
    """The graph of the base model's FFNs; None if no trial of the study has it, as in one of stage 3 alone."""
    with_it = [c for stage in study.stages for c in stage.candidates if c.origin == WINNER_WITH_BASE_GRAPHS]
    ffns = [ffn for candidate in (*study.references, *with_it) for ffn in candidate.architecture.ffns]
    return next((ffn.graph for ffn in ffns if ffn.stack), None)

"""The sections of a report about architectures: drawings, what wins by layer, nonlinearity, and trained models."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from nas.finalists import shown
from nas.report import models, surface, verdict
from nas.report.data import FIXED_BASELINES, Candidate, Stage, StudyData
from nas.report.figures import drawing, layers
from nas.report.figures import models as model_figures
from nas.report.figures.surfaces import surfaces as draw_surfaces
from nas.report.page import Picture, Section, bullets, paragraph, table
from nas.study.attributes import OF_BASE
from nas.study.description import formula
from search_spaces.architecture import Architecture
from search_spaces.graph import GELU, FFNGraph

# No more architectures than this are drawn, nor more distinct FFNs as surfaces.
DRAWN, SURFACES = 6, 10
# Below this number of proposals, shares of the best ones say nothing.
LEAST_PROPOSALS = 15


def drawn_candidates(study: StudyData) -> list[tuple[str, Candidate]]:
    """The candidates to draw, each function once: the winner (or the best so far), the best baseline, and the other
    finalists.
    """
    stage = study.last
    named: list[tuple[str, Candidate]] = []
    if stage.leader is not None:
        named.append((f"stage-{stage.name}-{'winner' if stage.best else 'best-so-far'}", stage.leader))
    best = best_baseline(study)
    if best is not None:
        named.append(("best-baseline", best))
    for row in stage.best["finalists"] if stage.best is not None else ():
        named.append((f"stage-{stage.name}-finalist-{row['trial']}", stage.candidates[row["trial"]]))
    seen: set[str] = set()
    result = []
    for name, candidate in named:
        if candidate.architecture is not None and candidate.function not in seen:
            seen.add(candidate.function)
            result.append((name, candidate))
    return result[:DRAWN]


def best_baseline(study: StudyData) -> Candidate | None:
    """The baseline within the budget with the best confirmed score or, if none was confirmed, the best score in the
    search; one that does not depend on an earlier stage, if there is one.
    """
    every = [c for stage in study.stages for c in stage.baselines if c.in_budget]
    every = [c for c in every if c.origin in FIXED_BASELINES] or every
    confirmed = {c.function: c for c in every if study.confirmed_scores(c.function)}
    if confirmed:
        return max(confirmed.values(), key=lambda c: study.confirmed_mean(c.function) or 0.0)
    return max(every, key=lambda c: c.score or 0.0, default=None)


def drawings(study: StudyData) -> Section | None:
    """The winner, the best baseline and the finalists, layer by layer; None if nothing has a score."""
    parts: list[str | Picture] = [
        paragraph(
            "Each row is a layer, the lowest on top: how many blocks it has and how wide they are, the graph of a "
            "block, and all inner neurons of the layer. Every block adds its input to its output and applies a "
            "LayerNorm, which is not drawn. Rectangles are linear maps with their output width, rounded boxes "
            "activations, ellipses operations on two values."
        )
    ]
    for name, candidate in drawn_candidates(study):
        assert candidate.architecture is not None
        title = _title(name, candidate)
        text = formula(candidate.architecture)
        parts.append(
            Picture(
                f"architecture-{name}",
                drawing.architecture(candidate.architecture),
                f"The layers of {title}, the lowest first: {text}",
                f"{title[0].upper()}{title[1:]}, {verdict.score(candidate)}",
            )
        )
    return Section("architectures", "Architectures", parts) if len(parts) > 1 else None


def choices(study: StudyData) -> Section | None:
    """Which operations and widths the best candidates have, and how many experts in attention and head; None before
    there are enough candidates.
    """
    parts: list[str | Picture] = []
    for stage in study.stages:
        best, proposed = layers.top(stage)
        if len(proposed) < LEAST_PROPOSALS:
            continue
        if _vary(c.architecture and [genes.graph for genes in c.architecture.layers] for c in proposed):
            parts.append(
                Picture(
                    f"operations-stage-{stage.name}",
                    layers.operations(stage),
                    _operations_alt(stage),
                    f"Stage {stage.name}: the share of the best {len(best)} candidates that use an operation in a "
                    f"layer and, in brackets, the share of all {len(proposed)}. ▲ and ▼: at least "
                    "5 points more or less often.",
                )
            )
        if _vary(layers.inner_neurons(c) for c in proposed):
            parts.append(
                Picture(
                    f"widths-stage-{stage.name}",
                    layers.widths(stage),
                    _widths_alt(stage),
                    f"Stage {stage.name}: inner neurons by layer (width times blocks) of the best {len(best)} "
                    f"candidates and of all {len(proposed)}. The area of a mark is their share.",
                )
            )
        rows = expert_rows(best, proposed)
        if rows:
            header = ("", f"of the best {len(best)}", f"of all {len(proposed)}")
            parts.append(table(header, rows, f"Stage {stage.name}: experts of attention and head"))
    if not parts:
        return None
    note = (
        "Proposals within the budget, without baselines. A sampler that learns proposes what was good before, so the "
        "shares show what it found, not what a single choice is worth."
    )
    return Section("choices", "What wins in which layer", [*parts, paragraph(note, "note")])


def expert_rows(best: Sequence[Candidate], proposed: Sequence[Candidate]) -> list[list[str]]:
    """How frequent each number of experts in attention and head is, where candidates differ in it."""
    rows = []
    for label, name in OF_BASE.items():
        of_best, of_all = (
            Counter(getattr(c.architecture.base, name) for c in candidates if c.architecture is not None)
            for candidates in (best, proposed)
        )
        if len(of_all) > 1:
            shares = ((of_best[n] / of_best.total(), of_all[n] / of_all.total()) for n in sorted(of_all))
            rows += [
                [f"{number} {label}", *(f"{share:.0%}" for share in pair)]
                for number, pair in zip(sorted(of_all), shares, strict=True)
            ]
    return rows


def _vary(values: Iterable[object]) -> bool:
    return len({str(value) for value in values}) > 1


def _operations_alt(stage: Stage) -> str:
    best, proposed = layers.top(stage)
    assert best[0].architecture is not None
    depth = best[0].architecture.base.depth
    shares = layers.operation_shares(best, depth)
    most = [max(shares, key=lambda name: shares[name][layer]) for layer in range(depth)]
    texts = [f"layer {n}: {name} ({100 * shares[name][n - 1]:.0f} %)" for n, name in enumerate(most, start=1)]
    return f"The most frequent operation of the best {len(best)} of {len(proposed)} candidates: {', '.join(texts)}."


def _widths_alt(stage: Stage) -> str:
    best, proposed = layers.top(stage)
    columns = list(zip(*map(layers.inner_neurons, best), strict=True))
    medians = ", ".join(f"layer {n}: {sorted(column)[len(column) // 2]:,}" for n, column in enumerate(columns, start=1))
    return f"The median inner neurons of the best {len(best)} of {len(proposed)} candidates: {medians}."


def nonlinearity(study: StudyData) -> Section | None:
    """The surfaces of the winner's FFNs beside the base model's and the teacher's; None if nothing has a score."""
    leader = study.last.leader
    if leader is None or leader.architecture is None:
        return None
    base_graph = base_graph_of(study)
    base = Architecture.uniform(leader.architecture.base, graph=base_graph)
    copied = study.config.base == "teacher"
    shown = {
        f"whole {'teacher and ' if copied else ''}base model": surface.of_architecture(base),
        "whole winner" if study.last.best else "whole best candidate so far": surface.of_architecture(
            leader.architecture
        ),
        f"base model: {base_graph}": surface.of_graph(base_graph),
    }
    if not copied and base_graph != GELU:
        shown[f"BERT's FFN: {GELU}"] = surface.of_graph(GELU)
    users: dict[FFNGraph, list[int]] = {}
    for number, genes in enumerate(leader.architecture.layers, start=1):
        if genes.stack and genes.graph != base_graph:
            users.setdefault(genes.graph, []).append(number)
    for graph, numbers in list(users.items())[:SURFACES]:
        plural = "s" if len(numbers) > 1 else ""
        shown[f"layer{plural} {', '.join(map(str, numbers))}: {graph}"] = surface.of_graph(graph)
    same = "" if users else " All FFNs of the winner have the base model's graph."
    picture = Picture(
        "nonlinearity",
        draw_surfaces(shown),
        f"Surfaces over two inputs: {'; '.join(shown)}.{same}",
        f"The output of FFNs over two input channels from {surface.LOWEST:.0f} to {surface.HIGHEST:.0f} "
        "(EfficientBERT, figure 5).",
    )
    teacher = " The teacher is a copy of the base model here." if copied else ""
    note = (
        "Every linear map is the mean of its input channels, and the value is the mean of "
        "the outputs. For whole models every block is the mean of its input and its output, and attention is left out; "
        f"the paper has weights of 1 instead of means.{teacher}{same}"
    )
    return Section("nonlinearity", "Nonlinearity of the FFNs", [picture, paragraph(note, "note")])


def base_graph_of(study: StudyData) -> FFNGraph:
    """The graph of the base model's FFNs: that of the base model's trial if there is one, else BERT's."""
    for stage in study.stages:
        for candidate in stage.baselines:
            if candidate.origin == "base model" and candidate.architecture is not None:
                return candidate.architecture.layers[0].graph
    return GELU


def trained_models(sentences: Sequence[models.Sentence]) -> Section:
    """Attention and outputs of the FFNs of the trained student beside its teacher's."""
    parts: list[str | Picture] = []
    lines = []
    for number, sentence in enumerate(sentences, start=1):
        text = " ".join(sentence.tokens)
        parts.append(
            Picture(
                f"attention-{number}",
                model_figures.attention(sentence),
                f"Attention of the last layer of teacher and student for: {text}",
                f"Attention of the last layer, by head, for: {text} (EfficientBERT, figure 7).",
            )
        )
        parts.append(
            Picture(
                f"outputs-{number}",
                model_figures.outputs(sentence),
                f"Outputs of the last layer's FFN of teacher and student for: {text}",
                f"Outputs of the last layer's FFN, after residual connection and LayerNorm, for: {text} "
                "(EfficientBERT, figure 8). The scale ends at the 99 % quantile.",
            )
        )
        found = models.similarities(sentence)
        if found is not None:
            layers_text = ", ".join(f"{value:.3f}" for value in found)
            lines.append(f"Sentence {number}: cosine similarity to the teacher's FFN outputs, by layer: {layers_text}")
    return Section("models", "The trained student beside its teacher", [*parts, bullets(lines)] if lines else parts)


def expert_load(study: StudyData) -> Section | None:
    """How the experts of the winner, of other finalists and of the trained student share the tokens; None if there are
    no experts.
    """
    parts: list[str | Picture] = []
    found = [(name, f"{_title(name, c)}, in the search", c.loads) for name, c in drawn_candidates(study) if c.loads]
    if study.final is not None and study.final.get("expert_load"):
        found.append(("final", "the student after the final training", study.final["expert_load"]))
    for name, title, loads in found:
        texts = [
            f"layer {load['layer'] + 1} {load['part']}: " + " ".join(f"{100 * share:.0f}" for share in load["shares"])
            for load in loads
        ]
        parts.append(
            Picture(
                f"experts-{name}",
                model_figures.loads(loads),
                f"Percentages of the tokens that each expert takes, for {title}. {'; '.join(texts)}",
                f"How the experts share the tokens: {title}.",
            )
        )
    return Section("experts", "Load of the experts", parts) if parts else None


def _title(name: str, candidate: Candidate) -> str:
    """What a drawn candidate is."""
    return f"{name.replace('-', ' ')}: trial {candidate.number} ({shown(candidate.origin)})"


def default_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that the final training of a study writes by default, if it is there."""
    path = folder / "final"
    return path if models.is_checkpoint(path) else None

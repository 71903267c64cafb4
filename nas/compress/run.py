"""Compresses a model without a search. Up to three allocations of heads, channels and layers by integer programming and
one by global importance, all within the budget, inherit the teacher's weights and are compensated; the one with the
highest fidelity to the teacher is trained. Activations stay as they are.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from distill.command.report import write_metrics
from distill.training.loop import make_accelerator
from distill.training.progress import ProgressCallback
from nas.compress.retrieval import Pairs, measure_retrieval
from nas.config.schema import ConfigError, StudyConfig
from nas.config.values import parse_latency
from nas.evaluation.untrained import UntrainedEvaluator
from nas.final.run import FinalRun, train_final
from nas.planning.allocation import PredictedLosses, allocations
from nas.planning.budget import base_model, globally_important, largest_uniform, limits_of
from nas.planning.finalists import ALLOCATED
from nas.planning.stages import space_of
from nas.preparation.phases import FINAL
from nas.preparation.prepare import prepare
from nas.preparation.workspace import UntrainedWorkspace, Workspace, base_of_study
from search_spaces.architecture import Architecture
from search_spaces.spaces import SpaceError
from supernet.compensation.ridge import CompensationError

# A layer chooses from at most this many numbers of heads above 0.
HEAD_COUNTS = 12
# The expansions of the preset end at 1/2. Layers need more only if more than a third of the latency is left; predicting
# their losses takes several times as long.
WIDER = (Fraction(2, 3), Fraction(5, 6), Fraction(1))


@dataclass(frozen=True, kw_only=True)
class CompressRun:
    """What to compress, and where to save the student.

    Attributes:
        config: that of the preset `compress`, with the teacher, the rows and the budget.
        out: the folder of the checkpoint.
        uniform: whether all FFNs have the same width and all layers and heads are kept, so that the student is an
            ordinary model of its type without padding (`python -m nas.export --as`).
        pairs: of a sentence encoder or a reranker, those on which retrieval is measured.
    """

    config: StudyConfig
    out: Path
    uniform: bool = False
    pairs: Pairs | None = None
    device: str = "auto"


def compress(run: CompressRun, on_progress: ProgressCallback, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Compress a model and write the student's checkpoint. Returns the content of its metrics.json; None in all
    processes but the first.

    Args:
        note: called with each line that is more than progress.

    Raises:
        UserError: the configuration names what does not exist or cannot work, or nothing is within the budget.
    """
    run = replace(run, config=fitted(run.config))
    architecture = best_allocation(run, on_progress, note)
    final = FinalRun(
        config=run.config,
        architecture=architecture,
        out=run.out,
        seed=run.config.seed,
        device=run.device,
        skip_base=True,
    )
    metrics = train_final(final, on_progress, note)
    if metrics is not None and run.pairs is not None:
        on_progress("measuring retrieval", None)
        accelerator = make_accelerator(run.device, run.config.mixed_precision)
        teacher, length = run.config.teacher, run.config.max_length
        metrics |= {"queries": len(run.pairs.queries), "passages": len(run.pairs.passages)}
        metrics["retrieval"] = measure_retrieval(run.pairs, teacher, str(run.out), length, accelerator)
        write_metrics(run.out, metrics)
    return metrics


def fitted(config: StudyConfig) -> StudyConfig:
    """The configuration with as many heads and channels to choose from as its teacher has.

    Raises:
        UserError: the teacher cannot be read.
    """
    base, _ = base_of_study(config)
    count = min(base.heads, HEAD_COUNTS)
    heads = tuple(round(number * base.heads / count) for number in range(count + 1))
    limit = config.space.max_latency and parse_latency(config.space.max_latency)
    few = limit and limit.relative and limit.value <= Fraction(1, 3)
    expansions = (*config.space.expansions, *(() if few else WIDER))
    expansions = tuple(size for size in expansions if size * base.inner >= 1)
    return config.with_table("space", heads=heads, expansions=expansions)


def measured_on_rows(config: StudyConfig, workspace: Workspace) -> StudyConfig:
    """The configuration whose latencies are those of a sentence of the median length of the dev rows, on which the
    student is compared with the teacher, unless `deployment.tokens` gives one.
    """
    tokens = config.deployment.tokens or workspace.folders.rows("dev").median_length
    return config.with_table("deployment", tokens=tokens)


def best_allocation(run: CompressRun, on_progress: ProgressCallback, note: Callable[[str], None]) -> Architecture:
    """Of the MILP allocations and the global importance allocation, the one with the highest fidelity to the teacher
    before training; or the uniform slice.

    Raises:
        UserError: as `compress`.
    """
    config, device = run.config, run.device
    base, graph = base_of_study(config)
    activations = () if run.uniform else (graph.activation,)
    texts = ("warmup", *FINAL)
    workspace = prepare(config, device, on_progress, outputs=False, texts=texts, activations=activations)
    limits = limits_of(measured_on_rows(config, workspace), workspace, device, on_progress)
    head = workspace.folders.task.type.head
    try:
        start = base_model(config, base, graph)
        space = space_of(config, base, graph, workspace.num_labels, head, "3", start, limits)
    except SpaceError as error:
        raise ConfigError(str(error)) from None
    if run.uniform:
        uniform = largest_uniform(start, workspace.num_labels, space.max_params, limits, head)
        if not space.within_budget(uniform):
            raise ConfigError("no width of the FFNs is within the limits if heads and layers are kept: raise them")
        return uniform
    assert workspace.compensation is not None  # the preset's inheritance
    losses = PredictedLosses.load(workspace.compensation.predictions, base, graph)
    on_progress("allocating heads, channels and layers", None)
    candidates = dict(zip(ALLOCATED, allocations(space, losses, len(ALLOCATED)), strict=False))
    if space.within_budget(important := globally_important(space, graph, workspace)):
        candidates["global importance"] = important
    if not candidates:
        raise ConfigError("the solver found no student within the limits: raise them")
    evaluator = UntrainedEvaluator(UntrainedWorkspace((workspace,), config.stage1.rows, by_fidelity=True), device)
    scores: dict[str, float] = {}
    for name, architecture in candidates.items():
        on_progress("scoring allocations", len(scores) / len(candidates))
        try:
            scores[name] = evaluator.evaluate(architecture).value
        except CompensationError as error:
            note(f"{name}: {error}")
    if not scores:
        raise ConfigError("no allocation can be compensated: the teacher's activations are not finite")
    best = max(scores, key=lambda name: scores[name])
    on_progress(f"{best}: fidelity {scores[best]:.4f} before training", None)
    return candidates[best]

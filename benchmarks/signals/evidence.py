"""Which cheap signal predicts the score of a candidate after full training?

Architectures are drawn from the space of stage 1, sizes uniformly inside the budget. With every seed each of them is
trained by the candidates' recipe with --full-steps steps, on the batches of the seed, and scored on the whole dev
split; during training there are intermediate values, on the first rows of the search split. A signal of one seed is
compared with the mean score over the *other* seeds, so that no training is compared with its own final score. "score
after full training" says how well the scores of one seed predict those of others; only a signal with less noise than
such a score can be better. "score of the search" is that of a candidate after its training: the preset's number of
steps, in which the learning rate falls to 0, and its whole search split. "score at the rung" is the intermediate value
by which candidates would be pruned. Other intermediate values are those of the full training, with its learning rates.
Predictors learn from scores of the search, as the sampler does.

Kendall's tau-b is the mean over seeds (for predictors also over random choices of the known architectures); intervals
are percentiles over resampled architectures. Seconds are per architecture, from the supernet's weights on; what is made
once for all architectures (teacher's outputs, activations of the full model, scores to learn from) is not included.

The file of raw numbers is written after every training, and the same command continues from it; seeds can be added.
Seeds are trained in the order of the option, so several commands can run at the same time, each with a file and an
order of its own; --table joins their files.
"""

import json
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measuring import timed
from benchmarks.report import BenchmarkError, Report, read_results
from benchmarks.signals.measurements import (
    INTERMEDIATE,
    KEPT,
    RUNG,
    SEARCH,
    TARGET,
    Measure,
    Signals,
    draw,
    draw_allocations,
)
from benchmarks.signals.ranking import COLUMNS, Signal, against_other_seeds, others, predicted, rows_of
from distill.training.loop import Diverged
from nas.budget import limits_of
from nas.config.load import load_config
from nas.evaluation.one_shot import OneShotEvaluator
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.samplers.encoding import encode, widths
from nas.stages import plan
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# A signal with one of these words in its name is better when it is lower.
LOWER = ("loss", "errors")

# The settings of a run, its measurements by name ("3" of architecture 3 untrained, "3/1" of its training with seed 1,
# "3/1/search" of its evaluation by the search), and the reasons of those that diverged.
Results = dict[str, Any]


def measure_missing(measure: Measure, results: Results, seeds: Sequence[int], report: Report) -> Results:
    """Measure what the results do not have yet, and write them to the file after every measurement."""
    architectures = [Architecture.from_json(value) for value in results["settings"]["architectures"]]

    def missing(name: str) -> bool:
        return name not in results["measured"] and name not in results["failed"]

    def add(name: str, signals_of: Callable[..., Signals], *arguments: Any) -> None:
        def add_signals() -> None:
            try:
                results["measured"][name] = signals_of(*arguments)
            except Diverged as error:
                results["failed"][name] = str(error)

        _, seconds = timed(add_signals)
        report.save(results, seeds=seeds)
        report.progress(f"{name}: {seconds:.0f} s")

    for place, architecture in enumerate(architectures):
        if missing(f"{place}"):
            add(f"{place}", measure.untrained, architecture)
    for seed in seeds:
        ways = {"": measure.trained, "/search": measure.searched}
        wanted = [
            (f"{place}/{seed}{way}", signals_of, architecture)
            for place, architecture in enumerate(architectures)
            for way, signals_of in ways.items()
            if missing(f"{place}/{seed}{way}")
        ]
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            outputs = Path(scratch) / "outputs"
            _, seconds = timed(lambda: measure.evaluator.save(measure.full, seed, outputs))  # noqa: B023
            report.progress(f"teacher's outputs, seed {seed}: {seconds:.0f} s")
            for name, signals_of, architecture in wanted:
                add(name, signals_of, architecture, seed)
    return results


def read(path: Path) -> Results:
    """The results in a file of raw numbers."""
    results: Results = read_results(path, "evidence")["results"]
    return results


def joined(paths: Sequence[Path]) -> Results:
    """All measurements of files with the same settings.

    Raises:
        BenchmarkError: their settings differ.
    """
    first, *others = map(read, paths)
    for path, results in zip(paths[1:], others, strict=True):
        if different := differing(first["settings"], results["settings"]):
            raise BenchmarkError(f"{path} is of another run than {paths[0]} ({', '.join(different)})")
        for kind in ("measured", "failed"):
            first[kind] = results[kind] | first[kind]
    return first


def differing(settings: Results, others: Results) -> list[str]:
    """The names of the settings whose values differ."""
    return [name for name in settings if others.get(name) != settings[name]]


def show(report: Report, results: Results, seeds: Sequence[int]) -> None:
    """Print the table of the architectures that were measured with all these seeds.

    Raises:
        BenchmarkError: there are less than two seeds, or less than four architectures.
    """
    settings, measured = results["settings"], results["measured"]
    complete = [
        place
        for place in range(len(settings["architectures"]))
        if all(
            name in measured
            for name in (f"{place}", *(f"{place}/{seed}{way}" for seed in seeds for way in ("", "/search")))
        )
    ]
    if len(seeds) < 2 or len(complete) < 4:
        raise BenchmarkError(
            f"nothing to compare: {len(complete)} architectures measured with all of {len(seeds)} seeds"
        )

    def values(name: str) -> tuple[np.ndarray, float]:
        """(seeds, architectures), higher is better; and the mean seconds."""
        rows = [
            [
                measured[f"{place}"] | measured[f"{place}/{seed}"] | measured[f"{place}/{seed}/search"]
                for place in complete
            ]
            for seed in seeds
        ]
        pairs = np.array([[row[name] for row in line] for line in rows])
        return pairs[..., 0] * (-1 if any(word in name for word in LOWER) else 1), float(pairs[..., 1].mean())

    targets_SN, full_seconds = values(TARGET)
    of_one = (f"{complete[0]}", f"{complete[0]}/{seeds[0]}", f"{complete[0]}/{seeds[0]}/search")
    names = list(dict.fromkeys(name for key in of_one for name in measured[key]))
    steps = {TARGET: settings["full_steps"], SEARCH: settings["search_steps"]}
    signals = [
        against_other_seeds(f"{name} ({steps[name]} steps)" if name in steps else name, *values(name), targets_SN)
        for name in names
    ]
    signals += of_predictors(settings, complete, targets_SN, values)
    stop = settings["config"]["stage1"]["stop"]
    lost = pruned_wrongly(values(RUNG)[0], others(targets_SN), stop)
    between = targets_SN.mean(axis=0).std(ddof=1)
    rest = targets_SN - targets_SN.mean(axis=0) - targets_SN.mean(axis=1, keepdims=True) + targets_SN.mean()
    within = np.sqrt((rest**2).sum() / ((len(seeds) - 1) * (len(complete) - 1)))
    report.note(
        f"{settings['name']}: {len(complete)} architectures, {settings['full_steps']} steps ({full_seconds:.0f} s), "
        f"seeds {', '.join(map(str, seeds))}, {settings['threads']} threads; diverged: {len(results['failed'])}"
    )
    report.note(
        f"score {targets_SN.mean():.4f}; deviation of the architectures' means {between:.4f}, of one of their scores "
        f"from seed to seed {within:.4f} (without the effect of the seed on all of them)"
    )
    if stop:
        report.note(f"among the lowest {stop:.0%} at the rung are {lost:.0%} of the best quarter\n")
    report.table(COLUMNS, rows_of(signals))


def pruned_wrongly(values_SN: np.ndarray, targets_SN: np.ndarray, stop: float) -> float:
    """The share of the best quarter that is among the lowest `stop` of a signal; the mean over seeds."""
    number = values_SN.shape[1]
    lowest, best = int(stop * number), max(1, number // 4)
    shares = [
        len({*np.argsort(value, kind="stable")[:lowest]} & {*np.argsort(-target, kind="stable")[:best]}) / best
        for value, target in zip(values_SN, targets_SN, strict=True)
    ]
    return float(np.mean(shares))


def of_predictors(
    settings: Results,
    complete: Sequence[int],
    targets_SN: np.ndarray,
    values: Callable[[str], tuple[np.ndarray, float]],
) -> Iterator[Signal]:
    """Predictions from genes alone, with the importance kept, and with intermediate scores and losses."""
    architectures = [Architecture.from_json(settings["architectures"][place]) for place in complete]
    genes_NF = encode(architectures, tuple(settings["widths"]))
    scores_SN, _ = values(SEARCH)
    yield from predicted(genes_NF, scores_SN, targets_SN, "", np.empty((*targets_SN.shape, 0)), 0.0)
    kept_SN, _ = values(KEPT)
    yield from predicted(genes_NF, scores_SN, targets_SN, f", {KEPT}", kept_SN[..., None], 0.0)
    for step in INTERMEDIATE[:2]:
        pairs = [values(f"{kind} after {step} steps") for kind in ("score", "loss")]
        early_SNE = np.stack([early_SN for early_SN, _ in pairs], axis=-1)
        seconds = max(seconds for _, seconds in pairs)
        yield from predicted(genes_NF, scores_SN, targets_SN, f", values after {step} steps", early_SNE, seconds)


def one_shot(workspace: Workspace, space: Space, report: Report) -> dict[str, OneShotEvaluator]:
    """The evaluators of plain and of compensated slices of a one-shot supernet, by the names of their scores."""
    found = {}
    for inheritance in ("sliced", "compensated"):
        sharing = workspace.config.sharing.model_copy(update={"inheritance": inheritance})
        changed = workspace.config.model_copy(update={"sharing": sharing})
        prepared, seconds = timed(lambda: prepare_one_shot(replace(workspace, config=changed), space))  # noqa: B023
        report.progress(f"one-shot supernet, {inheritance}: {seconds:.0f} s")
        found[f"score of the one-shot supernet, {inheritance}"] = OneShotEvaluator(prepared)
    return found


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--uniform", metavar="SHARE", help="space.uniform, such as 1/32; default: the preset's")
    parser.add_argument("--edit-rate", type=float, help="space.edit_rate; default: the preset's")
    parser.add_argument(
        "--allocations",
        action="store_true",
        help="widths alone, by MILP allocations, instead of random members",
    )
    parser.add_argument(
        "--one-shot", action="store_true", help="also slices of a one-shot supernet, sliced and compensated"
    )
    parser.add_argument("--architectures", type=int, default=32, help="default: %(default)s")
    parser.add_argument("--full-steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[1, 2, 3], help="of batches, at least two; default: 1 2 3"
    )
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="print the table of these files and train nothing"
    )


def run(options: Namespace, report: Report) -> None:
    if len(set(options.seeds)) < 2:
        raise BenchmarkError("--seeds: scores of one seed are compared with those of others: give at least two")
    if options.table:
        show(report, joined(options.table), options.seeds)
        return
    changes = {"space.uniform": options.uniform, "space.edit_rate": options.edit_rate}
    config = load_config(options.preset, {place: value for place, value in changes.items() if value is not None})
    workspace = prepare(config)
    limits = limits_of(config, workspace)
    space = plan(config, workspace, "1", None, limits).space
    if options.allocations:
        base, graph = workspace.base()
        space = plan(config, workspace, "3", Architecture.uniform(base, graph), limits).space
    elif options.one_shot:
        raise BenchmarkError(
            "--one-shot: a one-shot supernet has the base graph in all layers: give --allocations, too"
        )
    measure = Measure(workspace, options.full_steps, one_shot(workspace, space, report) if options.one_shot else None)
    search_steps = measure.evaluator.training_phases[-1].recipe.steps
    least = max(search_steps, *INTERMEDIATE)
    if options.full_steps <= least:
        raise BenchmarkError(
            f"--full-steps: must be above {least}, the steps of the search and of the last intermediate value, "
            f"not {options.full_steps}"
        )
    if not options.allocations:
        architectures = draw(space, options.architectures)
    elif measure.predicted is None:
        raise BenchmarkError(
            f'--allocations: {options.preset} has no predicted losses; set supernet.inheritance = "compensated"'
        )
    else:
        architectures = draw_allocations(space, measure.predicted, options.architectures)
    settings = {
        "name": options.preset,
        "config": config.model_dump(mode="json"),
        "full_steps": options.full_steps,
        "search_steps": search_steps,
        "threads": torch.get_num_threads(),
        "widths": widths(space),
        "architectures": [architecture.to_json() for architecture in architectures],
    }
    if options.one_shot:
        settings["one_shot"] = True
    settings = json.loads(json.dumps(settings))  # as it is read again
    results: Results = {"settings": settings, "measured": {}, "failed": {}}
    if report.path.exists():
        results = read(report.path)
        if different := differing(settings, results["settings"]):
            raise BenchmarkError(f"{report.path} is of another run ({', '.join(different)}): give another --json")
    show(report, measure_missing(measure, results, options.seeds, report), options.seeds)

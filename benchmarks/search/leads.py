"""How far the winner of stage 1 is ahead of the best plain baseline, at equal parameters or at equal latency.

For each budget the search is repeated with other seeds of the sampler on the same supernet: candidates are scored as
the preset says, untrained, and its finalists are confirmed with the seeds that a search uses. Winners and baselines
(uniform slice, global importance, MILP allocation) are then trained alike, for --steps steps with seeds that no search
used, and scored on the whole dev split. A lead is a winner's mean over the training seeds less that of the baseline
whose mean is highest, so the baseline has the advantage of being chosen afterwards; its standard error is over the
seeds of the sampler alone. A budget 1/n has at most the
parameters of the uniform slice with an n-th of the inner neurons or, at equal latency, at most its latency by the
table; the whole models are measured, too.

The file of raw numbers is written after every measurement, and the same command continues from it.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from statistics import mean
from typing import Any

import optuna

from benchmarks.measuring import difference, error_of_mean, timed
from benchmarks.report import BenchmarkError, Report, read_results
from benchmarks.search.winner import FIRST_SEED
from distill.training.evaluation import evaluate
from nas.budget import latencies_of, limits_of
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import UntrainedEvaluator
from nas.finalists import ALLOCATED, BASE_MODEL, finalists
from nas.latency.table import measure_whole
from nas.preparation.prepare import prepare
from nas.preparation.untrained import prepare_untrained
from nas.preparation.workspace import Workspace
from nas.stages import Plan, plan, sampler_of
from nas.study import ledger
from nas.study.description import Parameters
from search_spaces import cost
from search_spaces.architecture import Architecture

KINDS = ("params", "latency")
Results = dict[str, Any]


def bounded(preset: str, kind: str, budget: int) -> StudyConfig:
    """The preset with the parameters, or the latency, of the uniform slice with a `budget`-th of the inner neurons."""
    config = load_config(preset, {"space.uniform": f"1/{budget}"})
    if kind == "params":
        return config
    workspace = prepare(config, outputs=False)
    base, graph = workspace.base()
    table = latencies_of(config, workspace, "cpu", lambda phase, share: None)
    uniform = table.total(Architecture.uniform(base, graph, expansion=Fraction(1, budget)))
    whole = cost.params(Architecture.uniform(base, graph), workspace.labels)
    changes = {"space.max_latency": f"{uniform / 1000}ms", "space.max_params": whole, "space.slack": 0.2}
    return load_config(preset, changes)


class Measurement:
    """Searches and trainings within one budget; what the results already have is not measured again."""

    def __init__(self, preset: str, kind: str, budget: int, steps: int, results: Results, save: Callable[[], None]):
        self.config = bounded(preset, kind, budget)
        if self.config.stage1.evaluation != "untrained":
            raise BenchmarkError(f"{preset}: its stage 1 trains its candidates; this benchmark scores them untrained")
        self.workspace: Workspace = prepare(self.config)
        self.evaluator = TrainedEvaluator(self.workspace)
        untrained = prepare_untrained(self.workspace, self.config.stage1)
        self.untrained = UntrainedEvaluator(untrained)
        self.plan: Plan = plan(self.config, self.workspace, "1", None, limits_of(self.config, self.workspace))
        self.steps, self.results, self.save = steps, results, save

    def cached(self, place: str, make: Callable[[], Any]) -> Any:
        """The value in the results; made and saved if it is not there."""
        if place not in self.results:
            self.results[place] = make()
            self.save()
        return self.results[place]

    def searched(self, seed: int) -> Architecture:
        """The winner of a search whose sampler has this seed."""
        found = self.cached(f"search {seed}", lambda: self._search(seed))
        return Architecture.from_json(found["winner"])

    def _search(self, seed: int) -> Results:
        space, table = self.plan.space, self.plan.table
        study = optuna.create_study(direction="maximize", sampler=sampler_of(self.plan, self.workspace, seed))
        ledger.enqueue_missing(study, Parameters.of(space), self.plan.baselines)
        seconds = 0.0
        while len(ledger.finished(study)) < table.trials:
            trial, architecture = ledger.ask(study, space, table.sampler, self.workspace.labels)
            if ledger.resolve_duplicate(study, trial.number):
                continue
            score, taken = timed(lambda: self.untrained.evaluate(architecture))  # noqa: B023
            seconds += taken
            ledger.complete(study, trial.number, score.value, {"standard_error": score.standard_error})
        confirmed = {}
        for trial in finalists(study, table.confirm):
            architecture = ledger.architecture_of(trial)
            fresh = range(self.config.seed + 1, self.config.seed + 1 + table.confirm_seeds)
            confirmed[trial.number] = mean(self._confirmed(architecture, fresh_seed) for fresh_seed in fresh)
        best = max(confirmed, key=lambda number: confirmed[number])
        winner = study.trials[best]
        return {
            "winner": ledger.architecture_of(winner).to_json(),
            "origin": winner.user_attrs[ledger.ORIGIN],
            "confirmed": confirmed,
            "scores": [found.value for found in study.trials],
            "seconds per candidate": seconds / table.trials,
        }

    def _confirmed(self, architecture: Architecture, seed: int) -> float:
        key = f"confirmed {seed} {hash_of(architecture)}"
        value: float = self.cached(key, lambda: self.evaluator.evaluate(architecture, seed).value)
        return value

    def trained(self, architecture: Architecture, seed: int) -> float:
        """The score on the dev split after training."""

        def train() -> float:
            evaluator = self.evaluator
            model = evaluator.student(architecture)
            *before, last = evaluator.training_phases
            evaluator.train(model, [*before, replace(last, recipe=replace(last.recipe, steps=self.steps))], seed)
            dev, split = self.workspace.folders.rows("dev"), self.workspace.folders.split("dev")
            pad_id = evaluator.supernet_config.pad_token_id
            scores = evaluate(model, dev, split, evaluator.task, accelerator=evaluator.accelerator, pad_id=pad_id)
            return scores[evaluator.task.metrics[0]].value

        value: float = self.cached(f"trained {seed} {hash_of(architecture)}", train)
        return value

    def measured(self, architectures: dict[str, Architecture]) -> dict[str, Any]:
        """The parameters of architectures and, if latency is limited, their latencies in milliseconds."""
        rows: dict[str, Any] = {
            name: {"params": cost.params(one, self.workspace.labels)} for name, one in architectures.items()
        }
        if self.config.space.max_latency is not None:
            table = latencies_of(self.config, self.workspace, "cpu", lambda phase, share: None)
            for name, found in measure_whole(architectures, table, "cpu").items():
                rows[name] |= {"predicted_ms": found.predicted / 1e3, "measured_ms": 1e3 * found.whole.median}
        return rows


def hash_of(architecture: Architecture) -> str:
    """A short name of an architecture that is the same in every process."""
    from distill.files import fingerprint

    return fingerprint(architecture.to_json())


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="what is equal; default: both")
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 32], help="n of 1/n; default: 16 32")
    parser.add_argument("--searches", type=int, default=5, help="seeds of the sampler; default: %(default)s")
    parser.add_argument("--steps", type=int, default=200, help="of the final comparison; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="of the final comparison; default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    results: Results = {}
    config = load_config(options.preset).model_dump(mode="json")
    wanted = {"preset": options.preset, "config": config, "steps": options.steps}
    if report.path.exists():
        results = read_results(report.path, "leads")["results"]
        if results["settings"] != wanted:
            raise BenchmarkError(f"{report.path} is of another run: give another --json")
    results["settings"] = wanted
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    for kind in options.kinds:
        for budget in options.budgets:
            of_budget = results.setdefault(f"{kind} 1/{budget}", {})
            measurement = Measurement(
                options.preset, kind, budget, options.steps, of_budget, lambda: report.save(results, seeds=seeds)
            )
            report.progress(f"{kind} 1/{budget}")
            compare(measurement, f"{kind} 1/{budget}", options.searches, seeds, report)


def compare(measurement: Measurement, title: str, searches: int, seeds: Sequence[int], report: Report) -> None:
    """Search with several seeds of the sampler, train winners and baselines, and print their scores and leads."""
    architectures: dict[str, Architecture] = {}
    for architecture, origin, _ in measurement.plan.baselines:
        if origin not in (BASE_MODEL, *ALLOCATED[1:]):
            architectures[origin] = architecture
    baselines = list(architectures)
    for search in range(searches):
        architectures[f"winner {search}"] = measurement.searched(search)
        report.progress(f"{title}: search {search}")
    scores: dict[str, list[float]] = {name: [] for name in architectures}
    for seed in seeds:
        for name, architecture in architectures.items():
            scores[name].append(measurement.trained(architecture, seed))
            report.progress(f"{title}: {name}, seed {seed}: {scores[name][-1]:.4f}")
    costs = measurement.cached("costs", lambda: measurement.measured(architectures))
    rows = [
        (
            name,
            f"{costs[name]['params']:,}",
            f"{costs[name]['measured_ms']:.2f} ms" if "measured_ms" in costs[name] else "",
            *(f"{score:.4f}" for score in scores[name]),
            f"{mean(scores[name]):.4f}",
        )
        for name in architectures
    ]
    report.table(("architecture", "parameters", "latency", *(f"seed {seed}" for seed in seeds), "mean"), rows, title)
    best = max(baselines, key=lambda name: mean(scores[name]))
    leads = [mean(scores[f"winner {search}"]) - mean(scores[best]) for search in range(searches)]
    report.note(f"lead of the winners over {best}: {mean(leads):+.4f} ± {error_of_mean(leads):.4f}")
    for name in baselines:
        if name != best:
            report.note(f"{best} over {name}: {difference(scores[best], scores[name]).with_error(4, '+')}")
    candidates = [measurement.results[f"search {search}"]["seconds per candidate"] for search in range(searches)]
    report.note(f"seconds per candidate: {mean(candidates):.2f}")

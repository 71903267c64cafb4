"""How far the winner of stage 1 is ahead of the best plain baseline, at equal parameters or at equal latency; and, with
--searches 0, how the baselines compare.

For each budget the search is repeated with other seeds of the sampler on the same supernet: candidates are scored as
the preset says, untrained, and its finalists are confirmed with the seeds that a search uses. Winners and baselines
(uniform slice, global importance, fewer layers, MILP allocation) are then trained alike, for --steps steps with seeds
that no search used, and scored on the whole dev split. A lead is a winner's mean over the training seeds less that of
the baseline whose mean is highest, so the baseline has the advantage of being chosen afterwards; its standard error is
over the seeds of the sampler alone. A budget 1/n has at most the parameters of the uniform slice with an n-th of the
inner neurons, or at most its latency by the table, or an n-th of the teacher's latency; the whole models are measured,
too.

The file of raw numbers is written after every measurement, and the same command continues from it.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import optuna

from benchmarks.candidates import dev_score, phases_of
from benchmarks.common import BenchmarkError, Kept, Report, difference, summarise, take_turns, timed
from distill.training.teacher import load_config as load_teacher
from foundation.files import fingerprint
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.evaluation.trained import TrainedEvaluator
from nas.evaluation.untrained import UntrainedEvaluator
from nas.latency.measure import measure_whole
from nas.planning.budget import latencies_of, limits_of
from nas.planning.finalists import ALLOCATED, BASE_MODEL, finalists
from nas.planning.stages import Plan, plan, sampler_of
from nas.preparation.prepare import prepare, prepare_untrained
from nas.preparation.workspace import Workspace
from nas.study import ledger
from search_spaces import cost
from search_spaces.architecture import Architecture

# Of the seeds of the final comparison, which no search uses.
FIRST_SEED = 101
KINDS = ("params", "latency", "teacher")


def bounded(preset: str, kind: str, budget: Fraction) -> StudyConfig:
    """The preset with the parameters, or the latency, of the uniform slice with a `budget`-th of the inner neurons, or
    with a `budget`-th of the teacher's latency.
    """
    if kind == "teacher":
        return load_config(preset, {"space.max_latency": f"{1 / budget}x"})
    config = load_config(preset, {"space.uniform": f"{1 / budget}"})
    if kind == "params":
        return config
    workspace = prepare(config, outputs=False)
    base, graph = workspace.base()
    table = latencies_of(config, workspace, "cpu")
    uniform = table.total(Architecture.uniform(base, graph, expansion=1 / budget))
    whole = cost.params(Architecture.uniform(base, graph), workspace.num_labels)
    changes = {"space.max_latency": f"{uniform / 1000}ms", "space.max_params": whole, "space.slack": 0.2}
    return load_config(preset, changes)


class Budget:
    """Searches and trainings within one budget; what the file has already is not measured again."""

    def __init__(self, options: Namespace, kind: str, budget: Fraction, kept: Kept) -> None:
        self.title, self.steps, self.kept = f"{kind} 1/{budget}", options.steps, kept
        self.config = bounded(options.preset, kind, budget)
        if self.config.stage1.evaluation != "untrained":
            raise BenchmarkError(
                f"{options.preset}: its stage 1 trains its candidates; this benchmark scores them untrained"
            )
        self.workspace: Workspace = prepare(self.config)
        self.evaluator = TrainedEvaluator(self.workspace)
        self.untrained = UntrainedEvaluator(
            prepare_untrained(self.workspace, self.config.stage1, self.config.tasks[:1])
        )
        self.plan: Plan = plan(self.config, self.workspace, "1", None, limits_of(self.config, self.workspace, "cpu"))

    def measure(self, name: str, make: Callable[[], Any]) -> Any:
        """A measurement within this budget."""
        return self.kept(f"{self.title}, {name}", make)

    def search(self, seed: int) -> dict[str, Any]:
        """A search whose sampler has this seed: its winner, and how it was found."""
        space, table = self.plan.space, self.plan.table
        study = optuna.create_study(direction="maximize", sampler=sampler_of(self.plan, self.workspace, seed))
        ledger.enqueue_missing(study, space, self.plan.baselines)
        seconds = 0.0
        while len(ledger.finished(study)) < table.trials:
            trial, architecture = ledger.ask(study, space, table.sampler)
            if ledger.resolve_duplicate(study, trial.number):
                continue
            score, taken = timed(lambda: self.untrained.evaluate(architecture))  # noqa: B023
            seconds += taken
            ledger.complete(study, trial.number, score.value, {"standard_error": score.standard_error})
        fresh = range(self.config.seed + 1, self.config.seed + 1 + table.confirm_seeds)
        confirmed = {
            trial.number: mean(self.confirmed(ledger.architecture_of(trial), seed) for seed in fresh)
            for trial in finalists(study, table.confirm)
        }
        winner = study.trials[max(confirmed, key=lambda number: confirmed[number])]
        return {
            "winner": ledger.architecture_of(winner).to_json(),
            "origin": winner.user_attrs[ledger.ORIGIN],
            "confirmed": confirmed,
            "scores": [trial.value for trial in study.trials],
            "seconds per candidate": seconds / table.trials,
        }

    def confirmed(self, architecture: Architecture, seed: int) -> float:
        """The score on the search split after the training that a search gives its finalists."""
        key = f"confirmed {seed} {fingerprint(architecture.to_json())}"
        value: float = self.measure(key, lambda: self.evaluator.evaluate(architecture, seed).value)
        return value

    def trained(self, architecture: Architecture, seed: int) -> float:
        """The score on the dev split after training."""

        def train() -> float:
            model = self.evaluator.student(architecture)
            if self.steps:
                self.evaluator.train(model, phases_of(self.evaluator, self.steps), seed)
            return dev_score(self.evaluator, model)

        value: float = self.measure(f"trained {seed} {fingerprint(architecture.to_json())}", train)
        return value

    def costs(self, architectures: Mapping[str, Architecture]) -> dict[str, dict[str, float]]:
        """The parameters of architectures and, if latency is limited, their latencies in milliseconds."""
        rows: dict[str, dict[str, float]] = {
            name: {"params": cost.params(one, self.workspace.num_labels)} for name, one in architectures.items()
        }
        if self.config.space.max_latency is not None:
            table = latencies_of(self.config, self.workspace, "cpu")
            for name, latency in measure_whole(architectures, table, "cpu", load_teacher(self.config.teacher)).items():
                rows[name] |= {"predicted_ms": latency.predicted / 1e3, "measured_ms": 1e3 * latency.whole.quiet}
        return rows


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=["params", "latency"], help="what is equal; default: both"
    )
    budgets = [Fraction(16), Fraction(32)]
    parser.add_argument("--budgets", type=Fraction, nargs="+", default=budgets, help="n of 1/n; default: 16 32")
    parser.add_argument("--searches", type=int, default=5, help="seeds of the sampler; default: %(default)s")
    parser.add_argument("--steps", type=int, default=200, help="of the final training; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="of the final comparison; default: %(default)s")


def run(options: Namespace, report: Report) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    config = load_config(options.preset).model_dump(mode="json")
    kept = Kept(report, {"config": config, "steps": options.steps}, seeds)
    for kind, budget in product(options.kinds, options.budgets):
        compare(Budget(options, kind, budget, kept), options.searches, seeds, report)


def compare(budget: Budget, searches: int, seeds: Sequence[int], report: Report) -> None:
    """Search with several seeds of the sampler, train winners and baselines, and print their scores and leads."""
    architectures = {
        origin: architecture
        for architecture, origin, _ in budget.plan.baselines
        if origin not in (BASE_MODEL, *ALLOCATED[1:])
    }
    baselines = list(architectures)
    searched = [budget.measure(f"search {seed}", partial(budget.search, seed)) for seed in range(searches)]
    winners = [f"winner {number}" for number in range(searches)]
    architectures |= {name: Architecture.from_json(of["winner"]) for name, of in zip(winners, searched, strict=True)}
    scores = take_turns({name: partial(budget.trained, one) for name, one in architectures.items()}, seeds)
    costs = budget.measure(f"costs of {searches} winners", lambda: budget.costs(architectures))
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
    teacher = budget.measure("teacher", lambda: dev_score(budget.evaluator, budget.evaluator.teacher()))
    columns = ("architecture", "parameters", "latency", *(f"seed {seed}" for seed in seeds), "mean")
    report.table(columns, rows, f"{budget.title}; the teacher has {teacher:.4f}")
    best = max(baselines, key=lambda name: mean(scores[name]))
    if winners:
        leads = summarise([mean(scores[name]) - mean(scores[best]) for name in winners])
        report.note(f"lead of the winners over {best}: {leads.with_error(4, '+')}")
    for name in baselines:
        if name != best:
            report.note(f"{best} over {name}: {difference(scores[best], scores[name]).with_error(4, '+')}")
    if searched:
        report.note(f"seconds per candidate: {mean(of['seconds per candidate'] for of in searched):.2f}")

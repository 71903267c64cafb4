"""What a user could take instead of a teacher: every alternative on one task, trained alike.

Alternatives are the teacher's int8 file; the teacher without 1, 2, ... of its layers, those whose removal raises the
predicted loss least; and for every budget, a fraction of the teacher's latency in the preset's `deployment`, the
uniform slice, global importance, the MILP allocation, the winners of --searches searches (stage 1; 0: none), and the
uniform slice with random weights. All but the teacher and the last inherit compensated weights; all are trained for
--steps steps with --seeds seeds (the table has the minutes). Each is scored on the dev split in PyTorch and as an int8
file; differences to the teacher are paired on the rows, and their standard errors cover rows and seeds. Latencies are
those of one sentence and of 32 with `max_length` tokens in PyTorch, ONNX and int8 (whole models side by side, with
random weights), also relative to the teacher in the same form. A second table has the leads of alternatives over others
of about their latency, in the form of the preset's `deployment`.

The file of raw numbers is written after every measurement, and the same command continues from it. Give --preset a file
of `extends = "minilm"` with `teacher`, `tasks` and `data` for a task of your own.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import permutations, product
from statistics import mean
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from benchmarks.candidates import dev_set, in_int8, phases_of
from benchmarks.common import BenchmarkError, Kept, Report, take_turns, timed
from benchmarks.leads import FIRST_SEED, Budget
from distill.tasks.metrics import Metric, Score, paired_difference
from distill.training.measure import scores
from distill.training.teacher import load_config as load_teacher
from foundation.files import fingerprint
from nas.config.load import load_config
from nas.latency.measure import measure_whole
from nas.latency.onnx import INT8, RUNTIMES
from nas.latency.settings import TORCH
from nas.planning.allocation import PredictedLosses
from nas.planning.budget import latencies_of
from nas.planning.finalists import ALLOCATED, BASE_MODEL, FEWER_LAYERS, UNIFORM
from nas.study.contributions import decode, encode
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.layer import FFN, Attention, Layer
from supernet.build import build

FORMS, BATCHES = (TORCH, *RUNTIMES), (1, 32)
TEACHER, FROM_SCRATCH = "teacher", "from scratch"
# Latencies are about equal up to this ratio.
ABOUT_EQUAL = 1.25

# A row of the table: what was measured, for every seed.
Measured = Sequence[Mapping[str, Any]]


class Alternatives:
    """The rows of one task; what the file has already is not measured again."""

    def __init__(self, budgets: Sequence[Budget], kept: Kept) -> None:
        self.budgets, self.kept = budgets, kept
        self.evaluator, self.workspace = budgets[0].evaluator, budgets[0].workspace
        self.dev = dev_set(self.evaluator)

    def architectures(self, searches: int) -> dict[str, Architecture]:
        """All alternatives to the teacher but its int8 file, by name."""
        found = {}
        base, graph = self.workspace.base()
        whole, none = Layer(Attention(base.heads), FFN(graph)), Layer(Attention(0), FFN(graph, stack=0))
        if self.workspace.compensation is None or 0 not in self.budgets[0].plan.space.genes["heads"]:
            raise BenchmarkError("give a --preset that compensates candidates and can leave out all heads of a layer")
        losses = PredictedLosses.load(self.workspace.compensation.predictions, base, graph)
        rises = [
            losses.of_ffn(layer, none.ffn) + losses.of_attention(layer, none.attention) for layer in range(base.depth)
        ]
        for count in range(base.depth - 1, 0, -1):
            kept = np.argsort(rises)[base.depth - count :]
            layers = tuple(whole if layer in kept else none for layer in range(base.depth))
            found[f"layers: {count}"] = replace(Architecture.uniform(base, graph), layers=layers)
        for budget in self.budgets:
            name = budget.config.space.max_latency
            for architecture, origin, _ in budget.plan.baselines:
                if origin not in (BASE_MODEL, FEWER_LAYERS, *ALLOCATED[1:]):
                    found[f"{origin}, {name}"] = architecture
                if origin == UNIFORM:
                    found[f"{FROM_SCRATCH}, {name}"] = architecture
            for seed in range(searches):
                winner = budget.measure(f"search {seed}", partial(budget.search, seed))["winner"]
                found[f"winner {seed}, {name}"] = Architecture.from_json(winner)
        return found

    @cached_property
    def of_teacher(self) -> Mapping[str, np.ndarray]:
        return self.dev.contributions(self.evaluator.teacher(), self.evaluator.accelerator)

    def measured(self, model: PreTrainedModel) -> dict[str, Any]:
        """The score, the paired difference to the teacher and the contributions of the rows, in PyTorch and as an int8
        file, and the file's bytes.
        """
        by_form = {TEACHER: self.of_teacher, TORCH: self.dev.contributions(model, self.evaluator.accelerator)}
        by_form[INT8], size = in_int8(model, self.dev)
        metric = self.dev.task.metrics[0]
        found = scores(self.dev.task, by_form, TEACHER)
        rows = {form: encode(by_form[form][metric]) for form in (TORCH, INT8)}
        return {form: found[form][metric] for form in (TORCH, INT8)} | {"int8_bytes": size, "rows": rows}

    def trained(self, name: str, architecture: Architecture, seed: int) -> dict[str, Any]:
        """`measured` after training, and the seconds of the training."""

        def train() -> dict[str, Any]:
            if name.startswith(FROM_SCRATCH):
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    model = build(architecture, self.evaluator.task.type, template=self.evaluator.supernet_config)
            else:
                model = self.evaluator.student(architecture)
            phases = phases_of(self.evaluator, self.budgets[0].steps)
            _, seconds = timed(partial(self.evaluator.train, model, phases, seed))
            return self.measured(model) | {"seconds": seconds}

        value: dict[str, Any] = self.kept(f"trained {seed} {fingerprint(architecture.to_json())} {name}", train)
        return value

    def latencies(self, architectures: Mapping[str, Architecture]) -> dict[str, dict[str, float]]:
        """The milliseconds of all models and the teacher, by form and batch."""
        table = latencies_of(self.budgets[0].config, self.workspace, "cpu")
        teacher = load_teacher(self.budgets[0].config.teacher)
        rows: dict[str, dict[str, float]] = {name: {} for name in (TEACHER, *architectures)}
        for form, batch in product(FORMS, BATCHES):
            settings = replace(table, runtime=form, batch=batch)
            for name, one in measure_whole(architectures, settings, "cpu", teacher, also_teacher=True).items():
                rows[name][f"{form}, {batch}"] = 1e3 * one.whole.quiet
        return rows


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    budgets = [Fraction(2), Fraction(3), Fraction(5), Fraction(8)]
    parser.add_argument(
        "--budgets", type=Fraction, nargs="+", default=budgets, help="n for 1/n of the latency; default: 2 3 5 8"
    )
    parser.add_argument("--searches", type=int, default=1, help="searches for each budget; default: %(default)s")
    parser.add_argument("--steps", type=int, default=200, help="training steps; default: %(default)s")
    parser.add_argument("--seeds", type=int, default=3, help="training seeds; default: %(default)s")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help='only alternatives whose names start so, as "MILP" or "layers: 2"'
    )


def run(options: Namespace, report: Report) -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    config = load_config(options.preset).model_dump(mode="json")
    kept = Kept(report, {"config": config, "steps": options.steps}, seeds)
    alternatives = Alternatives([Budget(options, "teacher", budget, kept) for budget in options.budgets], kept)
    architectures = chosen(alternatives.architectures(options.searches), options.only)
    these = fingerprint({name: one.to_json() for name, one in architectures.items()})
    latencies = kept(f"latencies of {these}", lambda: alternatives.latencies(architectures))
    teacher = kept(TEACHER, lambda: alternatives.measured(alternatives.evaluator.teacher()))
    turns = {name: partial(alternatives.trained, name, one) for name, one in architectures.items()}
    found = {TEACHER: [teacher], **take_turns(turns, seeds)}
    metric = alternatives.dev.task.score_metric
    params = {name: cost.params(one, alternatives.workspace.num_labels) for name, one in architectures.items()}
    columns = ("alternative", "parameters", "int8 file", "minutes", TORCH, "to the teacher", INT8, "to the teacher")
    forms = [f"{form}, {batch}" for form, batch in product(FORMS, BATCHES)]
    rows = [
        (
            name,
            f"{params[name]:,}" if name in params else "",
            f"{of[0]['int8_bytes'] / 1e6:.1f} MB",
            f"{mean(one['seconds'] for one in of) / 60:.1f}" if name in params else "",
            *(cell for form in (TORCH, INT8) for cell in cells(metric, form, of, teacher)),
            *(
                f"{latencies[name][form]:.2f} ms, {latencies[TEACHER][form] / latencies[name][form]:.2f}×"
                for form in forms
            ),
        )
        for name, of in found.items()
    ]
    report.table((*columns, *forms), rows, f"{config['tasks'][0]}, {options.steps} steps, seeds {[*seeds]}")
    form = config["deployment"]["runtime"]
    leads = leads_at_equal_latency(metric, form, found, {name: of[f"{form}, 1"] for name, of in latencies.items()})
    report.table(("alternative", "over", "lead", "speed"), leads, f"leads at about equal latency, {form}")


def chosen(architectures: Mapping[str, Architecture], only: Sequence[str] | None) -> dict[str, Architecture]:
    """Those whose names start as one of `only`, if it is given; BenchmarkError for one that starts no name."""
    for start in only or ():
        if not any(name.startswith(start) for name in architectures):
            raise BenchmarkError(f"--only {start!r}: no alternative starts so, of {', '.join(architectures)}")
    return {name: one for name, one in architectures.items() if only is None or name.startswith(tuple(only))}


def cells(metric: Metric, form: str, measured: Measured, teacher: Mapping[str, Any]) -> tuple[str, str]:
    """The mean score, and its difference to the teacher in PyTorch."""
    lead = lead_of(metric, (form, measured), (TORCH, [teacher] * len(measured)))
    return f"{mean(one[form]['value'] for one in measured):.4f}", with_error(lead)


def lead_of(metric: Metric, one: tuple[str, Measured], other: tuple[str, Measured]) -> Score:
    """The paired lead of one alternative in one form over another in another."""
    sides = [[decode(of["rows"][form]) for of in measured] for form, measured in (one, other)]
    return paired_difference(metric, list(zip(*sides, strict=True)))


def with_error(lead: Score) -> str:
    return f"{lead.value:+.4f} ± {lead.standard_error:.4f}"


def leads_at_equal_latency(
    metric: Metric, form: str, found: Mapping[str, Measured], latencies: Mapping[str, float]
) -> list[tuple[str, str, str, str]]:
    """The leads of alternatives over others of about their latency that are not better: names, lead, relative speed."""
    scored = INT8 if form == INT8 else TORCH  # of ONNX in float32 the scores are PyTorch's
    rows = []
    for name, other in permutations(found.keys() - {TEACHER}, 2):
        speed = latencies[other] / latencies[name]
        if 1 / ABOUT_EQUAL <= speed <= ABOUT_EQUAL:
            lead = lead_of(metric, (scored, found[name]), (scored, found[other]))
            if lead.value >= 0:
                rows.append((name, other, with_error(lead), f"{speed:.2f}×"))
    return sorted(rows)

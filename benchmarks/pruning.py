"""Compares compensated allocations with two retraining-free pruning methods, `benchmarks.published_pruning`, at equal
MACs of the layers (linear maps and attention products of a sentence of the preset's `max_length` tokens).

A budget n is an n-th of the teacher's MACs. Attention heads and FFN channels are pruned if the preset's heads vary,
otherwise channels alone. The published methods prune the fine-tuned teacher with as many rows (K-prune: tokens) of the
training split as published, K-prune with both published weights of its second term. The others are compensated on the
preset's calibration rows: the MILP allocation, which may give a layer any number of heads and, besides the preset's
expansions, any multiple of 1/64 of the channels, and the baselines of a search. All are scored on the whole dev split,
untrained and after --steps steps of the candidates' training on the same batches. Differences are to the best of the
published methods for each supernet, and after the last number of steps to the teacher in PyTorch, on the same rows;
their standard errors cover the rows and, with several, the supernets. What the file of raw numbers has already is not
measured again.

With --latency, a budget is an n-th of the teacher's latency in the preset's `deployment`, by the table of latencies,
and models are scored in that runtime. The published methods, which take a budget of MACs, are then run a few times
with a tenth of their rows, for the largest one whose result fits, and at last with all; the MILP allocation has the
sizes of the preset.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from itertools import product
from statistics import mean
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from benchmarks.alternatives import with_error
from benchmarks.candidates import dev_set, in_int8, phases_of
from benchmarks.common import BenchmarkError, Kept, Report, timed
from benchmarks.published_pruning import BATCH, ROWS, TOKENS, WEIGHTS, Teacher, k_prune, kwon, macs, units_of
from distill.encoders.student.anatomy import CHANNELS, HEADS
from distill.tasks.encoding import collate, eval_batches, take
from distill.tasks.metrics import paired_difference
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.evaluation.trained import TrainedEvaluator
from nas.latency.onnx import INT8
from nas.planning.allocation import PredictedLosses, allocate, fewest_layers
from nas.planning.budget import PartLatency, globally_important, latencies_of, uniform_slice
from nas.planning.finalists import ALLOCATED, FEWER_LAYERS, GLOBAL, UNIFORM
from nas.preparation.prepare import prepare
from nas.study.contributions import decode, encode, metric_of_rows
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.layer import FFN, Attention, Layer
from search_spaces.limits import Limit
from search_spaces.spaces import Space
from supernet.build import base_of_teacher, from_teacher

PUBLISHED: dict[str, Callable[[Teacher, int], PreTrainedModel]] = {
    "Kwon": kwon,
    **{f"K-prune, {weight:g}": partial(k_prune, weight=weight) for weight in WEIGHTS},
}
OURS = "compensated, "
# How finely the MILP allocation divides the channels of a layer. As predicted losses end with the space's largest
# expansion, the preset's may be too few for mild budgets.
PARTS = 64
# For a budget of latency: the most runs of a published method, the share of the budget from which it stops early, and
# the part of its batches in all runs but the last.
TRIES, USED, PART = 4, 0.97, 10
Row = dict[str, Any]
T = TypeVar("T")


def methods_of(config: StudyConfig) -> list[str]:
    """The names of all methods; layers can be left out only where heads vary."""
    origins = [UNIFORM, GLOBAL, *([FEWER_LAYERS] if config.space.varies_heads else []), ALLOCATED[0]]
    return [*PUBLISHED, *(OURS + origin for origin in origins)]


class Pruned:
    """The methods on the teacher and the supernet of one seed."""

    def __init__(self, options: Namespace, seed: int) -> None:
        self.options, self.seed = options, seed
        changes: dict[str, Any] = {"seed": seed}
        if not options.latency:  # for which the table has the preset's sizes
            preset = load_config(options.preset).space.expansions
            expansions = {*preset, *(Fraction(number, PARTS) for number in range(1, PARTS + 1))}
            changes["space.expansions"] = [str(expansion) for expansion in sorted(expansions)]
        self.config = load_config(options.preset, changes)
        self.workspace = prepare(self.config, outputs=False)
        if self.workspace.compensation is None:
            raise BenchmarkError(f"{options.preset}: supernet.inheritance is sliced: give a preset with compensated")
        self.evaluator = TrainedEvaluator(self.workspace)
        self.base, self.graph = self.workspace.base()
        self.losses = PredictedLosses.load(self.workspace.compensation.predictions, self.base, self.graph)

    def limit(self, budget: Fraction) -> Limit:
        """The most MACs of the layers, or microseconds of a sentence of the whole model, of a budget."""
        if not self.options.latency:
            whole = macs(Architecture.uniform(self.base, self.graph), self.config.max_length)
            return Limit("macs", 0, partial(cost.layer_macs, tokens=self.config.max_length), int(whole / budget))
        table = latencies_of(self.config, self.workspace, "cpu")
        return Limit("latency", table.fixed, PartLatency(table), int(table.teacher / budget))

    def row(self, method: str, budget: Fraction) -> Row:
        """What a method makes of a budget, and the scores after each number of steps."""
        limit = self.limit(budget)
        make = partial(self.published, method) if method in PUBLISHED else partial(self.ours, method)
        (model, architecture), seconds = timed(lambda: make(limit))
        weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        scores, contributions, dev = [], [], dev_set(self.evaluator)
        for steps in self.options.steps:
            model.load_state_dict(weights)
            if steps:
                self.evaluator.train(model, phases_of(self.evaluator, steps), self.seed)
            if self.options.latency and self.config.deployment.runtime == INT8:
                of_metrics, _ = in_int8(model, dev)
            else:
                of_metrics = dev.contributions(model, self.evaluator.accelerator)
            rows = of_metrics[dev.task.metrics[0]]
            scores.append(dev.task.score_metric.of_contributions(rows).value)
            contributions.append(encode(rows))
        return {
            "method": method,
            "budget": str(budget),
            "seed": self.seed,
            "architecture": architecture.to_json(),
            "macs": macs(architecture, self.config.max_length),
            limit.name: limit.total(architecture),
            "limit": limit.maximum,
            "seconds": seconds,
            "scores": scores,
            "rows": contributions,
        }

    def of_teacher(self) -> Any:
        """What the dev rows contribute to the score of the teacher in PyTorch."""
        dev = dev_set(self.evaluator)
        return encode(dev.contributions(self.evaluator.teacher(), self.evaluator.accelerator)[dev.task.metrics[0]])

    def published(self, method: str, limit: Limit) -> tuple[PreTrainedModel, Architecture]:
        """The fine-tuned teacher, pruned by a published method."""
        dense, evaluator = self.evaluator.teacher(), self.evaluator
        base, graph = base_of_teacher(dense.config)
        train, pad_id = self.workspace.folders.rows("train"), evaluator.supernet_config.pad_token_id
        count = self.options.rows or (ROWS if method == "Kwon" else int(TOKENS / train.lengths.mean()))
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(self.seed)).numpy()
        chosen = take(train, order[:count])
        teacher = Teacher(
            from_teacher(dense, stack=1).to(evaluator.accelerator.device),
            base,
            graph,
            self.config.max_length,
            (HEADS, CHANNELS) if self.config.space.varies_heads else (CHANNELS,),
            [collate(chosen, batch, pad_id) for batch in eval_batches(chosen, BATCH)],
            evaluator.accelerator.autocast,
        )

        def pruned(budget: int, teacher: Teacher = teacher) -> tuple[PreTrainedModel, Architecture]:
            model = PUBLISHED[method](teacher, budget)
            return model, units_of(model).architecture(base, graph)

        if limit.name == "macs":
            return pruned(limit.maximum)
        fewer_batches = replace(teacher, batches=teacher.batches[::PART])
        whole = Architecture.uniform(base, graph)
        least = Layer(
            Attention(1) if HEADS in teacher.units else whole.layers[0].attention,
            FFN(graph, expansion=Fraction(1, base.inner)),
        )
        smallest, largest = (
            (macs(one, teacher.tokens), one) for one in (replace(whole, layers=(least,) * base.depth), whole)
        )
        budget, _ = largest_within(
            limit, (smallest, largest), lambda budget: (budget, pruned(budget, fewer_batches)[1])
        )
        model, architecture = pruned(budget)
        if limit.total(architecture) <= limit.maximum:
            return model, architecture
        return largest_within(limit, (smallest, (budget, architecture)), pruned)

    def ours(self, method: str, limit: Limit) -> tuple[PreTrainedModel, Architecture]:
        """A compensated allocation."""
        space = self.space(limit)
        makers: Mapping[str, Callable[[], Architecture | None]] = {
            UNIFORM: lambda: uniform_slice(self.config, space),
            GLOBAL: lambda: globally_important(space, self.graph, self.workspace),
            FEWER_LAYERS: lambda: fewest_layers(space, self.losses),
            ALLOCATED[0]: lambda: allocate(space, self.losses),
        }
        architecture = makers[method.removeprefix(OURS)]()
        if architecture is None or not space.within_budget(architecture):
            raise BenchmarkError(
                f"--budgets: {method}: nothing is within {limit.in_words(limit.maximum)}: give a smaller number"
            )
        return self.evaluator.student(architecture), architecture

    def space(self, limit: Limit) -> Space:
        """Everything within this limit, and no other."""
        base, config = self.base, self.config
        genes = config.space.genes() | {"stack": (0, 1) if 0 in config.space.stacks else (1,)}
        if config.space.varies_heads and limit.name == "macs":
            genes["heads"] = tuple(range(base.heads + 1))
        num_labels, head = self.workspace.num_labels, self.workspace.folders.task.type.head
        whole = cost.params(Architecture.uniform(base, self.graph), num_labels, head)
        return Space(base, genes, 1, whole, num_labels=num_labels, graph=self.graph, limits=(limit,), head=head)


def largest_within(
    limit: Limit, ends: Sequence[tuple[int, Architecture]], pruned: Callable[[int], tuple[T, Architecture]]
) -> tuple[T, Architecture]:
    """The largest within a limit of what a method makes of up to `TRIES` numbers of MACs, by false position.

    Args:
        ends: the smallest and the largest that it can make, and their MACs.
        pruned: makes something of at most so many MACs; returns it and its architecture.

    Raises:
        BenchmarkError: it makes nothing within the limit.
    """
    (low, low_excess), (high, high_excess) = ((count, float(limit.total(one) - limit.maximum)) for count, one in ends)
    if high_excess <= 0:
        return pruned(high)
    found, last = None, 0
    for _ in range(TRIES if low_excess < 0 else 0):
        budget = low + int((high - low) * low_excess / (low_excess - high_excess))
        model, architecture = pruned(budget)
        excess = limit.total(architecture) - limit.maximum
        # Illinois: the end that stays a second time counts half.
        if excess > 0:
            high, high_excess, low_excess = budget, excess, low_excess / 2 if last > 0 else low_excess
        elif excess >= (USED - 1) * limit.maximum:
            return model, architecture
        else:
            low, low_excess, high_excess = budget, excess, high_excess / 2 if last <= 0 and found else high_excess
            found = model, architecture
        last = excess
    if found is None:
        raise BenchmarkError(
            f"--budgets: in {TRIES} tries nothing was pruned to {limit.in_words(limit.maximum)}; the smallest possible "
            f"takes {limit.rounded_up(limit.total(ends[0][1]))}: give a smaller number"
        )
    return found


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    budgets = [Fraction(2), Fraction(3), Fraction(5)]
    parser.add_argument("--budgets", type=Fraction, nargs="+", default=budgets, help="n of 1/n; default: 2 3 5")
    parser.add_argument("--latency", action="store_true", help="budgets are of the teacher's latency, not its MACs")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="as 'K-prune, 1e-05'; default: all")
    parser.add_argument(
        "--rows", type=int, help=f"training rows of Kwon and K-prune; default: {ROWS:,}, and {TOKENS:,} tokens"
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[0, 60], help="of the training; default: 0 60")
    parser.add_argument("--supernets", type=int, nargs="+", default=[0, 1, 2], help="seeds; default: 0 1 2")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset)
    methods = methods_of(config)
    if unknown := set(options.only or ()) - set(methods):
        raise BenchmarkError(f"--only {min(unknown)!r}: the methods are {', '.join(methods)}")
    settings = {"config": config.model_dump(mode="json"), "rows": options.rows, "steps": options.steps}
    settings |= {"latency": True} if options.latency else {}
    kept = Kept(report, settings, options.supernets)
    pruned = lru_cache(1)(partial(Pruned, options))
    rows: dict[tuple[Fraction, str], list[Row]] = {}
    for supernet, budget, method in product(options.supernets, options.budgets, options.only or methods):
        name = f"1/{budget}, {method}, supernet {supernet}"
        row: Row = kept(name, lambda: pruned(supernet).row(method, budget))  # noqa: B023
        rows.setdefault((budget, method), []).append(row)
    teachers = [kept(f"teacher, supernet {one}", lambda: pruned(one).of_teacher()) for one in options.supernets]  # noqa: B023
    show(rows, teachers, config, options, report)


def show(
    rows: Mapping[tuple[Fraction, str], list[Row]],
    teachers: Sequence[Any],
    config: StudyConfig,
    options: Namespace,
    report: Report,
) -> None:
    """Print the mean scores over supernets, and the differences to the best of K-prune and Kwon of each supernet, and
    to its teacher.
    """
    lines = []
    for (budget, method), of_supernets in rows.items():
        published = [rows[budget, other] for other in PUBLISHED if (budget, other) in rows]
        rivals = list(zip(*published, strict=True))
        cells = []
        for place in range(len(options.steps)):
            text = f"{mean(row['scores'][place] for row in of_supernets):.4f}"
            if method not in PUBLISHED and rivals:
                best = [max(rival, key=lambda row: row["scores"][place]) for rival in rivals]
                own = [row["rows"][place] for row in of_supernets]
                text += f" ({lead_over(config, own, [other['rows'][place] for other in best])})"
            cells.append(text)
        cells.append(lead_over(config, [row["rows"][-1] for row in of_supernets], teachers))
        kind = "latency" if options.latency else "macs"
        used = mean(row[kind] / row["limit"] for row in of_supernets)
        cells += [f"{used:.1%}", f"{mean(row['seconds'] for row in of_supernets):.1f}"]
        lines.append([f"1/{budget}", method, *cells])
    steps = (f"{steps} steps" for steps in options.steps)
    report.table(["budget", "method", *steps, "to the teacher", "of the budget", "seconds"], lines)


def lead_over(config: StudyConfig, own: Sequence[Any], others: Sequence[Any]) -> str:
    """The paired difference of encoded rows to others, with its standard error."""
    pairs = [(decode(one), decode(other)) for one, other in zip(own, others, strict=True)]
    return with_error(paired_difference(metric_of_rows(config, pairs[0][0]), pairs))

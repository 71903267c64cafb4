"""What EfficientBERT's search costs on a cluster at the paper's full scale, computed from measured parts.

It computes the work of every part of the protocol (the preset `efficientbert`), the hours that it takes on a device as
a function of the rate that the device sustains, what the teacher's outputs on disk save and need, the days of stages 1
and 2 on W devices, and the memory of a worker. SCALING.json is what `scaling` measured; --flops are the floating-point
operations a second that a training step sustains on other devices. No rate of a GPU is assumed, except the one that
follows from the paper's own GPU days.

Only the operations of linear maps are counted, two for a multiply-accumulate; a training step has these forward and
twice as many backward. Everything else that a step does lowers the rate, which is measured in the same operations.
"""

import math
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from transformers import BertConfig, BertForSequenceClassification

from benchmarks.memory.training_memory import kept_for_backward
from benchmarks.report import BenchmarkError, Report
from benchmarks.scaling.scaling import BASE, CANDIDATE, OBJECTIVE, SEED, Seconds, flops, load
from benchmarks.speed.throughput import LENGTHS, TEACHER, sequences
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import batches, training_batches
from distill.tasks.task import HELD_OUT
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher, saved_bytes
from nas.config.load import load_config
from nas.config.recipes import RecipeTable
from nas.config.schema import StudyConfig
from search_spaces import Architecture, cost
from search_spaces.graph import GELU
from supernet.build import build, config_of, full_architecture

PRESET = "efficientbert"
# Training rows of the tasks, of nyu-mll/glue on the hub.
ROWS = {
    "mnli": 392_702,
    "qqp": 363_846,
    "qnli": 104_743,
    "sst2": 67_349,
    "cola": 8_551,
    "stsb": 5_749,
    "mrpc": 3_668,
    "rte": 2_490,
}
# Words of English Wikipedia as BERT's authors count them; word pieces per word with BERT's vocabulary on WikiText-2's
# validation and test text, where a word is what has a letter or a digit.
WORDS, PIECES = 2.5e9, 1.4
# GPU days of the paper's table 6, of 58 in all: the other two are stage 3's.
PAPER = {"stage 1": 54, "stage 2": 2}
# Seconds of a trial that are neither training nor evaluation (results/search.md).
ORCHESTRATION = 0.08
DAY = 86_400
# Batch sizes at which the memory of a step is counted; that of larger batches lies on the line through these.
COUNTED = (1, 2)


@dataclass(frozen=True)
class Part:
    """The trainings of one part of the protocol.

    Attributes:
        times: how many trainings there are.
        trained: sequences that one of them sees in training steps.
        scored: sequences that one of them sees in forward passes alone.
        model: the architecture that is trained.
        taught: how many of the trainings have a teacher.
        cached: for how many of the trainings the teacher runs if its outputs are kept on disk.
    """

    name: str
    times: int
    trained: int
    scored: int
    model: Architecture
    taught: int
    cached: int

    def operations(self, tokens: int) -> int:
        """Operations of the trained models, without the teacher's, on sequences of `tokens` tokens."""
        return 2 * self.times * (3 * self.trained + self.scored) * cost.macs_linear(self.model, tokens)

    def teaching(self, tokens: int, *, saved: bool = False) -> int:
        """Operations of the teacher, in every step or with its outputs saved."""
        times = self.cached if saved else self.taught
        return 2 * times * self.trained * cost.macs_linear(Architecture.uniform(TEACHER), tokens)


def split(rows: int) -> tuple[int, int]:
    """How many of a task's rows are trained on, and how many are in its search split."""
    held_out = min(HELD_OUT, rows // 10)
    return rows - held_out, held_out


def sequences_of(table: RecipeTable | None, rows: int) -> int:
    """Sequences that a training on a share of so many rows sees; 0 where there is no such training."""
    if table is None:
        return 0
    recipe = table.build(math.ceil(table.share * rows))
    return recipe.steps * recipe.batch_size


def parts(config: StudyConfig, text: int) -> list[Part]:
    """The parts of a study whose text has `text` sequences. Every candidate is assumed to cost as much as
    EfficientBERT, which lies within the budget.
    """
    train_rows, held_out = zip(*(split(ROWS[task]) for task in config.tasks), strict=True)
    teacher, full = Architecture.uniform(TEACHER), full_architecture(BASE, GELU, max(config.space.stacks))
    candidate = sequences_of(config.candidate_pretrain, text) + sequences_of(config.candidate, train_rows[0])
    one_shot = sequences_of(config.sharing_pretrain, text)
    one_shot += sum(sequences_of(config.sharing, rows) for rows in train_rows)
    final = sequences_of(config.pretrain, text) + sum(sequences_of(config.final, rows) for rows in train_rows)
    finetuning = sum(sequences_of(config.finetune, rows) for rows in train_rows)
    stages = (config.stage1, config.stage2, config.stage3)
    first, second, third = (stage.trials for stage in stages)
    # These have seeds of their own, so no outputs are kept for them.
    confirmed = sum(stage.confirm * stage.confirm_seeds for stage in stages)
    return [
        Part("fine-tuning of the teachers", 1, finetuning, 0, teacher, 0, 0),
        Part("warm-up of the supernet", 1, sequences_of(config.warmup, text), 0, full, 1, 1),
        Part("stage 1", first, candidate, held_out[0], CANDIDATE, first, 1),
        Part("stage 2", second, candidate, held_out[0], CANDIDATE, second, 0),
        Part("confirmations", confirmed, candidate, held_out[0], CANDIDATE, confirmed, confirmed),
        Part("stage 3, its supernet", 1, one_shot, 0, CANDIDATE, 1, 1),
        Part("stage 3, its candidates", third, 0, sum(held_out), CANDIDATE, 0, 0),
        Part("final training", 1, final, 0, CANDIDATE, 1, 1),
    ]


def rate_of(seconds: Seconds, tokens: int) -> float:
    """Operations a second of the measured training step on sequences of so many tokens.

    Raises:
        benchmarks.report.BenchmarkError: no such step was measured.
    """
    if tokens not in seconds.get("tokens", {}):
        raise BenchmarkError(f"the measurements have no step of {tokens} tokens: run `scaling` with `tokens`")
    return flops("tokens", tokens) / median(seconds["tokens"][tokens])


def implied_rate(part: Part, tokens: int, days: float) -> float:
    """Operations a second of a device that does this part in so many days, padded, with the teacher in every step."""
    return (part.operations(tokens) + part.teaching(tokens)) / (days * DAY)


def wall(trials: int, seconds: float, workers: int) -> tuple[float, float]:
    """Seconds of so many trials of one length, and the share of the workers' time that is idle while the last run."""
    turns = math.ceil(trials / workers)
    return turns * (seconds + ORCHESTRATION), 1 - trials / (turns * workers)


@dataclass(frozen=True)
class CandidatePhase:
    """One training phase of a candidate.

    Attributes:
        shapes: rows and tokens of its batches as this project makes them.
        saved: bytes of the teacher's outputs for them.
    """

    name: str
    shapes: Sequence[tuple[int, int]]
    saved: int

    @property
    def tokens(self) -> int:
        """Tokens of all batches, padding included."""
        return sum(rows * tokens for rows, tokens in self.shapes)

    @property
    def breakeven(self) -> float:
        """Bytes that must be read in the time of one operation of the teacher; with a slower disk it is faster to
        compute the outputs.
        """
        return self.saved / (2 * self.tokens * cost.macs_linear(Architecture.uniform(TEACHER), 1))


def candidate_phases(config: StudyConfig, text: int) -> list[CandidatePhase]:
    """The phase on text, whose sequences are full, and that on the task, whose lengths are like MNLI's."""
    needs = OBJECTIVES[OBJECTIVE].make({}, config_of(CANDIDATE), BertConfig()).teacher_needs

    def phase(name: str, table: RecipeTable, rows: int, quantiles: tuple[float, float] | None) -> CandidatePhase:
        encoded = sequences(math.ceil(table.share * rows), quantiles)
        recipe = table.build(len(encoded))
        chosen = list(batches(encoded, recipe.batch_size, recipe.steps, SEED))
        shapes = [(len(batch), int(encoded.lengths[batch].max())) for batch in chosen]
        return CandidatePhase(name, shapes, saved_bytes(BertConfig(), needs, shapes))

    assert config.candidate_pretrain is not None
    return [
        phase("text", config.candidate_pretrain, text, None),
        phase(config.task, config.candidate, split(ROWS[config.task])[0], LENGTHS[config.task]),
    ]


def protocols(config: StudyConfig, phases: Sequence[CandidatePhase]) -> dict[str, tuple[int, int]]:
    """For each way of training candidates, the operations of one candidate, and those of the teacher once for all
    candidates. Each protocol leaves out some work of the one before; outputs that take the least disk space come first.
    """
    model, teacher = (cost.macs_linear(one, 1) for one in (CANDIDATE, Architecture.uniform(TEACHER)))
    phases = sorted(phases, key=lambda phase: phase.saved)
    padded = [sum(rows for rows, _ in phase.shapes) * config.max_length for phase in phases]
    real = [phase.tokens for phase in phases]
    scoring = 2 * model * split(ROWS[config.task])[1] * config.max_length
    ways = [("full length, teacher in every step", padded, 0), ("padded to the longest of the batch", real, 0)]
    ways += [(f"teacher's outputs on {phase.name} from disk", real, saved) for saved, phase in enumerate(phases, 1)]
    return {
        name: (6 * model * sum(tokens) + 2 * teacher * sum(tokens[saved:]) + scoring, 2 * teacher * sum(tokens[:saved]))
        for name, tokens, saved in ways
    }


def backward_bytes(count: int, tokens: int) -> int:
    """Bytes that a candidate's training step on so many full sequences keeps for its backward pass, counted."""
    model, teacher = build(CANDIDATE), BertForSequenceClassification(BertConfig(num_labels=2))
    rows, accelerator = sequences(count, (tokens, tokens)), make_accelerator()
    objective = OBJECTIVES[OBJECTIVE].make({}, model.config, teacher.config, rows)
    trained = {
        parameter.untyped_storage().data_ptr() for module in (model, objective) for parameter in module.parameters()
    }
    with kept_for_backward(trained) as kept:
        train(
            model,
            training_batches(rows, count, 1, SEED, 0),
            objective,
            Recipe(steps=1, batch_size=count),
            accelerator=accelerator,
            teacher=LiveTeacher(teacher, objective.teacher_needs, accelerator),
        )
    return sum(kept.values())


def memory(config: StudyConfig, phases: Sequence[CandidatePhase]) -> dict[str, int]:
    """Bytes of a worker, by what they are for."""
    labels, full = 3, full_architecture(BASE, GELU, max(config.space.stacks))
    objective = OBJECTIVES[OBJECTIVE].make({}, config_of(CANDIDATE), BertConfig())
    trained = cost.params(CANDIDATE, labels) + sum(parameter.numel() for parameter in objective.parameters())
    rows, (few, more) = config.candidate.batch_size, (backward_bytes(count, config.max_length) for count in COUNTED)
    each = (more - few) // (COUNTED[1] - COUNTED[0])
    largest = max(phase.saved // len(phase.shapes) for phase in phases)
    return {
        "candidate and projections: weights, gradients, two moments of Adam": 16 * trained,
        "supernet's weights": 4 * cost.params(full, labels),
        f"kept for the backward pass, {rows} x {config.max_length} tokens": few + (rows - COUNTED[0]) * each,
        "teacher's outputs of a batch": largest,
        "teacher's weights, where it runs in every step": 4 * cost.params(Architecture.uniform(TEACHER), labels),
    }


def show_work(report: Report, study: Sequence[Part], tokens: int) -> dict[str, list[float]]:
    """Print the work of all parts, sequences padded to so many tokens; returns its numbers by part."""
    numbers = {
        part.name: [
            part.times * (part.trained + part.scored),
            part.times * (part.trained + part.scored) * tokens,
            part.operations(tokens) / 1e18,
            part.teaching(tokens) / 1e18,
            part.teaching(tokens, saved=True) / 1e18,
        ]
        for part in study
    }
    times = {part.name: f"{part.times:,}" for part in study} | {"all": ""}
    numbers["all"] = [sum(column) for column in zip(*numbers.values(), strict=True)]
    rows = [
        (name, times[name], *(f"{value:.3g}" for value in row[:2]), *(f"{value:.3f}" for value in row[2:]))
        for name, row in numbers.items()
    ]
    columns = ("part", "times", "sequences", "tokens", "models", "teacher", "teacher, outputs kept")
    report.table(columns, rows, "Work, padded to the full length, in 10^18 operations:")
    return numbers


def show_hours(report: Report, study: Sequence[Part], tokens: int, rates: Mapping[str, float]) -> None:
    """Print the hours of one device, teacher in every step."""
    operations = {part.name: part.operations(tokens) + part.teaching(tokens) for part in study}
    operations["all"] = sum(operations.values())
    rates = {"1 TFLOP/s": 1e12} | {f"{name}: {rate / 1e12:.2f} TFLOP/s": rate for name, rate in rates.items()}
    rows = [[name, *(f"{number / rate / 3600:,.1f}" for rate in rates.values())] for name, number in operations.items()]
    title = "Hours of one device, padded, teacher in every step; at R TFLOP/s, those at 1 divided by R:"
    report.table(("part", *rates), rows, title)


def show_savings(report: Report, ways: Mapping[str, tuple[int, int]], trials: int) -> None:
    """Print what so many candidates take by each of these protocols."""
    totals = {name: trials * each + once for name, (each, once) in ways.items()}
    most = max(totals.values())
    rows = [
        (name, f"{each / 1e15:.2f}", f"{once / 1e15:.2f}", f"{totals[name] / 1e18:.2f}", f"{most / totals[name]:.2f}")
        for name, (each, once) in ways.items()
    ]
    columns = ("a candidate", "10^15 operations", "teacher once, 10^15", "all, 10^18", "times less")
    report.table(columns, rows, f"Stages 1 and 2, {trials:,} candidates; each row leaves out what those above it do:")


def show_days(
    report: Report,
    ways: Mapping[str, tuple[int, int]],
    stages: Sequence[int],
    rates: Mapping[str, float],
    workers: Sequence[int],
) -> None:
    """Print the days that stages of so many candidates take, with the teacher's outputs before them."""
    rows = []
    for device, rate in rates.items():
        for name, (each, once) in ways.items():
            seconds = (once / rate + sum(wall(n, each / rate, number)[0] for n in stages) for number in workers)
            rows.append([device, name, *(f"{one / DAY:,.2f}" for one in seconds)])
    for trials in stages:
        rows.append([f"idle at the end of {trials:,}", "", *(f"{wall(trials, 1, n)[1]:.1%}" for n in workers)])
    columns = ("device", "a candidate", *(f"W = {number}" for number in workers))
    report.table(columns, rows, f"Days of stages 1 and 2 with W devices, {ORCHESTRATION} s of orchestration a trial:")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("scaling", type=Path, metavar="SCALING.json", help="raw numbers of `scaling`")
    parser.add_argument("--flops", type=float, nargs="+", default=[], help="of other devices, operations a second")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64], help="default: 1 8 64")
    parser.add_argument("--words", type=float, default=WORDS, help="of the text; default: %(default)g")


def run(options: Namespace, report: Report) -> None:
    about, seconds = load(options.scaling)
    config = load_config(PRESET)
    tokens, text = config.max_length, round(options.words * PIECES / config.max_length)
    study, phases = parts(config, text), candidate_phases(config, text)
    by_name = {part.name: part for part in study}
    implied = {name: implied_rate(by_name[name], tokens, days) for name, days in PAPER.items()}
    rates = {
        f"{about['processor']}, {about['cores']} cores, {about['threads']} threads": rate_of(seconds, tokens),
        "the paper's in stage 1": implied["stage 1"],
        **{f"{rate / 1e12:g} TFLOP/s": rate for rate in options.flops},
    }
    ways, stages = protocols(config, phases), (config.stage1.trials, config.stage2.trials)
    models = {"teacher": Architecture.uniform(TEACHER), "candidate": CANDIDATE, "supernet": study[1].model}
    macs = (f"{name} {cost.macs_linear(model, tokens) / 1e9:.2f}" for name, model in models.items())
    report.note(f"A text of {options.words:.3g} words: {text:,} sequences of {tokens} word pieces ({PIECES} a word).")
    report.note(f"10^9 multiply-accumulates of the linear maps, for {tokens} tokens: {', '.join(macs)}.")
    work = show_work(report, study, tokens)
    days = " and ".join(f"{number} GPU days of {name}" for name, number in PAPER.items())
    teraflops = " and ".join(f"{rate / 1e12:.2f}" for rate in implied.values())
    report.note(f"The paper's {days} are {teraflops} TFLOP/s sustained, on this text.")
    show_hours(report, study, tokens, rates)
    show_savings(report, ways, sum(stages))
    for phase in phases:
        place = "within" if phase.saved <= config.teacher_cache else "above"
        report.note(
            f"The teacher's outputs on {phase.name}, {len(phase.shapes):,} batches, take {phase.saved / 1e9:,.0f} GB, "
            f"{place} the teacher_cache of {config.teacher_cache / 1e9:.0f} GB; reading them is faster than computing "
            f"them where a device has {phase.breakeven * 1e3:.2f} GB/s for each TFLOP/s."
        )
    show_days(report, ways, stages, rates, options.workers)
    sizes = memory(config, phases)
    rows = [(name, f"{size / 2**30:.2f}") for name, size in (sizes | {"all": sum(sizes.values())}).items()]
    report.table(("what", "GiB"), rows, f"Memory of a worker at batches of {config.candidate.batch_size}:")
    results = {
        "sequences, tokens, operations of models, of the teacher, of the teacher with kept outputs (10^18)": work,
        "operations of a candidate, of the teacher once": ways,
        "operations a second": rates,
        "bytes of the teacher's outputs": {phase.name: phase.saved for phase in phases},
        "bytes of a worker": sizes,
    }
    report.save(results, seeds=[SEED])

"""A plan for the papers' full scale: what EfficientBERT's search costs on a cluster, computed from measured pieces.

    python -m benchmarks plan SCALING.json [--flops RATE ...] [--workers 1 8 64] [--words 2.5e9]

Prints Markdown: the work of every part of the protocol (the preset `efficientbert`), the hours that it takes a device
as a function of the rate that the device sustains, what the teacher's outputs on disk save and take, the days of stages
1 and 2 on W devices, and the memory of a worker. SCALING.json is what `scaling` measured, `--flops` the
floating-point operations a second that a training step sustains on other devices. No rate of a GPU is assumed: there is
but the one that the paper's own GPU days come to.

Operations are those of linear maps, two for a multiply-accumulate, in a training step forward and twice that backward;
what else a step does is in the rate, which is measured in the same operations.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from transformers import BertConfig, BertForSequenceClassification
from transformers.utils import logging

from benchmarks.memory.memory import kept_for_backward
from benchmarks.scaling.scaling import BASE, CANDIDATE, OBJECTIVE, SEED, Seconds, flops, load
from benchmarks.speed.throughput import LENGTHS, TEACHER, sequences
from distill.objectives import OBJECTIVES
from distill.tasks.encoding import batches, training_batches
from distill.tasks.task import HELD_OUT
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher import LiveTeacher, saved_bytes
from nas.config.load import load_config
from nas.config.schema import RecipeTable, StudyConfig
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
# English Wikipedia in words, as BERT's authors count it; pieces of a word with BERT's vocabulary on WikiText-2's
# validation and test text, of which a word is what has a letter or a digit.
WORDS, PIECES = 2.5e9, 1.4
# GPU days of the paper's table 6, of 58 in all: the other two are stage 3's.
PAPER = {"stage 1": 54, "stage 2": 2}
# Seconds of a trial that are neither training nor evaluation (results/search.md).
ORCHESTRATION = 0.08
DAY = 86_400
# Sequences of the steps whose memory is counted; that of more sequences is on a line with theirs.
COUNTED = (1, 2)


@dataclass(frozen=True)
class Part:
    """Trainings of a kind.

    Attributes:
        times: how many there are.
        trained, scored: sequences of one, seen in training steps and in forward passes.
        model: what is trained.
        taught: how many of them have a teacher.
        cached: ... which computes its outputs for them, where these are kept on disk.
    """

    name: str
    times: int
    trained: int
    scored: int
    model: Architecture
    taught: int
    cached: int

    def operations(self, tokens: int) -> int:
        """Of what is trained, on sequences of so many tokens."""
        return 2 * self.times * (3 * self.trained + self.scored) * cost.macs_linear(self.model, tokens)

    def teaching(self, tokens: int, *, saved: bool = False) -> int:
        """Of the teacher, in every step or where its outputs are saved."""
        times = self.cached if saved else self.taught
        return 2 * times * self.trained * cost.macs_linear(Architecture.uniform(TEACHER), tokens)


def split(rows: int) -> tuple[int, int]:
    """Rows of a task that are trained on, and of its search split."""
    held = min(HELD_OUT, rows // 10)
    return rows - held, held


def seen(table: RecipeTable | None, rows: int) -> int:
    """Sequences of a training on a share of so many rows."""
    if table is None:
        return 0
    recipe = table.build(math.ceil(table.share * rows))
    return recipe.steps * recipe.batch_size


def parts(config: StudyConfig, text: int) -> list[Part]:
    """The parts of a study on text of so many sequences. All candidates count as EfficientBERT, one of the box."""
    train, held = zip(*(split(ROWS[task]) for task in config.tasks), strict=True)
    teacher, full = Architecture.uniform(TEACHER), full_architecture(BASE, GELU, max(config.space.stacks))
    candidate = seen(config.candidate_pretrain, text) + seen(config.candidate, train[0])
    sharing = seen(config.sharing_pretrain, text) + sum(seen(config.sharing, rows) for rows in train)
    final = seen(config.pretrain, text) + sum(seen(config.final, rows) for rows in train)
    finetuning = sum(seen(config.finetune, rows) for rows in train)
    stages = (config.stage1, config.stage2, config.stage3)
    first, second, third = (stage.trials for stage in stages)
    # With seeds of their own, so no outputs are kept for them.
    confirmed = sum(stage.confirm * stage.confirm_seeds for stage in stages)
    return [
        Part("fine-tuning of the teachers", 1, finetuning, 0, teacher, 0, 0),
        Part("warm-up of the supernet", 1, seen(config.warmup, text), 0, full, 1, 1),
        Part("stage 1", first, candidate, held[0], CANDIDATE, first, 1),
        Part("stage 2", second, candidate, held[0], CANDIDATE, second, 0),
        Part("confirmations", confirmed, candidate, held[0], CANDIDATE, confirmed, confirmed),
        Part("stage 3, its supernet", 1, sharing, 0, CANDIDATE, 1, 1),
        Part("stage 3, its candidates", third, 0, sum(held), CANDIDATE, 0, 0),
        Part("final training", 1, final, 0, CANDIDATE, 1, 1),
    ]


def rate_of(seconds: Seconds, tokens: int) -> float:
    """Operations a second of the measured training step on sequences of so many tokens."""
    if tokens not in seconds.get("tokens", {}):
        raise ValueError(f"the measurements have no step of {tokens} tokens: run benchmarks.scaling with tokens")
    return flops("tokens", tokens) / median(seconds["tokens"][tokens])


def implied_rate(part: Part, tokens: int, spent: float) -> float:
    """Operations a second of a device that does this part in so many days, padded, with the teacher in every step."""
    return (part.operations(tokens) + part.teaching(tokens)) / (spent * DAY)


def wall(trials: int, seconds: float, workers: int) -> tuple[float, float]:
    """Seconds of so many trials of one length, and the share of the workers' time that is idle while the last run."""
    turns = math.ceil(trials / workers)
    return turns * (seconds + ORCHESTRATION), 1 - trials / (turns * workers)


@dataclass(frozen=True)
class TrainingPhase:
    """One training of a candidate: shapes (rows, tokens) of its batches as this project makes them, and the bytes of
    the teacher's outputs for them.
    """

    name: str
    shapes: Sequence[tuple[int, int]]
    saved: int

    @property
    def tokens(self) -> int:
        """Of all batches, padding included."""
        return sum(rows * tokens for rows, tokens in self.shapes)

    @property
    def breakeven(self) -> float:
        """Bytes to read in the time of one operation of the teacher: with a slower disk it is better off computing."""
        return self.saved / (2 * self.tokens * cost.macs_linear(Architecture.uniform(TEACHER), 1))


def training_phases(config: StudyConfig, text: int) -> list[TrainingPhase]:
    """Of text, whose sequences are full, and of the task, whose lengths are like MNLI's."""
    needs = OBJECTIVES[OBJECTIVE].make({}, config_of(CANDIDATE), BertConfig()).teacher_needs

    def training_phase(
        name: str, table: RecipeTable, rows: int, quantiles: tuple[float, float] | None
    ) -> TrainingPhase:
        encoded = sequences(math.ceil(table.share * rows), quantiles)
        recipe = table.build(len(encoded))
        chosen = batches(encoded, recipe.batch_size, recipe.steps, SEED)
        shapes = [(len(one), int(encoded.lengths[one].max())) for one in chosen]
        return TrainingPhase(name, shapes, saved_bytes(BertConfig(), needs, shapes))

    assert config.candidate_pretrain is not None
    return [
        training_phase("text", config.candidate_pretrain, text, None),
        training_phase(config.task, config.candidate, split(ROWS[config.task])[0], LENGTHS[config.task]),
    ]


def protocols(config: StudyConfig, taught: Sequence[TrainingPhase]) -> dict[str, tuple[int, int]]:
    """How a candidate is trained -> operations of one, and of the teacher once for all of them; each way leaves out
    something of the one before, the outputs that take the least disk first.
    """
    model, teacher = (cost.macs_linear(one, 1) for one in (CANDIDATE, Architecture.uniform(TEACHER)))
    taught = sorted(taught, key=lambda one: one.saved)
    padded = [sum(rows for rows, _ in one.shapes) * config.max_length for one in taught]
    real = [one.tokens for one in taught]
    scoring = 2 * model * split(ROWS[config.task])[1] * config.max_length
    ways = [("full length, teacher in every step", padded, 0), ("padded to the longest of the batch", real, 0)]
    ways += [(f"teacher's outputs on {one.name} from disk", real, saved) for saved, one in enumerate(taught, 1)]
    return {
        name: (6 * model * sum(tokens) + 2 * teacher * sum(tokens[saved:]) + scoring, 2 * teacher * sum(tokens[:saved]))
        for name, tokens, saved in ways
    }


def kept(count: int, tokens: int) -> int:
    """Bytes that a candidate's training step on so many full sequences keeps for its backward pass: counted."""
    model, teacher = build(CANDIDATE), BertForSequenceClassification(BertConfig(num_labels=2))
    rows, accelerator = sequences(count, (tokens, tokens)), make_accelerator()
    goal = OBJECTIVES[OBJECTIVE].make({}, model.config, teacher.config, rows)
    own = {parameter.untyped_storage().data_ptr() for part in (model, goal) for parameter in part.parameters()}
    with kept_for_backward(own) as found:
        train(
            model,
            training_batches(rows, count, 1, SEED, 0),
            goal,
            Recipe(steps=1, batch_size=count),
            accelerator=accelerator,
            teacher=LiveTeacher(teacher, goal.teacher_needs, accelerator),
        )
    return sum(found.values())


def memory(config: StudyConfig, taught: Sequence[TrainingPhase]) -> dict[str, int]:
    """Bytes of a worker, by what holds them."""
    labels, full = 3, full_architecture(BASE, GELU, max(config.space.stacks))
    goal = OBJECTIVES[OBJECTIVE].make({}, config_of(CANDIDATE), BertConfig())
    learned = cost.params(CANDIDATE, labels) + sum(parameter.numel() for parameter in goal.parameters())
    rows, (few, more) = config.candidate.batch_size, (kept(count, config.max_length) for count in COUNTED)
    each = (more - few) // (COUNTED[1] - COUNTED[0])
    largest = max(one.saved // len(one.shapes) for one in taught)
    return {
        "candidate and projections: weights, gradients, two moments of Adam": 16 * learned,
        "supernet's weights": 4 * cost.params(full, labels),
        f"kept for the backward pass, {rows} x {config.max_length} tokens": few + (rows - COUNTED[0]) * each,
        "teacher's outputs of a batch": largest,
        "teacher's weights, where it runs in every step": 4 * cost.params(Architecture.uniform(TEACHER), labels),
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def work(found: Sequence[Part], tokens: int) -> str:
    """The table of all parts, sequences padded to so many tokens."""
    numbers = [
        [
            part.times * (part.trained + part.scored),
            part.times * (part.trained + part.scored) * tokens,
            part.operations(tokens) / 1e18,
            part.teaching(tokens) / 1e18,
            part.teaching(tokens, saved=True) / 1e18,
        ]
        for part in found
    ]
    numbers.append([sum(column) for column in zip(*numbers, strict=True)])
    names = [(part.name, f"{part.times:,}") for part in found] + [("all", "")]
    rows = [
        (*name, *(f"{value:.3g}" for value in row[:2]), *(f"{value:.3f}" for value in row[2:]))
        for name, row in zip(names, numbers, strict=True)
    ]
    return table(("part", "times", "sequences", "tokens", "models", "teacher", "teacher, outputs kept"), rows)


def hours(found: Sequence[Part], tokens: int, rates: Mapping[str, float]) -> str:
    """The table of the hours of one device, teacher in every step."""
    operations = {part.name: part.operations(tokens) + part.teaching(tokens) for part in found}
    operations["all"] = sum(operations.values())
    rows = [[name, *(f"{one / rate / 3600:,.1f}" for rate in rates.values())] for name, one in operations.items()]
    return table(("part", *rates), rows)


def savings(ways: Mapping[str, tuple[int, int]], trials: int) -> str:
    """The table of what so many candidates take in each of these ways."""
    whole = {name: trials * each + once for name, (each, once) in ways.items()}
    most = max(whole.values())
    rows = [
        (name, f"{each / 1e15:.2f}", f"{once / 1e15:.2f}", f"{whole[name] / 1e18:.2f}", f"{most / whole[name]:.2f}")
        for name, (each, once) in ways.items()
    ]
    return table(("a candidate", "10^15 operations", "teacher once, 10^15", "all, 10^18", "times less"), rows)


def days(
    ways: Mapping[str, tuple[int, int]], stages: Sequence[int], rates: Mapping[str, float], workers: Sequence[int]
) -> str:
    """The table of the days that stages of so many candidates take, the teacher's outputs before them."""
    rows = []
    for label, rate in rates.items():
        for name, (each, once) in ways.items():
            spent = (once / rate + sum(wall(n, each / rate, number)[0] for n in stages) for number in workers)
            rows.append([label, name, *(f"{seconds / DAY:,.2f}" for seconds in spent)])
    idle = [[f"idle at the end of {n:,}", "", *(f"{wall(n, 1, number)[1]:.1%}" for number in workers)] for n in stages]
    return table(("device", "a candidate", *(f"W = {number}" for number in workers)), rows + idle)


def main() -> None:
    parser = argparse.ArgumentParser(description="a plan for the papers' full scale")
    parser.add_argument("scaling", type=Path, help="measurements of benchmarks.scaling")
    parser.add_argument("--flops", type=float, nargs="+", default=[], help="of other devices, operations a second")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--words", type=float, default=WORDS, help="of the text")
    options = parser.parse_args()
    logging.disable_progress_bar()
    about, seconds = load(options.scaling)
    config = load_config(PRESET)
    tokens, text = config.max_length, round(options.words * PIECES / config.max_length)
    found, taught = parts(config, text), training_phases(config, text)
    by_name = {part.name: part for part in found}
    implied = {name: implied_rate(by_name[name], tokens, spent) for name, spent in PAPER.items()}
    rates = {
        f"{about['machine']}, {about['threads']} threads": rate_of(seconds, tokens),
        "the paper's in stage 1": implied["stage 1"],
        **{f"{rate / 1e12:g} TFLOP/s": rate for rate in options.flops},
    }
    ways, stages = protocols(config, taught), (config.stage1.trials, config.stage2.trials)
    models = {"teacher": Architecture.uniform(TEACHER), "candidate": CANDIDATE, "supernet": found[1].model}
    macs = (f"{name} {cost.macs_linear(model, tokens) / 1e9:.2f}" for name, model in models.items())
    print(f"A text of {options.words:.3g} words: {text:,} sequences of {tokens} word pieces ({PIECES} a word).")
    print(f"10^9 multiply-accumulates of the linear maps, for {tokens} tokens: {', '.join(macs)}.")
    print("\nWork, padded to the full length, in 10^18 operations:\n")
    print(work(found, tokens))
    print(
        f"The paper's {' and '.join(f'{one} GPU days of {name}' for name, one in PAPER.items())} are "
        f"{' and '.join(f'{rate / 1e12:.2f}' for rate in implied.values())} TFLOP/s sustained, on this text.\n"
    )
    print("Hours of one device, padded, teacher in every step; at R TFLOP/s, those at 1 divided by R:\n")
    labels = {f"{name}: {rate / 1e12:.2f} TFLOP/s": rate for name, rate in rates.items()}
    print(hours(found, tokens, {"1 TFLOP/s": 1e12, **labels}))
    print(f"Stages 1 and 2, {sum(stages):,} candidates; each row leaves out what those above it do:\n")
    print(savings(ways, sum(stages)))
    for one in taught:
        place = "within" if one.saved <= config.teacher_cache else "above"
        print(
            f"The teacher's outputs on {one.name}, {len(one.shapes):,} batches, take {one.saved / 1e9:,.0f} GB, "
            f"{place} the teacher_cache of {config.teacher_cache / 1e9:.0f} GB; to read them is faster than to "
            f"compute them where a device has {one.breakeven * 1e3:.2f} GB/s for each TFLOP/s."
        )
    print(f"\nDays of stages 1 and 2 with W devices, {ORCHESTRATION} s of orchestration a trial:\n")
    print(days(ways, stages, rates, options.workers))
    print(f"Memory of a worker at batches of {config.candidate.batch_size}:\n")
    held = memory(config, taught)
    rows = [(name, f"{value / 2**30:.2f}") for name, value in (held | {"all": sum(held.values())}).items()]
    print(table(("what", "GiB"), rows))


if __name__ == "__main__":
    main()

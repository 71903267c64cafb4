"""Which cheap signal tells what a candidate is worth after full training?

    python -m benchmarks evidence [--preset demo] [--architectures 32] [--full-steps 400] [--seeds 1 2 3]
        [--out evidence.json]
    python -m benchmarks evidence --table evidence.json [MORE.json ...] [--seeds 1 2 3]

Architectures are drawn from the space of stage 1, sizes uniformly in the box. Under every seed each of them is trained
by the candidates' recipe with --full-steps steps, on the batches of the seed, and scored on the whole dev split; on the
way there are glances, on the first rows of the search split. What a signal of one seed is compared with is the mean
score over the *other* seeds, so a training is not compared with its own end. "score after full training" is how well
the scores of one seed tell those of others, which only a signal with less noise than such a score can surpass. "score
of the search" is the search's own evaluation: its steps, with a learning rate that falls to 0 in them, and its whole
split; "score at the rung" is the glance of that evaluation by which candidates are stopped. Other glances are at the
learning rates of the full training. Predictors learn from scores of the search, as the sampler does.

Kendall's tau-b is the mean over seeds (of predictors also over random choices of the known architectures); intervals
are percentiles over resampled architectures. Seconds are per architecture, from the supernet's weights on; what is made
once for all (teacher's outputs, activations of the full model, scores to learn from) is not in them.

The file is written after every training, and the same command goes on with what is there; seeds can be added. They are
trained in the order given, so that commands side by side, each with a file and an order of its own, can share them out;
--table joins their files.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.signals.ranking import Signal, against_other_seeds, others, predicted, table
from benchmarks.signals.zero_cost import block_errors, losses, observe
from distill.files import write_text
from distill.tasks.encoding import training_batches
from distill.training.distillation import Saved
from distill.training.evaluation import batch_logits, evaluate, split_batches
from distill.training.loop import Diverged
from distill.training.teacher import LiveTeacher, SavedTeacher, save_outputs
from nas.budget import kept_importance, limits_of
from nas.config.load import load_config
from nas.evaluate import Evaluator
from nas.preparation.phases import TrainingPhase
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace, objectives, projections
from nas.samplers.encoding import encode, widths
from nas.stages import plan
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.equivalence import function_key
from search_spaces.spaces import Space
from supernet.build import full_architecture

GLANCES = (10, 30, 60)
# Rows of the search split for glances, and for block-local errors.
ROWS, PROBED = 1_000, 500
# The training loss is the mean over so many steps.
LAST = 10
# A signal with one of these words in its name is better when it is lower.
LOWER = ("loss", "errors")
TARGET, SEARCH, KEPT = "score after full training", "score of the search", "importance kept"
RUNG = "score at the rung"

# Of each signal its value and the seconds that it takes.
Signals = dict[str, tuple[float, float]]
Row = dict[str, Any]


class Taught(Evaluator):
    """An evaluator that has the teacher's outputs for any seed, once they are saved."""

    kept: Saved | None = None

    def saved(self, found: TrainingPhase, seed: int) -> Saved | None:
        return self.kept if found.table == self.training_phases[-1].table else None

    def save(self, found: TrainingPhase, seed: int, folder: Path) -> None:
        """Save the outputs on the batches of this training, which begins with those of shorter ones."""
        goals = objectives(self.config, found.settings, found.recipe, self.like, self.teacher_config, found.rows)
        needs = frozenset[str]().union(*(goal.teacher_needs for goal, _ in goals))
        if needs:
            pad_id = self.tokenizer.pad_token_id
            batches = training_batches(found.rows, found.recipe.batch_size, found.recipe.steps, seed, pad_id)
            save_outputs(LiveTeacher(self.teacher(found.raw), needs, self.accelerator), batches, folder)
            self.kept = Saved(self.teacher_config, SavedTeacher(folder))


class Measure:
    """What all measurements share: rows of the search split, the teacher's predictions and the full model's activations
    on them.
    """

    def __init__(self, workspace: Workspace, full_steps: int) -> None:
        self.evaluator = evaluator = Taught(workspace)
        *_, last = evaluator.training_phases
        self.full = replace(last, recipe=replace(last.recipe, steps=full_steps))
        self.batches = self.search_batches(ROWS)
        self.probed = self.search_batches(PROBED)
        self.predictions = batch_logits(evaluator.teacher(), self.batches, accelerator=evaluator.accelerator)
        base, graph = workspace.base()
        supernet = evaluator.student(full_architecture(base, graph, max(workspace.config.space.stacks)))
        self.seen = observe(supernet, self.probed, evaluator.accelerator)
        self.kept = kept_importance(workspace.importance())
        self.dev = workspace.folders.rows("dev"), workspace.folders.split("dev")

    def search_batches(self, first: int) -> list[dict[str, torch.Tensor]]:
        rows, pad_id = self.evaluator.search_rows, self.evaluator.like.pad_token_id
        return [batch for _, batch in split_batches(rows, pad_id, first)]

    def glance(self, model: PreTrainedModel, when: str, before: float) -> Signals:
        """Score and losses on the search split of a model that took `before` seconds."""
        evaluator = self.evaluator
        score, score_seconds = timed(lambda: evaluator.score(model, ROWS).value)
        (hard, soft), seconds = timed(
            lambda: losses(model, self.batches, self.predictions, evaluator.task.kind, evaluator.accelerator)
        )
        return {
            f"score {when}": (score, before + score_seconds),
            f"loss {when}": (hard, before + seconds),
            f"loss with the teacher's predictions {when}": (soft, before + seconds),
        }

    def untrained(self, architecture: Architecture) -> Signals:
        """What there is without training."""
        evaluator = self.evaluator
        labels, head = evaluator.workspace.labels, evaluator.task.kind
        model, built = timed(lambda: evaluator.student(architecture))
        errors, seconds = timed(lambda: block_errors(model, self.probed, self.seen, evaluator.accelerator))
        names = ("errors of blocks", "errors of blocks, weighted", "errors of blocks, weighted and joined")
        return {
            "parameters": (cost.params(architecture, labels, head), 0.0),
            "MACs": (cost.macs(architecture, labels=labels, head=head), 0.0),
            KEPT: (self.kept(architecture), 0.0),
            **{name: (error, built + seconds) for name, error in zip(names, errors, strict=True)},
            **self.glance(model, "untrained", built),
        }

    def searched(self, architecture: Architecture, seed: int) -> Signals:
        """The search's own evaluation, and its score at the last rung of stage 1.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """
        evaluator, rungs = self.evaluator, self.evaluator.config.stage1.rungs or (Fraction(1, 2),)
        found: Signals = {}
        started = time.perf_counter()

        def glance(step: int, score: float) -> None:
            if step:
                found[RUNG] = score, time.perf_counter() - started

        score, seconds = timed(lambda: evaluator.evaluate(architecture, seed, rungs, glance).value)
        return found | {SEARCH: (score, seconds)}

    def trained(self, architecture: Architecture, seed: int) -> Signals:
        """Glances on the way of a full training, and its end.

        Raises:
            distill.training.loop.Diverged: a loss or the logits stopped being finite.
        """
        evaluator = self.evaluator
        found: Signals = {}
        history: list[float] = []
        started, paused = time.perf_counter(), 0.0

        def after_step(step: int, loss: float) -> None:
            nonlocal paused
            history.append(loss)
            if step in GLANCES:
                now = time.perf_counter()
                before, when = now - started - paused, f"after {step} steps"
                found[f"training loss {when}"] = mean(history[-LAST:]), before
                found.update(self.glance(model, when, before))
                paused += time.perf_counter() - now

        model = evaluator.student(architecture)
        learned = projections(evaluator.workspace.supernet)
        for training_phase in evaluator.training_phases[:-1]:
            learned = evaluator.distil(model, training_phase, seed, learned)
        evaluator.distil(model, self.full, seed, learned, after_step)
        task, pad_id = evaluator.task, evaluator.like.pad_token_id
        scores = evaluate(model, *self.dev, task, accelerator=evaluator.accelerator, pad_id=pad_id)
        return found | {TARGET: (scores[task.metrics[0]].value, time.perf_counter() - started - paused)}


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """The result and the seconds it took."""
    started = time.perf_counter()
    return run(), time.perf_counter() - started


def draw(space: Space, number: int) -> list[Architecture]:
    """The first so many different functions among random members; a smaller number draws the first ones of these."""
    rng = random.Random(0)
    found: dict[str, Architecture] = {}
    while len(found) < number:
        one = space.sample(rng)
        found.setdefault(function_key(one), one)
    return list(found.values())


def run(measure: Measure, raw: Row, seeds: Sequence[int], out: Path) -> Row:
    """Measure what `raw` does not have yet, and write it to the file."""
    architectures = [Architecture.from_json(one) for one in raw["settings"]["architectures"]]

    def missing(name: str) -> bool:
        return name not in raw["measured"] and name not in raw["failed"]

    def add(name: str, found: Callable[..., Signals], *arguments: Any) -> None:
        started = time.perf_counter()
        try:
            raw["measured"][name] = found(*arguments)
        except Diverged as error:
            raw["failed"][name] = str(error)
        write_text(out, json.dumps(raw, indent=1) + "\n")
        print(f"{name}: {time.perf_counter() - started:.0f} s", flush=True)

    for place, one in enumerate(architectures):
        if missing(f"{place}"):
            add(f"{place}", measure.untrained, one)
    for seed in seeds:
        ways = {"": measure.trained, "/search": measure.searched}
        wanted = [
            (f"{place}/{seed}{way}", found, one)
            for place, one in enumerate(architectures)
            for way, found in ways.items()
            if missing(f"{place}/{seed}{way}")
        ]
        if wanted:
            with tempfile.TemporaryDirectory() as scratch:
                started = time.perf_counter()
                measure.evaluator.save(measure.full, seed, Path(scratch) / "outputs")
                print(f"teacher's outputs, seed {seed}: {time.perf_counter() - started:.0f} s", flush=True)
                for name, found, one in wanted:
                    add(name, found, one, seed)
    return raw


def joined(files: Sequence[Path]) -> Row:
    """All that files of the same settings have.

    Raises:
        SystemExit: their settings differ.
    """
    first, *others = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    for file, raw in zip(files[1:], others, strict=True):
        different = [name for name in first["settings"] if raw["settings"].get(name) != first["settings"][name]]
        if different:
            raise SystemExit(f"{file} is of another run than {files[0]} ({', '.join(different)})")
        for kind in ("measured", "failed"):
            first[kind] = raw[kind] | first[kind]
    return first


def report(raw: Row, seeds: Sequence[int]) -> str:
    """The table, of the architectures that were measured under all these seeds.

    Raises:
        SystemExit: there are less than two seeds, or less than four architectures.
    """
    settings, measured = raw["settings"], raw["measured"]
    whole = [
        place
        for place in range(len(settings["architectures"]))
        if all(
            name in measured
            for name in (f"{place}", *(f"{place}/{seed}{way}" for seed in seeds for way in ("", "/search")))
        )
    ]
    if len(seeds) < 2 or len(whole) < 4:
        raise SystemExit(f"nothing to compare: {len(whole)} architectures measured under all of {len(seeds)} seeds")

    def values(name: str) -> tuple[np.ndarray, float]:
        """(seeds, architectures), higher is better; and the mean seconds."""
        rows = [
            [measured[f"{one}"] | measured[f"{one}/{seed}"] | measured[f"{one}/{seed}/search"] for one in whole]
            for seed in seeds
        ]
        pairs = np.array([[row[name] for row in line] for line in rows])
        return pairs[..., 0] * (-1 if any(word in name for word in LOWER) else 1), float(pairs[..., 1].mean())

    targets_SN, full_seconds = values(TARGET)
    some = (f"{whole[0]}", f"{whole[0]}/{seeds[0]}", f"{whole[0]}/{seeds[0]}/search")
    names = list(dict.fromkeys(name for one in some for name in measured[one]))
    steps = {TARGET: settings["full_steps"], SEARCH: settings["search_steps"]}
    signals = [
        against_other_seeds(f"{name} ({steps[name]} steps)" if name in steps else name, found, targets_SN, seconds)
        for name in names
        for found, seconds in [values(name)]
    ]
    signals += learned(settings, whole, targets_SN, values)
    stop = settings["config"]["stage1"]["stop"]
    lost = stopped_wrongly(values(RUNG)[0], others(targets_SN), stop)
    between = targets_SN.mean(axis=0).std(ddof=1)
    rest = targets_SN - targets_SN.mean(axis=0) - targets_SN.mean(axis=1, keepdims=True) + targets_SN.mean()
    within = np.sqrt((rest**2).sum() / ((len(seeds) - 1) * (len(whole) - 1)))
    return (
        f"{settings['name']}: {len(whole)} architectures, {settings['full_steps']} steps ({full_seconds:.0f} s), "
        f"seeds {', '.join(map(str, seeds))}, {settings['threads']} threads; diverged: {len(raw['failed'])}\n"
        f"score {targets_SN.mean():.4f}; deviation of the architectures' means {between:.4f}, of one score of theirs "
        f"from seed to seed {within:.4f} (beside what a seed does to all)\n"
        f"among the lowest {stop:.0%} at the rung are {lost:.0%} of the best quarter\n\n{table(signals)}"
    )


def stopped_wrongly(values_SN: np.ndarray, targets_SN: np.ndarray, stop: float) -> float:
    """The share of the best quarter that is among the lowest `stop` of a signal; the mean over seeds."""
    number = values_SN.shape[1]
    lowest, best = int(stop * number), max(1, number // 4)
    shares = [
        len({*np.argsort(value, kind="stable")[:lowest]} & {*np.argsort(-target, kind="stable")[:best]}) / best
        for value, target in zip(values_SN, targets_SN, strict=True)
    ]
    return float(np.mean(shares))


def learned(
    settings: Row, whole: Sequence[int], targets_SN: np.ndarray, values: Callable[[str], tuple[np.ndarray, float]]
) -> Iterator[Signal]:
    """Predictors on genes, alone, with the importance kept, and with the score and the loss at a glance."""
    architectures = [Architecture.from_json(settings["architectures"][place]) for place in whole]
    genes_NF = encode(architectures, tuple(settings["widths"]))
    scores_SN, _ = values(SEARCH)
    yield from predicted(genes_NF, scores_SN, targets_SN, "", np.empty((*targets_SN.shape, 0)), 0.0)
    kept_SN, _ = values(KEPT)
    yield from predicted(genes_NF, scores_SN, targets_SN, f", {KEPT}", kept_SN[..., None], 0.0)
    for step in GLANCES[:2]:
        found = [values(f"{kind} after {step} steps") for kind in ("score", "loss")]
        early_SNE = np.stack([one for one, _ in found], axis=-1)
        seconds = max(seconds for _, seconds in found)
        yield from predicted(genes_NF, scores_SN, targets_SN, f", glance after {step} steps", early_SNE, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description="which cheap signal tells the score after full training")
    parser.add_argument("--preset", default="demo", help="preset or .toml file")
    parser.add_argument("--architectures", type=int, default=32)
    parser.add_argument("--full-steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of batches; at least two")
    parser.add_argument("--out", type=Path, default=Path("evidence.json"), help="file of all values")
    parser.add_argument(
        "--table", type=Path, nargs="+", metavar="FILE", help="print the table of these files and train nothing"
    )
    options = parser.parse_args()
    if len(set(options.seeds)) < 2:
        parser.error("--seeds: scores of one seed are compared with those of others: give at least two")
    if options.table:
        print(report(joined(options.table), options.seeds))
        return
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = load_config(options.preset)
    workspace = prepare(config)
    space = plan(config, workspace, "1", None, limits_of(config, workspace)).space
    measure = Measure(workspace, options.full_steps)
    search_steps = measure.evaluator.training_phases[-1].recipe.steps
    least = max(search_steps, *GLANCES)
    if options.full_steps <= least:
        given = options.full_steps
        parser.error(f"--full-steps: must be above {least}, the search's and the last glance's, not {given}")
    settings = {
        "name": options.preset,
        "config": config.model_dump(mode="json"),
        "full_steps": options.full_steps,
        "search_steps": search_steps,
        "threads": torch.get_num_threads(),
        "widths": widths(space),
        "architectures": [one.to_json() for one in draw(space, options.architectures)],
    }
    settings = json.loads(json.dumps(settings))
    raw: Row = {"settings": settings, "measured": {}, "failed": {}}
    if options.out.exists():
        raw = json.loads(options.out.read_text(encoding="utf-8"))
        different = [name for name in settings if raw["settings"].get(name) != settings[name]]
        if different:
            sys.exit(f"{options.out} is of another run ({', '.join(different)}): give another --out")
    print(f"\n{report(run(measure, raw, options.seeds, options.out), options.seeds)}")


if __name__ == "__main__":
    main()

"""What each distillation recipe brings: the same teacher, rows and number of steps for all of them.

TEACHER is a checkpoint that was fine-tuned on the task. By default the student has the last of each group of its
layers, with the most important of their inner channels, and is trained by every objective; `none` fine-tunes it without
a teacher. Further settings are the ablations of MicroBERT (its table 3) and MoEBERT (figure 3), and a teacher
assistant.

With --mixtures the student has all layers, each a mixture of experts that is cut out of the teacher and learns by
MoEBERT's objective; each setting changes one or two things of the setting `usual` (MoEBERT, table 3 and figures 2 and
3). Each seed has routing tables and gates of its own.

All students of one seed see the same batches in the same order; differences are between scores of one seed on the whole
dev split.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from benchmarks.common import BenchmarkError, Report, Row, compare, timed
from distill.encoders.family import family_of
from distill.objectives.layer_maps import uniform
from distill.tasks.encoding import token_frequencies, training_batches
from distill.tasks.readers import load_task
from distill.tasks.splits import joined
from distill.tasks.types import encode
from distill.training.distillation import distil
from distill.training.evaluation import EvalSet, expert_load, split_batches
from distill.training.loop import make_accelerator
from distill.training.recipe import Recipe
from distill.training.students import some_layers
from distill.training.teacher import load_model, load_tokenizer
from supernet.experts.split import channel_scores, mixture_architecture, split_model

IMPORTANCE_BATCHES = 16
BATCH = 32


@dataclass(frozen=True)
class Setting:
    """An objective with its settings, and what is special about the student.

    Attributes:
        width: the channels of an expert, as a multiple of `--width`.
        shared: the channels that an expert has in common with the others, likewise: they stay the same as the width
            changes, as in MoEBERT's figure 2a.
        order: by what the channels are sorted before they are dealt out.
        assistant: the student learns from one of its depth with all inner channels.
    """

    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experts: int = 1
    width: Fraction = Fraction(1)
    shared: Fraction = Fraction(2, 3)
    order: str = "importance"
    routing: str = "hash"
    top_k: int = 1
    head_experts: int = 1
    assistant: bool = False


MOEBERT = Setting("moebert", experts=4)
OBJECTIVES = {
    **{name: Setting(name) for name in ("none", "kd", "pkd", "distilbert", "codir", "theseus", "tinybert", "minilm")},
    **{name: Setting(name) for name in ("minilmv2", "efficientbert", "moebert", "minimoe", "microbert")},
    "microbert, no critic": Setting("microbert", {"adversarial": 0.0}),
    "microbert, no alignment": Setting("microbert", {"alignment": 0.0}),
    "microbert, no soft labels": Setting("microbert", {"soft": 0.0}),
    "microbert, last layers": Setting("microbert", {"layers": "last"}),
    "microbert, 4 head experts": Setting("microbert", head_experts=4),
    "4 experts": MOEBERT,
    "4 experts, every second layer": replace(MOEBERT, settings={"layers": "alternate"}),
    "4 experts, last layer": replace(MOEBERT, settings={"layers": "last"}),
    "4 experts, labels alone": replace(MOEBERT, objective="none"),
    "kd, assistant": Setting("kd", assistant=True),
}
USUAL = replace(MOEBERT, settings={"balance": 0.01})
GATED = replace(USUAL, routing="token_gate")
MIXTURES = {
    "usual": USUAL,
    "order random": replace(USUAL, order="random"),
    "order inverse": replace(USUAL, order="inverse"),
    "shared none": replace(USUAL, shared=Fraction(0)),
    "shared all": replace(USUAL, shared=Fraction(1)),
    "balanced hash": replace(USUAL, routing="balanced_hash"),
    "token gate": GATED,
    "sentence gate": replace(USUAL, routing="sentence_gate"),
    "token gate, no balance": replace(GATED, settings={"balance": 0.0}),
    "token gate, top 2": replace(GATED, top_k=2),
    "token gate, shared all": replace(GATED, shared=Fraction(1)),
    "token gate, shared all, 2 experts": replace(GATED, shared=Fraction(1), experts=2),
    "token gate, shared all, 8 experts": replace(GATED, shared=Fraction(1), experts=8),
    "1 expert": replace(USUAL, experts=1),
    "2 experts": replace(USUAL, experts=2),
    "8 experts": replace(USUAL, experts=8),
    "width 2/3": replace(USUAL, width=Fraction(2, 3)),
    "width 4/3": replace(USUAL, width=Fraction(4, 3)),
    "width 3/2": replace(USUAL, width=Fraction(3, 2)),
    "every second layer": replace(USUAL, settings={"balance": 0.01, "layers": "alternate"}),
    "last layer": replace(USUAL, settings={"balance": 0.01, "layers": "last"}),
    "labels alone": replace(USUAL, objective="none", settings={}),
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER")
    parser.add_argument("--mixtures", action="store_true", help="ablations of mixtures in place of the objectives")
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--layers", type=int, help="of the student; default: 3, or with --mixtures all")
    parser.add_argument("--width", type=int, default=192, help="channels of a layer or an expert; default: %(default)s")
    parser.add_argument("--steps", type=int, help="default: 400, or with --mixtures 100")
    parser.add_argument("--learning-rate", type=float, help="default: 1e-4, or with --mixtures 1.5e-4")
    parser.add_argument("--max-length", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--only", nargs="+", metavar="SETTING", help="the first setting and these (default: all)")


def run(options: Namespace, report: Report) -> None:
    settings = chosen(options)
    accelerator = make_accelerator()
    data = load_task(options.task, options.data)
    tokenizer = load_tokenizer(options.teacher)
    pad_id = tokenizer.pad_token_id
    rows = encode(tokenizer, joined(data.train, data.search), options.max_length, task_type=data.task.task_type)
    dev = encode(tokenizer, data.dev, options.max_length, task_type=data.task.task_type)
    dev_batches = split_batches(dev, pad_id)
    teacher = load_model(options.teacher, data.task.labels, data.task.task_type, new_head=False).eval()
    depth = teacher.config.num_hidden_layers
    layers = options.layers or (depth if options.mixtures else 3)
    shallow = some_layers(teacher, [layer - 1 for layer in uniform(layers, depth)])
    counts = token_frequencies(rows, teacher.config.vocab_size)
    steps, rate = (100, 1.5e-4) if options.mixtures else (400, 1e-4)
    recipe = Recipe(
        steps=options.steps or steps,
        batch_size=BATCH,
        learning_rate=options.learning_rate or rate,
        freeze_embeddings=options.mixtures,
    )

    def score(model: Any) -> float:
        return EvalSet(data.task, data.dev, dev, pad_id).score(model, accelerator).value

    @cache
    def scores_of_channels(order: str, seed: int) -> Any:
        batches = list(training_batches(rows, BATCH, IMPORTANCE_BATCHES, 1000 + seed, pad_id))
        return channel_scores(shallow, batches, order, seed)

    def student(setting: Setting, width: int, seed: int) -> Any:
        architecture = mixture_architecture(
            shallow.config,
            setting.experts,
            width=int(width * setting.width),
            shared=int(width * setting.shared),
            routing=setting.routing,
            top_k=setting.top_k,
            head_experts=setting.head_experts,
        )
        return split_model(shallow, architecture, scores_of_channels(setting.order, seed), counts, seed)

    def distil_into(setting: Setting, seed: int) -> Row:
        torch.manual_seed(seed)
        last_teacher = teacher
        widths = [family_of(shallow).size(shallow.config, "inner")] if setting.assistant else []
        for width in (*widths, options.width):
            model = student(setting, width, seed)
            before = score(model)
            positional = (model, last_teacher, rows, setting.objective, setting.settings, recipe)
            keywords = {"accelerator": accelerator, "tokenizer": tokenizer, "seed": seed}
            _, seconds = timed(lambda: distil(*positional, **keywords))  # noqa: B023
            last_teacher = model.eval()
        row = {"before": before, "after": score(model), "seconds": seconds}
        if options.mixtures:
            loads = expert_load(model, dev_batches, accelerator=accelerator)
            row["highest load"] = mean(max(load.shares) * len(load.shares) for load in loads) if loads else 1.0
        return row

    report.note(f"{options.task}: teacher {score(teacher):.4f} ({data.task.metrics[0]}) on {len(data.dev)} dev rows")
    fixed = {name: value for name, value in report.options.items() if name not in ("seeds", "only", "json")}
    compare(settings, next(iter(settings)), distil_into, options.seeds, report, fixed)


def chosen(options: Namespace) -> dict[str, Setting]:
    """The settings to run, the baseline first.

    Raises:
        BenchmarkError: there is no setting of that name.
    """
    known = MIXTURES if options.mixtures else OBJECTIVES
    if unknown := [name for name in options.only or () if name not in known]:
        raise BenchmarkError(f"--only: there is no setting {unknown[0]!r}; there are {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys([next(iter(known)), *(options.only or known)])}

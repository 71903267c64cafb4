"""What each distillation recipe brings: the same student, teacher, rows and number of steps for all of them.

TEACHER is a checkpoint that was fine-tuned on the task. The student has the last of each group of its layers, with the
most important of their inner channels; `none` fine-tunes it without a teacher. Further settings are the ablations of
MicroBERT (its table 3) and MoEBERT (figure 3), and a teacher assistant. All students of one seed see the same batches
in the same order; differences are between scores of one seed on the whole dev split.
"""

import functools
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.measuring import timed
from benchmarks.report import Report
from benchmarks.training.settings import compare
from distill.objectives.layer_maps import uniform
from distill.tasks.encoding import token_frequencies, training_batches
from distill.tasks.readers import load_task
from distill.tasks.splits import joined
from distill.tasks.types import encode
from distill.training.distillation import distil
from distill.training.evaluation import evaluate
from distill.training.loop import make_accelerator
from distill.training.recipe import Recipe
from distill.training.students import some_layers
from distill.training.teacher import load_model, load_tokenizer
from supernet.experts.split import channel_scores, mixture_architecture, split_model

IMPORTANCE_BATCHES = 16
BATCH = 32
HEAD_EXPERTS = 4


@dataclass(frozen=True)
class Setting:
    """An objective with its settings, and what is special about the student."""

    objective: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experts: int = 1
    head_experts: int = 1
    assistant: bool = False


MICROBERT = Setting("microbert", head_experts=HEAD_EXPERTS)
MOEBERT = Setting("moebert", experts=4)
SETTINGS = {
    "none": Setting("none"),
    "kd": Setting("kd"),
    "pkd": Setting("pkd"),
    "distilbert": Setting("distilbert"),
    "codir": Setting("codir"),
    "theseus": Setting("theseus"),
    "tinybert": Setting("tinybert"),
    "minilm": Setting("minilm"),
    "minilmv2": Setting("minilmv2"),
    "efficientbert": Setting("efficientbert"),
    "moebert": Setting("moebert"),
    "minimoe": Setting("minimoe"),
    "microbert": Setting("microbert"),
    "microbert, no critic": Setting("microbert", {"adversarial": 0.0}),
    "microbert, no alignment": Setting("microbert", {"alignment": 0.0}),
    "microbert, no soft labels": Setting("microbert", {"soft": 0.0}),
    "microbert, last layers": Setting("microbert", {"layers": "last"}),
    "microbert, 4 head experts": MICROBERT,
    "4 experts": MOEBERT,
    "4 experts, every second layer": replace(MOEBERT, settings={"layers": "alternate"}),
    "4 experts, last layer": replace(MOEBERT, settings={"layers": "last"}),
    "4 experts, labels alone": replace(MOEBERT, objective="none"),
    "kd, assistant": Setting("kd", assistant=True),
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER")
    parser.add_argument("--task", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--layers", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--width", type=int, default=192, help="inner channels of a layer; default: %(default)s")
    parser.add_argument("--steps", type=int, default=400, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="default: %(default)s")
    parser.add_argument("--max-length", type=int, default=64, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, help="settings (default: all)")


def run(options: Namespace, report: Report) -> None:
    accelerator = make_accelerator()
    data = load_task(options.task, options.data)
    metric = data.task.metrics[0]
    tokenizer = load_tokenizer(options.teacher)
    rows = encode(tokenizer, joined(data.train, data.search), options.max_length, kind=data.task.kind)
    dev = encode(tokenizer, data.dev, options.max_length, kind=data.task.kind)
    teacher = load_model(options.teacher, data.task.labels, data.task.kind, new_head=False).eval()
    depth = teacher.config.num_hidden_layers
    shallow = some_layers(teacher, [layer - 1 for layer in uniform(options.layers, depth)])
    counts = token_frequencies(rows, teacher.config.vocab_size)
    pad_id = tokenizer.pad_token_id
    recipe = Recipe(steps=options.steps, batch_size=BATCH, learning_rate=options.learning_rate)

    def score(model: Any) -> float:
        scores = evaluate(model, dev, data.dev, data.task, accelerator=accelerator, pad_id=pad_id)
        return scores[metric].value

    @functools.cache
    def importance(seed: int) -> Any:
        batches = list(training_batches(rows, BATCH, IMPORTANCE_BATCHES, 1000 + seed, pad_id))
        return channel_scores(shallow, batches, "importance", seed)

    def student(setting: Setting, width: int, seed: int) -> Any:
        architecture = mixture_architecture(shallow.config, setting.experts, width=width)
        architecture = replace(architecture, base=replace(architecture.base, head_experts=setting.head_experts))
        return split_model(shallow, architecture, importance(seed), counts)

    def distil_into(setting: Setting, seed: int) -> dict[str, float]:
        torch.manual_seed(seed)
        last_teacher = teacher
        # The assistant has the student's depth and all inner channels.
        widths = [shallow.config.intermediate_size] if setting.assistant else []
        for width in (*widths, options.width):
            model = student(setting, width, seed)
            before = score(model)
            positional = (model, last_teacher, rows, setting.objective, setting.settings, recipe)
            train = functools.partial(distil, *positional, accelerator=accelerator, tokenizer=tokenizer, seed=seed)
            _, seconds = timed(train)
            last_teacher = model.eval()
        return {"before": before, "after": score(model), "seconds": seconds}

    report.note(f"{options.task}: teacher {score(teacher):.4f} ({metric}) on {len(data.dev)} dev rows")
    compare(SETTINGS, "none", distil_into, options.seeds, options.only, report)

"""Which choices of a mixture of experts matter: ablations of MoEBERT and MiniMoE on a task of the embedded text.

TEACHER is a fine-tuned classifier, such as a search of the demo leaves in its cache. Every mixture starts from its
weights and learns from it with MoEBERT's objective; all mixtures of one seed see the same batches in the same order.
Each setting changes one or two things of the setting `usual`; differences are between scores of one seed on the whole
dev split.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean
from typing import Any

import torch
from transformers import AutoTokenizer

from benchmarks.report import Report
from benchmarks.training.settings import compare
from distill.objectives import moebert
from distill.tasks.encoding import token_frequencies, training_batches
from distill.tasks.readers import load_task
from distill.tasks.types import encode
from distill.training.evaluation import expert_load, measure, split_batches
from distill.training.loop import make_accelerator, train
from distill.training.recipe import Recipe
from distill.training.teacher import load_model
from distill.training.teacher_outputs import LiveTeacher
from supernet.experts.split import channel_scores, mixture_architecture, split_model

MAX_LENGTH = 64
IMPORTANCE_BATCHES = 16
BATCH = 32


@dataclass(frozen=True)
class Setting:
    """A mixture and how it learns; widths are numbers of inner channels."""

    experts: int = 4
    width: int = 192
    shared: int = 128
    order: str = "importance"
    routing: str = "hash"
    balance: float = 0.01
    top_k: int = 1


USUAL = Setting()
GATED = replace(USUAL, routing="token_gate")
SETTINGS = {
    "usual": USUAL,
    "order random": replace(USUAL, order="random"),
    "order inverse": replace(USUAL, order="inverse"),
    "shared none": replace(USUAL, shared=0),
    "shared all": replace(USUAL, shared=192),
    "balanced hash": replace(USUAL, routing="balanced_hash"),
    "token gate": GATED,
    "sentence gate": replace(USUAL, routing="sentence_gate"),
    "token gate, no balance": replace(GATED, balance=0.0),
    "token gate, top 2": replace(GATED, top_k=2),
    "token gate, shared all": replace(GATED, shared=192),
    "token gate, shared all, 2 experts": replace(GATED, shared=192, experts=2),
    "token gate, shared all, 8 experts": replace(GATED, shared=192, experts=8),
    "1 expert": replace(USUAL, experts=1, shared=0),
    "2 experts": replace(USUAL, experts=2),
    "8 experts": replace(USUAL, experts=8),
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("teacher", metavar="TEACHER")
    parser.add_argument("--task", default="word_order", help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=100, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1.5e-4, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument("--only", nargs="+", choices=SETTINGS, help="settings (default: all)")


def run(options: Namespace, report: Report) -> None:
    accelerator = make_accelerator()
    task = load_task(options.task)
    tokenizer = AutoTokenizer.from_pretrained(options.teacher)
    train_rows, dev_rows = (encode(tokenizer, rows, MAX_LENGTH, kind=task.task.kind) for rows in (task.train, task.dev))
    teacher = load_model(options.teacher, task.task.labels).eval()
    pad_id = tokenizer.pad_token_id
    dev_batches = [batch for _, batch in split_batches(dev_rows, pad_id)]
    counts = token_frequencies(train_rows, teacher.config.vocab_size)
    recipe = Recipe(steps=options.steps, batch_size=BATCH, learning_rate=options.learning_rate, freeze_embeddings=True)
    ceiling = measure(teacher, dev_rows, accelerator=accelerator, pad_id=pad_id)
    report.note(f"teacher {ceiling:.4f} on {len(dev_rows)} dev rows")

    @cache
    def scores_for(order: str, seed: int) -> Any:
        batches = list(training_batches(train_rows, BATCH, IMPORTANCE_BATCHES, 1000 + seed, pad_id))
        return channel_scores(teacher, batches, order, seed)

    def distil_into(setting: Setting, seed: int) -> dict[str, float]:
        architecture = mixture_architecture(
            teacher.config,
            setting.experts,
            width=setting.width,
            shared=setting.shared,
            routing=setting.routing,
            top_k=setting.top_k,
        )
        model = split_model(teacher, architecture, scores_for(setting.order, seed), counts)
        before = measure(model, dev_rows, accelerator=accelerator, pad_id=pad_id)
        torch.manual_seed(seed)
        objective = moebert(model.config, teacher.config, balance=setting.balance)
        train(
            model,
            training_batches(train_rows, BATCH, options.steps, seed, pad_id),
            objective,
            recipe,
            accelerator=accelerator,
            teacher=LiveTeacher(teacher, objective.teacher_needs, accelerator),
            seed=seed,
        )
        after = measure(model.eval(), dev_rows, accelerator=accelerator, pad_id=pad_id)
        loads = expert_load(model, dev_batches, accelerator=accelerator)
        highest = mean(max(load.shares) * len(load.shares) for load in loads) if loads else 1.0
        return {"before": before, "after": after, "highest_load": highest}

    compare(SETTINGS, "usual", distil_into, options.seeds, options.only, report)

"""Turn a dense BERT into a mixture of experts (MoEBERT), or thin out the experts of a mixture.

    python -m supernet.experts CHECKPOINT --experts 4 --out DIR [--width 768] [--shared 512] [--steps 500] ...
    python -m supernet.experts MIXTURE --drop 1/4 --out DIR ...

The first form takes a classifier of BERT's shape that was fine-tuned on the task: its FFNs are split by the importance
of their neurons on training rows, and with --steps the mixture learns from the dense model. The second takes what the
first has written. Both report the score on the dev rows before and after, and how the experts share the tokens.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from search_spaces.errors import UserError

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from distill.cli import DONE, INTERRUPTED, Parser, device, guard
from search_spaces.architecture import DENSE, Architecture, ArchitectureError, Experts
from search_spaces.numbers import fraction
from search_spaces.routing import ROUTINGS

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from distill.tasks.encoding import Encoded

SPLITS = ("importance", "random", "inverse", "copy")
ARCHITECTURE = "architecture.json"


class ExpertsError(UserError, ValueError):
    """What is asked for cannot be done with this checkpoint or these rows."""


def parser() -> Parser:
    purpose = "Turn a dense BERT into a mixture of experts, or thin out the experts of a mixture."
    result = Parser(prog="supernet.experts", description=purpose)
    result.add_argument("checkpoint", help="a fine-tuned classifier: a folder, or a name on the hub")
    result.add_argument("--out", type=Path, required=True, help="folder of the new checkpoint")
    split = result.add_argument_group("splitting")
    split.add_argument("--experts", type=int, help="experts of every FFN")
    split.add_argument("--width", type=int, help="inner channels of an expert (default: the FFN's / experts)")
    split.add_argument("--shared", type=int, help="channels that all experts have (default: 2/3 of the width)")
    split.add_argument("--split", default="importance", choices=SPLITS, help="order in which channels are dealt out")
    split.add_argument("--routing", default="hash", choices=ROUTINGS)
    split.add_argument("--top-k", type=int, default=1, help="experts that a token passes")
    split.add_argument("--capacity", type=_ratio, help="such as 1.25; tokens beyond it pass by (default: none)")
    split.add_argument("--attention-experts", type=int, default=1, help="attentions of every layer, by a gate")
    thin = result.add_mutually_exclusive_group()
    thin.add_argument("--drop", type=_ratio, metavar="SHARE", help="drop experts below this part of an equal share")
    thin.add_argument("--fuse", type=_ratio, metavar="SHARE", help="fuse them with the one most like them")
    rows = result.add_argument_group("rows")
    rows.add_argument("--task", help="word_order, sst2, mnli, ...: any that labels sentences with classes")
    rows.add_argument("--data", type=Path, help="folder of the task's official files (default: from the hub)")
    rows.add_argument("--train", type=Path, help="labelled rows: .tsv, .csv, .jsonl or .parquet")
    rows.add_argument("--dev", type=Path, help="rows on which scores are measured")
    rows.add_argument("--text", default="sentence", help="column of the (first) sentence")
    rows.add_argument("--pair", help="column of the second sentence")
    rows.add_argument("--label", default="label", help="column of the class")
    rows.add_argument("--max-length", type=int, default=128)
    rows.add_argument("--importance-batches", type=int, default=16, help="batches of training rows for the importance")
    train = result.add_argument_group("distillation (MoEBERT's objective, from the checkpoint itself)")
    train.add_argument("--steps", type=int, default=0)
    train.add_argument("--batch-size", type=int, default=32)
    train.add_argument("--learning-rate", type=float, default=5e-5)
    train.add_argument("--distill", type=float, default=1.0, help="MoEBERT's lambda; 0 trains on the labels alone")
    train.add_argument("--layers", default="all", choices=["all", "alternate", "last"], help="states that are compared")
    train.add_argument("--balance", type=float, default=0.01, help="weight of the balance of gates")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--device", type=device, default="auto", choices=["auto", "cpu", "cuda"])
    return result


def _ratio(text: str) -> Fraction:
    try:
        ratio = fraction(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 0 < ratio <= 64:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 64, not {text!r}")
    return ratio


# What is measured: a name, the model, and what it is.
Made = tuple[str, "PreTrainedModel", Architecture]


@dataclass(frozen=True)
class Rows:
    """Encoded training and dev rows of one task."""

    train: "Encoded"
    dev: "Encoded"
    labels: tuple[str, ...]


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        return run(options)

    try:
        return guard("supernet.experts", command)
    except KeyboardInterrupt:
        print("supernet.experts: interrupted", file=sys.stderr)
        return INTERRUPTED


def check(options: Any) -> None:
    """Refuse what cannot work before anything is loaded."""
    thins = options.drop is not None or options.fuse is not None
    if thins == (options.experts is not None):
        raise ExpertsError("give --experts N to split a dense checkpoint, or --drop or --fuse to thin out a mixture")
    if (options.task is None) == (options.train is None):
        raise ExpertsError("give the rows: --task NAME, or --train FILE and --dev FILE")
    if options.data is not None and options.task is None:
        raise ExpertsError("--data: is of a --task; files of your own are --train and --dev")
    if options.train is not None and options.dev is None:
        raise ExpertsError("--dev: scores are measured on other rows than those trained on; give a second file")
    for name in ("steps", "seed"):
        if getattr(options, name) < 0:
            raise ExpertsError(f"--{name}: must be at least 0, not {getattr(options, name)}")
    for name in ("batch_size", "importance_batches"):
        if getattr(options, name) < 1:
            raise ExpertsError(f"--{name.replace('_', '-')}: must be at least 1, not {getattr(options, name)}")
    if options.out.exists() and (not options.out.is_dir() or any(options.out.iterdir())):
        raise ExpertsError(f"--out {options.out} exists and is not empty: choose another folder")


def run(options: Any) -> int:
    """Split or thin out, train, measure, save."""
    import torch
    from rich.console import Console
    from transformers.utils import logging

    from distill.tasks.metrics import standard_error
    from distill.training.evaluation import expert_load, measure, split_batches
    from distill.training.loop import make_accelerator
    from distill.training.teacher import load_tokenizer
    from search_spaces import cost

    logging.set_verbosity_error()
    logging.disable_progress_bar()

    console = Console(highlight=False, soft_wrap=True)
    accelerator = make_accelerator(options.device)
    torch.manual_seed(options.seed)
    known = classes(options.checkpoint)
    tokenizer = load_tokenizer(options.checkpoint)
    rows = load_rows(options, tokenizer, known)
    batches = [batch for _, batch in split_batches(rows.dev, tokenizer.pad_token_id)]
    thins = options.experts is None
    made = thinned(options, rows, accelerator, batches) if thins else mixed(options, rows, accelerator)
    measured: dict[str, dict[str, Any]] = {}
    for name, model, architecture in made:
        score = measure(model, rows.dev, accelerator=accelerator, pad_id=tokenizer.pad_token_id)
        loads = expert_load(model, batches, accelerator=accelerator)
        facts = {
            "accuracy": score,
            "standard_error": standard_error(score, len(rows.dev)),
            "params": cost.params(architecture, len(rows.labels)),
            "params_active": cost.params_active(architecture, len(rows.labels)),
            "macs": cost.macs(architecture, labels=len(rows.labels)),
        }
        console.print(
            f"{name}: accuracy {score:.4f} ± {facts['standard_error']:.4f}, {facts['params'] / 1e6:.2f} M "
            f"parameters, {facts['params_active'] / 1e6:.2f} M of them active, {facts['macs'] / 1e9:.2f} G MACs "
            "for 128 tokens"
        )
        for load in loads:
            console.print(f"  {load}")
        measured[name] = facts | {"expert_load": [load.to_json() for load in loads]}
    options.out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    architecture.save(options.out / ARCHITECTURE)
    given = {name: str(value) for name, value in vars(options).items() if value is not None}
    report = {"dev_rows": len(rows.dev), "options": given, "models": measured}
    (options.out / "metrics.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {options.out}")
    return DONE


def classes(source: str) -> tuple[str, ...] | int:
    """What the checkpoint calls its classes, or their number where they have no names."""
    from transformers import AutoConfig

    import supernet.build  # noqa: F401  (makes the library know our own models)
    from distill.training.teacher import TeacherError, locate

    try:
        config = AutoConfig.from_pretrained(locate(source))
    except (OSError, ValueError) as error:
        raise TeacherError(f"no checkpoint at {source!r}: {str(error).strip().splitlines()[0]}") from None
    names = tuple(config.id2label[number] for number in range(config.num_labels))
    unnamed = tuple(f"LABEL_{number}" for number in range(config.num_labels))
    return config.num_labels if names == unnamed else names


def load_rows(options: Any, tokenizer: Any, known: tuple[str, ...] | int) -> Rows:
    """The rows of a task, or of the user's files, with the checkpoint's classes.

    Raises:
        ExpertsError, distill.tasks.task.TaskError: no such task or file, a task of another kind, or other classes than
            the checkpoint's.
    """
    from distill.tasks.encoding import encode
    from distill.tasks.readers import load_task
    from distill.tasks.readers.tables import read_rows
    from distill.tasks.types import CLASSIFICATION

    if options.task is not None:
        data = load_task(options.task, options.data)
        if data.task.kind != CLASSIFICATION:
            raise ExpertsError(f"--task {options.task}: is a {data.task.kind}; only a {CLASSIFICATION} will do")
        train, dev, labels = data.train, data.dev, data.task.labels
    else:
        names = None if isinstance(known, int) else known
        train, labels = read_rows(options.train, options.text, options.label, options.pair, names)
        dev, _ = read_rows(options.dev, options.text, options.label, options.pair, labels)
    if labels != known and len(labels) != known:
        found = known if isinstance(known, int) else ", ".join(known)
        expected = ", ".join(labels)
        raise ExpertsError(f"{options.checkpoint}: its classes are {found}; those of the rows are {expected}")
    try:
        encoded = [encode(tokenizer, split, options.max_length) for split in (train, dev)]
        return Rows(encoded[0], encoded[1], labels)
    except ValueError as error:
        raise ExpertsError(f"--max-length: {error}") from None


def mixed(options: Any, rows: Rows, accelerator: Any) -> Iterator[Made]:
    """The dense model, the mixture that it is split into, and the mixture after training."""
    from distill.objectives import moebert
    from distill.tasks.encoding import token_frequencies, training_batches
    from distill.training.loop import train
    from distill.training.recipe import Recipe
    from distill.training.teacher import LiveTeacher, load_model

    dense = load_model(options.checkpoint, rows.labels).eval()
    pad_id, positions = dense.config.pad_token_id, dense.config.max_position_embeddings
    if options.max_length > positions:
        raise ExpertsError(f"--max-length: the model has {positions} positions, not {options.max_length}")
    architecture = mixture(
        dense.config,
        options.experts,
        width=options.width,
        shared=None if options.split == "copy" else options.shared,
        copy=options.split == "copy",
        routing=options.routing,
        top_k=options.top_k,
        capacity=options.capacity,
        attention_experts=options.attention_experts,
    )
    plain = replace(architecture.base, attention_experts=1)
    yield "dense", dense, Architecture.uniform(plain, architecture.layers[0].graph)
    glances = list(training_batches(rows.train, options.batch_size, options.importance_batches, options.seed, pad_id))
    scores = channel_scores(dense, glances, options.split, options.seed)
    model = split(dense, architecture, scores, token_frequencies(rows.train, dense.config.vocab_size))
    yield "split", model, architecture
    if options.steps:
        goal = moebert(
            model.config, dense.config, distill=options.distill, layers=options.layers, balance=options.balance
        )
        recipe = Recipe(steps=options.steps, batch_size=options.batch_size, learning_rate=options.learning_rate)
        train(
            model,
            training_batches(rows.train, options.batch_size, options.steps, options.seed, pad_id),
            goal,
            recipe,
            accelerator=accelerator,
            teacher=LiveTeacher(dense, goal.teacher_needs, accelerator),
            seed=options.seed,
        )
        yield f"after {options.steps} steps", model.eval(), architecture


def thinned(options: Any, rows: Rows, accelerator: Any, batches: Sequence[Any]) -> Iterator[Made]:
    """The mixture as it is, and with fewer experts."""
    from transformers import AutoConfig

    from distill.training.evaluation import expert_load
    from supernet.build import HEADS, build, load_weights
    from supernet.experts.fuse import unused, without

    folder = Path(options.checkpoint)
    if not (folder / ARCHITECTURE).exists():
        raise ExpertsError(f"{folder} has no {ARCHITECTURE}: --drop and --fuse take what this command has written")
    architecture = Architecture.load(folder / ARCHITECTURE)
    config = AutoConfig.from_pretrained(folder)
    model = HEADS["classification"].from_pretrained(folder).eval()
    yield "mixture", model, architecture
    loads = expert_load(model, batches, accelerator=accelerator)
    if not loads:
        raise ExpertsError(f"{folder} has no experts")
    going = unused(architecture, loads, options.drop or options.fuse)
    weights, smaller = without(model.state_dict(), architecture, loads, going, fuse=options.fuse is not None)
    fewer = build(smaller, labels=config.num_labels, like=config)
    load_weights(fewer, weights)
    yield "fused" if options.fuse else "dropped", fewer.eval(), smaller


def mixture(
    config: Any,
    experts: int,
    *,
    width: int | None = None,
    shared: int | None = None,
    copy: bool = False,
    routing: str = "hash",
    top_k: int = 1,
    capacity: Fraction | None = None,
    attention_experts: int = 1,
) -> Architecture:
    """What a BERT of this configuration is with its FFNs split: `experts` of `width` inner channels (default: as many
    as make up the dense FFN), `shared` of them the same (default: 2/3, MoEBERT's share; with `copy` all).

    Raises:
        ArchitectureError: the widths do not fit.
        distill.training.teacher.TeacherError: the configuration's activation is not among the operations.
    """
    from supernet.build import base_of_teacher

    base, graph = base_of_teacher(config)
    base = replace(base, attention_experts=attention_experts)
    if width is None:
        width = base.inner if copy else base.inner // max(1, experts)
    for name, value, least, most in (("width", width, 1, base.inner), ("shared", shared, 0, width)):
        if value is not None and not least <= value <= most:
            raise ArchitectureError(f"--{name}: from {least} to {most:,} channels, not {value:,}")
    if shared is None:
        shared = width if copy else width * 2 // 3
    genes = Experts(experts, Fraction(shared, width), routing, top_k, capacity) if experts != 1 else DENSE
    return Architecture.uniform(base, graph, expansion=Fraction(width, base.inner), experts=genes)


def channel_scores(model: "PreTrainedModel", batches: Sequence[Any], order: str, seed: int = 0) -> list[list["Tensor"]]:
    """Scores by whose descending order channels are dealt out to experts: `[layer][block]` -> (inner,).

    "importance" and "copy": MoEBERT's equation 4 on these batches. "inverse": the reverse order. "random": noise.
    """
    import torch

    from supernet.build import from_teacher
    from supernet.importance import neuron_importance, summed_loss

    if order == "random":
        generator = torch.Generator().manual_seed(seed)
        sizes = [(1, model.config.intermediate_size)] * model.config.num_hidden_layers
        return [list(torch.rand(size, generator=generator)) for size in sizes]
    scores = neuron_importance(from_teacher(model, stack=1), batches, summed_loss)
    return [[-score for score in layer] for layer in scores] if order == "inverse" else scores


def split(
    dense: "PreTrainedModel", architecture: Architecture, scores: list[list["Tensor"]], counts: "Tensor | None" = None
) -> "PreTrainedModel":
    """The mixture of this architecture with the dense model's weights, its channels dealt out in the order of `scores`.

    counts: of token ids (vocabulary,), for balanced_hash routing.
    """
    from supernet.build import build, from_teacher, load_weights
    from supernet.importance import sort_channels
    from supernet.inherit import inherit

    supernet = from_teacher(dense, stack=1)
    weights = sort_channels(supernet.state_dict(), scores, supernet.config)
    model = build(architecture, labels=dense.config.num_labels, like=dense.config)
    load_weights(model, inherit(weights, architecture, counts))
    return model.eval()

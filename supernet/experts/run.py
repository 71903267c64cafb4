"""What the command does: splitting a model and distilling the mixture, or pruning the experts of a mixture."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.command.examples import batches_for_importance, open_examples
from distill.command.options import recipe_of
from distill.command.report import report, train_and_report, write_and_show
from distill.tasks.encoding import token_frequencies
from distill.tasks.types import task_type_of
from distill.training.evaluation import expert_load
from distill.training.kept_teacher import check_kept
from distill.training.layout import ARCHITECTURE_FILE
from distill.training.measure import measure
from distill.training.run import TEACHER, Training
from distill.training.teacher import load_model
from search_spaces.architecture import Architecture
from supernet.build import build, set_dropout
from supernet.experts import ExpertsError
from supernet.experts.fuse import remove_experts, untouched_experts, unused_experts
from supernet.experts.split import channel_scores, mixture_architecture, split_model

# The name of the student in metrics.json.
MIXTURE = "mixture"


def split(options: argparse.Namespace) -> int:
    """Split the checkpoint, distill the mixture from it for `--steps`, and save it; returns the exit status.

    Raises:
        UserError: the options, the checkpoint and the rows cannot be used together.
    """
    accelerator, config, examples = open_examples(options, options.checkpoint)
    assert examples.eval_set is not None
    if options.head_experts > 1 and not examples.eval_set.task.type.head.pooled:
        raise ExpertsError(
            f"--head-experts {options.head_experts}: heads for {examples.task_type} predict from single tokens; only "
            "those that predict from whole sentences can have experts"
        )
    copy = options.split == "copy"
    names = ("width", "routing", "top_k", "capacity", "attention_experts", "head_experts", "gate_scale")
    settings = {name: getattr(options, name) for name in names}
    shared = None if copy else options.shared
    architecture = mixture_architecture(config, options.experts, shared=shared, copy=copy, **settings)
    dense_base = replace(architecture.base, gate_scale="relative")
    dense = Architecture.uniform(dense_base, architecture.ffns[0].graph)

    def make(teacher: PreTrainedModel | None) -> PreTrainedModel:
        assert teacher is not None
        scores = channel_scores(teacher, batches_for_importance(options, examples), options.split, options.seed)
        frequencies = token_frequencies(examples.train, config.vocab_size)
        model = split_model(teacher, architecture, scores, frequencies, options.seed)
        if options.dropout is not None:
            set_dropout(model, options.dropout)
        return model

    labels, task_type = examples.labels, examples.task_type
    settings = {name: getattr(options, name) for name in ("distill", "layers", "balance", "paper_compatible")}
    recipe = recipe_of(options, len(examples.train))

    def make_teacher(_: PreTrainedModel | None) -> PreTrainedModel:
        model = load_model(options.checkpoint, labels, task_type, new_head=False).eval()
        assert examples.eval_set is not None
        check_kept(options.checkpoint, model, examples.eval_set, accelerator)
        return model

    models = {
        TEACHER: Training(make=make_teacher, architecture=dense),
        MIXTURE: Training(make=make, recipe=recipe, objective="moebert", settings=settings, architecture=architecture),
    }
    return train_and_report(options, models, examples, accelerator)


def prune(options: argparse.Namespace) -> int:
    """Remove the experts of a mixture that have low loads on the dev rows, and save it; returns the exit status.

    Raises:
        ExpertsError: the checkpoint was not written by this command, or its experts cannot be removed.
        UserError: the checkpoint and the rows cannot be used together.
    """
    accelerator, _, examples = open_examples(options, options.checkpoint, students=True)
    assert examples.eval_set is not None
    folder = Path(options.checkpoint)
    if not (folder / ARCHITECTURE_FILE).exists():
        raise ExpertsError(
            f"{folder} has no {ARCHITECTURE_FILE}: --drop and --fuse need a mixture that this command has written"
        )
    architecture = Architecture.load(folder / ARCHITECTURE_FILE)
    model = load_model(options.checkpoint, examples.labels, examples.task_type, new_head=False).eval()
    loads = expert_load(model, examples.eval_set.batches(), accelerator=accelerator)
    name, threshold = ("fused", options.fuse) if options.fuse is not None else ("dropped", options.drop)
    try:
        unused = unused_experts(architecture, loads, threshold, options.part)
        weights, smaller = remove_experts(model.state_dict(), architecture, loads, unused, name == "fused")
    except ExpertsError as error:
        raise ExpertsError(f"{folder}: {error}") from None
    pruned = build(smaller, task_type_of(model), model.config.num_labels, model.config, weights=weights)
    models: dict[str, Any] = {MIXTURE: model, name: pruned.eval()}
    architectures = {MIXTURE: architecture, name: smaller}
    measured = measure(models, examples.eval_set, accelerator, architectures=architectures)
    metrics = report(options, examples, accelerator, measured)

    untouched = untouched_experts(architecture, options.part)
    part = "the head" if options.part == "head" else "feed-forward networks"
    kept = [f"only the experts of {part} are removed; the {untouched} stay"] if untouched else []
    return write_and_show(options, metrics, pruned, examples.tokenizer, smaller, *kept)

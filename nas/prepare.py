"""What a search needs before its first trial: data, teacher, supernet, and the teacher's outputs.

Each is made once and kept in the user's cache under a key of everything it depends on.
"""

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, PreTrainedModel

from distill.corpora import cache_folder, embedded_corpus
from distill.data import Encoded, batches, collate, encode, load_encoded, save_encoded
from distill.loop import Diverged, make_accelerator
from distill.objectives import Objective, efficientbert
from distill.outputs import LOGITS, Batch, run
from distill.tasks import TASKS, demo_task, text_corpus
from distill.teacher import (
    LiveTeacher,
    finetune,
    fingerprint,
    keep,
    load_classifier,
    load_config,
    load_tokenizer,
    save_outputs,
    source_fingerprint,
)
from nas.config import ConfigError, StudyConfig
from search_spaces import cost
from search_spaces.architecture import Architecture, ArchitectureError, Base
from search_spaces.graph import GELU, FFNGraph
from search_spaces.operations import did_you_mean
from search_spaces.spaces import Space
from supernet.build import (
    base_of_teacher,
    config_of,
    from_scratch,
    from_teacher,
    layer_output_statistics,
    load_weights,
)
from supernet.importance import neuron_importance, sort_channels
from supernet.warmup import warm_up

# Part of every key: raise it when what is kept here changes its meaning.
FORMAT = 1
# Batches over which the inputs of further blocks are averaged.
STATISTICS_BATCHES = 8

# Called with what is being made, and with the share of it that is done where that is known.
Tell = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Workspace:
    """Where everything lies: folders of encoded data, fine-tuned teacher and supernet, the saved outputs' file."""

    config: StudyConfig
    data: Path
    teacher: Path
    supernet: Path
    outputs: Path

    def base(self) -> tuple[Base, FFNGraph]:
        """The base of all candidates and its graph."""
        return student_base(self.config, AutoConfig.from_pretrained(self.teacher))

    def importance(self) -> list[Tensor]:
        """Importance of the inner neurons of each layer's lowest block, in the supernet's (descending) order."""
        stored = load_file(self.supernet / "importance.safetensors")
        return [stored[f"{layer}"] for layer in range(len(stored))]

    @property
    def labels(self) -> int:
        """Classes of the task."""
        return int(AutoConfig.from_pretrained(self.teacher).num_labels)


def student_base(config: StudyConfig, teacher: Any) -> tuple[Base, FFNGraph]:
    """The base model of the study's students, given the teacher's configuration."""
    if config.base == "teacher":
        return base_of_teacher(teacher)
    try:
        return config.base.build(teacher.vocab_size), GELU
    except ArchitectureError as error:
        raise ConfigError(str(error)) from None


def objective(config: StudyConfig, student: Any, teacher: Any) -> Objective:
    """The study's objective between models of these Hugging Face configurations."""
    table = config.objective
    return efficientbert(
        student,
        teacher,
        attention=table.attention,
        hidden=table.hidden,
        embedding=table.embedding,
        prediction=table.prediction,
        temperature=table.temperature,
    )


def training_batches(rows: Encoded, batch_size: int, steps: int, seed: int, pad_id: int) -> Iterable[Batch]:
    """The batches that every candidate of this seed sees."""
    return (collate(rows, chosen, pad_id) for chosen in batches(rows, batch_size, steps, seed))


def check(config: StudyConfig) -> None:
    """Refuse what cannot work before anything is trained.

    Raises:
        ConfigError, distill.teacher.TeacherError: as `prepare`.
    """
    if config.task not in TASKS:
        raise ConfigError(f"unknown task {config.task!r}{did_you_mean(config.task, TASKS)} (tasks: {', '.join(TASKS)})")
    teacher = load_config(config.teacher)
    if config.max_length > teacher.max_position_embeddings:
        raise ConfigError(f"max_length: the teacher has {teacher.max_position_embeddings} positions, not {config.max_length}")
    base, graph = student_base(config, teacher)
    try:
        objective(config, config_of(Architecture.uniform(base, graph=graph)), teacher)
    except ValueError as error:
        raise ConfigError(f"base: {error}") from None


@contextlib.contextmanager
def training(table: str) -> Iterator[None]:
    """Turns a divergence while the study is prepared into a mistake in this table of the configuration."""
    try:
        yield
    except Diverged as error:
        raise ConfigError(f"{table}: {error}; lower {table}.learning_rate") from None


def prepare(config: StudyConfig, device: str = "auto", tell: Tell = lambda what, share: None) -> Workspace:
    """Everything a stage starts from, from the cache where it is there.

    Raises:
        ConfigError, distill.teacher.TeacherError: the configuration names what does not exist or cannot work.
    """
    check(config)
    accelerator = make_accelerator(device)
    cache = cache_folder()
    tokenizer = load_tokenizer(config.teacher)
    tell("text", None)
    corpus = embedded_corpus()
    source = source_fingerprint(config.teacher)

    data_key = fingerprint(FORMAT, corpus.fingerprint, source, config.task, config.max_length)

    def make_data(folder: Path) -> None:
        tell(f"data of the task {config.task}", None)
        folder.mkdir()
        task = demo_task(config.task, corpus)
        for name in ("train", "search", "dev"):
            save_encoded(encode(tokenizer, getattr(task, name), config.max_length), folder / f"{name}.npz")
        save_encoded(encode(tokenizer, text_corpus(corpus), config.max_length), folder / "text.npz")
        (folder / "labels.txt").write_text("\n".join(task.task.labels), encoding="utf-8")

    data = keep(cache / "data" / data_key, make_data)
    labels = (data / "labels.txt").read_text(encoding="utf-8").splitlines()
    train_rows = load_encoded(data / "train.npz")

    def some_batches(size: int, steps: int, seed: int) -> list[Batch]:
        return list(training_batches(train_rows, size, steps, seed, tokenizer.pad_token_id))

    teacher_key = fingerprint(FORMAT, data_key, config.finetune.model_dump(), config.seed)

    def make_teacher(folder: Path) -> None:
        recipe = config.finetune.build()
        with training("finetune"):
            model = finetune(
                config.teacher,
                labels,
                some_batches(recipe.batch_size, recipe.steps, config.seed),
                recipe,
                accelerator=accelerator,
                seed=config.seed,
                after_step=lambda step, loss: tell("teacher: fine-tuning", step / recipe.steps),
            )
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    teacher_folder = keep(cache / "teachers" / teacher_key, make_teacher)
    teacher_config = AutoConfig.from_pretrained(teacher_folder)

    supernet_key = fingerprint(
        FORMAT,
        teacher_key,
        config.model_dump(mode="json", include={"base", "dropout", "warmup", "objective", "seed"}),
        max(config.space.stacks),
    )

    def make_supernet(folder: Path) -> None:
        teacher = load_classifier(str(teacher_folder), labels).eval()
        recipe = config.warmup.build()
        stack = max(config.space.stacks)
        base, graph = student_base(config, teacher_config)
        if config.base == "teacher":
            glance = some_batches(recipe.batch_size, STATISTICS_BATCHES, config.seed)
            supernet = from_teacher(teacher, stack, layer_output_statistics(teacher, glance))
        else:
            torch.manual_seed(config.seed)
            supernet = from_scratch(base, stack, like=teacher_config)
        set_dropout(supernet, config.dropout)
        goal = objective(config, supernet.config, teacher_config)
        with training("warmup"):
            warm_up(
                supernet,
                base,
                some_batches(recipe.batch_size, recipe.steps, config.seed + 1),
                goal,
                recipe,
                teacher=LiveTeacher(teacher, goal.needs, accelerator),
                accelerator=accelerator,
                draw_graphs=graph_draws(config, base, graph),
                seed=config.seed,
                after_step=lambda step, loss: tell("supernet: warm-up", step / recipe.steps),
            )
        tell("supernet: importance of its neurons", None)
        scores = neuron_importance(
            supernet,
            some_batches(recipe.batch_size, config.warmup.importance_batches, config.seed + 2),
            summed_cross_entropy,
        )
        load_weights(supernet, sort_channels(supernet.state_dict(), scores))
        supernet.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        lowest = {f"{i}": layer[0].sort(descending=True).values for i, layer in enumerate(scores)}
        save_file(lowest, folder / "importance.safetensors")

    supernet = keep(cache / "supernets" / supernet_key, make_supernet)

    goal = objective(config, AutoConfig.from_pretrained(supernet), teacher_config)
    outputs_key = fingerprint(
        FORMAT, teacher_key, config.candidate.batch_size, config.candidate.steps, sorted(goal.needs), config.seed
    )

    def make_outputs(path: Path) -> None:
        tell("teacher: outputs for the candidates", None)
        teacher = LiveTeacher(load_classifier(str(teacher_folder), labels), goal.needs, accelerator)
        save_outputs(
            teacher, some_batches(config.candidate.batch_size, config.candidate.steps, config.seed), path
        )

    outputs = keep(cache / "outputs" / f"{outputs_key}.safetensors", make_outputs)
    return Workspace(config, data, teacher_folder, supernet, outputs)


def graph_draws(config: StudyConfig, base: Base, graph: FFNGraph) -> Callable[[], list[FFNGraph]] | None:
    """Draws a graph for every layer from the space; None where the warm-up is to use the base graph alone."""
    if config.warmup.graphs == "gelu":
        return None
    full = Architecture.uniform(base, graph=graph)
    space = Space(base, (1,), (Fraction(1),), 1, cost.params(full), config.space.edit_rate, graph=graph)
    rng = random.Random(config.seed)
    return lambda: [genes.graph for genes in space.sample(rng).layers]


def set_dropout(model: PreTrainedModel, probability: float) -> None:
    """Give every dropout of the model, and its configuration, this probability."""
    model.config.hidden_dropout_prob = model.config.attention_probs_dropout_prob = probability
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability


def summed_cross_entropy(model: nn.Module, batch: Batch) -> Tensor:
    """The task's loss, summed over the sentences of a batch."""
    logits = run(model, batch, frozenset({LOGITS})).logits
    return F.cross_entropy(logits.float(), batch["labels"], reduction="sum")

"""What a search needs before its first trial: data, teacher, supernet, and the teacher's outputs.

Each is made once and kept in the user's cache under a key of everything it depends on.
"""

import contextlib
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from distill.corpora import Corpus, cache_folder, embedded_corpus
from distill.data import Encoded, load_encoded, token_frequencies, training_batches
from distill.distil import make, phases
from distill.files import fingerprint, keep
from distill.loop import Diverged, make_accelerator
from distill.objectives import Objective
from distill.outputs import Batch
from distill.recipe import Recipe
from distill.tasks import Task
from distill.teacher import (
    LiveTeacher,
    finetune,
    load_config,
    load_model,
    load_tokenizer,
    save_outputs,
    source_fingerprint,
)
from distill.theseus import Replacement, replacing
from nas import data
from nas.config import ConfigError, StudyConfig
from nas.data import TaskFolders
from search_spaces import cost
from search_spaces.architecture import Architecture, ArchitectureError, Base
from search_spaces.graph import GELU, FFNGraph
from search_spaces.spaces import Space
from supernet.build import (
    base_of_teacher,
    build,
    config_of,
    from_scratch,
    from_teacher,
    layer_output_statistics,
    load_weights,
)
from supernet.importance import neuron_importance, sort_channels, summed_loss
from supernet.warmup import warm_up

# Part of every key: raise it when what is kept here changes its meaning.
FORMAT = 2
# Batches over which the inputs of further blocks are averaged.
STATISTICS_BATCHES = 8
# File in the supernet's folder; no part of any exported model.
PROJECTIONS = "projections.safetensors"

# Called with what is being made, and with the share of it that is done where that is known.
Tell = Callable[[str, float | None], None]


@dataclass(frozen=True)
class Workspace:
    """Where everything lies: folders of encoded data, fine-tuned teacher and supernet, the saved outputs' file; and
    for stage 3 the folders of all tasks and of the weight-sharing supernet.
    """

    config: StudyConfig
    data: Path
    teacher: Path
    supernet: Path
    outputs: Path
    tasks: tuple[TaskFolders, ...] = ()
    shared: Path | None = None

    def base(self) -> tuple[Base, FFNGraph]:
        """The base of all candidates and its graph."""
        return student_base(self.config, AutoConfig.from_pretrained(self.teacher))

    def importance(self) -> list[Tensor]:
        """Importance of the inner neurons of each layer's lowest block, in the supernet's (descending) order."""
        stored = load_file(self.supernet / "importance.safetensors")
        return [stored[f"{layer}"] for layer in range(len(stored))]

    def frequencies(self) -> Tensor:
        """How often each token id occurs in the training rows of the task that stages 1 and 2 search on."""
        vocabulary = AutoConfig.from_pretrained(self.teacher).vocab_size
        return token_frequencies(load_encoded(self.data / "train.npz"), vocabulary)

    @property
    def folders(self) -> TaskFolders:
        """Of the task that stages 1 and 2 search on."""
        return TaskFolders(self.data, self.teacher)

    @property
    def labels(self) -> int:
        """Outputs of the task's head."""
        return int(AutoConfig.from_pretrained(self.teacher).num_labels)


def student_base(config: StudyConfig, teacher: Any) -> tuple[Base, FFNGraph]:
    """The base model of the study's students, given the teacher's configuration."""
    if config.base == "teacher":
        return base_of_teacher(teacher)
    try:
        return config.base.build(teacher.vocab_size), GELU
    except ArchitectureError as error:
        raise ConfigError(str(error)) from None


def objectives(
    config: StudyConfig,
    recipe: Recipe,
    student: Any,
    teacher: Any,
    rows: Encoded | None = None,
    supernet: Path | None = None,
) -> list[tuple[Objective, Recipe]]:
    """The study's objective between models of these Hugging Face configurations, and how long it is trained with: one
    for each of its phases.

    Where it has learned projections, they start as the warm-up of the supernet in that folder left them.
    """
    name = config.objective.name
    result = []
    for phase in phases(name, config.objective.settings(), recipe):
        goal = make(name, phase.settings, student, teacher, rows, config.seed)
        if supernet:
            kept = projections(supernet)
            goal.load_state_dict({key: kept.get(key, value) for key, value in goal.state_dict().items()})
        result.append((goal, phase.recipe))
    return result


def projections(supernet: Path) -> dict[str, Tensor]:
    """What the warm-up of the supernet in this folder learned beside it for the objective."""
    file = supernet / PROJECTIONS
    return load_file(file) if file.exists() else {}


def check(config: StudyConfig) -> None:
    """Refuse what cannot work before anything is trained.

    Raises:
        ConfigError, distill.teacher.TeacherError: as `prepare`.
    """
    config.objective.check()
    data.check_tasks(config)
    teacher = load_config(config.teacher)
    if config.max_length > teacher.max_position_embeddings:
        raise ConfigError(
            f"max_length: the teacher has {teacher.max_position_embeddings} positions, not {config.max_length}"
        )
    base, graph = student_base(config, teacher)
    student = Architecture.uniform(base, graph=graph)
    try:
        objectives(config, config.candidate.build(), config_of(student), teacher)
        if config.objective.name == "theseus":
            with torch.device("meta"):
                models = build(student, like=teacher), AutoModelForSequenceClassification.from_config(teacher)
            with replacing(*models, Replacement(base.depth, 1, config.seed)):
                pass
    except ValueError as error:
        raise ConfigError(f"objective and base: {error}") from None


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
    made = Preparation(config, device, tell)
    return Workspace(config, made.data, made.teacher, made.supernet, made.outputs)


class Preparation:
    """Each property is a folder or file in the cache, made on its first use where it is not there yet."""

    def __init__(self, config: StudyConfig, device: str = "auto", tell: Tell = lambda what, share: None) -> None:
        self.config = config
        self.tell = tell
        self.accelerator = make_accelerator(device)
        self.cache = cache_folder()
        self.tokenizer = load_tokenizer(config.teacher)
        self._corpus: Corpus | None = None
        tell("text", None)
        rows = fingerprint(
            FORMAT,
            data.rows_key(config, self.corpus),
            source_fingerprint(config.teacher),
            config.task,
            config.max_length,
        )
        self.data_key = fingerprint(rows, data.text_key(config, self.corpus))
        # Nothing but the final training reads the text.
        self.teacher_key = fingerprint(rows, config.finetune.model_dump(), config.seed)

    def corpus(self) -> Corpus:
        """The text of this installation."""
        if self._corpus is None:
            self._corpus = embedded_corpus()
        return self._corpus

    def kept(self, path: Path, make: Callable[[Path], None]) -> Path:
        """As `distill.files.keep`; of several processes, which all train together, the first one keeps what is made."""
        if self.accelerator.is_main_process:
            keep(path, make)
        elif not path.exists():
            with tempfile.TemporaryDirectory() as scratch:
                make(Path(scratch) / path.name)
        self.accelerator.wait_for_everyone()
        return path

    @cached_property
    def data(self) -> Path:
        """The encoded splits of the task and the text without labels."""

        def make(folder: Path) -> None:
            self.tell(f"data of the task {self.config.task}", None)
            data.write(self.config, self.tokenizer, self.corpus, folder)

        return self.kept(self.cache / "data" / self.data_key, make)

    @cached_property
    def task(self) -> Task:
        """What is predicted."""
        return data.stored_task(self.data)

    @cached_property
    def train_rows(self) -> Encoded:
        return load_encoded(self.data / "train.npz")

    def batches(self, size: int, steps: int, seed: int) -> list[Batch]:
        """Batches of the training split."""
        return list(training_batches(self.train_rows, size, steps, seed, self.tokenizer.pad_token_id))

    @cached_property
    def teacher(self) -> Path:
        """The teacher, fine-tuned on the task."""
        config = self.config

        def make(folder: Path) -> None:
            recipe = config.finetune.build()
            with training("finetune"):
                model = finetune(
                    config.teacher,
                    self.task.labels,
                    self.batches(recipe.batch_size, recipe.steps, config.seed),
                    recipe,
                    accelerator=self.accelerator,
                    kind=self.task.kind,
                    seed=config.seed,
                    after_step=lambda step, loss: self.tell("teacher: fine-tuning", step / recipe.steps),
                )
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        return self.kept(self.cache / "teachers" / self.teacher_key, make)

    @cached_property
    def teacher_config(self) -> Any:
        return AutoConfig.from_pretrained(self.teacher)

    def teacher_model(self) -> PreTrainedModel:
        return load_model(str(self.teacher), self.task.labels, self.task.kind)

    def live_teacher(self, needs: frozenset[str]) -> LiveTeacher:
        return LiveTeacher(self.teacher_model(), needs, self.accelerator)

    @cached_property
    def supernet(self) -> Path:
        """The supernet, warmed up and with its inner channels in order of importance, and that importance."""
        config = self.config
        key = fingerprint(
            FORMAT,
            self.teacher_key,
            config.model_dump(mode="json", include={"base", "dropout", "warmup", "objective", "seed"}),
            max(config.space.stacks),
            config.space.edit_rate if config.warmup.graphs == "sampled" else None,
        )

        def make(folder: Path) -> None:
            size, steps = config.warmup.batch_size, config.warmup.steps
            base, graph = student_base(config, self.teacher_config)
            supernet = self.new_supernet(base)
            set_dropout(supernet, config.dropout)
            draw_graphs = graph_draws(config, base, graph)
            learned: dict[str, Tensor] = {}
            done = count(1)
            with training("warmup"):
                for goal, recipe in objectives(
                    config, config.warmup.build(), supernet.config, self.teacher_config, self.train_rows
                ):
                    warm_up(
                        supernet,
                        base,
                        self.batches(size, recipe.steps, config.seed + 1),
                        goal,
                        recipe,
                        teacher=self.live_teacher(goal.teacher_needs),
                        accelerator=self.accelerator,
                        draw_graphs=draw_graphs,
                        seed=config.seed,
                        after_step=lambda step, loss: self.tell("supernet: warm-up", next(done) / steps),
                    )
                    learned |= goal.state_dict()
            self.tell("supernet: importance of its neurons", None)
            glances = self.batches(size, config.warmup.importance_batches, config.seed + 2)
            scores = neuron_importance(supernet, glances, summed_loss)
            load_weights(supernet, sort_channels(supernet.state_dict(), scores, supernet.config))
            supernet.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            if learned:
                save_file(learned, folder / PROJECTIONS)
            lowest = {f"{i}": layer[0].sort(descending=True).values for i, layer in enumerate(scores)}
            save_file(lowest, folder / "importance.safetensors")

        return self.kept(self.cache / "supernets" / key, make)

    def new_supernet(self, base: Base) -> PreTrainedModel:
        """A supernet at its starting point: a copy of the teacher, or random weights."""
        stack = max(self.config.space.stacks)
        if self.config.base != "teacher":
            torch.manual_seed(self.config.seed)
            return from_scratch(base, stack, like=self.teacher_config, head=self.task.kind)
        teacher = self.teacher_model().eval()
        glances = self.batches(self.config.warmup.batch_size, STATISTICS_BATCHES, self.config.seed)
        return from_teacher(teacher, stack, layer_output_statistics(teacher, glances))

    @cached_property
    def outputs(self) -> Path:
        """The teacher's outputs on the batches that the candidates of the study's own seed see."""
        table, seed = self.config.candidate, self.config.seed
        like = AutoConfig.from_pretrained(self.supernet)
        goals = objectives(self.config, table.build(), like, self.teacher_config, self.train_rows)
        needs = frozenset[str]().union(*(goal.teacher_needs for goal, _ in goals))
        key = fingerprint(FORMAT, self.teacher_key, table.batch_size, table.steps, sorted(needs), seed)

        def write(path: Path) -> None:
            self.tell("teacher: outputs for the candidates", None)
            save_outputs(self.live_teacher(needs), self.batches(table.batch_size, table.steps, seed), path)

        return self.kept(self.cache / "outputs" / f"{key}.safetensors", write)


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

"""What a search needs before its first trial: data, teacher, supernet, and the teacher's outputs.

Each is made once and kept in the user's cache under a key of everything it depends on.
"""

import contextlib
import random
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel

from distill.files import cache_folder, fingerprint
from distill.objectives import OBJECTIVES
from distill.objectives.outputs import Batch, run
from distill.tasks.encoding import Encoded, batches, load_encoded, single_rows, training_batches
from distill.tasks.readers.corpora import Corpus, embedded_corpus
from distill.tasks.task import Task, load_split
from distill.training.evaluation import evaluate
from distill.training.loop import Diverged, make_accelerator
from distill.training.progress import ProgressCallback, ignore_progress
from distill.training.teacher import finetune, load_config, load_model, load_tokenizer, source_fingerprint
from distill.training.teacher_outputs import LiveTeacher, save_outputs, saved_bytes
from nas.config.schema import ConfigError, StudyConfig
from nas.preparation import data
from nas.preparation.data import TaskFolders
from nas.preparation.nodes import keep_on_every_node
from nas.preparation.phases import (
    CANDIDATE,
    TrainingPhase,
    on_text,
    portion,
    settings_of,
    table_of,
    training_phase,
    training_phases,
)
from nas.preparation.workspace import PROJECTIONS, Workspace, objectives, raw_teacher, student_base
from search_spaces import cost
from search_spaces.architecture import Architecture, Base
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space
from supernet.build import (
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
# Part of the keys of supernets that learned from text: every sentence counts alike in the importance of their neurons.
TEXT_IMPORTANCE = "of sentences"
# Batches over which the inputs of further blocks are averaged.
STATISTICS_BATCHES = 8


def check(config: StudyConfig) -> None:
    """Refuse what cannot work before anything is trained.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: as `prepare`.
    """
    config.objective.check()
    data.check_tasks(config)
    teacher = load_config(config.teacher)
    base, graph = student_base(config, teacher)
    for name, positions in (("teacher", teacher.max_position_embeddings), ("base", base.positions)):
        if config.max_length > positions:
            raise ConfigError(f"max_length: the {name} has {positions} positions, not {config.max_length}")
    student = Architecture.uniform(base, graph=graph)
    try:
        for name in ("warmup", *CANDIDATE, "sharing_pretrain", "sharing"):
            if table := table_of(config, name):
                objectives(config, settings_of(config, name), table.build(1), config_of(student), teacher)
        objective_spec = OBJECTIVES[config.objective.name]
        if objective_spec.training_context is not None:
            with torch.device("meta"):
                models = build(student, like=teacher), AutoModelForSequenceClassification.from_config(teacher)
            settings = objective_spec.defaults | config.objective.settings()
            with objective_spec.training_context(*models, settings=settings, steps=1, seed=config.seed):
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


def prepare(
    config: StudyConfig,
    device: str = "auto",
    on_progress: ProgressCallback = ignore_progress,
    *,
    outputs: bool = True,
) -> Workspace:
    """Everything a stage starts from, from the cache where it is there; where it trains no candidates, without the
    teacher's `outputs` for them.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration names what does not exist or cannot work.
    """
    check(config)
    made = Preparation(config, device, on_progress)
    return Workspace(config, made.data, made.teacher, made.supernet, made.outputs if outputs else ())


class Preparation:
    """Each property is a folder or file in the cache, made on its first use where it is not there yet."""

    def __init__(
        self, config: StudyConfig, device: str = "auto", on_progress: ProgressCallback = ignore_progress
    ) -> None:
        self.config = config
        self.on_progress = on_progress
        self.accelerator = make_accelerator(device)
        self.cache = cache_folder()
        self.tokenizer = load_tokenizer(config.teacher)
        self._corpus: Corpus | None = None
        on_progress("text", None)
        rows = fingerprint(
            FORMAT,
            data.rows_key(config, self.corpus),
            source_fingerprint(config.teacher),
            config.task,
            config.max_length,
        )
        self.data_key = fingerprint(rows, data.text_key(config, self.corpus))
        self.teacher_key = fingerprint(rows, config.finetune.model_dump(), config.seed)

    def corpus(self) -> Corpus:
        """The text of this installation."""
        if self._corpus is None:
            self._corpus = embedded_corpus()
        return self._corpus

    def kept(self, path: Path, make: Callable[[Path], None]) -> Path:
        """As `keep_on_every_node`."""
        return keep_on_every_node(path, make, self.accelerator)

    @cached_property
    def data(self) -> Path:
        """The encoded splits of the task and the text without labels."""

        def make(folder: Path) -> None:
            self.on_progress(f"data of the task {self.config.task}", None)
            data.write(self.config, self.tokenizer, self.corpus, folder)

        return self.kept(self.cache / "data" / self.data_key, make)

    @cached_property
    def task(self) -> Task:
        """What is predicted."""
        return data.stored_task(self.data)

    @cached_property
    def train_rows(self) -> Encoded:
        return load_encoded(self.data / "train.npz")

    def batches(self, rows: Encoded, size: int, steps: int, seed: int) -> Iterator[Batch]:
        return training_batches(rows, size, steps, seed, self.tokenizer.pad_token_id)

    @cached_property
    def teacher(self) -> Path:
        """The teacher, fine-tuned on the task."""
        config = self.config

        def score(model: PreTrainedModel) -> float:
            rows, split = load_encoded(self.data / "search.npz"), load_split(self.task.kind, self.data / "search.json")
            pad_id = self.tokenizer.pad_token_id
            scores = evaluate(model, rows, split, self.task, accelerator=self.accelerator, pad_id=pad_id)
            return scores[self.task.metrics[0]].value

        def make(folder: Path) -> None:
            rows = portion(self.train_rows, config.finetune.share, config.seed)
            recipe = config.finetune.build(len(rows))
            with training("finetune"):
                model = finetune(
                    config.teacher,
                    self.task.labels,
                    self.batches(rows, recipe.batch_size, recipe.batches, config.seed),
                    recipe,
                    accelerator=self.accelerator,
                    score=score,
                    kind=self.task.kind,
                    seed=config.seed,
                    after_step=lambda step, loss: self.on_progress("teacher: fine-tuning", step / recipe.steps),
                )
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)

        return self.kept(self.cache / "teachers" / self.teacher_key, make)

    @cached_property
    def teacher_config(self) -> Any:
        return AutoConfig.from_pretrained(self.teacher)

    def teacher_model(self) -> PreTrainedModel:
        return load_model(str(self.teacher), self.task.labels, self.task.kind)

    def live_teacher(self, needs: frozenset[str], raw: bool = False) -> LiveTeacher:
        model = raw_teacher(self.config, self.task) if raw else self.teacher_model()
        return LiveTeacher(model, needs, self.accelerator)

    @cached_property
    def supernet(self) -> Path:
        """The supernet, warmed up and with its inner channels in order of importance, and that importance."""
        config = self.config
        of_text = config.warmup.source == "text"
        of_base = config.base if not isinstance(config.base, str) else source_fingerprint(self.starting_point)
        key = fingerprint(
            FORMAT,
            self.teacher_key,
            of_base if isinstance(of_base, str) else of_base.model_dump(),
            config.model_dump(mode="json", include={"dropout", "warmup", "objective", "seed"}),
            [config.space.mismatch, max(config.space.stacks)],
            config.space.edit_rate if config.warmup.graphs == "sampled" else None,
            [self.data_key, config.text_teacher, TEXT_IMPORTANCE] if of_text else None,
        )

        def make(folder: Path) -> None:
            base, graph = student_base(config, self.teacher_config)
            supernet = self.new_supernet(base)
            set_dropout(supernet, config.dropout)
            found = training_phase(config, "warmup", self.folders)
            learned = self.warm_up(supernet, base, graph, found) if found else {}
            self.on_progress("supernet: importance of its neurons", None)
            scores = self.importance(supernet, found, learned)
            load_weights(supernet, sort_channels(supernet.state_dict(), scores, supernet.config))
            supernet.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            if learned:
                save_file(learned, folder / PROJECTIONS)
            lowest = {f"{i}": layer[0].sort(descending=True).values for i, layer in enumerate(scores)}
            save_file(lowest, folder / "importance.safetensors")

        return self.kept(self.cache / "supernets" / key, make)

    @property
    def starting_point(self) -> str:
        """The checkpoint that students start as."""
        assert isinstance(self.config.base, str)
        return self.config.teacher if self.config.base == "teacher" else self.config.base

    def new_supernet(self, base: Base) -> PreTrainedModel:
        """A supernet at its starting point: a copy of the teacher or of another checkpoint, or random weights."""
        config = self.config
        stack = max(config.space.stacks)
        if not isinstance(config.base, str):
            torch.manual_seed(config.seed)
            return from_scratch(base, stack, like=self.teacher_config, head=self.task.kind)
        torch.manual_seed(config.seed)  # another checkpoint may have no head
        own = config.base == "teacher"
        model = self.teacher_model() if own else load_model(config.base, self.task.labels, self.task.kind)
        glances = self.batches(self.train_rows, config.warmup.batch_size, STATISTICS_BATCHES, config.seed)
        return from_teacher(model.eval(), stack, layer_output_statistics(model, list(glances)), base.mismatch)

    def warm_up(
        self, supernet: PreTrainedModel, base: Base, graph: FFNGraph, found: TrainingPhase
    ) -> dict[str, Tensor]:
        """Train the supernet in place; returns the learned projections."""
        config = self.config
        draw_graphs = graph_draws(config, base, graph)
        learned: dict[str, Tensor] = {}
        done = count(1)
        with training("warmup"):
            for goal, recipe in objectives(
                config, found.settings, found.recipe, supernet.config, self.teacher_config, found.rows
            ):
                warm_up(
                    supernet,
                    base,
                    self.batches(found.rows, recipe.batch_size, recipe.batches, config.seed + 1),
                    goal,
                    recipe,
                    teacher=self.live_teacher(goal.teacher_needs, found.raw),
                    accelerator=self.accelerator,
                    draw_graphs=draw_graphs,
                    seed=config.seed,
                    after_step=lambda step, loss: self.on_progress(
                        "supernet: warm-up", next(done) / found.recipe.steps
                    ),
                )
                learned |= goal.state_dict()
        return learned

    def importance(
        self, supernet: PreTrainedModel, found: TrainingPhase | None, learned: dict[str, Tensor]
    ) -> list[list[Tensor]]:
        """The importance of the inner neurons for the loss with the labels; or, where the supernet learned from text
        and its head knows nothing, for the objective of the warm-up. There every sentence counts alike, whatever its
        length and the other sentences of its batch.
        """
        config = self.config
        size, number = config.warmup.batch_size, config.warmup.importance_batches
        if found is None or not on_text(config, "warmup"):
            return neuron_importance(
                supernet, self.batches(self.train_rows, size, number, config.seed + 2), summed_loss
            )
        goal, _ = objectives(config, found.settings, found.recipe, supernet.config, self.teacher_config)[-1]
        goal.load_state_dict({name: learned[name] for name in goal.state_dict()})
        goal.to(supernet.device)
        teacher = self.live_teacher(goal.teacher_needs, found.raw)

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return goal(run(model, batch, goal.needs), teacher(0, batch), batch)

        # The objective's losses are means over the tokens of a batch, in which a long sentence has the greater part.
        text = self.batches(found.rows, size, number, config.seed + 2)
        return neuron_importance(supernet, (sentence for batch in text for sentence in single_rows(batch)), loss)

    @property
    def folders(self) -> TaskFolders:
        return TaskFolders(self.data, self.teacher)

    @cached_property
    def outputs(self) -> tuple[tuple[str, Path], ...]:
        """The teacher's outputs on the batches that the candidates of the study's own seed see, by the tables of their
        trainings, as far as the configuration gives room for them.

        Raises:
            ConfigError: the disk does not.
        """
        like = AutoConfig.from_pretrained(self.supernet)
        found = [(one, self.kept_outputs(one, like)) for one in training_phases(self.config, CANDIDATE, self.folders)]
        return tuple((one.table, path) for one, path in found if path)

    def kept_outputs(self, found: TrainingPhase, like: Any) -> Path | None:
        """Those on the batches of this training of models like this; None where they are not kept."""
        config, recipe = self.config, found.recipe
        goals = objectives(config, found.settings, recipe, like, self.teacher_config, found.rows)
        needs = frozenset[str]().union(*(goal.teacher_needs for goal, _ in goals))
        key = fingerprint(
            FORMAT,
            self.data_key if on_text(config, found.table) else None,
            self.teacher_key,
            [recipe.batch_size, recipe.batches, getattr(config, found.table).share, found.raw],
            sorted(needs),
            config.seed,
        )
        path = self.cache / "outputs" / key
        chosen = batches(found.rows, recipe.batch_size, recipe.batches, config.seed)
        shapes = ((len(rows), int(found.rows.lengths[rows].max())) for rows in chosen)
        room = saved_bytes(self.teacher_config, needs, shapes)
        teacher_takes_part = OBJECTIVES[config.objective.name].training_context is not None
        if teacher_takes_part or room > config.teacher_cache:
            return None
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(path.parent).free
            if room > free:
                raise ConfigError(
                    f"teacher_cache: the teacher's outputs for {found.table} take {room / 1e9:.1f} GB and "
                    f"{path.parent} has {free / 1e9:.1f} GB free; make room, or have the teacher run in every step: "
                    "teacher_cache = 0"
                )

        def write(path: Path) -> None:
            self.on_progress("teacher: outputs for the candidates", None)
            rows = self.batches(found.rows, recipe.batch_size, recipe.batches, config.seed)
            save_outputs(self.live_teacher(needs, found.raw), rows, path)

        return self.kept(path, write)


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

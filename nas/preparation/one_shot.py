"""Stage 3's supernet: trained once on all tasks, then every candidate is a slice of it and needs no training."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from distill.files import fingerprint
from distill.tasks import metrics
from distill.tasks.encoding import training_batches
from distill.tasks.types import REGRESSION
from distill.training.evaluation import Load, evaluate, expert_load, split_batches
from distill.training.loop import make_accelerator
from distill.training.progress import ProgressCallback, ignore_progress
from distill.training.teacher import load_model
from distill.training.teacher_outputs import LiveTeacher
from nas.config.schema import StudyConfig
from nas.evaluate import INTERMEDIATE_ROWS, Score
from nas.preparation.data import TaskFolders
from nas.preparation.phases import TrainingPhase, raw, table_of, training_phase
from nas.preparation.prepare import FORMAT, Preparation, set_dropout, training
from nas.preparation.workspace import Workspace, objectives, projections, raw_teacher
from search_spaces.architecture import DENSE, Architecture, Genes
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space
from supernet.build import build, load_weights
from supernet.inherit import inherit
from supernet.one_shot import OneShotSupernet, head_name, interleaved, train_one_shot


def extremes(space: Space) -> tuple[Architecture, Architecture]:
    """The smallest and the largest dense architecture with the graphs that the space starts from; the box is no matter.

    Where there are experts the largest has all channels of the base, out of which they are made.
    """
    assert space.start is not None
    widest = max(space.expansions) if set(space.experts) == {DENSE} else Fraction(1)
    sizes = [(min(space.stacks), min(space.expansions)), (max(space.stacks), widest)]
    smallest, largest = (
        Architecture(space.base, tuple(Genes(genes.graph, *size) for genes in space.start.layers)) for size in sizes
    )
    return smallest, largest


def storing(largest: Architecture, space: Space) -> Architecture:
    """The architecture whose weights are stored: where there are experts, all channels are connected on both sides, as
    experts are made out of any of them, while a graph that joins them with x may leave some out.
    """
    if set(space.experts) == {DENSE}:
        return largest
    gated = FFNGraph.parse(f"project(mul({space.graph.nodes[-2].op}(expand(x)),gate(x)))")
    layers = (replace(genes, graph=gated if genes.graph.gated else space.graph) for genes in largest.layers)
    return Architecture(largest.base, tuple(layers))


def prepare_one_shot(
    workspace: Workspace, space: Space, device: str = "auto", on_progress: ProgressCallback = ignore_progress
) -> Workspace:
    """The workspace with the data and teachers of all tasks and the trained one-shot supernet.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: as `nas.preparation.prepare.prepare`.
    """
    config = workspace.config
    tasks = []
    for task in config.tasks:
        made = Preparation(config.model_copy(update={"tasks": (task,)}), device, on_progress)
        tasks.append(TaskFolders(made.data, made.teacher))
    smallest, largest = extremes(space)
    stored = storing(largest, space)
    has_routers = set(space.experts) != {DENSE} or space.base.attention_experts > 1
    key = fingerprint(
        FORMAT,
        workspace.supernet.name,
        [folders.teacher.name for folders in tasks],
        stored.to_json(),
        largest.to_json(),
        smallest.to_json(),
        [space.min_params, space.max_params, *((limit.name, limit.most, limit.fixed) for limit in space.limits)],
        [[stack, str(expansion), str(experts)] for stack, expansion, experts in space.sizes],
        [[limit.total(smallest), limit.total(largest)] for limit in space.limits],
        config.model_dump(mode="json", include={"objective", "dropout", "sharing_pretrain", "sharing", "seed"}),
        raw(config, "sharing_pretrain"),
        [folders.data.name for folders in tasks] if table_of(config, "sharing_pretrain") else None,
        # Tables and gates are drawn from the seed. Without this entry the keys of existing caches stay as they are.
        *(["routing by seed"] if config.seed and has_routers else []),
    )

    def make(folder: Path) -> None:
        accelerator = make_accelerator(device)
        like = AutoConfig.from_pretrained(workspace.supernet)
        model = build(stored, tasks[0].task.kind, like=like)
        load_weights(model, inherit(load_file(workspace.supernet / "model.safetensors"), stored, seed=config.seed))
        set_dropout(model, config.dropout)
        teachers = [load_model(str(folders.teacher), folders.task.labels, folders.task.kind) for folders in tasks]
        heads = {}
        for place, (task, teacher) in enumerate(zip(config.tasks, teachers, strict=True)):
            heads[task] = new_head(model, teacher, place == 0, config.seed + place)
        numbers = regressions(config.tasks, tasks)
        supernet = OneShotSupernet(model, heads, space.experts, workspace.frequencies(), numbers, config.seed)
        learned = projections(workspace.supernet)

        def told(begun: int, total: int, step: int, loss: float) -> None:
            on_progress("one-shot supernet: training", (begun + step) / total)

        def taught(plan: Mapping[str, TrainingPhase], turns: Sequence[str], by: Mapping[str, PreTrainedModel]) -> None:
            """Train on these rows of the tasks, by these teachers."""
            first, *_ = plan.values()
            recipe = replace(first.recipe, steps=len(turns))
            begun = 0
            for goal, phase in objectives(
                config, first.settings, recipe, like, teachers[0].config, first.rows, learned
            ):
                now = turns[begun : begun + phase.steps]
                train_one_shot(
                    supernet,
                    space,
                    now,
                    {
                        task: training_batches(
                            one.rows,
                            phase.batch_size,
                            now.count(task) * phase.gradient_accumulation_steps,
                            config.seed,
                            like.pad_token_id,
                        )
                        for task, one in plan.items()
                    },
                    goal,
                    phase,
                    teachers={task: LiveTeacher(by[task], goal.teacher_needs, accelerator) for task in plan},
                    accelerator=accelerator,
                    extremes=(largest, smallest) if config.sharing.sandwich else (),
                    seed=config.seed,
                    after_step=partial(told, begun, len(turns)),
                )
                begun += phase.steps
                learned.update(goal.state_dict())

        with training("sharing_pretrain"):
            if found := training_phase(config, "sharing_pretrain", tasks[0]):
                model_of_text = raw_teacher(config, tasks[0].task) if found.raw else teachers[0]
                taught({config.task: found}, [config.task] * found.recipe.steps, {config.task: model_of_text})
        with training("sharing"):
            found_by = (
                (task, training_phase(config, "sharing", one)) for task, one in zip(config.tasks, tasks, strict=True)
            )
            if plan := {task: one for task, one in found_by if one}:
                taught(plan, turns_of(config, plan), dict(zip(config.tasks, teachers, strict=True)))
        folder.mkdir()
        save_file({name: tensor.contiguous().cpu() for name, tensor in supernet.state_dict().items()}, weights(folder))
        stored.save(folder / "architecture.json")

    made = Preparation(config, device, on_progress)
    folder = made.kept(made.cache / "shared" / key, make)
    return replace(workspace, tasks=tuple(tasks), one_shot=folder)


def turns_of(config: StudyConfig, plan: Mapping[str, TrainingPhase]) -> list[str]:
    """Which task's batch every step trains on: all have as many where `sharing.steps` is given, and go through their
    rows equally often where `sharing.epochs` is.
    """
    counts = {task: one.recipe.steps for task, one in plan.items()}
    if config.sharing.steps is not None:
        each, rest = divmod(config.sharing.steps, len(plan))
        counts = {task: each + (place < rest) for place, task in enumerate(plan)}
    return interleaved(counts, config.seed)


def weights(folder: Path) -> Path:
    """The file of a one-shot supernet's parameters."""
    return folder / "shared.safetensors"


def regressions(names: Sequence[str], tasks: Sequence[TaskFolders]) -> list[str]:
    """The names of those tasks that predict a number."""
    return [name for name, folders in zip(names, tasks, strict=True) if folders.task.kind == REGRESSION]


def new_head(model: nn.Module, teacher: nn.Module, first: bool, seed: int) -> nn.Linear:
    """The head that a task starts with: the supernet's own for the first task, then the task's teacher's where the
    widths agree, else a random one.
    """
    own, found = (getattr(source, head_name(source)) for source in (model, model if first else teacher))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(own.in_features, found.out_features)
    if found.weight.shape == head.weight.shape:
        head.load_state_dict(found.state_dict())
    return head


def mean_loads(loads: Sequence[Sequence[Load]]) -> tuple[Load, ...]:
    """For every router the mean of its shares over the tasks, each of which counts alike.

    Args:
        loads: of every task, those of the same routers in the same order.
    """
    means = []
    for router_loads in zip(*loads, strict=True):
        shares = zip(*(load.shares for load in router_loads), strict=True)
        means.append(replace(router_loads[0], shares=tuple(map(fmean, shares))))
    return tuple(means)


class OneShotEvaluator:
    """Scores slices of the trained one-shot supernet; loaded once per process."""

    def __init__(self, workspace: Workspace, device: str = "auto") -> None:
        assert workspace.one_shot is not None
        config = workspace.config
        self.accelerator = make_accelerator(device)
        self.like = like = AutoConfig.from_pretrained(workspace.supernet)
        self.tasks = {
            task: (folders.task, folders.rows("search"), folders.split("search"))
            for task, folders in zip(config.tasks, workspace.tasks, strict=True)
        }
        head = workspace.tasks[0].task.kind
        model = build(Architecture.load(workspace.one_shot / "architecture.json"), head, like=like)
        heads = {
            task: nn.Linear(like.hidden_size, AutoConfig.from_pretrained(folders.teacher).num_labels)
            for task, folders in zip(config.tasks, workspace.tasks, strict=True)
        }
        self.supernet = OneShotSupernet(
            model,
            heads,
            config.space.experts,
            workspace.frequencies(),
            regressions(config.tasks, workspace.tasks),
            config.seed,
        )
        self.supernet.load_state_dict(load_file(weights(workspace.one_shot)))
        self.pad_id = like.pad_token_id
        self.first = config.sharing.rows

    def evaluate(self, architecture: Architecture) -> Score:
        """The mean over the tasks of their metrics on their search splits, without any training.

        Raises:
            distill.training.loop.Diverged: a logit is not finite.
        """
        scores: dict[str, metrics.Score] = {}
        loads: list[list[Load]] = []
        for name, (task, rows, split) in self.tasks.items():
            self.supernet.activate(architecture, name)
            found = evaluate(
                self.supernet,
                rows,
                split,
                task,
                accelerator=self.accelerator,
                pad_id=self.pad_id,
                first=self.first,
            )
            scores[name] = found[task.metrics[0]]
            batches = (batch for _, batch in split_batches(rows, self.pad_id, INTERMEDIATE_ROWS))
            loads.append(expert_load(self.supernet, batches, accelerator=self.accelerator))
        value = sum(score.value for score in scores.values()) / len(scores)
        error = sum(score.standard_error**2 for score in scores.values()) ** 0.5 / len(scores)
        return Score(value, error, {name: score.value for name, score in scores.items()}, mean_loads(loads))

    def student(self, architecture: Architecture) -> PreTrainedModel:
        """A model of this architecture with weights of its own, cut out of the supernet, for the first task."""
        self.supernet.activate(architecture, next(iter(self.tasks)))
        with torch.no_grad():
            state = self.supernet.state()
            kind = next(iter(self.tasks.values()))[0].kind
            model = build(architecture, kind, like=self.like)
            load_weights(model, {name: state[name].clone() for name in model.state_dict()})
        return model


@lru_cache(maxsize=1)
def one_shot_evaluator(workspace: Workspace, device: str) -> OneShotEvaluator:
    """The evaluator of this process; a worker keeps it from one trial to the next."""
    return OneShotEvaluator(workspace, device)

"""Prepares the one-shot supernet of stage 3, which is trained once on all tasks; every candidate is a slice of it."""

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedModel

from distill.encoders.parts import output_layer
from distill.tasks.encoding import training_batches
from distill.training.checkpoint import Checkpoint
from distill.training.progress import ProgressCallback, ignore_progress
from distill.training.teacher_outputs import LiveTeacher
from foundation.files import fingerprint
from nas.config.schema import StudyConfig
from nas.preparation.calibration import calibration_entry
from nas.preparation.context import FORMAT, PreparationContext, preparation_context
from nas.preparation.data import TaskFolders, check_one_shot
from nas.preparation.entries import TRAINING, Work, create, largest
from nas.preparation.nodes import create_together
from nas.preparation.phases import ONE_SHOT_ON_TEXT, TrainingPhase, has_raw_teacher, refusing_divergence, training_phase
from nas.preparation.supernet import is_independent_of_task, supernet_entries, supernet_path
from nas.preparation.teacher import prepare_task
from nas.preparation.text import text_entries, texts_of
from nas.preparation.workspace import OneShotWorkspace, Workspace, load_teacher, objectives, projections
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.graph import base_graph
from search_spaces.layer import DENSE, FFN
from search_spaces.spaces import Space
from supernet.build import build, set_dropout
from supernet.inherit import inherit
from supernet.one_shot import DRAWN_IN_SANDWICH, OneShotSupernet, interleaved, train_one_shot

# The file with the weights of the supernet in its folder.
WEIGHTS = "one_shot.safetensors"


def prepare_one_shot(
    workspace: Workspace, space: Space, device: str = "auto", on_progress: ProgressCallback = ignore_progress
) -> OneShotWorkspace:
    """Prepare the data and teachers of all tasks and train the one-shot supernet. If the warm-up depends on no task,
    neither does the one-shot supernet depend on the order of the tasks, except where a limit on MACs or latency counts
    heads of different sizes.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: see `nas.preparation.prepare.prepare`; or tasks have
            no head.
    """
    check_one_shot(workspace.config)
    given = workspace
    has_routers = set(space.genes["experts"]) != {DENSE} or max(space.genes["attention_experts"]) > 1
    # Routers depend on the first task.
    any_order = is_independent_of_task(given.config) and not has_routers
    config = given.config.model_copy(update={"tasks": tuple(sorted(given.config.tasks))}) if any_order else given.config
    contexts = [
        preparation_context(config.model_copy(update={"tasks": (task,)}), device, on_progress) for task in config.tasks
    ]
    create(contexts[0], text_entries(contexts[0], ONE_SHOT_ON_TEXT))
    texts = texts_of(contexts[0], ONE_SHOT_ON_TEXT)
    tasks = tuple(replace(prepare_task(context), texts=texts) for context in contexts)
    if any_order:
        folders = replace(tasks[0], texts=given.folders.texts)
        create(contexts[0], supernet_entries(contexts[0], folders))
        workspace = replace(given, config=config, folders=folders, supernet=supernet_path(contexts[0]))
        space = with_num_labels(space, config, workspace.num_labels, tasks[0].task.type.head)
    smallest, largest = extremes(space)
    stored = stored_architecture(largest, space)
    key = fingerprint(
        FORMAT,
        workspace.supernet.name,
        [folders.teacher.name for folders in tasks],
        stored.to_json(),
        largest.to_json(),
        smallest.to_json(),
        [space.min_params, space.max_params, *((limit.name, limit.maximum, limit.fixed) for limit in space.limits)],
        [layer.to_json() for layer in space.sizes],
        [[limit.total(smallest), limit.total(largest)] for limit in space.limits],
        config.model_dump(
            mode="json",
            include={"objective", "dropout", "one_shot_pretrain", "one_shot", "seed"},
            exclude={"one_shot": {"inheritance"}},
        ),
        has_raw_teacher(config, "one_shot_pretrain"),
        [text.name for _, text in texts] or None,
        *([] if config.one_shot_warmup is None else [config.one_shot_warmup.model_dump()]),
    )
    made = OneShotWorkspace(workspace, tasks, contexts[0].cache / "one-shot" / key)
    create_together(
        made.one_shot,
        lambda path, state: _make_one_shot(contexts[0], made, space, path, state),
        contexts[0].accelerator,
    )
    calibration = None
    if config.one_shot.inheritance == "compensated":
        entry = calibration_entry(contexts[0], tasks[0], made.one_shot, lambda: largest_model(made))
        entry.create(contexts[0])
        calibration = entry.path
    return OneShotWorkspace(given, tuple(made.by_task[task] for task in given.config.tasks), made.one_shot, calibration)


def one_shot_work(config: StudyConfig) -> tuple[Work, ...]:
    """What takes long when the one-shot supernet is made."""
    table = config.one_shot
    architectures = len(table.widths) or (2 + DRAWN_IN_SANDWICH if table.sandwich else 1)
    passes = ((config.one_shot_warmup, 1), (config.one_shot_pretrain, architectures), (table, architectures))
    return tuple(
        Work("one-shot supernet: training", largest(config), recipe, TRAINING * each)
        for recipe, each in passes
        if recipe
    )


def with_num_labels(space: Space, config: StudyConfig, num_labels: int, head: cost.HeadCost) -> Space:
    """The space for a task with this number of outputs. Bounds on the parameters that follow from `space.uniform` in
    the configuration follow the size of the head.
    """
    any_architecture, _ = extremes(space)
    more = cost.params(any_architecture, num_labels, head) - cost.params(any_architecture, space.num_labels, head)
    bounds = {
        name: getattr(space, name) + (more if getattr(config.space, name) is None else 0)
        for name in ("min_params", "max_params")
    }
    return replace(space, num_labels=num_labels, **bounds)


def largest_model(workspace: OneShotWorkspace) -> PreTrainedModel:
    """The largest model of the one-shot supernet, with the head that it started with."""
    stored = Architecture.load(workspace.one_shot / "architecture.json")
    template = AutoConfig.from_pretrained(workspace.study.supernet)
    prefix = "model."
    weights = load_file(workspace.one_shot / WEIGHTS)
    own = {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
    return build(stored, workspace.tasks[0].task.type, template=template, weights=own)


def extremes(space: Space) -> tuple[Architecture, Architecture]:
    """The smallest and the largest architecture with the graphs that the space starts from, regardless of the budget.
    Their FFNs are dense, and they have the fewest and the most heads, and experts in attention and head. The largest
    one has at least the start's heads and channels; if the space has experts, all channels, from which they are made.
    """
    assert space.start is not None
    genes, start = space.genes, space.start
    widest = max([*genes["expansion"], *(ffn.expansion for ffn in start.ffns if ffn.stack)])
    if set(genes["experts"]) != {DENSE}:
        widest = Fraction(1)
    smallest, largest = (
        Architecture.of_ffns(
            space.base,
            [FFN(graph, extreme(genes["stack"]), expansion) for graph in space.start_graphs],
            extreme(genes["attention_experts"]),
            extreme(genes["head_experts"]),
        )
        for extreme, expansion in ((min, min(genes["expansion"])), (max, widest))
    )
    if max(genes["attention_experts"]) == 1:
        fewest, most = min(genes["heads"]), max([*genes["heads"], *(layer.attention.heads for layer in start.layers)])
        smallest = smallest.with_heads([fewest] * space.base.depth)
        largest = largest.with_heads([most] * space.base.depth)
    return smallest, largest


def architectures_of_a_step(
    config: StudyConfig, space: Space, table: str = "one_shot"
) -> tuple[tuple[Architecture, ...], int]:
    """The architectures that every step of the one-shot supernet trains, and how many others it draws.

    Args:
        table: the name of the phase's table.
    """
    if table == "one_shot_warmup":
        return extremes(space)[1:], 0
    if config.one_shot.widths:
        assert space.start is not None
        stack = min(filter(None, space.genes["stack"]))
        smallest, largest = extremes(space)
        whole = smallest.with_heads(layer.attention.heads for layer in largest.layers)
        layers = [[FFN(graph, stack, width) for graph in space.start_graphs] for width in config.one_shot.widths]
        return tuple(map(whole.with_ffns, layers)), 0
    if config.one_shot.sandwich:
        smallest, largest = extremes(space)
        return (largest, smallest), DRAWN_IN_SANDWICH
    return (), 1


def stored_architecture(largest: Architecture, space: Space) -> Architecture:
    """The architecture whose weights are stored. If the space has experts, its graphs connect all inner channels on
    both sides, because experts may take any of them, whereas a graph that combines them with x may leave some out.
    """
    if set(space.genes["experts"]) == {DENSE}:
        return largest
    gated = base_graph(space.activation, gated=True)
    layers = (replace(ffn, graph=gated if ffn.graph.gated else space.graph) for ffn in largest.ffns)
    return largest.with_ffns(layers)


def _make_one_shot(
    context: PreparationContext, workspace: OneShotWorkspace, space: Space, folder: Path, state: Path
) -> None:
    """Build the one-shot supernet from the warmed-up supernet, train it on text and on all tasks, and save it.

    Args:
        state: the folder from which an interrupted training continues.
    """
    study, tasks = workspace.study, workspace.by_task
    config = study.config
    stored = stored_architecture(extremes(space)[1], space)
    model = build(stored, workspace.tasks[0].task.type, template=AutoConfig.from_pretrained(study.supernet))
    model.load_state_dict(inherit(load_file(study.supernet / "model.safetensors"), stored, seed=config.seed))
    set_dropout(model, config.dropout)
    teachers = {name: load_teacher(config, folders) for name, folders in tasks.items()}
    trained_head = None if is_independent_of_task(config) else config.task
    heads = {
        name: new_head(model, teacher, name == trained_head, config.seed + number)
        for number, (name, teacher) in enumerate(teachers.items())
    }
    frequencies = study.frequencies()
    supernet = OneShotSupernet(model, heads, space.genes["experts"], frequencies, problem_types(tasks), config.seed)
    learned = projections(study.supernet)
    for table, names in (*((table, [config.task]) for table in ONE_SHOT_ON_TEXT), ("one_shot", config.tasks)):
        of_tasks = {name: training_phase(config, table, tasks[name]) for name in names}
        if phases := {name: phase for name, phase in of_tasks.items() if phase}:
            with refusing_divergence(table):
                learned |= _train(context, workspace, supernet, space, phases, teachers, learned, state / table)
    folder.mkdir()
    tensors = {name: tensor.contiguous().cpu() for name, tensor in supernet.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    stored.save(folder / "architecture.json")


def _train(
    context: PreparationContext,
    workspace: OneShotWorkspace,
    supernet: OneShotSupernet,
    space: Space,
    phases: Mapping[str, TrainingPhase],
    teachers: Mapping[str, PreTrainedModel],
    learned: Mapping[str, Tensor],
    state: Path,
) -> dict[str, Tensor]:
    """Train the one-shot supernet in place.

    Args:
        phases: task -> its training phase, all of the same table.
        teachers: task -> its fine-tuned teacher.
        learned: the projections of the objective that were learned before.
        state: the folder from which an interrupted training continues.

    Returns:
        The projections of the objective after the training.
    """
    config = workspace.study.config
    student_config = AutoConfig.from_pretrained(workspace.study.supernet)
    teacher_config = AutoConfig.from_pretrained(workspace.tasks[0].teacher)
    turns = turns_of(config, phases)
    taught_by = {
        name: load_teacher(config, workspace.by_task[name], raw=True) if phase.raw_teacher else teachers[name]
        for name, phase in phases.items()
    }
    first_phase, *_ = phases.values()
    fixed, drawn = architectures_of_a_step(config, space, first_phase.table)
    recipe = replace(first_phase.recipe, steps=len(turns))
    learned = dict(learned)
    finished_steps = 0
    for number, (objective, part) in enumerate(
        objectives(config, first_phase.settings, recipe, student_config, teacher_config, first_phase.rows, learned)
    ):
        turns_of_part = turns[finished_steps : finished_steps + part.steps]
        batches = {
            name: training_batches(
                phase.rows,
                part.batch_size,
                turns_of_part.count(name) * part.gradient_accumulation_steps,
                config.seed,
                student_config.pad_token_id,
            )
            for name, phase in phases.items()
        }

        def report(step: int, loss: float, before: int = finished_steps) -> None:
            context.on_progress("one-shot supernet: training", (before + step) / len(turns))

        train_one_shot(
            supernet,
            space,
            turns_of_part,
            batches,
            objective,
            part,
            teachers={
                name: LiveTeacher(teacher, objective.teacher_needs, context.accelerator)
                for name, teacher in taught_by.items()
            },
            accelerator=context.accelerator,
            fixed=fixed,
            drawn=drawn,
            seed=config.seed,
            after_step=report,
            checkpoint=Checkpoint(state / f"phase-{number}.pt"),
        )
        finished_steps += part.steps
        learned |= objective.state_dict()
    return learned


def turns_of(config: StudyConfig, phases: Mapping[str, TrainingPhase]) -> list[str]:
    """The task whose batch is used in each step. With `steps` in their table, all tasks get the same number of steps,
    with `epochs` the same number of epochs.
    """
    counts = {name: phase.recipe.steps for name, phase in phases.items()}
    first_phase, *_ = phases.values()
    steps = getattr(config, first_phase.table).steps
    if steps is not None:
        of_each, rest = divmod(steps, len(phases))
        counts = {name: of_each + (number < rest) for number, name in enumerate(phases)}
    return interleaved(counts, config.seed)


def problem_types(tasks: Mapping[str, TaskFolders]) -> dict[str, str | None]:
    """Task -> what its head predicts, for `OneShotSupernet`."""
    return {name: folders.task.type.problem_type for name, folders in tasks.items()}


def new_head(model: nn.Module, teacher: nn.Module, warm: bool, seed: int) -> nn.Linear:
    """The head with which a task starts: with `warm` the supernet's head, which the warm-up has trained; otherwise the
    head of its teacher if the widths agree, else a random one.
    """
    supernet_head: Any = model.get_submodule(output_layer(model))
    source: Any = supernet_head if warm else teacher.get_submodule(output_layer(teacher))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(supernet_head.in_features, source.out_features)
    if source.weight.shape == head.weight.shape:
        head.load_state_dict(source.state_dict())
    return head

"""What a search would do, without doing it: its space, its budget, its baselines, what it needs, and how long it takes.

Nothing is trained. The configuration and the tokenizer of a teacher on the hub are downloaded, as every search does
first, and a little time is spent on measuring the speed of this machine.
"""

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig

from distill.cli import DONE
from distill.files import cache_folder
from distill.tasks.corpora import corpus_file
from distill.tasks.encoding import load_encoded
from distill.tasks.readers import embedded, reader_of
from distill.tasks.types import task_type
from distill.training.progress import clock
from distill.training.teacher import locate
from nas import keep
from nas.budget import NO_LIMIT, budgeted_space, largest_uniform, latencies_file, limits_of, macs_limits
from nas.config.schema import StudyConfig
from nas.estimate import (
    FILLED,
    FORWARD_PASSES_OF_A_STEP,
    SEARCH_ROWS,
    Estimator,
    by_earlier_trials,
    measure_speed,
)
from nas.finalists import ALLOCATED, BASE_MODEL, GLOBAL, UNIFORM, WINNER
from nas.preparation.calibration import calibration_path
from nas.preparation.context import PreparationContext, preparation_context
from nas.preparation.data import TaskFolders, row_kind, stored_task
from nas.preparation.outputs import outputs_paths
from nas.preparation.phases import CANDIDATE, learns_from_text
from nas.preparation.predictions import predictions_path
from nas.preparation.supernet import context_of_source, encoder_path, is_independent_of_task, supernet_path
from nas.preparation.text import corpora_of, text_folder
from nas.preparation.workspace import Workspace, base_of_study
from nas.progress import Part, shown
from nas.stages import Enqueued, plan, start_of, varied
from nas.study.attributes import COSTS
from nas.study.folder import Folder
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.grammar import count_graphs
from search_spaces.spaces import Space

# What the number of classes is taken for as long as the rows have not been read.
CLASSES = 2


@dataclass(frozen=True)
class Made:
    """Something that the preparation makes.

    Attributes:
        part: its name among the parts of an `Estimator`; empty if it takes no training.
        path: where it is kept; None if that is not known before the rows have been read.
    """

    what: str
    part: str
    path: Path | None

    @property
    def exists(self) -> bool:
        """Whether it is in the cache."""
        return self.path is not None and self.path.exists()


def dry_run(
    config: StudyConfig, options: Namespace, folder: Folder, stages: Sequence[str], workers: int, console: Console
) -> int:
    """Print what the search would do; returns the exit status.

    Raises:
        UserError: as the search itself.
    """
    chosen = Architecture.load(options.start) if options.start else None
    context = preparation_context(config, options.device) if known_rows(config) else None
    made = list(made_of(config, context, options.device))
    start = start_of(folder, stages[0], chosen)
    space, baselines = first_plan(config, made, stages[0], start, options.device)
    console.print(f"dry run: nothing is trained, and nothing is written to {folder.path}")
    show_space(console, config, space, stages[0])
    show_baselines(console, config, space, baselines, made)
    show_needs(console, made, downloads_of(config), context is not None)
    show_time(console, config, options, space, stages, made, workers)
    return DONE


# The tables of trainings whose text the preparation of a search needs.
TEXTS = ("warmup", *CANDIDATE)


def known_rows(config: StudyConfig) -> bool:
    """Whether the rows and the text, on which keys of the cache depend, are on this machine already."""
    corpora = [corpora_of(config, table) for table in TEXTS if learns_from_text(config, table)]
    uses_own_text = None in corpora or config.task in embedded.TASKS
    collected = corpus_file().exists()
    downloaded = any(name.startswith(("rows of", "text")) for name in downloads_of(config))
    return (collected or not uses_own_text) and not downloaded


def downloads_of(config: StudyConfig) -> Iterator[str]:
    """What comes from the hub, unless the hub's own cache has it."""
    models = {"teacher": config.teacher}
    if isinstance(config.base, str) and config.base != "teacher":
        models["base"] = config.base
    for what, name in models.items():
        if not Path(locate(name)).is_dir():
            yield f"{what} {name}"
    for task in config.tasks:
        if task not in config.rows and task not in embedded.TASKS and config.data is None:
            yield f"rows of {task}"
    corpora = [corpora_of(config, table) or () for table in TEXTS if learns_from_text(config, table)]
    for source in dict.fromkeys(chain.from_iterable(corpora)):
        if not Path(source).exists():
            yield f"text {source}"


def made_of(config: StudyConfig, context: PreparationContext | None, device: str) -> Iterator[Made]:
    """What the preparation of the study's first task makes, in order."""
    data = context.cache / "data" / context.data_key if context else None
    teacher = context.cache / "teachers" / context.teacher_key if context else None
    supernet = supernet_path(context) if context else None
    yield Made(f"encoded rows of {config.task}", "", data)
    yield Made("fine-tuned teacher", "teacher: fine-tuning", teacher)
    tables = [table for table in TEXTS if learns_from_text(config, table)]
    texts = {table: text_folder(context, corpora_of(config, table)) if context else None for table in tables}
    for path in dict.fromkeys(texts.values()):
        yield Made("encoded text", "", path)
    independent = is_independent_of_task(config)
    path_of = encoder_path if independent else supernet_path
    warm_up = "supernet: warm-up"
    if config.cut_from is not None:
        source = context_of_source(context) if context else None
        yield Made("supernet to cut from", warm_up, path_of(source) if source else None)
        warm_up = ""
    if independent:
        yield Made("pre-trained encoder", warm_up, encoder_path(context) if context else None)
        warm_up = ""
    yield Made("supernet", warm_up, supernet)
    if config.supernet.inheritance == "compensated":
        yield Made("calibration", "", calibration_path(context, supernet) if context and supernet else None)
        losses = predictions_path(context, supernet) if context and supernet else None
        yield Made("predicted losses", "supernet: predicted losses", losses)
    outputs: Sequence[Path | None] = [None]
    if context and data and teacher and supernet and all(path.exists() for path in (data, teacher, supernet)):
        found = tuple((table, path) for table, path in texts.items() if path is not None and path.exists())
        if len(found) == len(texts):
            outputs = outputs_paths(context, TaskFolders(data, teacher, found), supernet)
    for path in outputs:
        yield Made("teacher's outputs for the candidates", "teacher: outputs for the candidates", path)
    if config.space.max_latency is not None or "latency" in config.goals:
        base, _ = base_of_study(config)
        known = teacher is not None and teacher.exists()
        table = latencies_file(config, base, AutoConfig.from_pretrained(teacher), device) if known else None
        yield Made("latency table of this device", "", table)


def prepared(config: StudyConfig, made: Sequence[Made]) -> Workspace | None:
    """The workspace if the cache has all that the baselines need, else None."""
    paths = {part.what: part.path for part in made}
    data, teacher, supernet = (paths[what] for what in (made[0].what, "fine-tuned teacher", "supernet"))
    needed = [made[0], *(part for part in made if part.what in ("fine-tuned teacher", "supernet", "predicted losses"))]
    if not all(part.exists for part in needed) or data is None or teacher is None or supernet is None:
        return None
    return Workspace(config, data, teacher, supernet, (), predictions=paths.get("predicted losses"))


def first_plan(
    config: StudyConfig, made: Sequence[Made], stage: str, start: Architecture | None, device: str
) -> tuple[Space, Sequence[Enqueued]]:
    """The space of the first stage and its baselines, without those that need what is not in the cache. Its limits do
    not include the latency if there is no table.
    """
    workspace = prepared(config, made)
    latency = all(part.exists for part in made if part.what.startswith("latency"))
    base, graph = base_of_study(config)
    if workspace is not None:
        head, labels = workspace.folders.task.type.head, workspace.labels
        config = widest(config, labels, head)
        limits = macs_limits(config, base, labels, head)
        if latency:
            limits = limits_of(config, workspace, device)
        found = plan(config, workspace, stage, start, limits)
        return found.space, found.baselines
    task = config.task
    kind = row_kind(config.rows[task]) if task in config.rows else reader_of(task).kind(task)
    head, labels = task_type(kind).head, classes(made)
    config = widest(config, labels, head)
    limits = macs_limits(config, base, labels, head)
    space = budgeted_space(
        config,
        base,
        graph,
        labels,
        limits=limits,
        start=start,
        vary=varied(stage),
        head=head,
        edit_rate=config.stage(stage).edit_rate,
    )
    if start is not None:
        return space, [(start, WINNER, None)]
    least = min(1, *space.stacks)
    base = space.base
    uniform = largest_uniform(base, graph, labels, space.max_params, limits, head, least)
    return space, [(Architecture.uniform(base, graph), BASE_MODEL, None), (uniform, UNIFORM, None)]


def classes(made: Sequence[Made]) -> int:
    """The number of outputs of the task's head, or `CLASSES` as long as the rows have not been read."""
    data = made[0].path
    return len(stored_task(data).labels) or 1 if data is not None and data.exists() else CLASSES


def widest(config: StudyConfig, labels: int, head: cost.HeadCost) -> StudyConfig:
    """The configuration; with `keep`, whose budget the search finds, with the base model as the only bound."""
    return config if config.keep is None else keep.with_budget(config, *base_of_study(config), labels, head, None, 1.0)


def show_space(console: Console, config: StudyConfig, space: Space, stage: str) -> None:
    """Print the size of the space and the bounds of the budget."""
    base = space.base
    console.print(f"\nspace of stage {stage}: {base.depth} layers of width {base.width}, inner width {base.inner}")
    if space.varies_sizes:
        sizes = len(space.sizes)
        within, all_sizes = space.size_count(), sizes**base.depth * len(space.bases)
        kept = f"; {rounded(within)} of these ({100 * within / all_sizes:.3g} %) keep the budget with base graphs"
        console.print(
            f"  sizes: {sizes} for a layer, {rounded(all_sizes)} for all{kept if config.keep is None else ''}"
        )
        for name, counts in space.expert_counts.items():
            console.print(f"  {name.replace('_', ' ')}: {' or '.join(map(str, counts))}, which count among the sizes")
    if space.varies_graphs:
        graphs = count_graphs(space.activation, space.gated, space.max_height)
        console.print(f"  graphs: {rounded(graphs)} for a layer, some of which compute the same function")
    console.print("budget:")
    if config.keep is not None:
        console.print(
            f"  found by the search: the lowest {config.keep.cost} that keeps {config.keep.share:.1%} of the "
            "teacher's score"
        )
        return
    console.print(f"  parameters: {space.min_params:,} to {space.max_params:,}")
    for limit in space.limits:
        if limit.maximum < NO_LIMIT:
            console.print(f"  at most {COSTS[limit.name](limit.maximum)}")
    if config.space.max_latency is not None and not any(limit.name == "latency" for limit in space.limits):
        console.print(f"  latency: at most {config.space.max_latency}, measured before the search")


def show_baselines(
    console: Console, config: StudyConfig, space: Space, baselines: Sequence[Enqueued], made: Sequence[Made]
) -> None:
    """Print the architectures that are evaluated before all others, and their costs."""
    if config.keep is not None:
        console.print("baselines: those of the budget that the search finds")
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1))
    extra = [limit.name for limit in space.limits if limit.name == "latency"]
    for column in ("baseline", "parameters", "MACs", *extra, "within the budget"):
        table.add_column(column, justify="left" if column == "baseline" else "right", no_wrap=True)
    for architecture, origin, _ in baselines:
        costs = [
            f"{cost.params(architecture, space.labels, space.head):,}",
            f"{cost.macs(architecture, labels=space.labels, head=space.head):,}",
            *(f"{limit.total(architecture) / 1000:.2f} ms" for limit in space.limits if limit.name in extra),
        ]
        table.add_row(origin, *costs, "yes" if space.keeps_budget(architecture) else "no")
    console.print(table)
    if prepared(config, made) is None:
        others = [] if space.start is not None else [GLOBAL]
        others += ALLOCATED if config.supernet.inheritance == "compensated" else []
        if others:
            console.print(f"  {', '.join(others)}: after the supernet has been made")
        if not made[0].exists:
            console.print(f"  assuming {CLASSES} classes: the rows have not been read yet")


def show_needs(console: Console, made: Sequence[Made], downloads: Iterator[str], known: bool) -> None:
    """Print what the preparation makes or finds in the cache, and what comes from the hub."""
    console.print(f"cache {cache_folder()}:")
    for part in made:
        state = "is there" if part.exists else "will be made"
        console.print(f"  {part.what:<36} {state}")
    if not known:
        console.print("  (what depends on rows or text that are not on this machine yet is counted as missing)")
    for name in downloads:
        console.print(f"from the hub, unless its cache has it: {name}")


def show_time(
    console: Console,
    config: StudyConfig,
    options: Namespace,
    space: Space,
    stages: Sequence[str],
    made: Sequence[Made],
    workers: int,
) -> None:
    """Print how long each part takes, and how that was estimated."""
    parts, earlier, note = parts_of(config, options, space, stages, made, workers)
    console.print(f"time, with {workers} worker{'s' if workers > 1 else ''}:")
    for part in parts:
        name = {"confirmation": "search for the budget"}.get(part.what, shown(part.what))
        count = f"{part.count} trials" if part.what.startswith("stage-") else f"up to {part.count} trainings"
        basis = f", by {earlier[part.what]} earlier trials" if part.what in earlier else ""
        each = f"  ({count}, {part.seconds:.1f} s each{basis})" if part.count > 1 else ""
        console.print(f"  {name:<36} {clock(part.total):>7}{each}")
    console.print(f"  {'in all about':<36} {clock(sum(part.total for part in parts)):>7}")
    console.print(f"  basis: {note}")


def parts_of(
    config: StudyConfig,
    options: Namespace,
    space: Space,
    stages: Sequence[str],
    made: Sequence[Made],
    workers: int,
) -> tuple[list[Part], dict[str, int], str]:
    """The parts of the search that are still to be done, by how many earlier trials they were estimated, and in words
    what the estimate is based on.
    """
    base, graph = space.base, space.graph
    rows: int | None = None
    search_rows, tokens = SEARCH_ROWS, round(FILLED * config.max_length)
    counted = "as the rows have not been read, sentences are assumed to fill half of max_length"
    if made[0].exists and made[0].path is not None:
        train, search = (load_encoded(made[0].path / f"{name}.npz") for name in ("train", "search"))
        rows, search_rows, tokens = len(train), len(search), round(float(train.lengths.mean()))
        counted = f"sentences have {tokens} tokens on average"
    speed = measure_speed(base, graph, tokens, options.device, config.mixed_precision)
    least = min(1, *space.stacks)
    student = largest_uniform(base, graph, space.labels, space.max_params, space.limits, space.head, least)
    estimator = Estimator(config, speed, student, rows, search_rows, tokens)
    there = {part.part for part in made if part.exists}
    preparation = [part for part in estimator.preparation() if part.what not in there]
    if "supernet: warm-up" in there:
        preparation = [part for part in preparation if part.what != "supernet: order of its channels"]
    searching, earlier = by_earlier_trials(estimator.stages(stages), options.out, config, workers)
    note = (
        f"a forward pass of the base model computed {speed.macs / 1e9:.1f} G MACs a second, a training step counts "
        f"as {FORWARD_PASSES_OF_A_STEP} passes, and {counted}"
    )
    return [*preparation, *searching], earlier, note


def rounded(number: int) -> str:
    """A number to two digits if it is large."""
    return f"{number:,}" if number < 10**6 else f"{number:.2g}"

"""What a search would do, without doing it: its space, its budget, its baselines, what it needs, and how long it takes.

Nothing is trained. The configuration and the tokenizer of a teacher on the hub are downloaded, as every search does
first, and a little time is spent on measuring the speed of this machine.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.console import Console

from distill.table import Column, Table, count
from distill.tasks.corpora import corpus_file
from distill.tasks.readers import embedded
from distill.training.progress import clock
from distill.training.teacher import locate
from foundation.errors import warn_once
from foundation.files import cache_folder
from nas.config.schema import StudyConfig
from nas.planning import keep
from nas.planning.budget import NO_LIMIT, closed_limits, latencies_file, limits_of, uniform_slice
from nas.planning.finalists import ALLOCATED, FEWER_LAYERS, GLOBAL
from nas.planning.stages import Enqueued, first_baselines, plan, space_of, start_of
from nas.preparation.context import TEXTS, preparation_context
from nas.preparation.data import notes_of, read, task_type_of, teacher_config
from nas.preparation.entries import TRAINING, Entry
from nas.preparation.phases import learns_from_text
from nas.preparation.prepare import entries, workspace_of
from nas.preparation.text import corpora_of
from nas.preparation.workspace import Workspace, base_of_study
from nas.search.estimate import Estimator, Sizes, measure_speed, usual_candidate
from nas.search.run import SearchRun
from nas.study.attributes import COSTS
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.genes import GENES
from search_spaces.grammar import count_graphs
from search_spaces.spaces import Space

# The number of classes that is assumed until the rows are read.
CLASSES = 2


def dry_run(search: SearchRun, console: Console) -> None:
    """Print what the search would do.

    Raises:
        UserError: as the search itself.
    """
    search.check()
    config, device = search.config, search.cluster.device
    downloads = list(downloads_of(config))
    known = rows_are_known(config, downloads)
    context = preparation_context(config, device, known=known)
    needed, workspace = list(entries(context)), workspace_of(context)
    latency = config.latency_key is not None
    table = latencies_file(config, workspace, device) if latency else None
    measured = table is not None and table.exists()
    there = {entry.what: entry.exists for entry in needed}
    there |= {"latency table of this device": measured} if latency else {}
    start = start_of(search.folder, search.stages[0], search.start)
    space, baselines = first_plan(search, workspace, start, measured)
    console.print(f"dry run: nothing is trained, and nothing is written to {search.path}")
    show_space(console, config, space, search.stages[0])
    show_baselines(console, config, space, baselines, workspace)
    reads = known and (config.task in config.rows or not workspace.folders.data.exists())
    rows = read(config, context.corpus) if reads else None
    if rows is not None and config.task in config.rows:
        for line in notes_of(config, context.tokenizer, rows):
            warn_once(line)
    show_needs(console, there, downloads, known)
    sizes = Sizes.of(config, workspace.folders.data, rows, context.tokenizer)
    student = uniform_slice(config, space) if measured or not latency else usual_candidate(config)
    show_time(console, search, space, needed, sizes, student, measured or not latency)


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
    for source in dict.fromkeys(chain.from_iterable(corpora or () for corpora in corpora_learned_from(config))):
        if not Path(source).exists():
            yield f"text {source}"


def corpora_learned_from(config: StudyConfig) -> list[tuple[str, ...] | None]:
    """The sources of the text of each training on text; None: the text of this installation."""
    return [corpora_of(config, table) for table in TEXTS if learns_from_text(config, table)]


def rows_are_known(config: StudyConfig, downloads: Sequence[str]) -> bool:
    """Whether the rows and the text, on which keys of the cache depend, are on this machine already."""
    uses_own_text = None in corpora_learned_from(config) or config.task in embedded.TASKS
    if uses_own_text and not corpus_file().exists():
        return False
    return not any(name.startswith(("rows of", "text")) for name in downloads)


def has(workspace: Workspace) -> bool:
    """Whether the cache has all that the baselines need."""
    predictions = [] if workspace.compensation is None else [workspace.compensation.predictions]
    folders = workspace.folders
    return all(path.exists() for path in (folders.data, folders.teacher, workspace.supernet, *predictions))


def first_plan(
    search: SearchRun, workspace: Workspace, start: Architecture | None, measured: bool
) -> tuple[Space, Sequence[Enqueued]]:
    """The space of the first stage and its baselines, without those that need what is not in the cache.

    Args:
        measured: whether latencies have been measured; otherwise the space has no limit on them.
    """
    config, stage = search.config, search.stages[0]
    base, graph = base_of_study(config)
    head = task_type_of(config, config.task).head
    num_labels = workspace.num_labels if has(workspace) else classes(workspace)
    if config.keep is not None:  # the search finds the budget
        config = keep.with_budget(config, base, graph, num_labels, head, None, 1.0)
    limits = closed_limits(config, base, num_labels, head)
    if has(workspace):
        if measured:
            limits = limits_of(config, workspace, search.cluster.device)
        planned = plan(config, workspace, stage, start, limits)
        return planned.space, planned.baselines
    space = space_of(config, base, graph, num_labels, head, stage, start, limits)
    return space, first_baselines(config, space, stage, start)


def classes(workspace: Workspace) -> int:
    """The number of outputs of the task's head, or `CLASSES` until the rows are read."""
    return len(workspace.folders.task.labels) or 1 if workspace.folders.data.exists() else CLASSES


def show_space(console: Console, config: StudyConfig, space: Space, stage: str) -> None:
    """Print the size of the space and the bounds of the budget."""
    base = space.base
    console.print(f"\nspace of stage {stage}: {base.depth} layers of width {base.width}, inner width {base.inner}")
    if space.varies_sizes:
        sizes = len(space.sizes)
        others = len(space.head_sizes) * len(space.embedding_sizes)
        within, all_sizes = space.size_count(), sizes**base.depth * others
        share = f"{rounded(within)} of these ({100 * within / all_sizes:.3g} %)"
        kept = f"; {share} are {within_what(config, space)} with base graphs"
        console.print(
            f"  sizes: {sizes} for a layer, {rounded(all_sizes)} for all{kept if config.keep is None else ''}"
        )
        for name, gene in GENES.items():
            if not gene.of_ffn and space.varies(name):
                values = " or ".join("full" if value is None else str(value) for value in space.genes[name])
                console.print(f"  {name.replace('_', ' ')}: {values}, which count among the sizes")
    if space.varies_graphs:
        graphs = count_graphs(space.activation, space.gated, space.max_height)
        console.print(f"  graphs: {rounded(graphs)} for a layer, some of which compute the same function")
    console.print("budget:")
    if config.keep is not None:
        console.print(
            f"  found by the search: the lowest {config.keep.cost} that keeps {config.keep.fraction:.1%} of the "
            "teacher's score"
        )
        return
    console.print(f"  parameters: {space.min_params:,} to {space.max_params:,}")
    for limit in space.limits:
        if limit.maximum < NO_LIMIT:
            console.print(f"  at most {COSTS[limit.name](limit.maximum)}")
    if lacks_latencies(config, space):
        console.print(
            f"  latency: at most {config.space.max_latency}, measured in {config.deployment.runtime} before the search"
        )


def lacks_latencies(config: StudyConfig, space: Space) -> bool:
    """Whether the latency is limited, but not in this space, because it has not been measured."""
    return config.space.max_latency is not None and not any(limit.name == "latency" for limit in space.limits)


def within_what(config: StudyConfig, space: Space) -> str:
    """What the bounds of a space say of an architecture."""
    return "within the budget" + (" but for the latency" if lacks_latencies(config, space) else "")


def show_baselines(
    console: Console, config: StudyConfig, space: Space, baselines: Sequence[Enqueued], workspace: Workspace
) -> None:
    """Print the architectures that are evaluated before all others, and their costs."""
    if config.keep is not None:
        console.print("baselines: those of the budget that the search finds")
        return
    extra = [limit for limit in space.limits if limit.name != "macs"]
    columns = [Column("baseline", is_text=True), Column("parameters", count), Column("MACs", count)]
    columns += [*(Column(limit.name, COSTS[limit.name]) for limit in extra), Column(within_what(config, space))]
    rows = [
        (
            origin,
            cost.params(architecture, space.num_labels, space.head),
            cost.macs(architecture, num_labels=space.num_labels, head=space.head),
            *(limit.total(architecture) for limit in extra),
            "yes" if space.within_budget(architecture) else "no",
        )
        for architecture, origin, _ in baselines
    ]
    Table(columns, rows).print(console)
    if not has(workspace):
        others = [] if space.start is not None else [GLOBAL]
        layers_vary = 0 in space.genes["heads"] and 0 in space.genes["stack"]
        others += [FEWER_LAYERS] if others and layers_vary and config.supernet.inheritance == "compensated" else []
        others += ALLOCATED if config.supernet.inheritance == "compensated" else []
        if others:
            console.print(f"  {', '.join(others)}: after the supernet has been made")
        if not workspace.folders.data.exists():
            console.print(f"  assuming {CLASSES} classes: the rows have not been read yet")


def show_needs(console: Console, there: dict[str, bool], downloads: Sequence[str], known: bool) -> None:
    """Print what the preparation makes or finds in the cache, and what comes from the hub.

    Args:
        there: for everything that is needed, whether it is in the cache.
    """
    console.print(f"cache {cache_folder()}:")
    for what, is_there in there.items():
        console.print(f"  {what:<36} {'is there' if is_there else 'will be made'}")
    if not known:
        console.print("  (what depends on rows or text that are not on this machine yet is counted as missing)")
    for name in downloads:
        console.print(f"from the hub, unless its cache has it: {name}")


def show_time(
    console: Console,
    search: SearchRun,
    space: Space,
    needed: Sequence[Entry],
    sizes: Sizes,
    student: Architecture,
    measured: bool,
) -> None:
    """Print how long each part that is still to be done takes, and how that was estimated.

    Args:
        student: an architecture of the size of the candidates.
        measured: whether the latency table is in the cache, if one is needed.
    """
    config, workers = search.config, search.cluster.workers
    teacher = teacher_config(config)
    speed = measure_speed(space.base, space.graph, teacher, sizes.tokens, search.cluster.device, config.mixed_precision)
    parts = Estimator(config, sizes, speed, student).parts(needed, search.stages, measured)
    console.print(f"time, with {workers} worker{'s' if workers > 1 else ''}:")
    for part in parts:
        trials = f"{part.count} trials" if part.what.startswith("stage ") else f"up to {part.count} trainings"
        each = f"  ({trials}, {part.seconds:.1f} s each)" if part.count > 1 else ""
        console.print(f"  {part.what:<36} {clock(part.total):>7}{each}")
    console.print(f"  {'in all about':<36} {clock(sum(part.total for part in parts)):>7}")
    counted = f"sentences have {sizes.tokens} tokens on average"
    if sizes.train is None:
        counted = "as the rows have not been read, sentences are assumed to fill a third of max_length"
    console.print(
        f"  basis: a forward pass of the base model computed {speed / 1e9:.1f} G MACs a second, a training step counts "
        f"as {TRAINING} passes, and {counted}"
    )


def rounded(number: int) -> str:
    """A number to two digits if it is large."""
    return f"{number:,}" if number < 10**6 else f"{number:.2g}"

"""What a stage varies, spends and hands on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from distill.files import write_text
from nas import ledger
from nas.config import ConfigError, StudyConfig, load_config
from nas.prepare import Workspace
from nas.runner import Cluster, Watch, connected, run
from nas.samplers import SAMPLERS
from search_spaces import cost
from search_spaces.architecture import Architecture, Base, Genes
from search_spaces.graph import FFNGraph
from search_spaces.spaces import Space
from supernet.importance import allocate

BASE_MODEL, UNIFORM, GLOBAL = "base model", "uniform slice", "global importance"
# Least inner neurons that global importance leaves a layer.
LEAST = 4


@dataclass(frozen=True)
class Folder:
    """`results/<study>/`: where its files are."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def storage(self) -> str:
        return ledger.sqlite_url(self.path / "study.db")

    @property
    def architecture(self) -> Path:
        return self.path / "architecture.json"

    def best(self, stage: int) -> Path:
        return self.path / f"stage-{stage}" / "best.json"

    def check(self, config: StudyConfig, resume: bool) -> None:
        """Check that a new study may go here, or that the one to resume is of this configuration.

        Raises:
            ConfigError: it holds another configuration, or a study that nobody asked to resume.
        """
        if self.config.exists():
            stored = load_config(str(self.config))
            if stored != config:
                raise ConfigError(
                    f"{self.path} belongs to another configuration ({_difference(stored, config)}): "
                    "choose another --study, or the options it was made with"
                )
            if not resume:
                raise ConfigError(
                    f"{self.path} holds this study already: go on with --resume, or choose another --study"
                )
            return
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ConfigError(f"{self.path} is not a study's folder: it has no config.toml; choose another --study")
        if resume:
            raise ConfigError(f"nothing to resume: there is no {self.config}")

    def create(self, config: StudyConfig) -> None:
        """Make the folder of a study, if it is new.

        Raises:
            ConfigError: it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}") from None
        if not self.config.exists():
            write_text(self.config, config.to_toml())


def _difference(stored: StudyConfig, wanted: StudyConfig) -> str:
    """The first value in which two configurations differ."""

    def flat(value: Any, place: str) -> dict[str, Any]:
        if isinstance(value, dict):
            return {k: v for key in value for k, v in flat(value[key], f"{place}.{key}".lstrip(".")).items()}
        return {place: value}

    left, right = (flat(config.model_dump(mode="json"), "") for config in (stored, wanted))
    place = next(key for key in left | right if left.get(key) != right.get(key))
    return f"{place} is {left.get(place)!r} there and {right.get(place)!r} here"


def stage_1_space(config: StudyConfig, base: Base, graph: FFNGraph, labels: int) -> Space:
    """Graph, stack and expansion of every layer, inside the parameter box.

    Raises:
        search_spaces.spaces.SpaceError: nothing fits the box.
    """
    table = config.space
    most = table.max_params
    if most is None:
        assert table.uniform is not None
        most = cost.params(Architecture.uniform(base, graph=graph, expansion=table.uniform), labels)
    least = table.min_params
    if least is None:
        ends = [(end(table.stacks), end(table.expansions)) for end in (min, max)]
        smallest, largest = (
            cost.params(Architecture.uniform(base, graph=graph, stack=stack, expansion=expansion), labels)
            for stack, expansion in ends
        )
        reached = min(most, largest)
        least = reached - int(table.slack * max(0, reached - smallest))
    return Space(
        base=base,
        stacks=table.stacks,
        expansions=table.expansions,
        min_params=least,
        max_params=most,
        edit_rate=table.edit_rate,
        labels=labels,
        graph=graph,
    )


def largest_uniform(space: Space, graph: FFNGraph) -> Architecture:
    """The uniform slice, one block a layer, of the largest inner width that the box has room for."""

    def at(inner: int) -> Architecture:
        return Architecture.uniform(space.base, graph=graph, expansion=Fraction(inner, space.base.inner))

    low, high = 1, space.base.inner
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cost.params(at(middle), space.labels) <= space.max_params else (low, middle - 1)
    return at(low)


def globally_important(space: Space, graph: FFNGraph, workspace: Workspace) -> Architecture:
    """As many inner neurons as the uniform slice has, given to the layers by importance over the whole network."""
    base = space.base
    total = base.depth * largest_uniform(space, graph).layers[0].inner(base)
    kept = allocate(workspace.importance(), total, min(LEAST, total // base.depth))
    return Architecture(base, tuple(Genes(graph, 1, Fraction(inner, base.inner)) for inner in kept))


def run_stage_1(
    config: StudyConfig,
    folder: Folder,
    workspace: Workspace,
    cluster: Cluster,
    *,
    storage: str,
    prefix: str = "",
    say: Callable[[str], None],
    watch: Callable[[optuna.Study, int, int], None],
) -> Architecture:
    """Search, confirm the best with fresh seeds, and write the winner.

    `prefix` goes before the names of the Optuna studies, for a storage that holds those of others too.
    """
    base, graph = workspace.base()
    space = stage_1_space(config, base, graph, workspace.labels)
    folder.create(config)
    stage = config.stage1
    study = ledger.open_study(storage, f"{prefix}stage-1", SAMPLERS[stage.sampler](space, config.seed))
    ledger.settle(study)
    ledger.line_up(
        study,
        [
            (Architecture.uniform(base, graph=graph), BASE_MODEL, None),
            (largest_uniform(space, graph), UNIFORM, None),
            (globally_important(space, graph, workspace), GLOBAL, None),
        ],
    )

    def watching(total: int) -> Watch:
        return lambda study, number: watch(study, number, total)

    with connected(cluster):
        run(study, space, workspace, cluster, trials=stage.trials, origin=stage.sampler, watch=watching(stage.trials))
        ranked = finalists(study, stage.confirm)
        if not ranked:
            raise ConfigError("no candidate in the parameter box got a score: see the trials' attribute 'failure'")
        confirmation = ledger.open_study(storage, f"{prefix}stage-1-confirmation")
        ledger.settle(confirmation)
        runs = len(ranked) * stage.confirm_seeds
        fresh = range(config.seed + 1, config.seed + 1 + stage.confirm_seeds)
        wanted = [
            (ledger.architecture_of(trial), f"trial {trial.number}", seed) for seed in fresh for trial in ranked
        ]
        if ledger.line_up(confirmation, wanted):
            say(f"confirming the best {len(ranked)} with {stage.confirm_seeds} fresh seeds each")
        run(
            confirmation, space, workspace, cluster, trials=runs, origin="confirmation", watch=watching(runs)
        )
    return hand_on(folder, ranked, confirmation)


def finalists(study: optuna.Study, count: int) -> list[FrozenTrial]:
    """The best `count` different architectures inside the parameter box."""
    best: dict[Architecture, FrozenTrial] = {}
    for trial in ledger.ranked(study):
        best.setdefault(ledger.architecture_of(trial), trial)
    return list(best.values())[:count]


def hand_on(folder: Folder, ranked: list[FrozenTrial], confirmation: optuna.Study) -> Architecture:
    """Choose the finalist of the best mean over fresh seeds and write `best.json` and `architecture.json`."""
    scores: dict[Architecture, list[float]] = {ledger.architecture_of(trial): [] for trial in ranked}
    for trial in ledger.scored(confirmation):
        scores[ledger.architecture_of(trial)].append(trial.value or 0.0)
    rows = []
    for trial, (architecture, fresh) in zip(ranked, scores.items(), strict=True):
        rows.append(
            {
                "trial": trial.number,
                "origin": trial.user_attrs[ledger.ORIGIN],
                "score": trial.value,
                "standard_error": trial.user_attrs["standard_error"],
                "confirmed_scores": fresh,
                "confirmed_mean": mean(fresh) if fresh else None,
                "confirmed_deviation": stdev(fresh) if len(fresh) > 1 else None,
                "params": trial.user_attrs["params"],
                "macs": trial.user_attrs["macs"],
                "formula": trial.user_attrs["formula"],
                "architecture": architecture.to_json(),
            }
        )
    # A finalist that failed with every fresh seed comes after all that did not.
    confirmed = [row for row in rows if row["confirmed_mean"] is not None]
    winner = max(confirmed or rows, key=lambda row: row["confirmed_mean"] if confirmed else row["score"])
    best = folder.best(1)
    write_text(best, json.dumps({"winner": winner, "finalists": rows}, indent=2) + "\n")
    architecture = Architecture.from_json(winner["architecture"])
    architecture.save(folder.architecture)
    return architecture

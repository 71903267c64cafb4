"""The studies in a folder: which stages they have, how far these are, and their best scores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.table import Column, Table
from foundation.errors import UserError
from nas.config.load import load_config
from nas.study import ledger
from nas.study.attributes import goals_of
from nas.study.folder import STAGES, Folder
from nas.study.names import REFERENCE, existing_studies


@dataclass(frozen=True)
class StageState:
    """How far a stage is.

    Attributes:
        state: "done", "running" or "interrupted"; or "unknown" if study.db has no trials of the study, which are in
            another storage.
        count: how many trials have ended, of how many; empty if the trials cannot be counted.
        best: what the best trial within the budget has, such as "fidelity 0.8833 (trial 2)"; of a stage that is done,
            the confirmed score of its winner.
    """

    stage: str
    state: str
    count: str
    best: str


@dataclass(frozen=True)
class StudyState:
    """The stages of a study that have begun, in order, and the reason if they could not be read."""

    folder: Path
    stages: tuple[StageState, ...]
    reason: str = ""

    @property
    def state(self) -> str:
        """The state of the study: that of its last stage."""
        if self.reason:
            return "unreadable"
        return self.stages[-1].state if self.stages else "not begun"


def studies(out: Path) -> Iterator[StudyState]:
    """The states of the studies whose folders are in `out`, in the order of their names."""
    if not out.is_dir():
        return
    for path in sorted(out.iterdir()):
        # Checkpoints have a configuration, too, and their metrics.
        if (path / "config.toml").is_file() and not (path / "metrics.json").exists():
            try:
                yield state_of(Folder(path))
            except UserError as error:
                yield StudyState(path, (), " ".join(str(error).split()))


def table(known: Sequence[StudyState]) -> Table:
    """A row for each stage of each study."""
    columns = [Column(head, is_text=head != "trials") for head in ("study", "stage", "state", "trials", "best")]
    rows: list[tuple[str | None, ...]] = []
    for study in known:
        if not study.stages:
            rows.append((study.folder.name, None, study.state, None, study.reason))
        for number, stage in enumerate(study.stages):
            name = None if number else study.folder.name
            rows.append((name, stage.stage, stage.state, stage.count, stage.best))
    return Table(columns, rows)


def state_of(folder: Folder) -> StudyState:
    """The state of a study.

    Raises:
        ConfigError, StorageError: its configuration or its database cannot be read.
    """
    config = load_config(str(folder.config))
    database = folder.path / "study.db"
    existing = existing_studies(folder) if database.exists() else {}
    references = existing.get(REFERENCE)
    running = folder.is_running()
    begun = [stage for stage in STAGES if folder.stage(stage).exists()]
    result = []
    for stage in begun:
        study = existing.get(f"stage-{stage}")
        state, best = ("interrupted", "") if existing else ("unknown", "no trial in study.db")
        if study is not None and (ranked := ledger.ranked(study)):
            compared_by = goals_of(study)[0]
            best = f"{compared_by} {ranked[0].values[0]:.4f} (trial {ranked[0].number})"
        if (outcome := folder.outcome(stage)) is not None:
            state, winner = "done", outcome["winner"]
            if winner.get("confirmed_mean") is not None:
                best = f"confirmed score {winner['confirmed_mean']:.4f} (trial {winner['trial']})"
        elif running and stage == begun[-1]:
            state = "running"
        count = ""
        if study is not None:
            counted = [study, references] if references is not None and stage == STAGES[0] else [study]
            count = f"{sum(len(ledger.finished(one)) for one in counted)} of {config.stage(stage).trials}"
        result.append(StageState(stage, state, count, best))
    return StudyState(folder.path, tuple(result))

"""A search as a value, which `python -m nas.search` builds from its options, and Python code without any."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optuna.exceptions import DuplicatedStudyError

from nas.config.schema import ConfigError, StudyConfig
from nas.planning.budget import check_deployment
from nas.planning.stages import Plan, check_stage
from nas.preparation.data import check_one_shot, check_tasks, contents_of
from nas.study import ledger
from nas.study.folder import Folder
from nas.study.names import existing_studies, prefix_of
from nas.study.storage import check_storage, may_exist, reporting_failures
from nas.workers.cluster import Cluster
from search_spaces.architecture import Architecture


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """What to search, where to keep it, and where to run it.

    Attributes:
        path: the folder of the study.
        stages: the stages to run, in this order.
        start: the architecture that the first of these stages refines; None: the winner of the stage before it.
        cluster: the workers that evaluate candidates.
        storage: an Optuna storage URL; None: study.db in the study's folder.
        resume: whether stages that have begun continue.
        preset: the name of the preset or file that the configuration was made from, for the architecture's file.
    """

    config: StudyConfig
    path: Path
    stages: Sequence[str] = ("1", "2", "3")
    start: Architecture | None = None
    cluster: Cluster = field(default_factory=Cluster)
    storage: str | None = None
    resume: bool = False
    preset: str | None = None

    @property
    def folder(self) -> Folder:
        return Folder(self.path)

    @property
    def url(self) -> str:
        return self.storage or self.folder.storage

    def check(self) -> None:
        """Refuse a search that cannot work, as far as this can be seen before anything is trained.

        Raises:
            UserError: a mistake in the configuration or in the files that it names, or the study's folder has another
                search or one that is not to be resumed.
        """
        check_tasks(self.config)
        if "3" in self.stages and self.config.stage3.evaluation == "one_shot":
            check_one_shot(self.config)
        check_deployment(self.config, self.cluster.device)
        check_storage(self.url)
        self.folder.check(self.config, self.stages, self.resume)
        self.folder.check_contents(contents_of(self.config) if self.folder.contents.exists() else {})
        check_stage(self.config, self.folder, self.stages[0], self.start)

    def claim(self, first: Plan | None = None) -> None:
        """Refuse a new search whose studies a storage already has, from a search in another folder.

        Args:
            first: the plan of the first stage, whose study is created now, so that only one of two searches that begin
                at the same time can have it.

        Raises:
            ConfigError: the storage has studies of this name.
            StorageError: the storage cannot be opened.
        """
        if self.storage is None or self.folder.config.exists() or not may_exist(self.storage):
            return
        with reporting_failures(self.storage):
            taken = bool(existing_studies(self.folder, self.storage))
            if first is not None and not taken:
                name = f"{prefix_of(self.folder, self.storage)}{first.study}"
                try:
                    ledger.open_study(self.storage, name, goals=first.goals, new=True)
                except DuplicatedStudyError:
                    taken = True
        if taken:
            raise ConfigError(
                f"--storage already has the study {self.path.resolve().name}, of a search with another --out: choose "
                "another --study"
            )

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
from nas.study.folder import STAGES, Folder
from nas.study.names import check_given, existing_studies, prefix_of, studies_of
from nas.study.storage import check_storage, file_of, reporting_failures
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
        check_storage(self.url, self.path)
        self.folder.check(self.config, self.stages, self.resume)
        self._check_trials()
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
        if self.storage is None or self.folder.config.exists():
            return
        file = file_of(self.storage)
        with reporting_failures(self.storage):
            taken = (file is None or file.exists()) and bool(existing_studies(self.folder, self.storage))
            # The file may be in the study's own folder, which is created later.
            if first is not None and not taken and (file is None or file.parent.exists()):
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

    def begin(self, plan: Plan) -> None:
        """Record that a stage has begun, whose study is there from then on."""
        ledger.open_study(self.url, f"{prefix_of(self.folder, self.url)}{plan.study}", goals=plan.goals)
        self.folder.begin(plan.stage, self.config, plan.start)

    def _check_trials(self) -> None:
        """Raise UserError if the storage is not the one that has the trials of the stages that have begun."""
        folder = self.folder
        if any(folder.stage(stage).exists() for stage in STAGES):
            studies_of(folder, self.storage)
        elif folder.elsewhere is not None:
            check_given(folder, self.storage)

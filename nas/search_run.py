"""A search as a value: what `python -m nas.search` builds from its options, and Python code without any."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distill.cli import several_processes
from nas.cluster import Cluster, check_cluster
from nas.config.schema import StudyConfig
from nas.estimate import expected_parts
from nas.pipeline import Search
from nas.preparation.context import preparation_context
from nas.preparation.prepare import entries, prepare_in
from nas.progress import Listener
from nas.stages import check_stage
from nas.study.folder import Folder
from nas.study.lock import check_storage, sole_driver
from search_spaces.architecture import Architecture


@dataclass(frozen=True, kw_only=True)
class SearchRun:
    """What to search, where to keep it, and where to run it.

    Attributes:
        path: the folder of the study.
        stages: the stages to run, in this order; `("single",)` searches everything at once.
        start: the architecture that the first of these stages refines; None: the winner of the stage before it.
        cluster: the workers that evaluate candidates.
        storage: an Optuna storage URL; None: study.db in the study's folder.
        resume: whether stages that have begun continue.
    """

    config: StudyConfig
    path: Path
    stages: Sequence[str] = ("1", "2", "3")
    start: Architecture | None = None
    cluster: Cluster = field(default_factory=Cluster)
    storage: str | None = None
    resume: bool = False

    @property
    def folder(self) -> Folder:
        """The study's folder."""
        return Folder(self.path)

    @property
    def url(self) -> str:
        """The storage URL."""
        return self.storage or self.folder.storage

    def check(self) -> None:
        """Refuse a search that cannot work, as far as this can be seen before anything is trained.

        Raises:
            UserError: a mistake in the configuration or in the files that it names, or the study's folder has another
                search or one that is not to be resumed.
        """
        check_storage(self.url)
        self.folder.check(self.config, self.stages, self.resume)
        check_stage(self.config, self.folder, self.stages[0], self.start)

    def prepare(self, listener: Listener | None = None) -> None:
        """Make what the first stage needs and keep it in the cache; `torchrun` may call this in several processes."""
        self.check()
        listener = listener or Listener()
        context = preparation_context(self.config, self.cluster.device, listener.update)
        # One process saves the teacher's outputs, when the search begins.
        search = Search(self, prepare_in(context, outputs=not several_processes()), listener)
        search.prepared(search.first())

    def run(self, listener: Listener | None = None) -> Architecture:
        """Prepare the study and run its stages; returns the last winner.

        Raises:
            UserError: a mistake in the configuration or in the files that it names, or another process runs the study.
        """
        self.check()
        check_cluster(self.cluster)
        listener = listener or Listener()
        context = preparation_context(self.config, self.cluster.device, listener.update)
        listener.expect(expected_parts(self.config, entries(context), self.stages, context.data))
        search = Search(self, prepare_in(context), listener)
        first = search.first()
        listener.finish()
        self.folder.create(self.config)
        with sole_driver(self.url, self.path.name):
            # Another process may have started the study while this one was preparing it.
            self.folder.check(self.config, self.stages, self.resume)
            listener.say(f"study {self.path} (optuna-dashboard {self.url} --artifact-dir {self.folder.artifacts})")
            return search.run_stages(first)

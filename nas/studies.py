"""`run_search` and `load_study`: a search, and what it has found so far, in Python."""

import warnings
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.memory import quiet_transformers
from distill.training.progress import ProgressCallback, ignore_progress
from foundation import interrupt
from foundation.errors import naming_arguments, shortened
from nas.compress.python import Compressed
from nas.config.load import load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.final.folder import make_folder
from nas.final.run import FinalRun, train_final
from nas.report import choice, command, study, verdict
from nas.report.drawing import svg
from nas.report.figures import styled
from nas.report.outcome import entry, models_of, models_table
from nas.report.page import Picture
from nas.report.study import COMPLETE, Candidate, Stage, read
from nas.search import pipeline
from nas.search.options import STAGES, check_arguments
from nas.search.progress import Progress
from nas.search.run import SearchRun
from nas.study.attributes import ARCHITECTURE, WITHIN_BUDGET, attribute
from nas.study.description import formula
from nas.study.folder import Folder
from nas.workers.cluster import Cluster, usual_workers
from search_spaces.architecture import Architecture

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Study(study.Study):
    """A study as it was when it was loaded, and what can be done with it. Notebooks show its table and the drawing of
    its best architecture.
    """

    def __repr__(self) -> str:
        return f"<Study {self.folder.path}: {verdict.of_study(self)}>"

    def _repr_html_(self) -> str:
        models = models_of(self)
        strong = max((place for place, model in enumerate(models) if model[1] is self.best), default=None)
        entries = [entry(self, *model) for model in models]
        table = models_table(entries, self.last.teacher, strong, f"Study {self.name}")
        return table.html() + ("" if self.best is None else svg(self.best.architecture))

    @property
    def best(self) -> Candidate | None:
        """The winner of the last stage that has ended or, if none has, the best candidate so far within the budget."""
        return self.last.leader

    def pick(
        self,
        trial: int | None = None,
        *,
        stage: str | None = None,
        keep: str | float | None = None,
        max_params: str | int | None = None,
        max_macs: str | int | None = None,
        max_latency: str | None = None,
        max_size: str | int | None = None,
    ) -> Candidate:
        """The candidate that `python -m nas.pick` chooses: the knee of the front, or with one goal the winner.

        Args:
            trial: the number of the candidate, in place of all limits.
            stage: "1", "2" or "3"; by default the last one with a score.
            keep: the cheapest candidate that keeps this fraction of the teacher's score, such as "99%" or 0.99.
            max_params, max_macs: limits such as "8M" or 8_000_000.
            max_latency, max_size: limits such as "12ms" and "10MB".

        Raises:
            UserError: there is no such candidate.
        """
        limits = {"params": max_params, "macs": max_macs, "latency": max_latency, "size": max_size}
        with naming_arguments():
            return choice.pick(self, stage, trial, keep, limits)[1]

    def front(self, cost: str | None = None) -> list[Candidate]:
        """The Pareto front of score and a cost in the last stage, the cheapest first.

        Args:
            cost: "params", "macs", "latency" or "size"; by default the second goal or, without one, what the
                configuration limits.

        Raises:
            ConfigError: the trials do not have this cost.
        """
        wanted, scored = cost or choice.cost_of(self, self.last), self.last.within_budget
        if scored and not any(wanted in one.costs for one in scored):
            known = ", ".join(scored[0].costs)
            raise ConfigError(f"cost: the trials of {self.folder.path} have no {wanted}; they have {known}")
        return self.last.front(wanted)

    def trials_dataframe(self) -> "pandas.DataFrame":
        """The trials of all stages: a row for each, with its scores, costs and parameters.

        `value` is what the stage compares candidates by and `metric` the task's metric; `confirmed` is the mean metric
        after training with fresh seeds; latencies are in microseconds, sizes in bytes.
        """
        import pandas

        return pandas.DataFrame([self._row(stage, one) for stage in self.stages for one in stage.candidates])

    def _row(self, stage: Stage, candidate: Candidate) -> dict[str, Any]:
        """A trial as a row of `trials_dataframe`; missing values are None or NaN."""
        value, error = candidate.result
        confirmed, attributes = self.confirmed_scores(candidate), candidate.trial.user_attrs
        described = attribute(candidate.trial, ARCHITECTURE) is not None  # a waiting trial has none yet
        return {
            "stage": stage.name,
            "trial": candidate.number,
            "origin": candidate.origin,
            "state": candidate.state,
            "reason": candidate.reason,
            "value": value,
            "standard_error": error,
            "metric": stage.metric(candidate) if candidate.state == COMPLETE else None,
            "confirmed": sum(confirmed) / len(confirmed) if confirmed else None,
            **{name: attributes.get(name) for name in ("params", "params_active", "macs", "latency", "size")},
            "within_budget": attributes.get(WITHIN_BUDGET),
            "duplicate_of": candidate.duplicate_of,
            "seconds": attributes.get("seconds"),
            "formula": formula(candidate.architecture) if described else None,
            **candidate.trial.params,
        }

    def figures(self) -> "dict[str, Figure | str]":
        """The figures of the report by their names: of matplotlib, or SVG for drawings of architectures.

        Raises:
            UserError: matplotlib is not installed.
        """
        command.check_plots()
        with styled():
            parts = [part for section in command.sections_of(self) for part in section.parts]
        return {part.name: part.drawn for part in parts if isinstance(part, Picture)}

    def report(self, out: str | Path | None = None, checkpoint: str | Path | None = None) -> Path:
        """Write the page that `python -m nas.report` writes; returns its file.

        Args:
            out: the page, by default report.html in the study's folder; the figures go into a folder of the same name.
            checkpoint: of the final training; by default that in the study's folder, if there is one.

        Raises:
            UserError: matplotlib is not installed, a file cannot be written, or the checkpoint is none.
        """
        command.check_plots()
        page = _path(out, "out") if out is not None else self.folder.path / "report.html"
        with naming_arguments():
            chosen = _path(checkpoint, "checkpoint") if checkpoint is not None else None
            command.write_report(self, page, chosen)
        return page

    def train(
        self,
        candidate: Candidate | None = None,
        out: str | Path | None = None,
        *,
        seed: int | None = None,
        device: str = "auto",
        skip_base: bool = False,
        resume: bool = False,
        on_progress: ProgressCallback = ignore_progress,
    ) -> Compressed:
        """Train a candidate in earnest, as `train_final.py` does, and write the checkpoint.

        Args:
            candidate: by default `best`.
            out: an empty or new folder; by default "final" in the study's folder.
            seed: of batch order and dropout; by default the study's.
            skip_base: do not train and measure the base model for comparison.
            resume: continue a training in `out` that was interrupted.
            on_progress: called with the current piece of work and the fraction of it that is done.

        Raises:
            UserError: nothing has a score yet, `out` has other files, or the training diverged.
        """
        chosen = candidate or self.best
        folder = _path(out, "out") if out is not None else self.folder.path / "final"
        if chosen is None:
            raise ConfigError(f"{self.folder.path} has no trial with a score within its budget yet")
        final = FinalRun(
            config=self.config,
            architecture=chosen.architecture,
            out=folder,
            seed=self.config.seed if seed is None else seed,
            device=device,
            skip_base=skip_base,
        )
        with naming_arguments(), quiet_transformers():
            make_folder(folder, resume)
            train_final(final, on_progress, warnings.warn)
        return Compressed.load(folder)


def load_study(folder: str | Path, storage: str | None = None) -> Study:
    """The study in the folder of a search, as far as it has come.

    Args:
        folder: such as "results/demo".
        storage: the Optuna storage URL; by default study.db in the folder.

    Raises:
        UserError: it is not the folder of a study, no stage has begun, or its storage cannot be read.
    """
    with naming_arguments():
        return Study(**vars(read(Folder(_path(folder, "folder")), storage)))


def _path(value: object, argument: str) -> Path:
    """An argument that names a file or folder. Raises ConfigError if it is of another type."""
    if not isinstance(value, str | PathLike):
        raise ConfigError(f"{argument}: must be a text or a Path, not {shortened(value)}")
    return Path(value)


def run_search(
    config: StudyConfig | str | Path,
    folder: str | Path,
    *,
    stage: str = "all",
    start: Architecture | None = None,
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    storage: str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Study:
    """Search, as `python -m nas.search` does. After Ctrl-C, a `KeyboardInterrupt`, `load_study` gives what was found so
    far, and the same call with `resume=True` continues.

    Args:
        config: from `load_config`, or the name of a preset, or a .toml file.
        folder: the new folder of the study, such as "results/mine".
        stage: "1", "2", "3" or "all".
        start: the architecture that stage 2 or 3 refines; by default the winner of the stage before it.
        workers: how many candidates are evaluated at a time; by default one per processor, at most 2.
        address: a running Ray cluster, "HOST:PORT".
        device: "auto", "cpu" or "cuda".
        storage: an Optuna storage URL; by default study.db in the folder.
        resume: continue an interrupted study.
        quiet: print only warnings instead of the progress.

    Raises:
        UserError: a mistake in the configuration or in the files that it names, or the folder has another search.
    """
    path = _path(folder, "folder")
    with naming_arguments(), quiet_transformers(), interrupt.recording(), Progress(quiet=quiet) as progress:
        check_arguments(path.name, stage, start is not None, workers, address, device)
        search = SearchRun(
            config=config if isinstance(config, StudyConfig) else load_config(config),
            path=path,
            stages=STAGES[stage],
            start=start,
            cluster=Cluster(workers=workers or usual_workers(), address=address, device=device),
            storage=storage,
            resume=resume,
        )
        pipeline.run_search(search, progress)
    return load_study(path, storage)

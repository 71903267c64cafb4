"""`run_search`: a search from Python."""

from pathlib import Path

from foundation import interrupt
from foundation.errors import naming_arguments
from nas.compress.python import quiet_transformers
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.search import pipeline
from nas.search.options import STAGES, check_arguments
from nas.search.progress import Progress
from nas.search.run import SearchRun
from nas.studies import Study, load_study
from nas.workers.cluster import Cluster, usual_workers
from search_spaces.architecture import Architecture


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
    path = Path(folder)
    with naming_arguments(), quiet_transformers(), interrupt.recording(), Progress(quiet=quiet) as progress:
        check_arguments(path.name, stage, start is not None, workers, address, device)
        search = SearchRun(
            config=config if isinstance(config, StudyConfig) else load_config(str(config)),
            path=path,
            stages=STAGES[stage],
            start=start,
            cluster=Cluster(workers=workers or usual_workers(), address=address, device=device),
            storage=storage,
            resume=resume,
        )
        pipeline.run_search(search, progress)
    return load_study(path, storage)

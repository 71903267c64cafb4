"""Search the heads, FFNs and layers of a small student of a large encoder.

The command is `python -m nas.search` or `ffn-nas`; `nas.search.options` has its options.
"""

import argparse
import contextlib
import sys
from pathlib import Path

from distill.cli import DONE, INTERRUPTED, guard, is_first_process
from distill.training.progress import loading, silence_transformers, terminal
from foundation import interrupt
from foundation.errors import UserError
from nas.config.load import load_config
from nas.search.options import DEFAULT, STAGES, check, overrides, parser


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    folder = options.out / (options.study if options.study is not None else Path(options.preset or DEFAULT).stem)
    with interrupt.recording():
        try:
            return guard("nas.search", lambda: command(options, folder))
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):  # of someone who does not want to wait for the results
                show_so_far(options, folder)
            outcome = "with --resume continues it" if (folder / "config.toml").exists() else "continues it"
            with interrupt.ignored():
                print(f"nas.search: interrupted; the same command {outcome}", file=sys.stderr)
            return INTERRUPTED


def show_so_far(options: argparse.Namespace, folder: Path) -> None:
    """Show the results of a search that was interrupted, if there are any."""
    database = folder / "study.db"
    if not options.dry_run and (database.exists() or (options.storage and (folder / "config.toml").exists())):
        from nas.report.outcome import show_results
        from nas.study.folder import Folder

        study = Folder(folder)
        storage = options.storage or study.storage
        with contextlib.suppress(UserError):  # such as a storage that is gone, which the search itself has reported
            show_results(study, storage, terminal(stderr=options.json), options.json)


def command(options: argparse.Namespace, folder: Path) -> int:
    """Check the options, load the configuration and search; returns the exit status.

    Args:
        folder: the study's folder.

    Raises:
        UserError: a mistake in the options or the files that they name.
    """
    check(options, folder.name if options.study is None else options.study)
    stored = folder / "config.toml"
    source = str(stored) if options.preset is None and stored.exists() else options.preset or DEFAULT
    with loading(options.quiet):
        config = load_config(source, overrides(options))

    from nas.search.progress import Progress

    console = terminal(stderr=options.json, quiet=not is_first_process())
    with Progress(console, options.quiet) as progress:
        if not options.dry_run:
            progress.update("loading PyTorch, Transformers and Ray", None)
        # These modules import torch, transformers and ray, which takes seconds.
        from nas.report.outcome import show_results
        from nas.search.pipeline import prepare_search, run_search
        from nas.search.run import SearchRun
        from nas.study.storage import reporting_failures
        from nas.workers.cluster import Cluster, usual_workers
        from search_spaces.architecture import Architecture

        silence_transformers()
        search = SearchRun(
            config=config,
            path=folder,
            stages=STAGES[options.stage],
            start=Architecture.load(options.start) if options.start else None,
            cluster=Cluster(workers=options.workers or usual_workers(), address=options.address, device=options.device),
            storage=options.storage,
            resume=options.resume,
            preset=None if source == str(stored) else source,
        )
        if options.dry_run:
            from nas.search.dry_run import dry_run

            dry_run(search, console)
            return DONE
        if options.prepare:
            prepare_search(search, progress)
            return DONE
        run_search(search, progress)
    with reporting_failures(search.url):
        show_results(search.folder, search.url, console, options.json)
    return DONE

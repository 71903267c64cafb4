"""Search the feed-forward networks of a small student of a large encoder.

The command is `python -m nas.search` or `ffn-nas`; `nas.options` has its options.
"""

import argparse
import contextlib
import os
import sys
from pathlib import Path

from distill import interrupt
from distill.cli import DONE, INTERRUPTED, guard, is_first_process, several_processes
from distill.training.progress import loading
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.options import DEFAULT, check, overrides, parser, stages_of
from search_spaces.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
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
        from rich.console import Console

        from nas.results import show_results
        from nas.study.folder import Folder

        study = Folder(folder)
        storage = options.storage or study.storage
        console = Console(highlight=False, soft_wrap=True, stderr=options.json)
        with contextlib.suppress(UserError):  # such as a storage that is gone, which the search itself has reported
            show_results(study, storage, console, options.json)


def command(options: argparse.Namespace, folder: Path) -> int:
    """Check the options, load the configuration and search.

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
    return search(config, options, folder)


def search(config: StudyConfig, options: argparse.Namespace, path: Path) -> int:
    """Prepare and run the stages in the study's folder `path`; returns the exit status."""
    from rich.console import Console

    from nas.progress import Progress

    console = Console(highlight=False, soft_wrap=True, stderr=options.json, quiet=not is_first_process())
    with Progress(console, options.quiet) as progress:
        if not options.dry_run:
            progress.update("loading PyTorch, Transformers and Ray", None)
        # These modules import torch, transformers and ray, which takes seconds.
        from transformers.utils import logging as transformers_logging

        from nas.cluster import Cluster, check_cluster
        from nas.estimate import expected_parts
        from nas.pipeline import Search
        from nas.preparation.data import check_tasks
        from nas.preparation.prepare import prepare
        from nas.results import show_results
        from nas.stages import check_stage
        from nas.study.folder import Folder
        from nas.study.lock import check_storage, sole_driver
        from nas.study.storage import retrying
        from search_spaces.architecture import Architecture

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        workers = options.workers or min(2, os.cpu_count() or 1)
        cluster = Cluster(workers=workers, address=options.address, device=options.device)
        folder, stages = Folder(path), stages_of(options)
        storage = options.storage or folder.storage
        check_tasks(config)
        check_storage(storage)
        folder.check(config, stages, options.resume)
        start = Architecture.load(options.start) if options.start else None
        check_stage(config, folder, stages[0], start)
        if options.dry_run:
            from nas.dry_run import dry_run

            return dry_run(config, options, folder, stages, workers, console)
        if not options.prepare:
            check_cluster(cluster)
            progress.expect(expected_parts(config, stages))
        search = Search(
            config,
            folder,
            # One process saves the teacher's outputs, when the search begins.
            prepare(config, options.device, progress.update, outputs=not several_processes()),
            cluster,
            storage=storage,
            say=progress.say,
            on_progress=progress.update,
            on_trial=progress.trial,
            on_start=progress.started,
        )
        first = search.first(stages[0], start)
        if options.prepare:
            search.prepared(first)
            return DONE
        progress.finish()
        folder.create(config)

        def run(again: bool) -> None:
            with sole_driver(storage, path.name):
                # Another process may have started the study while this one was preparing it.
                folder.check(config, stages, options.resume or again)
                progress.say(f"study {path} (optuna-dashboard {storage} --artifact-dir {folder.artifacts})")
                search.run(first, stages[1:])

        retrying(storage, run, progress.say)
    retrying(storage, lambda again: show_results(folder, storage, console, options.json), progress.say)
    return DONE


if __name__ == "__main__":
    sys.exit(main())

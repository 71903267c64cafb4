"""Search the feed-forward networks of a small student of a large encoder.

The command is `python -m nas.search` or `ffn-nas`; `nas.options` has its options.
"""

import argparse
import os
import sys
from pathlib import Path

from distill.cli import DONE, INTERRUPTED, guard
from nas import interrupt
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.options import DEFAULT, check, overrides, parser, stages_of


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    folder = options.out / (options.study if options.study is not None else Path(options.preset or DEFAULT).stem)
    try:
        with interrupt.recording():
            return guard("nas.search", lambda: command(options, folder))
    except KeyboardInterrupt:
        outcome = "with --resume continues it" if (folder / "config.toml").exists() else "starts again"
        print(f"nas.search: interrupted; the same command {outcome}", file=sys.stderr)
        return INTERRUPTED


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
    return search(load_config(source, overrides(options)), options, folder)


def search(config: StudyConfig, options: argparse.Namespace, path: Path) -> int:
    """Prepare and run the stages in the study's folder `path`; returns the exit status."""
    # These modules import torch, transformers and ray, which takes seconds.
    from transformers.utils import logging as transformers_logging

    from nas.cluster import Cluster, check_cluster
    from nas.pipeline import Search
    from nas.preparation.prepare import prepare
    from nas.progress import Progress
    from nas.stages import check_stage
    from nas.study.description import formula
    from nas.study.folder import Folder
    from nas.study.lock import sole_driver
    from nas.study.storage import reporting_lost_storage
    from search_spaces.architecture import Architecture

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    workers = options.workers or min(2, os.cpu_count() or 1)
    cluster = Cluster(workers=workers, address=options.address, device=options.device)
    folder, stages = Folder(path), stages_of(options)
    storage = options.storage or folder.storage
    folder.check(config, stages, options.resume)
    start = Architecture.load(options.start) if options.start else None
    check_stage(config, folder, stages[0], start)
    check_cluster(cluster)
    with Progress() as progress:
        search = Search(
            config,
            folder,
            prepare(config, options.device, progress.update),
            cluster,
            storage=storage,
            prefix=f"{path.name}/" if options.storage else "",
            say=progress.say,
            on_progress=progress.update,
            on_trial=progress.trial,
        )
        first = search.first(stages[0], start)
        progress.finish()
        folder.create(config)
        with reporting_lost_storage(storage), sole_driver(storage, path.name):
            # Another process may have started the study while this one was preparing it.
            folder.check(config, stages, options.resume)
            progress.say(f"study {path} (optuna-dashboard {storage})")
            winner = search.run(first, stages[1:])
    progress.say(f"winner: {formula(winner)}")
    progress.say(f"wrote {folder.architecture}; next: ffn-train-final {folder.architecture}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

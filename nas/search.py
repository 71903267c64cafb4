"""`python -m nas.search --stage 1`: search a student's feed-forward networks."""

import argparse
import os
import re
import sys
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Threads that wait in a spin make a machine with other work on it many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from nas.cli import DONE, INTERRUPTED, Parser, guard
from nas.config import ConfigError, StudyConfig, count, load_config, presets


def parser() -> Parser:
    """The command line's options."""
    result = Parser(prog="nas.search", description="Search the feed-forward networks of a small BERT-like encoder.")
    result.add_argument("--stage", required=True, choices=["1"], help="1: operations, stacks and expansions together")
    result.add_argument("--preset", default="demo", help=f"{', '.join(presets())}, or a .toml file (default: demo)")
    result.add_argument("--study", help="name of the study and its folder (default: the preset's name)")
    result.add_argument("--out", type=Path, default=Path("results"), help="folder of all studies (default: results)")
    result.add_argument("--trials", type=int, help="candidates to evaluate, the enqueued baselines among them")
    result.add_argument("--sampler", help="random or tpe")
    result.add_argument("--max-params", help="largest student, such as 15M, pooler and classifier included")
    result.add_argument("--teacher", help="a BERT-shaped encoder: hub name or folder")
    result.add_argument("--tasks", help="the task to search on")
    result.add_argument("--storage", help="Optuna storage URL (default: study.db in the study's folder)")
    result.add_argument("--workers", type=int, help="candidates at a time (default: one a processor, at most 2)")
    result.add_argument("--address", help="of a running Ray cluster")
    result.add_argument("--resume", action="store_true", help="go on with a study that was cut short")
    result.add_argument("--seed", type=int, help="of everything random")
    result.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    overrides = {
        "stage1.trials": options.trials,
        "stage1.sampler": options.sampler,
        "teacher": options.teacher,
        "task": options.tasks,
        "seed": options.seed,
    }

    path = options.out / (options.study if options.study is not None else Path(options.preset).stem)

    def command() -> int:
        if options.max_params is not None:
            try:
                overrides["space.max_params"] = count(options.max_params)
            except ValueError as error:
                raise ConfigError(f"--max-params: {error}") from None
        config = load_config(options.preset, {key: value for key, value in overrides.items() if value is not None})
        name = path.name if options.study is None else options.study
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ConfigError(f"--study {name!r}: use letters, digits, '.', '_', '+' and '-'")
        if options.workers is not None and options.workers < 1:
            raise ConfigError(f"--workers {options.workers}: at least 1")
        return search(config, options, path)

    try:
        return guard("nas.search", command, (ConfigError,))
    except KeyboardInterrupt:
        again = "with --resume goes on" if (path / "config.toml").exists() else "starts again"
        print(f"nas.search: interrupted; the same command {again}", file=sys.stderr)
        return INTERRUPTED


def search(config: StudyConfig, options: argparse.Namespace, path: Path) -> int:
    """Prepare, search and report; torch, transformers and ray are only imported here, as that takes seconds."""
    from transformers.utils import logging as transformers_logging

    from distill.teacher import TeacherError
    from nas.ledger import StorageError, formula
    from nas.prepare import prepare
    from nas.progress import Progress
    from nas.runner import Cluster
    from nas.stages import Folder, run_stage_1
    from search_spaces.architecture import ArchitectureError
    from search_spaces.spaces import SpaceError

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    workers = options.workers or min(2, os.cpu_count() or 1)
    cluster = Cluster(workers=workers, address=options.address, device=options.device)

    def command() -> int:
        folder = Folder(path)
        folder.check(config, options.resume)
        with Progress() as progress:
            workspace = prepare(config, options.device, progress.prepare)
            progress.prepared()
            storage = options.storage or folder.storage
            prefix = f"{path.name}/" if options.storage else ""
            progress.say(f"study {path} (optuna-dashboard {storage})")
            winner = run_stage_1(
                config,
                folder,
                workspace,
                cluster,
                storage=storage,
                prefix=prefix,
                say=progress.say,
                watch=progress.trial,
            )
        progress.say(f"winner: {formula(winner)}")
        progress.say(f"wrote {folder.architecture}; next: python train_final.py {folder.architecture}")
        return DONE

    mistakes = (ConfigError, TeacherError, ArchitectureError, SpaceError, StorageError)
    return guard("nas.search", command, mistakes)


if __name__ == "__main__":
    sys.exit(main())

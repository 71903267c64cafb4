"""The command `ffn-nas`, or `python -m nas.search`: search the feed-forward networks of a student."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from distill.cli import DONE, INTERRUPTED, Parser, device, guard
from nas import interrupt
from nas.config.load import load_config, presets
from nas.config.schema import ConfigError, StudyConfig
from nas.config.values import count

# The preset of a new study if the command names none.
DEFAULT = "demo"
STAGES = {"1": ("1",), "2": ("2",), "3": ("3",), "all": ("1", "2", "3")}


def parser() -> Parser:
    """The command line's options."""
    result = Parser(prog="nas.search", description="Search the feed-forward networks of a small BERT-like encoder.")
    mode = result.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--stage",
        choices=STAGES,
        help="1: operations, stacks and expansions together; 2: operations; 3: stacks and expansions, on all tasks; "
        "all: one after the other",
    )
    mode.add_argument(
        "--single-stage", action="store_true", help="search everything at once, with as many trials as stages 1 and 2"
    )
    result.add_argument(
        "--preset", help=f"{', '.join(presets())}, or a .toml file (default: config.toml of the study, else demo)"
    )
    result.add_argument("--study", help="name of the study and of its folder (default: the preset's name)")
    result.add_argument(
        "--out", type=Path, default=Path("results"), help="folder of the studies' folders (default: %(default)s)"
    )
    result.add_argument(
        "--trials", type=int, help="candidates to evaluate in each stage, baselines included (default: the preset's)"
    )
    result.add_argument(
        "--sampler", help="what proposes candidates: lanas, evolution, ... (default: the preset's; nsga2 for two goals)"
    )
    result.add_argument(
        "--objective", help="score, or two goals: score,params; score,macs; score,latency (default: score)"
    )
    result.add_argument(
        "--max-params", help="limit on the student's parameters, such as 15M, pooler and classifier included"
    )
    result.add_argument("--max-macs", help="limit on its multiply-accumulates for a sentence of 128 tokens, such as 1G")
    result.add_argument(
        "--max-latency", help="limit on its latency, such as 12ms, or 0.25x for a quarter of the teacher's"
    )
    result.add_argument(
        "--keep",
        metavar="SHARE",
        help="in place of a limit: find the smallest student that keeps this share of the teacher's score, such as "
        "99%% (with --objective score,latency the fastest)",
    )
    result.add_argument("--teacher", help="a BERT-like encoder: folder, or name on the hub")
    result.add_argument("--data", help="folder of the tasks' official files (default: downloaded from the hub)")
    result.add_argument("--tasks", help="tasks to search on, such as a,b: stages 1 and 2 use the first, stage 3 all")
    result.add_argument(
        "--from",
        dest="start",
        type=Path,
        metavar="ARCH.json",
        help="architecture that stage 2 or 3 refines (default: the previous stage's winner)",
    )
    result.add_argument(
        "--sandwich",
        action="store_true",
        help="in stage 3, train the largest, the smallest and two random architectures in every step of the one-shot "
        "supernet (default: one random one)",
    )
    result.add_argument("--storage", help="Optuna storage URL (default: study.db in the study's folder)")
    result.add_argument(
        "--workers", type=int, help="candidates to train at a time (default: one per processor, at most 2)"
    )
    result.add_argument("--address", help="address of a running Ray cluster, HOST:PORT")
    result.add_argument("--resume", action="store_true", help="continue an interrupted study")
    result.add_argument("--seed", type=int, help="seed of everything random (default: the preset's)")
    result.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="(default: %(default)s)")
    return result


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


def check(options: argparse.Namespace, study: str) -> None:
    """Raise ConfigError for mistakes that can be seen in the options alone."""
    if not re.fullmatch(r"\w[\w.+-]*", study):
        raise ConfigError(f"--study {study!r}: use only letters, digits, '.', '_', '+' and '-'")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers: must be at least 1, not {options.workers}")
    if options.address is None:
        try:
            device(options.device)
        except argparse.ArgumentTypeError as error:
            raise ConfigError(f"--device {options.device}: {error}") from None
    if options.start and options.stage not in ("2", "3"):
        raise ConfigError(
            "--from: only stages 2 and 3 refine an architecture; add --stage 2 or --stage 3, or leave out --from"
        )


def stages_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The stages that the command runs, in order."""
    return ("single",) if options.single_stage else STAGES[options.stage]


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """The values of the configuration that the options override, by dotted path, such as `space.max_params`.

    Raises:
        ConfigError: an option that must be a number is not one.
    """
    result: dict[str, Any] = {
        "teacher": options.teacher,
        "data": options.data,
        "tasks": options.tasks and options.tasks.split(","),
        "goals": options.objective if options.keep is None else None,
        "seed": options.seed,
        "space.max_latency": options.max_latency,
        "sharing.sandwich": options.sandwich or None,
    }
    for name in ("max_params", "max_macs"):
        value = getattr(options, name)
        try:
            result[f"space.{name}"] = value if value is None else count(value)
        except ValueError as error:
            raise ConfigError(f"--{name.replace('_', '-')}: {error}") from None
    if options.keep is not None:
        result |= {"keep.share": options.keep, "keep.cost": cost_to_minimise(options.objective)}
    sampler = options.sampler
    two_goals = options.keep is None and options.objective not in (None, "score")
    if sampler is None and two_goals:
        sampler = "nsga2"
    # The configuration of a study with two goals is valid only if the samplers of all stages, even of those that do not
    # run, support two goals.
    stages_with_sampler = ("1", "2", "3") if two_goals else stages_of(options)
    for stage in stages_with_sampler:
        result[f"stage{stage.replace('single', '1')}.sampler"] = sampler
    for stage in stages_of(options):
        result["single_trials" if stage == "single" else f"stage{stage}.trials"] = options.trials
    return {place: value for place, value in result.items() if value is not None}


def cost_to_minimise(objective: str | None) -> str | None:
    """The cost of the option --objective beside --keep: "latency" in "score,latency"; None if there is none.

    Raises:
        ConfigError: the option does not have this form.
    """
    if objective in (None, "score"):
        return None
    score, _, cost = objective.partition(",")
    if score != "score" or cost not in ("params", "macs", "latency"):
        raise ConfigError(f"--objective {objective!r}: with --keep it is score,params; score,macs or score,latency")
    return cost


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
            progress.say(f"study {path} (optuna-dashboard {storage} --artifact-dir {folder.artifacts})")
            winner = search.run(first, stages[1:])
    progress.say(f"winner: {formula(winner)}")
    progress.say(f"wrote {folder.architecture}; next: ffn-train-final {folder.architecture}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

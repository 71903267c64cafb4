"""`python -m nas.search --stage 1`: search a student's feed-forward networks."""

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

from distill.cli import DONE, INTERRUPTED, Parser, device, guard
from nas import interrupt
from nas.config.load import load_config, presets
from nas.config.schema import ConfigError, StudyConfig, count

STAGES = {"1": ("1",), "2": ("2",), "3": ("3",), "all": ("1", "2", "3")}


def parser() -> Parser:
    """The command line's options."""
    result = Parser(prog="nas.search", description="Search the feed-forward networks of a small BERT-like encoder.")
    what = result.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--stage",
        choices=STAGES,
        help="1: operations, stacks and expansions together; 2: operations; 3: stacks and expansions on a "
        "weight-sharing supernet; all: one after the other",
    )
    what.add_argument("--single-stage", action="store_true", help="everything at once with the trials of 1 and 2")
    result.add_argument(
        "--preset", help=f"{', '.join(presets())}, or a .toml file (default: the study's own configuration, else demo)"
    )
    result.add_argument("--study", help="name of the study and its folder (default: the preset's name)")
    result.add_argument("--out", type=Path, default=Path("results"), help="folder of all studies (default: results)")
    result.add_argument("--trials", type=int, help="candidates to evaluate in a stage, the baselines among them")
    result.add_argument("--sampler", help="lanas, evolution, local, random, tpe, or nsga2 for two goals")
    result.add_argument(
        "--objective", help="score (default); or two goals: score,params or score,macs or score,latency"
    )
    result.add_argument("--max-params", help="largest student, such as 15M, pooler and classifier included")
    result.add_argument("--max-macs", help="most multiply-accumulates for a sentence of 128 tokens, such as 1G")
    result.add_argument("--max-latency", help="slowest student, such as 12ms, or 0.25x of the teacher")
    result.add_argument("--teacher", help="a BERT-shaped encoder: hub name or folder")
    result.add_argument("--data", help="folder of the tasks' official files (default: from the hub)")
    result.add_argument("--tasks", help="tasks to search on, such as a,b: stages 1 and 2 use the first, stage 3 all")
    result.add_argument("--from", dest="given", type=Path, metavar="ARCH.json", help="what stage 2 or 3 refines")
    result.add_argument("--sandwich", action="store_true", help="stage 3 trains largest, smallest and two more a step")
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
    preset = options.preset or "demo"
    path = options.out / (options.study if options.study is not None else Path(preset).stem)

    def command() -> int:
        name = path.name if options.study is None else options.study
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise ConfigError(f"--study {name!r}: use letters, digits, '.', '_', '+' and '-'")
        if options.workers is not None and options.workers < 1:
            raise ConfigError(f"--workers {options.workers}: at least 1")
        if options.address is None:
            try:
                device(options.device)
            except argparse.ArgumentTypeError as error:
                raise ConfigError(f"--device {options.device}: {error}") from None
        if options.given and options.stage not in ("2", "3"):
            raise ConfigError("--from is what stage 2 or 3 refines; give --stage 2 or --stage 3")
        own = path / "config.toml"
        source = str(own) if options.preset is None and own.exists() else preset
        return search(load_config(source, overrides(options)), options, path)

    try:
        with interrupt.remembered():
            return guard("nas.search", command)
    except KeyboardInterrupt:
        again = "with --resume goes on" if (path / "config.toml").exists() else "starts again"
        print(f"nas.search: interrupted; the same command {again}", file=sys.stderr)
        return INTERRUPTED


def stages_of(options: argparse.Namespace) -> tuple[str, ...]:
    """The stages that the command names."""
    return ("single",) if options.single_stage else STAGES[options.stage]


def overrides(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line puts over the configuration.

    Raises:
        ConfigError: a number that is none.
    """
    result: dict[str, Any] = {
        "teacher": options.teacher,
        "data": options.data,
        "tasks": options.tasks and options.tasks.split(","),
        "goals": options.objective,
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
    sampler = options.sampler
    if sampler is None and options.objective not in (None, "score"):
        sampler = "nsga2"
    # With two goals all stages need the sampler for it, those that do not run too.
    named = ("1", "2", "3") if sampler == "nsga2" else stages_of(options)
    for stage in named:
        result[f"stage{stage.replace('single', '1')}.sampler"] = sampler
    for stage in stages_of(options):
        result["single_trials" if stage == "single" else f"stage{stage}.trials"] = options.trials
    return {place: value for place, value in result.items() if value is not None}


def search(config: StudyConfig, options: argparse.Namespace, path: Path) -> int:
    """Prepare, search and report; torch, transformers and ray are only imported here, as that takes seconds."""
    from transformers.utils import logging as transformers_logging

    from nas.preparation.prepare import prepare
    from nas.progress import Progress
    from nas.runner import Cluster
    from nas.stages import Search, incumbent_of
    from nas.study.folder import Folder
    from nas.study.ledger import formula
    from nas.study.lock import sole_driver
    from nas.study.storage import needed
    from search_spaces.architecture import Architecture

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    workers = options.workers or min(2, os.cpu_count() or 1)
    cluster = Cluster(workers=workers, address=options.address, device=options.device)
    stages = stages_of(options)

    folder = Folder(path)
    folder.check(config, stages, options.resume)
    given = Architecture.load(options.given) if options.given else None
    incumbent_of(folder, stages[0], given)
    with Progress() as progress:
        workspace = prepare(config, options.device, progress.prepare)
        storage = options.storage or folder.storage
        study = Search(
            config,
            folder,
            workspace,
            cluster,
            storage=storage,
            prefix=f"{path.name}/" if options.storage else "",
            say=progress.say,
            on_progress=progress.prepare,
            watch=progress.trial,
        )
        first = study.first(stages[0], given)
        progress.prepared()
        folder.create(config)
        with needed(storage), sole_driver(storage, path.name):
            # Another process may have begun it while this one prepared.
            folder.check(config, stages, options.resume)
            progress.say(f"study {path} (optuna-dashboard {storage})")
            winner = study.run(first, stages[1:])
    progress.say(f"winner: {formula(winner)}")
    progress.say(f"wrote {folder.architecture}; next: python train_final.py {folder.architecture}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

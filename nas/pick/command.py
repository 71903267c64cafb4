"""Write the architecture of one trial of a study to a file.

    python -m nas.pick results/demo                       (the knee of the front; with one goal the winner or,
                                                           before the stage has ended, the best so far)
    python -m nas.pick results/demo --max-params 8M
    python -m nas.pick results/demo --keep 99%
    python -m nas.pick results/demo --trial 17

The study may be finished, interrupted or still running.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from distill.cli import DONE, Parser, interruptible
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.study.folder import STAGES, Folder


def parser() -> Parser:
    """The command line's options."""
    result = Parser(
        prog="nas.pick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("study", type=Path, metavar="STUDY", help="the study's folder, such as results/demo")
    result.add_argument("--stage", choices=STAGES, help="stage to choose from (default: the last one with a score)")
    result.add_argument("--trial", type=int, metavar="N", help="the trial of this number")
    replaces = "(in place of the search's budget)"
    result.add_argument(
        "--max-params", metavar="8M", help=f"the trial with the best score within so many parameters {replaces}"
    )
    result.add_argument("--max-macs", metavar="1G", help="the same for MACs")
    result.add_argument("--max-latency", metavar="12ms", help="the same for the latency")
    result.add_argument(
        "--keep",
        metavar="99%",
        help="the cheapest trial that keeps this share of the teacher's score",
    )
    result.add_argument("--storage", help="Optuna storage URL (default: study.db in the study's folder)")
    result.add_argument("--out", type=Path, metavar="FILE", help="file to write (default: picked.json in STUDY)")
    result.add_argument("--json", action="store_true", help="print JSON instead of text")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("nas.pick", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Choose the trial, print what it is, and write its architecture.

    Raises:
        UserError: a mistake in the options or the study.
    """
    from nas.pick.choice import choose, facts_of, opened, text_of  # optuna takes a second
    from nas.study import ledger
    from nas.study.attributes import goals_of

    others = [name for name in ("max_params", "max_macs", "max_latency", "keep") if getattr(options, name) is not None]
    if options.trial is not None and others:
        raise ConfigError(f"--trial names the trial: leave out --{others[0].replace('_', '-')}")
    folder = Folder(options.study)
    stage, study, confirmation = opened(folder, options.storage, options.stage)
    config = load_config(str(folder.config))
    goals = goals_of(study)
    cost = goals[1] if len(goals) > 1 else config.keep.cost if config.keep else "params"
    trial, why = choose(study, folder.outcome(stage), options, cost)
    out = options.out or folder.path / "picked.json"
    try:
        ledger.architecture_of(trial).save(out)
    except OSError as error:
        raise ConfigError(f"--out: {out}: {error.strerror}") from None
    facts = facts_of(study, trial, confirmation)
    if options.json:
        print(json.dumps({"stage": stage, "trial": trial.number, "why": why, "file": str(out), **facts}, indent=2))
        return DONE
    print(f"stage {stage}, trial {trial.number} ({facts['origin']}): {why}")
    print("\n".join(text_of(facts)))
    # The final training looks for the configuration beside the architecture.
    preset = "" if out.resolve().parent == folder.path.resolve() else f" --preset {folder.config}"
    print(f"wrote {out}; next: ffn-train-final {out}{preset}")
    return DONE

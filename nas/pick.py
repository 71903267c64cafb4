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
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from distill.cli import DONE, Parser, interruptible
from distill.training.progress import terminal
from nas.config.schema import ConfigError
from nas.study.folder import STAGES, Folder


def parser() -> Parser:
    result = Parser("nas.pick", description=__doc__)
    add = result.add_argument
    add("study", type=Path, metavar="STUDY", help="the study's folder, such as results/demo")
    add("--stage", choices=STAGES, help="stage to choose from (default: the last one with a score)")
    add("--trial", type=int, metavar="N", help="the trial of this number")
    params = "the best trial with at most this many parameters; trials beyond the search's own budget count too"
    add("--max-params", metavar="8M", help=params)
    add("--max-macs", metavar="1G", help="the same for MACs")
    add("--max-latency", metavar="12ms", help="the same for the latency")
    add("--max-size", metavar="10MB", help="the same for the size of the file")
    add("--keep", metavar="99%", help="the cheapest trial that keeps this fraction of the teacher's score")
    add("--storage", metavar="URL", help="Optuna storage URL (default: study.db in the study's folder)")
    add("--out", type=Path, metavar="FILE", help="file to write (default: picked.json in STUDY)")
    add("--json", action="store_true", help="print JSON instead of text")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("nas.pick", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Choose the trial, print what it is, and write its architecture.

    Raises:
        UserError: a mistake in the options or the study.
    """
    from distill.table import Table
    from nas.report.choice import facts_of, pick, text_of  # optuna takes a second
    from nas.report.study import read
    from nas.study.attributes import COSTS

    folder = Folder(options.study)
    study = read(folder, options.storage)
    limits = {name: getattr(options, f"max_{name}") for name in COSTS}
    stage, candidate, why = pick(study, options.stage, options.trial, options.keep, limits)
    out = options.out or folder.path / "picked.json"
    try:
        candidate.architecture.save(out, folder.searched(study.config))
    except OSError as error:
        raise ConfigError(f"--out: {out}: {error.strerror}") from None
    facts = facts_of(study, stage, candidate)
    if options.json:
        known = {"stage": stage.name, "trial": candidate.number, "why": why, "file": str(out)}
        print(json.dumps(known | facts, indent=2))
        return DONE
    console = terminal()
    console.print(f"stage {stage.name}, trial {candidate.number} ({facts['origin']}): {why}")
    for part in text_of(facts, candidate):
        part.print(console) if isinstance(part, Table) else console.print(part)
    # The final training looks for the configuration beside the architecture.
    preset = "" if out.resolve().parent == folder.path.resolve() else f" --preset {quote(str(folder.config))}"
    console.print(f"wrote {out}; next: ffn-train-final {quote(str(out))}{preset}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

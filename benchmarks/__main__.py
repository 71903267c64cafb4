"""`python -m benchmarks --list` names the benchmarks; `python -m benchmarks NAME [options]` runs one of them."""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from distill.cli import DONE, USER_ERROR, Parser, interruptible
from foundation.errors import did_you_mean

PROGRAM = "python -m benchmarks"
RAW = Path("results") / "raw"
# The benchmarks by name: what each answers, and how long it takes with its default options on two processor cores.
CATALOGUE = {
    "throughput": ("training throughput against the published protocol", "30 minutes"),
    "inference": ("speed of whole mixtures against their number of experts (MoEBERT, figure 4)", "5 minutes"),
    "latency": ("predicted against measured latency of whole models", "2 minutes"),
    "samplers": ("evaluations that each sampler needs on a tabulated space", "10 minutes"),
    "leads": ("winners of searches against baselines, over seeds and budgets", "4 hours"),
    "alternatives": ("a task's students against what else a user could take, in three forms", "4 hours"),
    "figure": ("draws what `alternatives` measured, a column for each task", "seconds"),
    "sentence_encoders": ("a sentence encoder and what it retrieves, against fewer layers", "2 hours"),
    "static_vectors": ("a sentence encoder against static vectors of model2vec, and students", "2 minutes"),
    "reranking_rows": ("makes pairs of questions and sentences of SQuAD, to train and measure rerankers", "1 minute"),
    "pruning": ("compensated allocations against Kwon et al. and K-prune", "6 hours"),
    "recipes": ("every distillation objective on the same student, and ablations of mixtures", "2 hours"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """List the benchmarks, or run the one that the first argument names.

    Returns:
        the exit status: 0, or 2 after a mistake in the command or its files.
    """
    name, *options = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help"):
        print(f"usage: {PROGRAM} (--list | NAME [--help | options])")
        print("--list says of each benchmark how long it takes on two processor cores.")
        return DONE
    if name == "--list":
        width = max(map(len, CATALOGUE))
        for known, (summary, duration) in CATALOGUE.items():
            print(f"{known:{width}}  {summary} ({duration})")
        return DONE
    if name not in CATALOGUE:
        suggestion = did_you_mean(name, CATALOGUE)
        print(f"{PROGRAM}: there is no benchmark {name!r}{suggestion} (see --list)", file=sys.stderr)
        return USER_ERROR
    return interruptible(f"{PROGRAM} {name}", lambda: run(name, options))


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a benchmark with these options."""
    # Here, so that --list takes no time.
    from benchmarks.common import Report
    from distill.training.progress import silence_transformers

    benchmark = import_module(f"benchmarks.{name}")
    parser = Parser(f"{PROGRAM} {name}", description=benchmark.__doc__)
    benchmark.add_options(parser)
    parser.add_argument("--json", type=Path, default=RAW / f"{name}.json", help="raw numbers; default: %(default)s")
    options = parser.parse_args(arguments)
    silence_transformers()
    report = Report(name, arguments, vars(options), options.json)
    benchmark.run(options, report)
    if report.saved:
        report.progress(f"raw numbers: {options.json}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

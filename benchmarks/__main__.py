"""`python -m benchmarks --list` names the benchmarks; `python -m benchmarks NAME [options]` runs one of them."""

import sys
from importlib import import_module

from benchmarks.catalogue import CATALOGUE
from distill.cli import USER_ERROR
from search_spaces.errors import did_you_mean

USAGE = "usage: python -m benchmarks (--list | NAME [options])"


def main(arguments: list[str]) -> int:
    """Run the benchmark that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else USER_ERROR
    name, *rest = arguments
    if name == "--list":
        for known, benchmark in CATALOGUE.items():
            print(f"{known:15} {benchmark.summary} ({benchmark.duration})")
        return 0
    if name not in CATALOGUE:
        print(
            f"benchmarks: there is no benchmark {name!r}{did_you_mean(name, CATALOGUE)} (see --list)", file=sys.stderr
        )
        return USER_ERROR
    sys.argv = [f"python -m benchmarks {name}", *rest]
    import_module(f"benchmarks.{CATALOGUE[name].module}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

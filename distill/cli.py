"""What all command lines of this package share: one-line errors and exit statuses."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from search_spaces import __version__
from search_spaces.errors import UserError

# Before torch is imported. A thread waits for others of its operation in a spin, of a millisecond by itself: where the
# machine has other work the spin takes the time that the others need, and without one small operations take twice as
# long. This many turns are some microseconds.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

DONE, FAULT, USER_ERROR, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """An argument parser with `--version`, whose errors are one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_argument("--version", action="version", version=f"ffn-nas {__version__}")

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: {message} (see --help)\n")


def device(value: str) -> str:
    """An option's value "auto", "cpu" or "cuda"; the last one where there is a GPU."""
    if value == "cuda":
        import torch  # takes a second

        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError("there is no CUDA here; choose cpu or auto")
    return value


def guard(prog: str, command: Callable[[], int]) -> int:
    """Run `command`; a `UserError` becomes one line on stderr and exit status 2."""
    try:
        return command()
    except UserError as error:
        print(f"{prog}: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR

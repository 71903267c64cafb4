"""Common parts of all command lines of this project: `--version`, one-line errors, and exit statuses."""

import argparse
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, get_args

from distill.training.recipe import MixedPrecision
from foundation import __version__, interrupt
from foundation.errors import UserError, shortened
from foundation.extensions import load_extensions
from foundation.files import is_disk_full, remove_abandoned_scratch_folders

# This must be set before torch is imported. An OpenMP thread that waits for the others spins, by default for about a
# millisecond. On a busy machine this takes CPU time from the threads that still work, but without any spinning small
# operations take twice as long. This spin count corresponds to a few microseconds.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# A fault of ours, a traceback, is Python's 1.
DONE, USER_ERROR, INTERRUPTED = 0, 2, 130
# To what options are added: a parser, or a group of its options.
ParserOrGroup = argparse._ActionsContainer


def called_as(module: str) -> str:
    """The name of a command in its messages: the console script if that was called, otherwise the module's name."""
    script = Path(sys.argv[0]).name
    return script if script.startswith("ffn-") else module


class Parser(argparse.ArgumentParser):
    """An argument parser with `--version` and one-line error messages, which shows its description as it is written.

    Args:
        prog: the module's name.
    """

    def __init__(self, prog: str, **kwargs: Any) -> None:
        super().__init__(called_as(prog), formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self.add_argument("--version", action="version", version=f"ffn-nas {__version__}")

    def parse_args(self, *arguments: Any, **named: Any) -> Any:
        """As in argparse. What a terminal cannot show is replaced from now on, instead of ending the command."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="replace")
        try:
            return super().parse_args(*arguments, **named)
        except BrokenPipeError:
            self.exit()
        finally:
            reader_has_left()

    def error(self, message: str) -> NoReturn:
        self.exit(USER_ERROR, f"{self.prog}: {message} (see --help)\n")


def add_output_options(parser: ParserOrGroup, content: str) -> None:
    """Add `--quiet` and `--json`, which exclude each other; the latter prints `content`."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quiet", action="store_true", help="print only warnings, errors and the results")
    form.add_argument("--json", action="store_true", help=f"print {content} as JSON on stdout, all else on stderr")


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that takes a whole number of at least `least`."""

    def number(value: str) -> int:
        if not value.isascii() or not value.isdigit() or int(value) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, not {shortened(value)}")
        return int(value)

    return number


def device(value: str) -> str:
    """The value of `--device`. Raises argparse.ArgumentTypeError if it is "cuda" and there is no GPU."""
    if value == "cuda":
        import torch  # takes a second

        if not torch.cuda.is_available():
            raise argparse.ArgumentTypeError("there is no CUDA device; choose cpu or auto")
    return value


DEVICE_HELP = "where to compute; auto takes a GPU if there is one (default: %(default)s)"


def add_device_option(parser: ParserOrGroup) -> None:
    parser.add_argument("--device", type=device, default="auto", choices=["auto", "cpu", "cuda"], help=DEVICE_HELP)


def add_precision_option(parser: ParserOrGroup) -> None:
    kinds = (
        "bf16: matrix products in bfloat16; no: float32; auto: bf16 where the device computes in it natively (default: "
        "%(default)s)"
    )
    parser.add_argument("--mixed-precision", default="auto", choices=get_args(MixedPrecision), help=kinds)


def is_first_process() -> bool:
    """Whether this is the first of the processes that were launched together; only that one writes files and prints."""
    return os.environ.get("RANK", "0") == "0"


def several_processes() -> bool:
    """Whether a launcher such as torchrun has started several processes of this command."""
    return os.environ.get("WORLD_SIZE", "1") != "1"


def interruptible(prog: str, command: Callable[[], int], how_to_go_on: str = "start it again") -> int:
    """As `guard`; Ctrl-C becomes one line on stderr, which says how to go on, and exit status 130."""
    with interrupt.recording():
        try:
            return guard(prog, command)
        except KeyboardInterrupt:
            with interrupt.ignored():
                print(f"{called_as(prog)}: interrupted; {how_to_go_on}", file=sys.stderr)
            return INTERRUPTED


def guard(prog: str, command: Callable[[], int]) -> int:
    """Remove temporary files that killed commands left, import the extensions, and run `command`; a `UserError` or a
    full disk becomes one line on stderr and exit status 2.
    """
    try:
        remove_abandoned_scratch_folders()
        load_extensions()
        return command()
    except BrokenPipeError:
        if not reader_has_left():
            raise
        return DONE
    except Exception as error:  # libraries raise errors of their own when a disk is full
        if not isinstance(error, UserError) and not is_disk_full(error):
            raise
        print(f"{called_as(prog)}: {' '.join(str(error).split())}", file=sys.stderr)
        return USER_ERROR
    finally:
        reader_has_left()
        _leave_process_group()


def reader_has_left() -> bool:
    """Whether what reads the output, such as `head`, has ended, which is no error; what is still written is lost."""
    with suppress(OSError, AttributeError):  # the stream is closed or no file, or its disk is full
        output = sys.stdout.fileno()
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        poll = select.poll()
        poll.register(output, 0)
        if any(event & select.POLLERR for _, event in poll.poll(0)):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
            return True
    return False


def _leave_process_group() -> None:
    """In a launch of several processes, close the connections between them. A process that ends without this may crash
    in a background thread, and so exit with another status.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()

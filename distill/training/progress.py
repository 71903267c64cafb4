"""Progress display on the terminal, and logging of losses for TensorBoard."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.text import Text

# Where there is no terminal, a line says what goes on after this many seconds without one.
SILENCE = 25.0

# A progress callback, called with a description of the current piece of work and the fraction of it that is done, or
# None if that is unknown.
ProgressCallback = Callable[[str, float | None], None]


def ignore_progress(what: str, fraction: float | None) -> None:
    """A progress callback that does nothing."""


def terminal(**options: Any) -> Console:
    """A console that shows texts as they are: without markup, emoji, colored numbers and wrapped lines."""
    return Console(**{"highlight": False, "markup": False, "emoji": False, "soft_wrap": True} | options)


def silence_transformers() -> None:
    """From now on transformers shows neither warnings nor progress bars."""
    from transformers.utils import logging  # takes a second

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds, 1:05, or with hours, 2:01:05."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Progress:
    """Prints a line for every piece of work that is finished. On a terminal, a live view below these lines shows the
    piece in progress; elsewhere lines say how far it is, at every quarter and after every `SILENCE` seconds without a
    line.

    Args:
        console: by default one on stdout.
        quiet: print only warnings and results.
    """

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        self.console = console or terminal()
        self.quiet = quiet
        # Redrawn several times a second, so that its clocks are always right.
        self.status = self.console.status(self, spinner_style="default")
        self.begun = time.monotonic()
        self.what: str | None = None
        self.fraction: float | None = None
        self.first_fraction = 0.0
        self.since = self.begun
        self.last_printed = 0.0
        # The time of the last line, and what the thread that breaks the silence waits for.
        self.said, self.closed, self.lock = self.begun, threading.Event(), threading.Lock()

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self.status.start()
        elif not self.quiet:
            threading.Thread(target=self._break_silence, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        self.status.stop()
        self.closed.set()

    def _break_silence(self) -> None:
        """Say how far the work is whenever nothing was said for `SILENCE` seconds."""
        while not self.closed.wait(max(0.0, self.said + SILENCE - time.monotonic())):
            with self.lock:
                if time.monotonic() - self.said >= SILENCE:
                    self.said = time.monotonic()
                    if self.is_working:
                        self.say("; ".join(map(str.strip, self.lines())))

    @property
    def is_working(self) -> bool:
        """Whether a piece of work is in progress."""
        return self.what is not None

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        if not self.quiet:
            self.console.print(text)

    def result(self, text: RenderableType) -> None:
        """Print a result or a warning, even if the display is quiet."""
        self.console.print(text)

    def update(self, what: str, fraction: float | None) -> None:
        """The progress callback: show that a `fraction` of `what` is done; None if the fraction is unknown."""
        with self.lock:
            if what != self.what:
                self.finish()
                self.what, self.since, self.last_printed = what, time.monotonic(), 0.0
                # A resumed training starts in the middle.
                self.first_fraction = fraction or 0.0
            self.fraction = fraction
        if not self.console.is_terminal and fraction and fraction >= self.last_printed + 0.25:
            self.last_printed = fraction
            self.say(self.line())

    def line(self) -> str:
        """The piece of work in progress: how far it is, the time it has taken, and the time that is left."""
        spent = time.monotonic() - self.since
        left = self.left_of_piece()
        time_left = f", {clock(left)} left" if left is not None and spent > 1 else ""
        done = f" {self.fraction:.0%}" if self.fraction is not None else ""
        return f"{self.what}{done} ({clock(spent)}{time_left})"

    def left_of_piece(self) -> float | None:
        """Seconds until the piece of work in progress is done; None if that is unknown."""
        if self.what is None or self.fraction is None or self.fraction <= self.first_fraction:
            return None
        spent = time.monotonic() - self.since
        return spent * (1 - self.fraction) / (self.fraction - self.first_fraction)

    def lines(self) -> list[str]:
        """The lines of the live view."""
        return [self.line() if self.what is not None else f"({clock(time.monotonic() - self.begun)})"]

    def __rich__(self) -> RenderableType:
        """The live view, whose text is made when it is drawn."""
        return Group(*(Text(line, no_wrap=True, overflow="ellipsis") for line in self.lines()))

    def finish(self) -> None:
        """Print that the piece of work in progress is finished, with the time it took."""
        if self.what is not None:
            self.say(f"{self.what}: {clock(time.monotonic() - self.since)}")
        self.what = None


@contextlib.contextmanager
def loading(quiet: bool = False) -> Iterator[None]:
    """Show on a terminal that the libraries are being loaded, while this block imports them, unless `quiet`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status("loading PyTorch and Transformers", spinner_style="default"):
        yield


@contextlib.contextmanager
def step_reports(
    on_progress: ProgressCallback, what: str, steps: int, tensorboard: Path | None, name: str, accelerator: Any
) -> Iterator[Callable[[int, float], None]]:
    """A callback for the number and the loss of every step of a training, which reports the progress of `what` and, if
    there is a folder for TensorBoard, logs the loss under this name.
    """
    with contextlib.ExitStack() as stack:
        writer = None
        if tensorboard is not None and accelerator.is_main_process:
            from tensorboardX import SummaryWriter

            writer = stack.enter_context(SummaryWriter(str(tensorboard / name.replace(" ", "-"))))

        def after_step(step: int, loss: float) -> None:
            on_progress(what, step / max(1, steps))
            if writer is not None:
                writer.add_scalar("loss", loss, step)

        yield after_step

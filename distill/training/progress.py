"""Progress display on the terminal, and logging of losses for TensorBoard."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console

# A progress callback, called with a description of the current piece of work and the fraction of it that is done, or
# None if that is unknown.
ProgressCallback = Callable[[str, float | None], None]


def ignore_progress(what: str, share: float | None) -> None:
    """A progress callback that does nothing."""


def clock(seconds: float) -> str:
    """Format a duration as minutes and seconds: 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Prints a line for every piece of work that is finished; the line of the piece in progress is redrawn."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.status = self.console.status("")
        self.begun = time.monotonic()
        self.what: str | None = None
        self.since = self.begun
        self.last_printed_share = 0.0

    def __enter__(self) -> Self:
        self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        self.status.stop()

    def say(self, text: str) -> None:
        self.console.print(text)

    def update(self, what: str, share: float | None) -> None:
        """The progress callback: show that a fraction `share` of `what` is done; None if the fraction is unknown."""
        if what != self.what:
            self.finish()
            self.what, self.since, self.last_printed_share = what, time.monotonic(), 0.0
        spent = time.monotonic() - self.since
        left = f", {clock(spent / share - spent)} left" if share and spent > 1 else ""
        done = f" {share:.0%}" if share is not None else ""
        line = f"{what}{done} ({clock(spent)}{left})"
        self.status.update(line)
        if not self.console.is_terminal and share and share >= self.last_printed_share + 0.25:
            self.last_printed_share = share
            self.say(line)

    def finish(self) -> None:
        """Print that the piece of work in progress is finished, with the time it took."""
        if self.what is not None:
            self.say(f"{self.what}: {clock(time.monotonic() - self.since)}")
        self.what = None


@contextlib.contextmanager
def losses(folder: Path | None, name: str, accelerator: Any) -> Iterator[Callable[[int, float], None]]:
    """A callback for the number and the loss of every step, which logs them for TensorBoard if there is a folder."""
    if folder is None or not accelerator.is_main_process:
        yield lambda step, loss: None
        return
    from tensorboardX import SummaryWriter

    with SummaryWriter(str(folder / name.replace(" ", "-"))) as writer:
        yield lambda step, loss: writer.add_scalar("loss", loss, step)

"""What a person sees of a running search."""

import time
from types import TracebackType

import optuna
from optuna.trial import TrialState
from rich.console import Console

from nas import ledger


def clock(seconds: float) -> str:
    """Minutes and seconds: 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


class Progress:
    """Prints a line for every preparation that took time and for every trial; the line in work is redrawn."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.status = self.console.status("")
        self.begun = time.monotonic()
        self.what: str | None = None
        self.since = self.begun
        self.told = 0.0
        self.first: dict[str, tuple[float, int]] = {}

    def __enter__(self) -> "Progress":
        self.status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.prepared()
        self.status.stop()

    def say(self, text: str) -> None:
        self.console.print(text)

    def prepare(self, what: str, share: float | None) -> None:
        """`what` is being made, `share` of it is done."""
        if what != self.what:
            self.prepared()
            self.what, self.since, self.told = what, time.monotonic(), 0.0
        spent = time.monotonic() - self.since
        left = f", {clock(spent / share - spent)} left" if share and spent > 1 else ""
        done = f" {share:.0%}" if share is not None else ""
        line = f"{what}{done} ({clock(spent)}{left})"
        self.status.update(line)
        if not self.console.is_terminal and share and share >= self.told + 0.25:
            self.told = share
            self.say(line)

    def prepared(self) -> None:
        """What was being made is there."""
        if self.what is not None:
            self.say(f"{self.what}: {clock(time.monotonic() - self.since)}")
        self.what = None

    def trial(self, study: optuna.Study, number: int, total: int) -> None:
        """A trial ended."""
        self.prepared()
        done = len(ledger.finished(study))
        begun, before = self.first.setdefault(study.study_name, (time.monotonic(), done))
        trials = study.get_trials(deepcopy=False)
        trial = trials[number]
        best = next(iter(ledger.ranked(study)), None)
        attributes = trial.user_attrs
        if trial.state == TrialState.COMPLETE:
            result = (
                f"score {trial.values[0]:.4f} ± {attributes['standard_error']:.4f}  "
                f"{attributes['params'] / 1e6:.2f} M parameters  {attributes['seconds']:.0f} s"
            )
        elif trial.state == TrialState.PRUNED:
            step = attributes[ledger.RUNG]
            result = f"stopped after {step} steps with {trial.intermediate_values[step]:.4f}"
        elif trial.state == TrialState.WAITING:
            result = "lost its worker and is in line again"
        else:
            result = f"failed: {attributes.get(ledger.FAILURE, 'no reason given')}"
        best_text = f"best {best.values[0]:.4f} (trial {best.number})" if best else "no score yet"
        spent = time.monotonic() - begun
        left = f", {clock(spent / (done - before) * (total - done))} left" if done > before else ""
        origin = trial.user_attrs.get(ledger.ORIGIN, "")
        self.say(f"{done:>4}/{total}  trial {number:<3} {origin:<18} {result}  {best_text}{left}")
        self.status.update(f"{study.study_name}: {done} of {total} trials, {best_text}{left}")

"""The progress of a running search: what is going on, how far it is, and how long the whole command still takes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median_high

import optuna
from optuna.trial import TrialState
from rich.console import Console

from distill.training import progress
from distill.training.progress import clock
from nas.study import ledger
from nas.study.attributes import goals_of

# The name of the part that finds the budget of `keep`.
BUDGET = "search for the budget"
# From this many trials on, the pace does not include the start of the workers.
MIN_ENDS = 4


@dataclass(frozen=True)
class Part:
    """A part of a search.

    Attributes:
        what: its name in the progress, such as "teacher: fine-tuning" or "stage 1".
        count: how many trials it has; 1 if it is not made of trials.
        seconds: of wall time for one of them.
        start: seconds until the first of them begins.
    """

    what: str
    count: int
    seconds: float
    start: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the whole part."""
        return self.start + self.count * self.seconds


@dataclass
class Running:
    """The trials of a study in this process.

    Attributes:
        part: the part of the search that they are.
        total, done: how many trials the study runs, and how many of them have ended.
        ends: the times at which trials ended in this process.
        trials: the numbers and origins of the running trials with the times of their start.
    """

    part: str
    total: int
    done: int
    best: str
    since: float
    ends: list[float] = field(default_factory=list)
    trials: dict[int, tuple[str, float]] = field(default_factory=dict)

    @property
    def pace(self) -> float | None:
        """Seconds from the end of a trial to that of the next one; None if none has ended yet. The first ones, for
        which the workers must start, count only until there are others.
        """
        ends = self.ends
        if len(ends) < MIN_ENDS:
            return (time.monotonic() - self.since) / len(ends) if ends else None
        return max(ends[-1] - ends[0], time.monotonic() - ends[-1]) / (len(ends) - 1)

    @property
    def left(self) -> float | None:
        """Seconds until the last of its trials ends; None if none has ended yet."""
        return None if self.pace is None else self.pace * (self.total - self.done)


class Progress(progress.Progress):
    """Shows the progress of the preparation and of the trials, and prints a line for every trial."""

    def __init__(self, console: Console | None = None, quiet: bool = False) -> None:
        super().__init__(console, quiet)
        # The parts of the command, in order. Only the proportions of their seconds matter: they are compared with what
        # the first ones really take.
        self.parts: Sequence[Part] = ()
        # The index of the last part that has begun; -1 before the first.
        self.position = -1
        self.running: Running | None = None
        # How many times as long as estimated the parts so far have taken, by the kinds of parts.
        self.ratios: dict[str, float] = {}

    def update(self, what: str, fraction: float | None) -> None:
        if what != self.what:
            self.running = None
            self._enter(what)
        super().update(what, fraction)

    @property
    def is_working(self) -> bool:
        return super().is_working or self.running is not None

    def finish(self) -> None:
        if self.what is not None:
            self._measured(self.what, time.monotonic() - self.since)
        super().finish()

    def begin(self, part: str, study: optuna.Study, total: int) -> None:
        """Show that the trials of a study are about to start.

        Args:
            part: the part of the search that they are.
            total: how many trials the study runs.
        """
        self.finish()
        self._enter(part)
        self.running = Running(part, total, len(ledger.finished(study)), best_of(study), time.monotonic())

    def started(self, study: optuna.Study, number: int) -> None:
        assert self.running is not None
        origin = study.get_trials(deepcopy=False)[number].user_attrs.get(ledger.ORIGIN, "")
        self.running.trials[number] = origin, time.monotonic()

    def ended(self, study: optuna.Study, number: int) -> None:
        """Print the result of a trial that has just ended, the best score so far and the remaining time."""
        running = self.running
        assert running is not None
        running.trials.pop(number, None)
        done = len(ledger.finished(study))
        if done > running.done:
            running.ends.append(time.monotonic())
        running.done, running.best = done, best_of(study)
        if running.pace is not None:
            self._measured(running.part, running.pace, 1)
        trial = study.get_trials(deepcopy=False)[number]
        origin, result = trial.user_attrs.get(ledger.ORIGIN, ""), result_of(trial, study)
        left = f", {clock(running.left)} left" if running.left is not None else ""
        in_all = self.left()
        if left and in_all is not None and self._rest():
            left += f" in this stage, {clock(in_all)} in all"
        self.say(f"{done:>4}/{running.total}  trial {number:<3} {origin:<18} {result}  {running.best}{left}")

    def lines(self) -> list[str]:
        running, in_all = self.running, self.left()
        if running is None or self.what is not None:
            return [super().lines()[0] + (f"  about {clock(in_all)} left in all" if in_all is not None else "")]
        a_minute = f", {60 / running.pace:.1f} a minute" if running.pace else ""
        done = f"{running.part}: {running.done} of {running.total} trials{a_minute}, {running.best}"
        now = time.monotonic()
        started = list(running.trials.items())  # the thread that draws this does not stop the one that changes it
        trials = [f"trial {number} ({origin}) {clock(now - since)}" for number, (origin, since) in started]
        at_work = f"running: {', '.join(trials)}" if trials else "starting the workers"
        left = f"{clock(running.left)} left" if running.left is not None else "no trial has ended yet"
        if in_all is not None and self._rest():
            left += f", about {clock(in_all)} for the whole command"
        return [done, f"  {at_work}", f"  {left}"]

    def left(self) -> float | None:
        """Seconds until the command ends; None until something is known about the speed of this machine."""
        running = self.running
        current = running.left if running is not None else self.left_of_piece()
        ratios = dict(self.ratios)
        what = self.what
        estimated = sum(part.total for part in self.parts if part.what == what)
        if running is None and current is not None and what is not None and estimated:
            ratios[kind(what)] = (time.monotonic() - self.since + current) / estimated
        if current is None or not ratios:
            return None
        # A part of a kind that has not been measured yet is estimated as well as those so far usually were.
        usual = median_high(ratios.values())
        return current + sum(part.total * ratios.get(kind(part.what), usual) for part in self._rest())

    def _rest(self) -> Sequence[Part]:
        """The parts after the current one, or after the last that has begun if what goes on is none of them."""
        return self.parts[self.position + 1 :]

    def _enter(self, what: str) -> None:
        """Note that a part has begun. Those before it need not be done: the cache has what they make."""
        later = range(self.position + 1, len(self.parts))
        self.position = next((number for number in later if self.parts[number].what == what), self.position)

    def _measured(self, what: str, seconds: float, trials: int | None = None) -> None:
        """Compare what a part has taken with its estimate.

        Args:
            trials: how many of its trials have ended; None if the whole part has.
        """
        for part in self.parts:
            if part.what == what and part.total > 0:
                self.ratios[kind(what)] = seconds / (part.total if trials is None else trials * part.seconds)


def kind(what: str) -> str:
    """Parts of the same kind are estimated equally well: all those that train architectures with fresh seeds."""
    return "confirmation" if what.startswith(("confirmation", BUDGET)) else what


def best_of(study: optuna.Study) -> str:
    """The best score so far, with the number of its trial."""
    best = next(iter(ledger.ranked(study)), None)
    return f"best {best.values[0]:.4f} (trial {best.number})" if best else "no score yet"


def result_of(trial: optuna.trial.FrozenTrial, study: optuna.Study) -> str:
    attributes = trial.user_attrs
    if trial.state == TrialState.COMPLETE:
        compared_by = goals_of(study)[0]
        return (
            f"{compared_by} {trial.values[0]:.4f} ± {attributes['standard_error']:.4f}  "
            f"{attributes['params'] / 1e6:.2f} M parameters  {attributes['seconds']:.0f} s"
        )
    if trial.state == TrialState.PRUNED:
        step = attributes[ledger.RUNG]
        return f"pruned after {step} steps with score {trial.intermediate_values[step]:.4f}"
    if trial.state == TrialState.WAITING:
        return "lost its worker and is re-queued"
    return f"failed: {attributes.get(ledger.FAILURE, 'no reason given')}"

"""The progress of a running search on the terminal."""

import time

import optuna
from optuna.trial import TrialState
from rich.console import Console

from distill.training import progress
from distill.training.progress import clock
from nas.study import ledger


class Progress(progress.Progress):
    """Shows the progress of the preparation, and prints a line for every trial."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console)
        self.first: dict[str, tuple[float, int]] = {}

    def trial(self, study: optuna.Study, number: int, total: int) -> None:
        """Print the result of a trial that has just ended, the best score so far and the remaining time.

        Args:
            number: the number of the trial.
            total: how many trials the stage runs.
        """
        self.finish()
        done = len(ledger.finished(study))
        started, done_before = self.first.setdefault(study.study_name, (time.monotonic(), done))
        trials = study.get_trials(deepcopy=False)
        trial = trials[number]
        best = next(iter(ledger.ranked(study)), None)
        compared_by = study.user_attrs.get(ledger.GOALS, ["score"])[0]
        attributes = trial.user_attrs
        if trial.state == TrialState.COMPLETE:
            result = (
                f"{compared_by} {trial.values[0]:.4f} ± {attributes['standard_error']:.4f}  "
                f"{attributes['params'] / 1e6:.2f} M parameters  {attributes['seconds']:.0f} s"
            )
        elif trial.state == TrialState.PRUNED:
            step = attributes[ledger.RUNG]
            result = f"pruned after {step} steps with score {trial.intermediate_values[step]:.4f}"
        elif trial.state == TrialState.WAITING:
            result = "lost its worker and is re-queued"
        else:
            result = f"failed: {attributes.get(ledger.FAILURE, 'no reason given')}"
        best_text = f"best {best.values[0]:.4f} (trial {best.number})" if best else "no score yet"
        spent = time.monotonic() - started
        left = f", {clock(spent / (done - done_before) * (total - done))} left" if done > done_before else ""
        origin = trial.user_attrs.get(ledger.ORIGIN, "")
        self.say(f"{done:>4}/{total}  trial {number:<3} {origin:<18} {result}  {best_text}{left}")
        self.status.update(f"{study.study_name}: {done} of {total} trials, {best_text}{left}")

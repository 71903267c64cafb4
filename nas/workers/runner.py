"""Runs the trials of an Optuna study with Ray Tune: the study proposes architectures, Ray's workers evaluate them, and
the results are recorded in the study.

Ray's own snapshots are not used. A searcher passes on what the study proposes, a scheduler and a callback record what
happens, and an interrupted search is resumed from the study alone.
"""

import faulthandler
import gc
import json
import math
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from distill.cpu.allocator import give_back_freed_memory
from distill.training.loop import Diverged
from foundation import interrupt
from foundation.extensions import load_extensions
from foundation.files import scratch_folder
from nas.config.schema import ConfigError
from nas.evaluation.modes import MODES
from nas.evaluation.score import Score
from nas.preparation.workspace import AnyWorkspace
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, ROWS, score_attribute
from nas.study.contributions import encode
from nas.workers.cluster import NO_GPU, Cluster, cpus_per_trial, gpus_per_trial
from nas.workers.failures import LOST, is_out_of_memory, kernel_kills, killed_by_ray, one_line
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space
from supernet.compensation.ridge import CompensationError

# After this many consecutive proposals that are duplicates the space counts as exhausted.
MAX_DUPLICATES = 100

STDERR = 2  # its file descriptor

# Called with the study and the number of a trial.
OnTrial = Callable[[optuna.Study, int], None]
# A function trainable of Ray Tune, with the arguments of `evaluate_trial`.
Evaluate = Callable[..., None]


def run(
    study: optuna.Study,
    space: Space,
    workspace: AnyWorkspace,
    cluster: Cluster,
    *,
    trials: int | None = None,
    origin: str = "",
    rungs: Sequence[Fraction] = (),
    stop: float = 0.0,
    evaluate: Evaluate | None = None,
    on_start: OnTrial = lambda study, number: None,
    on_trial: OnTrial,
) -> None:
    """Run trials until `trials` of the study have ended, including those of earlier runs. Duplicates cost nothing and
    are not counted. If `trials` is None, run only the trials that are waiting.

    A KeyboardInterrupt re-queues the trials that are running.

    Args:
        origin: the attribute `origin` of trials that the study's sampler proposes.
        rungs: fractions of the training steps at which candidates may be pruned.
        stop: the fraction of candidates, those with the lowest scores, that is pruned at every rung.
        evaluate: the function that the workers run, `evaluate_trial` by default.
        on_start: called before a trial is evaluated.
        on_trial: called after every trial.

    Raises:
        ConfigError: the device is a GPU and the cluster has none.
    """
    remaining = len(ledger.waiting(study)) if trials is None else trials - len(ledger.finished(study))
    if remaining <= 0:
        return
    gpus = 0.0 if cluster.device == "cpu" else gpus_per_trial(cluster.workers)
    if cluster.device == "cuda" and not gpus:
        raise ConfigError(NO_GPU)
    trainable = tune.with_parameters(
        evaluate or evaluate_trial, workspace=workspace, device=cluster.device, rungs=tuple(rungs)
    )
    give_back_freed_memory()  # of the preparation
    with scratch_folder() as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": cpus_per_trial(cluster.workers), "gpu": gpus}),
            tune_config=tune.TuneConfig(
                search_alg=Proposals(study, space, origin, workspace, trials, on_start),
                scheduler=Rungs(study, stop, on_trial),
                num_samples=-1,
                max_concurrent_trials=cluster.workers,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="trials",
                storage_path=str(scratch),
                verbose=0,
                callbacks=[Recorder(study, on_trial, workspace.study.config.trial_timeout)],
            ),
        )
        try:
            tuner.fit()
        except KeyboardInterrupt:
            with interrupt.ignored():
                ledger.requeue_unfinished(study)
            raise


def evaluate_trial(
    config: dict[str, Any], workspace: AnyWorkspace, device: str, rungs: tuple[Fraction, ...], keep_rows: bool = False
) -> None:
    """Run one trial in a worker: report `{"step", "score", "seconds"}` for every intermediate value, and at the end the
    final score with its attributes, with `keep_rows`, for trials that are compared on the same rows, among them the
    contributions of the rows. Seconds are those since the trial began.

    If the candidate diverges or does not fit into memory, that is a finding about the candidate and reported as
    `failure`. Any other error is raised, and `Recorder` fails the trial. After `trial_timeout` seconds the worker
    writes where it is to its log and ends itself, even if a library hangs.
    """
    faulthandler.dump_traceback_later(workspace.study.config.trial_timeout, exit=True, file=STDERR)
    try:
        _evaluate_trial(config, workspace, device, rungs, keep_rows)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _evaluate_trial(
    config: dict[str, Any], workspace: AnyWorkspace, device: str, rungs: tuple[Fraction, ...], keep_rows: bool
) -> None:
    begun = time.monotonic()  # Ray's own seconds depend on the system's clock, which may be set back

    def seconds() -> float:
        return round(time.monotonic() - begun, 2)

    load_extensions()
    architecture = Architecture.from_json(json.loads(config[ledger.ARCHITECTURE]))
    gc.collect()  # frees the last candidate, whose model and closures refer to each other
    if not workspace.study.supernet.exists():
        raise FileNotFoundError(
            f"{workspace.study.supernet} is not on this node: point FFN_NAS_CACHE to a folder that all nodes share"
        )

    def report(step: int, score: float) -> None:
        tune.report({"step": step, "score": score, "seconds": seconds()})

    training = (config[ledger.SEED], rungs, report) if MODES[workspace.mode].trains else ()
    try:
        score: Score = evaluator_of(workspace, device).evaluate(architecture, *training)
    except (Diverged, CompensationError) as error:
        tune.report({ledger.FAILURE: f"diverged: {error}"})
    except (MemoryError, OSError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        tune.report({ledger.FAILURE: f"out of memory: {error}"})
    else:
        tune.report({"final": score.value, "attributes": attributes_of(score, keep_rows), "seconds": seconds()})


@lru_cache(maxsize=1)
def evaluator_of(workspace: AnyWorkspace, device: str) -> Any:
    """The evaluator of candidates in this process; a worker reuses it from one trial to the next.

    What exists after it was created stays, so later garbage collections do not look at it. That would take as long as a
    quarter of an untrained evaluation.
    """
    evaluator = MODES[workspace.mode].evaluator(workspace, device)
    gc.collect()
    gc.freeze()
    return evaluator


def attributes_of(score: Score, keep_rows: bool = False) -> dict[str, Any]:
    """The attributes of a trial that describe its score: the standard error, further scores, the experts' loads, and
    with `keep_rows` the contributions of the rows.
    """
    parts = {score_attribute(name): value for name, value in score.parts.items()}
    loads = {EXPERT_LOAD: [load.to_json() for load in score.loads]} if score.loads else {}
    rows = {ROWS: encode(score.rows)} if keep_rows and score.rows is not None else {}
    return {"standard_error": score.standard_error, **parts, **loads, **rows}


class Component:
    """A component of Ray Tune, which pickles it for a restore that is never used."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class Proposals(Component, Searcher):
    """The searcher of Ray Tune: asks the study for the next trial whenever Ray has room for one."""

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        origin: str,
        workspace: AnyWorkspace,
        trials: int | None,
        on_start: OnTrial = lambda study, number: None,
    ) -> None:
        super().__init__()
        self.study = study
        self.space = space
        self.origin = origin
        self.seed = workspace.study.config.seed
        self.trials = trials
        self.on_start = on_start

    @interrupt.deferred()
    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        interrupt.check()
        while self._has_next():
            trial, architecture = ledger.ask(self.study, self.space, self.origin)
            if not ledger.resolve_duplicate(self.study, trial.number):
                self.on_start(self.study, trial.number)
                return {
                    "number": trial.number,
                    ledger.ARCHITECTURE: json.dumps(architecture.to_json()),
                    ledger.SEED: trial.user_attrs.get(ledger.SEED, self.seed),
                }
        # A running trial may lose its worker and be re-queued, so Ray must keep asking until no trial is running.
        return None if ledger.running(self.study) else Searcher.FINISHED

    def _has_next(self) -> bool:
        """Whether there is another trial: one that is waiting, or a proposal if the space is not exhausted."""
        if self.trials is not None and ledger.counted(self.study) >= self.trials:
            return False
        if ledger.waiting(self.study):
            return True
        return self.trials is not None and ledger.trailing_duplicates(self.study) < MAX_DUPLICATES

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """Do nothing: `Recorder` records the results."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Do nothing: the study has everything that would be saved."""


class Rungs(Component, FIFOScheduler):
    """The scheduler of Ray Tune: records every intermediate value in the study and prunes the lowest ones. This is
    asynchronous successive halving, like Ray's ASHA, but it depends on the study alone, so that a resumed search prunes
    what an uninterrupted one would have pruned.
    """

    def __init__(self, study: optuna.Study, stop: float, on_trial: OnTrial) -> None:
        super().__init__()
        self.study = study
        self.stop = stop
        self.on_trial = on_trial

    @interrupt.deferred()
    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        if "step" not in result:
            return TrialScheduler.STOP  # this was the last report, which the recorder records
        number, step = trial.config["number"], result["step"]
        ledger.report(self.study, number, step, result["score"])
        # With two goals, an architecture with a low score may be on the front because it is small.
        comparable = len(self.study.directions) == 1
        # At step 0 it has no training yet by which it could be judged.
        if step == 0 or not comparable or not ledger.should_prune(self.study, number, step, self.stop):
            return TrialScheduler.CONTINUE
        ledger.prune(self.study, number, step, {"seconds": result["seconds"]})
        self.on_trial(self.study, number)
        return TrialScheduler.STOP


class Recorder(Component, tune.Callback):
    """The callback of Ray Tune: records in the study the trials that complete, fail or lose their worker.

    Args:
        timeout: seconds after which a worker ends itself: a trial that loses its worker later than that fails instead
            of being re-queued.
    """

    def __init__(self, study: optuna.Study, on_trial: OnTrial, timeout: float = math.inf) -> None:
        self.study = study
        self.on_trial = on_trial
        self.timeout = timeout
        # When Tune's trials began, and how many processes the kernel had killed by then.
        self.started: dict[str, tuple[float, int]] = {}

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        self.started[trial.trial_id] = time.monotonic(), kernel_kills()

    @interrupt.deferred()
    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: dict, **info: Any) -> None:
        number = trial.config["number"]
        if ledger.FAILURE in result:
            ledger.fail(self.study, number, one_line(result[ledger.FAILURE]))
        elif "final" in result:
            attributes = result["attributes"] | {"seconds": result["seconds"]}
            ledger.complete(self.study, number, result["final"], attributes)
        else:
            return
        self.on_trial(self.study, number)

    @interrupt.deferred()
    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["number"]
        if self.study.get_trials(deepcopy=False)[number].state != TrialState.RUNNING:
            return  # the worker was lost after its last report
        text = Path(trial.error_file).read_text(encoding="utf-8").strip() if trial.error_file else "unknown error"
        begun, kills_before = self.started.get(trial.trial_id, (math.inf, kernel_kills()))
        if killed := killed_by_ray(text):
            ledger.fail(self.study, number, one_line(f"out of memory: {killed}"))
        elif LOST.search(text) and kernel_kills() > kills_before:
            ledger.fail(self.study, number, "out of memory: the kernel killed the worker")
        elif LOST.search(text) and time.monotonic() - begun >= self.timeout:
            ledger.fail(self.study, number, f"timeout: not finished after {self.timeout:g} seconds (trial_timeout)")
        elif LOST.search(text):
            ledger.requeue_lost(self.study, number)
        else:
            ledger.fail(self.study, number, one_line(f"error: {text.splitlines()[-1]}"))
        self.on_trial(self.study, number)

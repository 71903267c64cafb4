"""Ray Tune drives, Optuna remembers: trials are asked of a study, run by Ray's workers, and told back.

Ray's own snapshots are not used. A searcher hands out what the study proposes, a callback writes down what happens,
and a search that was cut short goes on from the study alone.
"""

import contextlib
import gc
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

# No files per trial, Ctrl-C as KeyboardInterrupt, no snapshots, none of the notices of new versions.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "3600")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import optuna
import ray
import torch
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from distill.loop import Diverged
from nas import ledger
from nas.evaluate import evaluator
from nas.prepare import Workspace
from nas.sharing import shared_evaluator
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# Repeats of what was evaluated, one after the other, after which the space counts as exhausted.
REPEATS = 100
# How Ray begins the message about a worker that is no more.
GONE = ("The actor died", "The actor is dead", "The worker died", "The node")

PROJECT = Path(__file__).resolve().parents[1]

# Called after every trial with the study and the trial's number.
Watch = Callable[[optuna.Study, int], None]
# A function trainable of Ray Tune's: config, and by name workspace, device and rungs.
Evaluate = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run: `workers` at a time, each with its share of the processors."""

    workers: int = 2
    address: str | None = None
    device: str = "auto"


@contextlib.contextmanager
def connected(cluster: Cluster) -> Iterator[None]:
    """A Ray session: a local one that ends with the block, or one of the cluster at `cluster.address`."""
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the study has the errors of trials
    ray.init(
        address=cluster.address,
        include_dashboard=None if cluster.address else False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        # One arena: memory that a candidate frees is there for the next one, whichever thread asks.
        runtime_env={"env_vars": {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "1"}},
    )
    try:
        yield
    finally:
        ray.shutdown()


def run(
    study: optuna.Study,
    space: Space,
    workspace: Workspace,
    cluster: Cluster,
    *,
    trials: int | None,
    origin: str,
    rungs: Sequence[Fraction] = (),
    stop: float = 0.0,
    evaluate: Evaluate | None = None,
    watch: Watch,
) -> None:
    """Run trials until `trials` of the study have ended, of which those count that already have; None: run what is
    in line. A proposal that computes what another trial computes costs nothing and is not counted.

    At each of `rungs`, shares of the training steps, a candidate among the lowest `stop` is stopped. `evaluate` is
    what the workers run, `evaluate_trial` by default.

    A KeyboardInterrupt leaves the running trials RUNNING in the study: `ledger.settle` puts them in line again.
    """
    left = len(ledger.in_line(study)) if trials is None else trials - len(ledger.finished(study))
    if left <= 0:
        return
    processors = max(1, int(ray.cluster_resources().get("CPU", 1)) // cluster.workers)
    graphics = min(1.0, ray.cluster_resources().get("GPU", 0) / cluster.workers)
    trainable = tune.with_parameters(
        evaluate or evaluate_trial, workspace=workspace, device=cluster.device, rungs=tuple(rungs)
    )
    with tempfile.TemporaryDirectory(prefix="nas-tune-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": processors, "gpu": graphics}),
            tune_config=tune.TuneConfig(
                search_alg=Proposals(study, space, origin, workspace, trials),
                scheduler=Rungs(study, stop, watch),
                num_samples=-1,
                max_concurrent_trials=cluster.workers,
                reuse_actors=True,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name="trials", storage_path=scratch, verbose=0, callbacks=[Recorder(study, watch)]
            ),
        )
        tuner.fit()


def evaluate_trial(config: dict[str, Any], workspace: Workspace, device: str, rungs: tuple[Fraction, ...]) -> None:
    """One trial in a worker: reports `{"step", "score"}` on the way and the final score with its attributes last.

    A candidate that diverges or does not fit into memory is a finding about it, reported as `failure`; any other
    error is a fault and left to Ray.
    """
    architecture = Architecture.from_json(json.loads(config[ledger.ARCHITECTURE]))
    gc.collect()  # the last candidate: its model and closures refer to each other
    if not workspace.supernet.exists():
        raise FileNotFoundError(
            f"{workspace.supernet} is not on this node: point FFN_NAS_CACHE to a folder that all nodes share"
        )
    try:
        if workspace.shared:
            score = shared_evaluator(workspace, device).evaluate(architecture)
        else:
            score = evaluator(workspace, device).evaluate(
                architecture,
                config[ledger.SEED],
                rungs,
                lambda step, value: tune.report({"step": step, "score": value}),
            )
    except Diverged as error:
        tune.report({ledger.FAILURE: f"diverged: {error}"})
    except (MemoryError, torch.OutOfMemoryError) as error:
        tune.report({ledger.FAILURE: f"out of memory: {error}"})
    else:
        tune.report({"final": score.value, "attributes": {"standard_error": score.standard_error, **score.parts}})


class Proposals(Searcher):
    """Asks the study for the next trial whenever Ray has room for one."""

    def __init__(
        self, study: optuna.Study, space: Space, origin: str, workspace: Workspace, trials: int | None
    ) -> None:
        super().__init__()
        self.study = study
        self.space = space
        self.origin = origin
        self.seed = workspace.config.seed
        self.labels = workspace.labels
        self.trials = trials

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        for _ in range(REPEATS):
            room = self._room()
            if room is not None:
                return room
            trial, architecture = ledger.ask(self.study, self.space, self.origin, self.labels)
            if not ledger.replay(self.study, trial.number):
                return {
                    "number": trial.number,
                    ledger.ARCHITECTURE: json.dumps(architecture.to_json()),
                    ledger.SEED: trial.user_attrs.get(ledger.SEED, self.seed),
                }
        return Searcher.FINISHED  # the space has nothing new

    def _room(self) -> str | None:
        """Whether to end the search or to wait; else there is a trial to ask for."""
        if self.trials is None:
            done = not ledger.in_line(self.study)
        else:
            done = len(ledger.finished(self.study)) + len(ledger.running(self.study)) >= self.trials
        return Searcher.FINISHED if done else None

    def on_trial_complete(self, trial_id: str, result: dict | None = None, error: bool = False) -> None:
        """The recorder writes results down."""

    def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None:
        """Nothing to save: the study has it all."""

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its parts for a restore that is never used."""
        return {}


class Rungs(FIFOScheduler):
    """Writes every report on the way into the study and stops the hopeless there: successive halving without
    waiting, as Ray's ASHA, but by the study alone, so that a continued search stops whom the whole one would have.
    """

    def __init__(self, study: optuna.Study, share: float, watch: Watch) -> None:
        super().__init__()
        self.study = study
        self.share = share
        self.watch = watch

    def __getstate__(self) -> dict[str, Any]:
        """As for `Proposals`."""
        return {}

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict) -> str:
        if "step" not in result or len(self.study.directions) > 1:
            return TrialScheduler.CONTINUE
        number = trial.config["number"]
        ledger.report(self.study, number, result["step"], result["score"])
        if result["step"] == 0 or not ledger.is_hopeless(self.study, number, result["step"], self.share):
            return TrialScheduler.CONTINUE
        ledger.stop(self.study, number, result["step"], {"seconds": round(result["time_total_s"], 2)})
        self.watch(self.study, number)
        return TrialScheduler.STOP


class Recorder(tune.Callback):
    """Writes every end of a trial into the study."""

    def __init__(self, study: optuna.Study, watch: Watch) -> None:
        self.study = study
        self.watch = watch

    def __getstate__(self) -> dict[str, Any]:
        """As for `Proposals`."""
        return {}

    def on_trial_result(self, iteration: int, trials: list[Trial], trial: Trial, result: dict, **info: Any) -> None:
        number = trial.config["number"]
        if ledger.FAILURE in result:
            ledger.fail(self.study, number, result[ledger.FAILURE])
        elif "final" in result:
            seconds = {"seconds": round(result["time_total_s"], 2)}
            ledger.complete(self.study, number, result["final"], result["attributes"] | seconds)
        else:
            return
        self.watch(self.study, number)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["number"]
        if self.study.get_trials(deepcopy=False)[number].state.is_finished():
            return  # the worker was lost after its last report
        text = Path(trial.error_file).read_text(encoding="utf-8").strip() if trial.error_file else "unknown error"
        if any(line.startswith(GONE) for line in text.splitlines()):
            ledger.lose(self.study, number)
        else:
            reason = f"error: {text.splitlines()[-1]}"
            ledger.fail(self.study, number, " ".join(reason.split())[:1000])
        self.watch(self.study, number)

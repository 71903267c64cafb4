"""Ray Tune drives, Optuna remembers: trials are asked of a study, run by Ray's workers, and told back.

Ray's own snapshots are not used. A searcher hands out what the study proposes, a callback writes down what happens,
and a search that was cut short goes on from the study alone.
"""

import contextlib
import gc
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

# No files per trial, Ctrl-C as KeyboardInterrupt, no snapshots, the driver's working directory in its workers, as
# teachers may have relative paths, and none of the notices of new versions.
os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
os.environ.setdefault("TUNE_DISABLE_SIGINT_HANDLER", "1")
os.environ.setdefault("TUNE_GLOBAL_CHECKPOINT_S", "3600")
os.environ.setdefault("RAY_CHDIR_TO_TRIAL_DIR", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import optuna
import ray
import torch
from optuna.trial import TrialState
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from distill.cpu.allocator import give_back_freed_memory
from distill.training.loop import Diverged
from nas import interrupt
from nas.config.schema import ConfigError
from nas.evaluate import CandidateEvaluator, Evaluator, Score
from nas.evaluate_one_shot import OneShotEvaluator
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, score_attribute
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

# Repeats of what was evaluated, one after the other, after which the space counts as exhausted.
REPEATS = 100
# What Ray says of a worker that was killed, of one whose node is no more, and of one that it killed to free memory.
GONE = re.compile(
    r"^The actor (died unexpectedly|\w+ is unavailable)|killed due to the node running low on memory", re.MULTILINE
)
# Seconds that a cluster has to answer.
ANSWER = 40

NO_GPU = "--device cuda: the cluster has no GPU; choose cpu or auto"

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
    """A Ray session: a local one that ends with the block, or one of the cluster at `cluster.address`, which
    `check_cluster` has found.
    """
    path = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the study has the errors of trials
    ray.init(
        address=cluster.address or "local",  # by default Ray would join whatever cluster this machine is part of
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


def check_cluster(cluster: Cluster) -> None:
    """Refuse a cluster that does not answer, or that lacks the device.

    Raises:
        ConfigError: as `gpus_at`, or the device is "cuda" and the cluster has no GPU.
    """
    if cluster.address is not None and not gpus_at(cluster.address) and cluster.device == "cuda":
        raise ConfigError(NO_GPU)


def gpus_at(address: str) -> int:
    """How many GPUs the cluster at this address has.

    Another process connects to it, as Ray prints much and tries for a quarter of an hour.

    Raises:
        ConfigError: there is no cluster, or it does not let us in.
    """
    if not re.fullmatch(r"auto|[^/]+:\d+", address):
        raise ConfigError(f"--address {address!r}: give HOST:PORT of a Ray cluster's head, as `ray start` prints it")
    connect = (
        "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); print(ray.cluster_resources().get('GPU', 0))"
    )
    command = (sys.executable, "-c", connect, address)
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=ANSWER)
    except subprocess.TimeoutExpired:
        reason = f"no answer for {ANSWER} seconds"
    except subprocess.CalledProcessError as error:
        reason = re.split(r"^(?=[\w.]+: )", error.stderr, flags=re.MULTILINE)[-1].strip()
    else:
        return int(float(done.stdout.split()[-1]))
    raise ConfigError(
        f"--address {address}: no connection to a Ray cluster ({reason}); does it run, with this RAY_AUTH_MODE?"
    )


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

    A KeyboardInterrupt leaves the running trials RUNNING in the study:
    `ledger.requeue_unfinished` re-queues them.
    """
    left = len(ledger.waiting(study)) if trials is None else trials - len(ledger.finished(study))
    if left <= 0:
        return
    gpus = 0.0 if cluster.device == "cpu" else gpus_per_trial(cluster.workers)
    if cluster.device == "cuda" and not gpus:
        raise ConfigError(NO_GPU)
    trainable = tune.with_parameters(
        evaluate or evaluate_trial, workspace=workspace, device=cluster.device, rungs=tuple(rungs)
    )
    give_back_freed_memory()  # what preparing took
    with tempfile.TemporaryDirectory(prefix="nas-tune-") as scratch:
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": cpus_per_trial(cluster.workers), "gpu": gpus}),
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


def cpus_per_trial(workers: int) -> int:
    """The most processors a trial can have with so many trials side by side on the cluster's nodes; at least 1."""
    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    shares = range(1, max(nodes) + 1)
    return max((share for share in shares if sum(node // share for node in nodes) >= workers), default=1)


def gpus_per_trial(workers: int) -> float:
    """A trial's share of a GPU with so many trials side by side on the cluster's: all of one, or equal parts."""
    found = int(ray.cluster_resources().get("GPU", 0))
    return 1 / max(1, -(-workers // found)) if found else 0.0


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
        score = evaluator_of(workspace, device).evaluate(
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
        tune.report({"final": score.value, "attributes": attributes_of(score)})


@lru_cache(maxsize=1)
def evaluator_of(workspace: Workspace, device: str) -> CandidateEvaluator:
    """What scores the candidates in this process; a worker keeps it from one trial to the next."""
    return OneShotEvaluator(workspace, device) if workspace.one_shot else Evaluator(workspace, device)


def attributes_of(score: Score) -> dict[str, Any]:
    """The attributes of a trial that say more of its score than the value."""
    parts = {score_attribute(name): value for name, value in score.parts.items()}
    loads = {EXPERT_LOAD: [load.to_json() for load in score.loads]} if score.loads else {}
    return {"standard_error": score.standard_error, **parts, **loads}


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
        interrupt.check()
        for _ in range(REPEATS):
            if not self._wanted():
                # One that runs may lose its worker and be wanted again.
                return None if ledger.running(self.study) else Searcher.FINISHED
            trial, architecture = ledger.ask(self.study, self.space, self.origin, self.labels)
            if not ledger.resolve_duplicate(self.study, trial.number):
                return {
                    "number": trial.number,
                    ledger.ARCHITECTURE: json.dumps(architecture.to_json()),
                    ledger.SEED: trial.user_attrs.get(ledger.SEED, self.seed),
                }
        return Searcher.FINISHED  # the space has nothing new

    def _wanted(self) -> bool:
        """Whether there is a trial to ask for."""
        if self.trials is None:
            return bool(ledger.waiting(self.study))
        return ledger.counted(self.study) < self.trials

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
        if "step" not in result:
            return TrialScheduler.STOP  # that was all; the recorder has it
        number, step = trial.config["number"], result["step"]
        ledger.report(self.study, number, step, result["score"])
        # With two goals a low score may be that of a small architecture.
        compared = step > 0 and len(self.study.directions) == 1
        if not compared or not ledger.should_prune(self.study, number, step, self.share):
            return TrialScheduler.CONTINUE
        ledger.prune(self.study, number, step, {"seconds": round(result["time_total_s"], 2)})
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
        if self.study.get_trials(deepcopy=False)[number].state != TrialState.RUNNING:
            return  # the worker was lost after its last report
        text = Path(trial.error_file).read_text(encoding="utf-8").strip() if trial.error_file else "unknown error"
        if GONE.search(text):
            ledger.requeue_lost(self.study, number)
        else:
            reason = f"error: {text.splitlines()[-1]}"
            ledger.fail(self.study, number, " ".join(reason.split())[:1000])
        self.watch(self.study, number)

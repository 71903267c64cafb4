"""The Ray cluster that trials run on: a local session or a running cluster, and each trial's share of it."""

import contextlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray.air.execution._internal import RayActorManager
from ray.exceptions import OutOfMemoryError, RayActorError
from ray.tune.execution import tune_controller

from foundation import interrupt
from foundation.errors import reason
from foundation.extensions import VARIABLE
from foundation.files import scratch_folder
from nas.config.schema import ConfigError

# Settings of Ray and Ray Tune, unless the environment sets them: write no files per trial; raise KeyboardInterrupt on
# Ctrl-C; take no snapshots; run workers in the driver's working directory, as teachers may have relative paths; use the
# next version's behavior for actors without a GPU, and the old output, so that Ray prints nothing about either.
SETTINGS = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
# How long to wait for a cluster's answer, in seconds.
TIMEOUT = 40
# The path of a socket has at most 103 characters on macOS and 107 on Linux, of which Ray and `scratch_folder` take 82.
LONGEST_FOLDER = 21
NO_GPU = "--device cuda: the cluster has no GPU; choose cpu or auto"

PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Where trials run: `workers` at a time, each with its share of the processors."""

    workers: int = 2
    address: str | None = None
    device: str = "auto"


def usual_workers() -> int:
    """How many candidates are evaluated at a time unless it is said: one per processor, at most 2."""
    return min(2, os.cpu_count() or 1)


class ActorManager(RayActorManager):
    """Ray Tune's manager of workers, changed so that only the trial fails whose worker Ray killed because memory ran
    out. In Ray 2.60 the error of such a worker, which is neither a task error nor an actor error, ends the whole run.
    """

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, OutOfMemoryError):
            exception = RayActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


@contextlib.contextmanager
def ray_session(cluster: Cluster) -> Iterator[None]:
    """Connect to Ray for the duration of the block: to a new local session, or to the cluster at `cluster.address`.
    `check_cluster` must have found that cluster before.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    tune_controller.RayActorManager = ActorManager
    with contextlib.ExitStack() as stack:
        folder = None
        if cluster.address is None:
            # Ray leaves its session's files where they are.
            folder = stack.enter_context(scratch_folder(temporary_files()))
            stack.enter_context(_on_loopback())
        # Also after a connection that was interrupted, as part of Ray may be running.
        stack.callback(_shut_down)
        _connect(cluster, folder)
        yield


def temporary_files() -> Path:
    """Where Ray's temporary files go: $RAY_TMPDIR or the system's folder for them, unless the paths of sockets in that
    would be too long, as on macOS.
    """
    usual = tempfile.gettempdir()
    return Path(os.environ.get("RAY_TMPDIR") or (usual if len(usual) <= LONGEST_FOLDER else "/tmp"))


@interrupt.deferred()
def _shut_down() -> None:
    """End the session, with all processes that it has started, whatever is pressed meanwhile."""
    ray.shutdown()


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """In this block, a session that Ray starts listens on the loopback interface alone, as it does on systems where it
    supports no clusters; otherwise its ports are open to the network.
    """
    name, before = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, ray_constants.ENABLE_RAY_CLUSTER
    given = os.environ.get(name)
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        if given is None:
            del os.environ[name]
        else:
            os.environ[name] = given


def worker_path() -> str:
    """The PYTHONPATH of workers: this process's, after the checkout if this is run from one. An installed package is
    found without, and its folder would come before the standard library.
    """
    checkout = str(PROJECT) if (PROJECT / "pyproject.toml").exists() else None
    return os.pathsep.join(filter(None, (checkout, os.environ.get("PYTHONPATH"))))


@interrupt.deferred()  # a session whose start was cut short crashes when the process exits
def _connect(cluster: Cluster, folder: Path | None) -> None:
    """Start a session, or join one. Raises ConfigError if Ray cannot."""
    path = worker_path()
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # errors of trials are in the study
    init = partial(
        ray.init,
        address=cluster.address or "local",  # by default Ray would join whatever cluster this machine is part of
        include_dashboard=None if cluster.address else False,
        _temp_dir=folder and str(folder),
        log_to_driver=False,
        logging_level=logging.ERROR,
        # With a single arena, any thread can reuse the memory that an earlier candidate has freed.
        runtime_env={"env_vars": {"PYTHONPATH": path, "MALLOC_ARENA_MAX": "1", VARIABLE: os.environ.get(VARIABLE, "")}},
    )
    try:
        with interrupt.kept():  # at SIGTERM, Ray would leave at once
            init()
    except Exception as error:  # of any kind, from a port that is taken to a process that does not answer
        raise ConfigError(
            f"Ray does not start: {reason(error)}; check memory, disk and processes of this machine"
        ) from error


def check_cluster(cluster: Cluster) -> None:
    """Check that the cluster answers and has the requested device.

    Raises:
        ConfigError: there is no cluster at the address, or the device is "cuda" and the cluster has no GPU.
    """
    if cluster.address is not None and not gpus_at(cluster.address) and cluster.device == "cuda":
        raise ConfigError(NO_GPU)


def gpus_at(address: str) -> int:
    """How many GPUs the cluster at an address has.

    The connection is made in a separate process, because Ray prints a lot and retries for a quarter of an hour.

    Raises:
        ConfigError: there is no cluster, or it refuses the connection.
    """
    if not re.fullmatch(r"auto|[^/]+:\d+", address):
        raise ConfigError(f"--address {address!r}: give HOST:PORT of a Ray cluster's head, as `ray start` prints it")
    connect = (
        "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); print(ray.cluster_resources().get('GPU', 0))"
    )
    command = (sys.executable, "-c", connect, address)
    try:
        completed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        reason = f"no answer for {TIMEOUT} seconds"
    except subprocess.CalledProcessError as error:
        reason = re.split(r"^(?=[\w.]+: )", error.stderr, flags=re.MULTILINE)[-1].strip()
    else:
        return int(float(completed.stdout.split()[-1]))
    raise ConfigError(
        f"--address {address}: cannot connect to a Ray cluster ({reason}); check that it is running "
        "with the same RAY_AUTH_MODE"
    )


def cpus_per_trial(workers: int) -> int:
    """The largest number of processors per trial with which `workers` trials fit on the cluster's nodes at a time; at
    least 1.
    """
    nodes = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    counts = range(1, max(nodes) + 1)
    return max((count for count in counts if sum(node // count for node in nodes) >= workers), default=1)


def gpus_per_trial(workers: int) -> float:
    """The fraction of a GPU that each of `workers` simultaneous trials gets: a whole one, or an equal part of one; 0 if
    the cluster has no GPU.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0))
    return 1 / max(1, -(-workers // gpus)) if gpus else 0.0

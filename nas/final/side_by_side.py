"""Final trainings side by side on a Ray cluster."""

import os
from collections.abc import Sequence
from pathlib import Path

import ray
from ray.exceptions import RayTaskError
from rich.console import Console

from distill.training.layout import METRICS_FILE
from distill.training.progress import Progress
from foundation.errors import UserError
from foundation.extensions import load_extensions
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.final.run import FinalRun, run
from nas.final.training import starting_point
from nas.preparation.phases import FINAL
from nas.preparation.prepare import prepare
from nas.preparation.supernet import is_independent_of_task
from nas.preparation.workspace import base_of_study
from nas.workers.cluster import NO_GPU, Cluster, check_cluster, cpus_per_trial, gpus_per_trial, ray_session


def run_all(runs: Sequence[FinalRun], cluster: Cluster) -> None:
    """Run trainings that have folders of their own, as many at a time as the cluster has workers; each of them gets an
    equal share of the processors and GPUs. A training that fails does not stop the others.

    Raises:
        UserError: one of them failed with it, there is no cluster, or its nodes do not share the output folder.
    """
    if not runs:
        return
    check_cluster(cluster)
    first, waiting = runs[0], list(runs)
    running: dict[ray.ObjectRef, FinalRun] = {}
    failures: list[Exception] = []
    console = Console(highlight=False, soft_wrap=True, stderr=first.as_json)
    with Progress(console, first.quiet) as progress:
        _make_what_they_share(first, progress)
        progress.update("starting Ray", None)
        with ray_session(cluster):
            gpus = 0.0 if cluster.device == "cpu" else gpus_per_trial(cluster.workers)
            if cluster.device == "cuda" and not gpus:
                raise ConfigError(NO_GPU)
            # Checkpoints continue an interrupted training, but a training that failed would fail again.
            start = ray.remote(num_cpus=cpus_per_trial(cluster.workers), num_gpus=gpus, max_retries=0)(_train).options
            while waiting or running:
                while waiting and len(running) < cluster.workers:
                    one = waiting.pop(0)
                    running[start(name=one.config.task).remote(one, os.getcwd())] = one
                names = ", ".join(one.config.task for one in running.values())
                done = len(runs) - len(waiting) - len(running)
                progress.update(f"{done} of {len(runs)} tasks; training {names}", None)
                (ended, *_), _ = ray.wait(list(running), num_returns=1)
                one = running.pop(ended)
                try:
                    ray.get(ended)
                    _check_folder(one)
                    console.print(f"{one.config.task}: trained, in {one.out}")
                except (RayTaskError, UserError) as error:
                    reason = error.cause if isinstance(error, RayTaskError) else error
                    known = isinstance(reason, UserError)
                    failures.append(ConfigError(f"{one.config.task}: {reason}") if known else error)
    for failure in failures[1:]:
        progress.warn(str(failure))
    if failures:
        raise failures[0]


def _make_what_they_share(first: FinalRun, progress: Progress) -> None:
    """Fill the cache with what does not depend on the task, so that the workers do not each make it."""
    config, device = first.config, first.device
    one_shot = config.final.start == "one_shot"
    if not (one_shot or is_independent_of_task(config)):
        return
    workspace = prepare(config, device, progress.update, outputs=False, texts=("warmup", *FINAL))
    if one_shot:
        base, _ = base_of_study(config)
        architecture = first.architecture.transferred(base) if first.transfer else first.architecture
        starting_point(TrainedEvaluator(workspace, device), architecture, device, progress.update)


def _train(final: FinalRun, folder: str) -> None:
    """In a worker: run one training, with paths relative to the driver's working directory."""
    load_extensions()
    if Path(folder).is_dir():
        os.chdir(folder)
    run(final)


def _check_folder(final: FinalRun) -> None:
    if not (final.out / METRICS_FILE).exists():
        raise ConfigError(
            f"--out {final.out}: a worker on another node has written there, but the files are not here: choose a "
            "folder that all nodes share"
        )

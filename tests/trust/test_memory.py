"""A candidate for which there is no memory, one whose loss is not finite, and a worker that is lost are told apart."""

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.trial import TrialState

from nas.evaluation.trained import TrainedEvaluator
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.study.description import Parameters
from nas.study.storage import sqlite_url
from nas.workers import runner
from nas.workers.cluster import Cluster, ray_session
from tests import requirements
from tests.nas.tiny_study import TinyStudy
from tests.trust_counts import Cases

GROUP, MARKER = "TEST_CONTROL_GROUP", "TEST_LOST_ONCE"
# By the numbers of their trials.
ALLOCATOR, KERNEL, NOT_A_NUMBER, LOST, SOUND = range(5)


class Hungry:
    """Evaluates by allocating more than the process may have."""

    def evaluate(self, *arguments: object) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + 2**26, hard))
        try:
            torch.ones(2**28)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def troubled(config: dict[str, Any], workspace: Workspace, device: str, rungs: tuple[Fraction, ...]) -> None:
    """`evaluate_trial` of candidates of which four get into trouble."""
    number, evaluator_of = config["number"], runner.evaluator_of
    if number == KERNEL:
        Path(os.environ[GROUP], "cgroup.procs").write_text(str(os.getpid()))
        blocks = []
        while True:
            blocks.append(b"x" * 2**22)
    if number == LOST and not Path(os.environ[MARKER]).exists():
        Path(os.environ[MARKER]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    evaluator = evaluator_of(workspace, device)
    assert isinstance(evaluator, TrainedEvaluator)
    sound = evaluator.weights
    if number == NOT_A_NUMBER:
        evaluator.weights = {name: weight * torch.nan for name, weight in sound.items()}
    if number == ALLOCATOR:
        runner.evaluator_of = lambda workspace, device: Hungry()  # type: ignore[assignment, return-value]
    try:
        runner.evaluate_trial(config, workspace, device, rungs)
    finally:
        runner.evaluator_of, evaluator.weights = evaluator_of, sound


@pytest.fixture
def control_group() -> Iterator[Path]:
    """A control group whose processes may have 64 megabytes together; the kernel kills one that takes more."""
    root = Path("/sys/fs/cgroup")
    first = (root / "memory").exists()
    group = (root / "memory" if first else root) / f"ffn-nas-test-{os.getpid()}"
    requirements.succeeds(["mkdir", str(group)], "control groups, which root may make")
    try:
        limit = group / ("memory.limit_in_bytes" if first else "memory.max")
        requirements.succeeds(["sh", "-c", f"echo {2**26} > {limit}"], "control groups of memory")
        yield group
    finally:
        with contextlib.suppress(OSError):
            group.rmdir()


@pytest.mark.slow
@pytest.mark.trust
@pytest.mark.usefixtures("ray_without_tokens")
def test_reasons_of_failures_are_told_apart(
    control_group: Path,
    tiny_study: TinyStudy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cases: Callable[..., Cases],
) -> None:
    """No memory for the allocator or the kernel, values that are not finite, and a killed worker."""
    counts = cases(sample=1, full=5)
    monkeypatch.setenv(GROUP, str(control_group))
    workspace = prepare(tiny_study.config, "cpu")
    first = plan(tiny_study.config, workspace, "1", None, ())
    for case in range(counts.wanted):
        monkeypatch.setenv(MARKER, str(tmp_path / f"lost-{case}"))
        study = ledger.open_study(sqlite_url(tmp_path / f"{case}.db"), "stage-1")
        wanted = [(first.baselines[1][0], f"candidate {number}", number) for number in range(SOUND + 1)]
        ledger.enqueue_missing(study, Parameters.of(first.space), wanted)
        local = Cluster(workers=1, device="cpu")
        with ray_session(local):
            runner.run(
                study,
                first.space,
                workspace,
                local,
                trials=None,
                origin="random",
                evaluate=troubled,
                on_trial=lambda study, number: None,
            )
        trials = study.trials
        failed = {number: trials[number].user_attrs.get(ledger.FAILURE, "") for number in range(SOUND + 1)}
        assert failed[ALLOCATOR].startswith("out of memory: [enforce fail at alloc_cpu.cpp"), failed
        assert failed[KERNEL] == "out of memory: the kernel killed the worker"
        assert failed[NOT_A_NUMBER].startswith("diverged: ")
        assert [trials[number].state for number in (ALLOCATOR, KERNEL, NOT_A_NUMBER)] == [TrialState.FAIL] * 3
        assert not any(trial.values for trial in trials[:LOST])
        assert trials[LOST].user_attrs[ledger.ATTEMPT] == 2
        assert [trials[number].state for number in (LOST, SOUND)] == [TrialState.COMPLETE] * 2
        study._storage._backend.engine.dispose()  # type: ignore[attr-defined]
        for reason in ("allocator", "kernel", "not a number", "lost and repeated"):
            counts[reason] += 1

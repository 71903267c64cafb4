"""A candidate for which the kernel has no memory is told from one whose worker was lost.

`tests/nas/workers/test_runner.py` has the allocator and Ray refuse memory, `test_troubled_candidates.py` all the rest.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.study import ledger
from nas.study.storage import sqlite_url
from nas.workers import runner
from nas.workers.cluster import Cluster, ray_session
from tests import requirements
from tests.nas.tiny_study import TinyStudy
from tests.trust_counts import Cases

GROUP = "TEST_CONTROL_GROUP"


def greedy(config: dict[str, Any], workspace: Workspace, device: str, rungs: tuple[Fraction, ...]) -> None:
    """`evaluate_trial`, of candidates of which the first takes all the memory that there is."""
    if config["number"] == 0:
        Path(os.environ[GROUP], "cgroup.procs").write_text(str(os.getpid()))
        blocks = []
        while True:
            blocks.append(b"x" * 2**22)
    runner.evaluate_trial(config, workspace, device, rungs)


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
def test_a_worker_that_the_kernel_kills(
    control_group: Path,
    tiny_study: TinyStudy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cases: Callable[..., Cases],
) -> None:
    """No memory for the kernel: the trial fails with the reason, is not repeated, and the next one succeeds."""
    counts = cases(sample=1, full=5)
    monkeypatch.setenv(GROUP, str(control_group))
    workspace = prepare(tiny_study.config, "cpu")
    first = plan(tiny_study.config, workspace, "1", None, ())
    local = Cluster(workers=1, device="cpu")
    for case in range(counts.wanted):
        study = ledger.open_study(sqlite_url(tmp_path / f"{case}.db"), "stage-1")
        ledger.enqueue_missing(study, first.space, first.baselines[:2])
        with ray_session(local):
            runner.run(
                study,
                first.space,
                workspace,
                local,
                trials=None,
                origin="random",
                evaluate=greedy,
                on_trial=lambda study, number: None,
            )
        killed, finished = study.trials
        assert (killed.state, killed.values) == (TrialState.FAIL, None)
        assert killed.user_attrs[ledger.FAILURE] == "out of memory: the kernel killed the worker"
        assert ledger.ATTEMPT not in killed.user_attrs
        assert finished.state == TrialState.COMPLETE
        counts["failed with its reason"] += 1

"""Searches on a Ray cluster of two nodes, which are real processes on this machine."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import ray
from optuna.trial import TrialState

from foundation.extensions import VARIABLE
from nas.config.schema import ConfigError
from nas.study import ledger
from nas.workers import cluster
from nas.workers.cluster import Cluster, cpus_per_trial, gpus_at, ray_session
from tests.nas.processes import family, kill_all, pause_both_workers, workers
from tests.nas.records import facts
from tests.nas.tiny_study import PROJECT, TIMEOUT, TinyStudy, states, trials_of, wait
from tests.trust_counts import Cases

RAY = (sys.executable, "-m", "ray.scripts.scripts")
ALONE = {"RAY_AUTH_MODE": "disabled", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Node:
    """A node with one processor."""

    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Kill all processes of a node, as a power cut would."""
        everyone = family(self.process.pid)
        kill_all(everyone)
        self.process.wait(TIMEOUT)
        psutil.wait_procs(everyone, TIMEOUT)


@contextlib.contextmanager
def node(*arguments: str) -> Iterator[Node]:
    """Run `ray start ...` during the block; the process is killed at its end."""
    with subprocess.Popen(
        [*RAY, "start", *arguments, "--num-cpus", "1", "--disable-usage-stats", "--block"],
        env=os.environ | ALONE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout
            assert any("Ray runtime started" in line for line in process.stdout)
            yield Node(process)
        finally:
            if process.poll() is None:
                Node(process).kill()


@contextlib.contextmanager
def head_node() -> Iterator[tuple[str, Node]]:
    """Run a cluster of one node during the block: its address, and the node."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short, as the paths of sockets must be
    with socket.socket() as free:
        free.bind(("", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    port = address.rpartition(":")[2]
    with node("--head", "--port", port, "--temp-dir", folder, "--include-dashboard", "false") as head:
        yield address, head
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[str, Node, Node]]:
    """The address of a cluster, its head node and its other node."""
    with head_node() as (address, head), node("--address", address) as other:
        yield address, head, other


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_any_number_of_workers_fits(
    count: int, nodes: tuple[str, Node, Node], searched: Path, tiny_study: TinyStudy, tmp_path: Path
) -> None:
    """A single worker does not get two processors, which no node has; four workers take turns."""
    address, head, other = nodes
    result = tiny_study.run(*tiny_study.search(tmp_path, "--study", "s", "--address", address, "--workers", count))
    assert (result.returncode, result.stderr) == (0, "")
    assert list(map(facts, trials_of(tmp_path / "s"))) == list(map(facts, trials_of(searched)))
    end = time.monotonic() + TIMEOUT
    while workers(family(head.process.pid, other.process.pid)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not workers(family(head.process.pid, other.process.pid))


@pytest.mark.slow
def test_workers_know_the_extensions_of_the_search(
    nodes: tuple[str, Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their nodes have been started without."""
    assert VARIABLE not in os.environ
    monkeypatch.setenv(VARIABLE, "json")
    program = (
        "import os, ray; from nas.workers.cluster import Cluster, ray_session\n"
        f"with ray_session(Cluster(address={nodes[0]!r})):\n"
        f"    print(ray.get(ray.remote(lambda: os.environ[{VARIABLE!r}]).remote()))"
    )
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.split()[-1] == "json"


def losing_a_node(
    tiny_study: TinyStudy, folder: Path, head: Node, other: Node, study: str, command: tuple[object, ...]
) -> None:
    """Run a search and kill the other node while both evaluate a trial of this study; the trial is run again."""
    with tiny_study.running(*command) as process:
        nodes = (head.process.pid, other.process.pid)
        # The base model, in a study of its own, is evaluated before the others and has one worker.
        wait(process, lambda: states(folder, study).total() > 0)
        wait(process, lambda: pause_both_workers(lambda: states(folder, study)["RUNNING"], *nodes))
        running = [trial.number for trial in trials_of(folder, study) if trial.state == TrialState.RUNNING]
        other.kill()
        for one in workers(family(head.process.pid)):
            one.resume()
        output, error = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, error
    assert "Traceback" not in error
    assert "lost its worker and is re-queued" in output
    lost = [trial.number for trial in trials_of(folder, study) if trial.user_attrs.get(ledger.ATTEMPT) == 2]
    assert len(lost) == 1
    assert lost[0] in running


@pytest.mark.slow
@pytest.mark.trust
def test_a_node_is_lost_in_every_stage(tiny_study: TinyStudy, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """A Ray node is lost in each of three stages: the search has the same trials as an undisturbed one.

    The nodes share a cache. What other samplers than `random` propose depends on which of two trials ends first.
    """
    counts = cases(sample=3, full=3)
    changes = [("trials = 8", "trials = 30"), *((f'"{name}"', '"random"') for name in ("evolution", "local"))]
    preset = tiny_study.variant(tmp_path / "s.toml", *changes)
    given = ("--preset", preset, "--study", "s", "--workers", "2")
    result = tiny_study.run("-m", "nas.search", "--stage", "all", *given, "--out", tmp_path / "undisturbed")
    assert result.returncode == 0, result.stderr
    folder = tmp_path / "disturbed" / "s"
    with head_node() as (address, head):
        for stage in ("1", "2", "3"):
            here = ("--out", folder.parent, "--address", address)
            with node("--address", address) as other:
                command = ("-m", "nas.search", "--stage", stage, *given, *here)
                losing_a_node(tiny_study, folder, head, other, f"stage-{stage}", command)
            expected = trials_of(tmp_path / "undisturbed" / "s", f"stage-{stage}")
            assert list(map(facts, trials_of(folder, f"stage-{stage}"))) == list(map(facts, expected))
            counts[f"lost in stage {stage}, and its trial run again"] += 1
    winners = [(where / "s" / "architecture.json").read_text() for where in (tmp_path / "undisturbed", folder.parent)]
    assert winners[0] == winners[1]


@pytest.mark.parametrize("address", ["nonsense", "ray://127.0.0.1:10001", "127.0.0.1", "", "http://127.0.0.1:8265"])
def test_addresses_that_cannot_be(address: str) -> None:
    with pytest.raises(ConfigError, match="give HOST:PORT"):
        gpus_at(address)


@pytest.mark.slow
def test_addresses_of_no_cluster(tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tiny_study.run(*tiny_study.search(tmp_path, "--address", "127.0.0.1:1"))
    assert result.returncode == 2
    assert result.stderr.startswith(
        "nas.search: --address 127.0.0.1:1: cannot connect to a Ray cluster (no answer for "
    )
    assert result.stderr.count("\n") == 1
    # It is not in the way of the corrected command.
    assert tiny_study.run(*tiny_study.search(tmp_path, "--trials", "2")).returncode == 0
    monkeypatch.setattr(cluster, "TIMEOUT", 10)
    with socket.create_server(("", 0)) as silent:
        for address in (f"127.0.0.1:{silent.getsockname()[1]}", "no.such.host:6379"):
            with pytest.raises(ConfigError, match="cannot connect to a Ray cluster"):
                gpus_at(address)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_without_tokens")
def test_a_local_session_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ignores any cluster that the environment names."""
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with ray_session(Cluster()):
        processors = os.cpu_count() or 1
        assert [cpus_per_trial(workers) for workers in (1, processors, 5 * processors)] == [processors, 1, 1]
        assert len(ray.nodes()) == 1


def test_sockets_in_ray_s_folder_have_short_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    for usual, found in (
        ("/tmp", "/tmp"),
        ("/scratch/job-1", "/scratch/job-1"),
        ("/var/folders/zz/zyxvpxvq6csfxvn_n/T", "/tmp"),
    ):
        monkeypatch.setattr("tempfile.tempdir", usual)
        assert str(cluster.temporary_files()) == found
    monkeypatch.setenv("RAY_TMPDIR", "/chosen")
    assert str(cluster.temporary_files()) == "/chosen"


def test_workers_find_the_standard_library_before_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/given")
    assert cluster.worker_path() == f"{PROJECT}:/given"
    monkeypatch.setattr(cluster, "PROJECT", tmp_path / "site-packages")
    assert cluster.worker_path() == "/given"
    monkeypatch.delenv("PYTHONPATH")
    assert cluster.worker_path() == ""


LISTENING = """
import os, psutil, ray
from nas.workers.cluster import Cluster, ray_session
with ray_session(Cluster()):
    ray.get(ray.remote(lambda: None).remote())  # a worker
    processes = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    for each in psutil.net_connections("inet"):
        if each.status == "LISTEN" and each.pid in processes:
            print(each.laddr.ip)
"""


@pytest.mark.slow
def test_a_local_session_listens_on_the_loopback_interface_alone() -> None:
    command = [sys.executable, "-c", LISTENING]
    shown = subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, text=True, timeout=TIMEOUT).stdout
    assert set(shown.split()) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert len(shown.split()) >= 3


def test_a_session_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**settings: object) -> None:
        raise Exception("The current node timed out during startup.\nMany lines.")

    monkeypatch.setattr(ray, "init", fails)
    with pytest.raises(ConfigError, match=r"^Ray does not start: The .* timed out during startup\.; check "):
        cluster._connect(Cluster(), None)

"""`python -m distill` interrupted, killed and resumed, on a full disk, and in two processes."""

import functools
import json
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event
from torch import Tensor

from distill.__main__ import main
from distill.training.checkpoint import Checkpoint
from distill.training.progress import Progress
from tests.accelerate_state import reset_accelerate
from tests.distill.command.shared import FOUR, Distil, environment, weights
from tests.tiny import CLASSES, bert, saved

CHAIN = {"student": "first:1", "objective": "tinybert", "steps": 20, "finetune_teacher": 3}


@pytest.mark.parametrize("where", ["assistant 1: tinybert", "student, before"])
def test_interrupted_and_resumed_is_the_same_run(
    where: str,
    distil: Distil,
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While the teacher, an assistant or the student is made."""
    monkeypatch.setattr("distill.training.distillation.Checkpoint", functools.partial(Checkpoint, every=4))
    flags = ("--assistant", "first:2")
    expected = distil(*flags, **CHAIN, out=tmp_path / "whole")
    prepare = Progress.update

    def stop(self: Progress, what: str, share: float | None) -> None:
        prepare(self, what, share)
        if what.startswith(where) and (share is None or share > 0.5):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", stop)
        assert main(command(*flags, **CHAIN)) == 130
    assert capsys.readouterr().err == "distill: interrupted; add --resume to continue\n"
    reset_accelerate()
    found = distil(*flags, "--resume", **CHAIN)
    assert found["models"] == expected["models"]
    for part in ("teacher", "assistant-1", "."):
        whole, resumed = weights(tmp_path / "whole" / part), weights(tmp_path / "out" / part)
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert distil(*flags, "--resume", **CHAIN)["models"] == expected["models"]  # of a run that is done


def test_a_run_goes_on_with_the_same_files_only(
    distil: Distil,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(fixtures / "teacher", tmp_path / "teacher")
    shutil.copy(fixtures / "train.tsv", tmp_path / "train.tsv")
    own = {"teacher": tmp_path / "teacher", "train": tmp_path / "train.tsv", "steps": 1}
    distil(**own)
    for file, named in ((tmp_path / "train.tsv",) * 2, (tmp_path / "teacher" / "config.json", tmp_path / "teacher")):
        before = file.read_bytes()
        file.write_bytes(before + b"\n")
        assert main(command("--resume", **own)) == 2
        assert f"{named} is not what it was when --out {tmp_path / 'out'} began" in capsys.readouterr().err
        file.write_bytes(before)
    distil("--resume", **own)


def logged_steps(folder: Path) -> list[int]:
    """The numbers of the steps in TensorBoard's logs there."""
    found = []
    for file in folder.rglob("events.out.*"):
        content = file.read_bytes()
        while content:  # length, its check sum, the event, its check sum
            length = struct.unpack_from("<Q", content)[0]
            event = Event.FromString(content[12 : 12 + length])
            found += [event.step] if event.summary.value else []
            content = content[16 + length :]
    return found


@pytest.mark.slow
def test_killed_and_resumed(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """Twice and without a chance to clean up: as soon as there is a state of the teacher, and then of the student."""

    def started(*flags: str, **changes: object) -> subprocess.Popen[bytes]:
        given = command(*flags, student="first:1", finetune_teacher=260, steps=160, batch_size=2, **changes)
        program = [sys.executable, "-m", "distill", *given]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, env=environment(), cwd=tmp_path)

    def killed_at(state: Path, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 120
        while not state.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()

    out, whole = tmp_path / "out", started(out=tmp_path / "whole")
    state = out / "teacher" / "state" / "phase-1.pt"
    killed_at(state, started())
    assert not (out / "teacher" / "config.json").exists()
    done = len(torch.load(state, weights_only=True)["history"])
    assert done in (100, 200)
    killed_at(out / "state" / "phase-1.pt", started("--resume", tensorboard=tmp_path / "logs"))
    assert logged_steps(tmp_path / "logs" / "teacher") == list(range(done + 1, 261))
    assert (out / "teacher" / "config.json").exists() and not (out / "config.json").exists()
    assert started("--resume").wait() == whole.wait() == 0
    measured = [json.loads((folder / "metrics.json").read_text())["models"] for folder in (out, tmp_path / "whole")]
    assert measured[0] == measured[1]
    for part in ("teacher", "."):
        expected, resumed = weights(tmp_path / "whole" / part), weights(out / part)
        assert expected.keys() == resumed.keys()
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    assert not list(tmp_path.rglob("state"))


# In full precision, in which shares of a batch add up to what the whole gives.
LAUNCHED = """
import sys
from accelerate import Accelerator
from distill import __main__
from distill.command import examples
examples.make_accelerator = lambda device, mixed_precision=True: Accelerator(cpu=True, mixed_precision="no")
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """They share the batches out and learn what one learns, by an objective that does not reach all parameters."""
    (tmp_path / "launched.py").write_text(LAUNCHED)
    without_dropout = bert(1, labels=2, **FOUR, **CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    saved(without_dropout, tmp_path / "teacher")

    def launched(processes: int) -> subprocess.Popen[str]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        changes = {"teacher": tmp_path / "teacher", "objective": "minilm", "steps": 10, "learning_rate": 1e-3}
        return subprocess.Popen(
            [*launch, str(tmp_path / "launched.py"), *command(out=tmp_path / f"out-{processes}", **changes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=tmp_path,
        )

    found: dict[int, tuple[Any, dict[str, Tensor]]] = {}
    for processes, started in {processes: launched(processes) for processes in (1, 2)}.items():
        out = tmp_path / f"out-{processes}"
        shown, error = started.communicate()
        assert started.returncode == 0, error
        assert shown.count(f"wrote {out}") == shown.count("student: measuring") == 1
        found[processes] = json.loads((out / "metrics.json").read_text()), weights(out)
    (one, alone), (two, shared) = found[1], found[2]
    assert (one["processes"], two["processes"]) == (1, 2)
    start = weights(tmp_path / "teacher")
    for name, weight in alone.items():
        # Softmax ignores what a bias of keys adds, so its gradients are nothing but rounding, which Adam scales up.
        if not name.endswith("key.bias"):
            torch.testing.assert_close(shared[name], weight, rtol=1e-3, atol=1e-4)
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.allclose(alone[name], start[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("steps", "state"), [(2, False), (100, True)])
def test_a_full_disk(
    steps: int, state: bool, distil: Distil, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """While the student is saved, or before that the state of its training; with room it goes on."""
    room = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, room))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-m", "distill", *command(steps=steps)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    error = done.stderr
    assert re.fullmatch(r"distill: --out .*out: .*; free some space there and add --resume\n", error), error
    assert ("phase-1.pt: there is no space left on this disk" in error) == state
    distil("--resume", steps=steps)

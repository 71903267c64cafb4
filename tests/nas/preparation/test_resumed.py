"""Preparations that are interrupted or killed continue, and arrive at the same weights."""

import shutil
from functools import partialmethod
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from distill.training.checkpoint import Checkpoint
from foundation.files import STATE_PREFIX
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.planning.stages import plan
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.search.command import main
from search_spaces.architecture import Architecture
from tests.nas.processes import Killed, family, kill_all
from tests.nas.tiny_study import TIMEOUT, TinyStudy, wait

# Here checkpoints are written after every ten steps instead of a hundred.
STEPS, EVERY = 13, 10
TEACHER, WARM_UP = "teacher: fine-tuning", "supernet: warm-up"
ONE_SHOT = "one-shot supernet: training"


class Interruption:
    """A progress callback that raises `Killed` when most of the piece of work `what` is done, if it is given."""

    def __init__(self, what: str | None = None) -> None:
        self.what = what
        self.first_fractions: dict[str, float] = {}

    def __call__(self, what: str, fraction: float | None) -> None:
        if fraction is not None:
            self.first_fractions.setdefault(what, fraction)
            if what == self.what and fraction > 0.9:
                raise Killed


@pytest.fixture
def config(tiny_study: TinyStudy, tmp_path: Path) -> StudyConfig:
    changes = (
        ("[finetune]\nsteps = 60\n", f"[finetune]\nsteps = {STEPS}\nearly_stopping_patience = 9\n"),
        ("steps = 4\n", f'steps = {STEPS}\ngraphs = "sampled"\n'),
        ("[one_shot]\nsteps = 6\n", f"[one_shot]\nsteps = {STEPS}\n"),
        ("[stage3]\n", '[stage3]\nevaluation = "one_shot"\n'),
        ("dropout = 0.0\n", "dropout = 0.1\n"),
    )
    return load_config(str(tiny_study.variant(tmp_path / "longer.toml", *changes)))


@pytest.fixture
def caches(tiny_study: TinyStudy, tmp_path: Path) -> Path:
    """A folder whose subfolders are caches that contain the text."""
    for name in ("whole", "interrupted"):
        shutil.copytree(tiny_study.cache / "corpora", tmp_path / name / "corpora")
    return tmp_path


def prepared(config: StudyConfig, interruption: Interruption) -> list[Path]:
    """The files with the weights of teacher, supernet and one-shot supernet."""
    workspace = prepare(config, "cpu", interruption, outputs=False)
    start = Architecture.uniform(workspace.base()[0])
    stage = plan(config, workspace, "3", start, ())
    one_shot = prepare_one_shot(workspace, stage.space, "cpu", interruption).one_shot
    return [
        workspace.folders.teacher / "model.safetensors",
        workspace.supernet / "model.safetensors",
        one_shot / "one_shot.safetensors",
    ]


def test_an_interrupted_preparation_continues(
    config: StudyConfig, caches: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Checkpoint, "__init__", partialmethod(Checkpoint.__init__, every=EVERY))
    monkeypatch.setenv("FFN_NAS_CACHE", str(caches / "whole"))
    whole = prepared(config, Interruption())
    cache = caches / "interrupted"
    monkeypatch.setenv("FFN_NAS_CACHE", str(cache))
    for before, what in ((None, TEACHER), (TEACHER, WARM_UP), (WARM_UP, ONE_SHOT)):
        interruption = Interruption(what)
        with pytest.raises(Killed):
            prepared(config, interruption)
        assert interruption.first_fractions[what] == pytest.approx(1 / STEPS)
        if before is not None:
            assert interruption.first_fractions[before] == pytest.approx((EVERY + 1) / STEPS)
        assert len(list(cache.glob(f"*/{STATE_PREFIX}*"))) == 1
    last = Interruption()
    resumed = prepared(config, last)
    assert last.first_fractions[ONE_SHOT] == pytest.approx((EVERY + 1) / STEPS)
    for file, expected in zip(resumed, whole, strict=True):
        found, right = load_file(file), load_file(expected)
        assert found.keys() == right.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in right.items()), file
    assert not list(cache.glob(f"*/{STATE_PREFIX}*"))


@pytest.mark.slow
def test_a_killed_preparation_continues_in_two_processes(tiny_study: TinyStudy, caches: Path) -> None:
    changes = (("[finetune]\nsteps = 60\n", "[finetune]\nsteps = 600\n"), ("dropout = 0.0\n", "dropout = 0.1\n"))
    preset = tiny_study.variant(caches / "longer.toml", *changes)
    study = TinyStudy(tiny_study.root, caches / "whole")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    command = (*launch, *study.search(caches / "results", "--prepare", preset=preset))
    with study.running(*command) as process:
        wait(process, lambda: any(study.cache.glob(f"teachers/{STATE_PREFIX}*/fine-tuning.pt")))
        kill_all(family(process.pid))
        process.communicate(timeout=TIMEOUT)
    resumed = study.run(*command)
    assert resumed.returncode == 0 and "Traceback" not in resumed.stderr, resumed.stderr
    assert resumed.stdout.count("supernet: warm-up") >= 1
    assert not list(study.cache.glob(f"*/{STATE_PREFIX}*"))
    assert not (caches / "results").exists()
    assert len(list(study.cache.glob("supernets/*/model.safetensors"))) == 1


def test_only_the_preparation_runs_in_several_processes(
    tiny_study: TinyStudy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["--stage", "1", "--preset", str(tiny_study.preset)]) == 2
    assert "only the preparation runs in several processes: add --prepare" in capsys.readouterr().err

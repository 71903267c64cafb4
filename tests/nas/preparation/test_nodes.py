"""Several real processes with one cache folder create the same files."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from foundation.files import STATE_PREFIX, SUMS_PREFIX
from nas.preparation.prepare import prepare
from tests.nas.tiny_study import PROJECT, TIMEOUT, TinyStudy

CREATE = """
import sys, torch
from pathlib import Path
from accelerate import Accelerator
from nas.config.schema import ConfigError
from nas.preparation import nodes

cache, accelerator = Path(sys.argv[1]), Accelerator(cpu=True)
nodes.check_shared(cache, accelerator)

def make(draft, state):
    if draft.name == "new":
        # The state of an interrupted training.
        assert (state / "half").read_text() == "done"
    # All processes take part, as in a training.
    total = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]), reduction="sum")
    draft.mkdir()
    (draft / "text").write_text(f"made of {total.item():.0f}")

def make_alone(draft, state):
    assert accelerator.process_index == 0
    draft.write_text("alone")

for name in ("before", "new", "another"):
    assert nodes.create_together(cache / name, make, accelerator) == cache / name
    assert (cache / name / "text").exists()
nodes.create_together(cache / "alone", make_alone, accelerator, together=False)
try:
    nodes.create_together(cache / f"own-{accelerator.process_index}", make, accelerator)
except ConfigError as error:
    print(error)
torch.distributed.destroy_process_group()
"""
PREPARE = """
import sys, torch
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation.prepare import prepare

try:
    workspace = prepare(load_config(sys.argv[1]), "cpu", outputs=False)
    print(workspace.supernet.exists() and workspace.folders.teacher.exists() and workspace.folders.data.exists())
except ConfigError as error:
    print(error)
torch.distributed.destroy_process_group()
"""


def launched(program: str, arguments: list[list[Path]], caches: list[Path]) -> list[str]:
    """The outputs of one process for each cache folder; each is the first process of its node."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank, (own, cache) in enumerate(zip(arguments, caches, strict=True)):
        places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(caches))}
        places |= {"RANK": str(rank), "LOCAL_RANK": "0", "OMP_NUM_THREADS": "1", "FFN_NAS_CACHE": str(cache)}
        command = [sys.executable, "-c", program, *map(str, own)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=os.environ | places, cwd=PROJECT, text=True, **pipes))
    try:
        results = [(*process.communicate(timeout=TIMEOUT), process.returncode) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(status == 0 for *_, status in results), results
    return [out for out, *_ in results]


@pytest.mark.slow
def test_all_processes_make_what_one_of_them_keeps(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "text").write_text("there before")
    (tmp_path / f"{STATE_PREFIX}new").mkdir()
    (tmp_path / f"{STATE_PREFIX}new" / "half").write_text("done")
    outs = launched(CREATE, [[tmp_path]] * 2, [tmp_path] * 2)
    assert all("1 of 2 processes need another entry of" in out and "which needs own-0" in out for out in outs)
    kept = {file.name: file for file in tmp_path.iterdir() if not file.name.startswith(SUMS_PREFIX)}
    assert kept.pop("alone").read_text() == "alone"
    texts = {name: (folder / "text").read_text() for name, folder in kept.items()}
    assert texts == {"before": "there before", "new": "made of 3", "another": "made of 3"}


@pytest.mark.slow
def test_a_study_prepared_by_two_processes(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """Each takes its rows of every batch. A node with another cache is refused before anything is made."""
    workspace = prepare(tiny_study.config, "cpu", outputs=False)
    caches = [tmp_path / "a", tmp_path / "b"]
    shutil.copytree(tiny_study.cache / "corpora", caches[0] / "corpora")
    lines = launched(PREPARE, [[tiny_study.preset]] * 2, caches)
    assert lines == [
        f"1 of 2 processes do not share the cache {cache} with the first one: set FFN_NAS_CACHE to a folder that all "
        "nodes share\n"
        for cache in caches
    ]
    assert [path.name for path in caches[0].iterdir()] == ["corpora"]
    assert launched(PREPARE, [[tiny_study.preset]] * 2, caches[:1] * 2) == ["True\n", "True\n"]
    alone, together = (
        load_file(cache / workspace.supernet.relative_to(tiny_study.cache) / "model.safetensors")
        for cache in (tiny_study.cache, caches[0])
    )
    assert alone.keys() == together.keys()

"""Several real processes on two nodes with a cache folder each create the same files."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from distill.files import STATE_PREFIX, SUMS_PREFIX
from nas.preparation.prepare import prepare
from tests.nas.tiny_study import PROJECT, TIMEOUT, TinyStudy

KEEP = """
import sys, torch
from pathlib import Path
from accelerate import Accelerator
from nas.config.schema import ConfigError
from nas.preparation import nodes

nodes.CHUNK = 5
cache, accelerator = Path(sys.argv[1]), Accelerator(cpu=True)

def make(draft, state):
    if draft.name == "new":
        # The state of an interrupted training, which only the first process has kept.
        assert (state / "half").read_text() == "done"
    # All processes take part, as in a training.
    total = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]), reduction="sum")
    if draft.name == "file":
        draft.write_text(f"made of {total.item():.0f}")
    else:
        (draft / "inner").mkdir(parents=True)
        (draft / "inner" / "text").write_text(f"made of {total.item():.0f}")
        (draft / "empty").touch()

for name in ("of the first", "of the second", "of both", "new", "file"):
    assert nodes.create_on_every_node(cache / name, make, accelerator) == cache / name
def make_alone(draft, state):
    assert accelerator.process_index == 0
    draft.write_text("alone")

nodes.create_on_every_node(cache / "alone", make_alone, accelerator, together=False)
try:
    nodes.create_on_every_node(cache / f"own-{accelerator.process_index}", make, accelerator)
except ConfigError as error:
    print(error)
torch.distributed.destroy_process_group()
"""
PREPARE = """
import sys, torch
from nas.config.load import load_config
from nas.preparation.prepare import prepare

workspace = prepare(load_config(sys.argv[1]), "cpu", outputs=False)
print(workspace.supernet.exists() and workspace.folders.teacher.exists() and workspace.folders.data.exists())
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
def test_every_node_has_what_the_first_one_keeps(tmp_path: Path) -> None:
    caches = [tmp_path / "a", tmp_path / "b"]
    for cache in caches:
        for name in ("of the first", "of the second", "of both"):
            if name in ("of both", {"a": "of the first", "b": "of the second"}[cache.name]):
                (cache / name / "inner").mkdir(parents=True)
                (cache / name / "inner" / "text").write_text(f"there before in {cache.name}")
                (cache / name / "empty").touch()
    (caches[0] / f"{STATE_PREFIX}new").mkdir()
    (caches[0] / f"{STATE_PREFIX}new" / "half").write_text("done")
    outs = launched(KEEP, [[cache] for cache in caches], caches)
    assert all("1 of 2 processes would make another" in out and "which makes own-0" in out for out in outs)
    for cache in caches:
        kept = {file.name: file for file in cache.iterdir() if not file.name.startswith(("own", SUMS_PREFIX))}
        assert kept.pop("file").read_text() == "made of 3"
        assert kept.pop("alone").read_text() == "alone"
        texts = {name: (folder / "inner" / "text").read_text() for name, folder in kept.items()}
        assert texts == {
            "of the first": "there before in a",
            "of the second": f"{'made of 3' if cache.name == 'a' else 'there before in b'}",
            "of both": f"there before in {cache.name}",
            "new": "made of 3",
        }
        assert all((folder / "empty").read_bytes() == b"" for folder in kept.values())


@pytest.mark.slow
@pytest.mark.parametrize("filled", [0, 1])
def test_a_study_prepared_on_two_nodes_of_which_one_has_it_already(
    tiny_study: TinyStudy, tmp_path: Path, filled: int
) -> None:
    workspace = prepare(tiny_study.config, "cpu", outputs=False)
    caches = [tmp_path / "a", tmp_path / "b"]
    shutil.copytree(tiny_study.cache, caches[filled])
    shutil.copytree(tiny_study.cache / "corpora", caches[1 - filled] / "corpora")
    assert launched(PREPARE, [[tiny_study.preset]] * 2, caches) == ["True\n", "True\n"]
    weights = [
        load_file(cache / workspace.supernet.relative_to(tiny_study.cache) / "model.safetensors") for cache in caches
    ]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0]) or filled == 1

"""The cache in a launch of several processes, whose nodes may share a cache folder or have separate ones."""

import contextlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from distill.files import create_once, write_atomically
from nas.config.schema import ConfigError

# Files are sent in chunks of this many bytes.
CHUNK = 64 * 2**20


def create_on_every_node(path: Path, make: Callable[[Path], None], accelerator: Accelerator) -> Path:
    """The file or folder `path`, which afterwards exists in the cache of every node. In a single process this is the
    same as `distill.files.create_once`.

    All processes call `make` if the path is missing in the cache of the first process, because `make` may be a training
    in which all of them take part. The first process keeps the result and sends a copy to the nodes that lack it.

    Raises:
        ConfigError: the processes have different paths, because their data or versions differ.
    """
    if accelerator.num_processes == 1:
        return create_once(path, make)
    this_process = json.dumps({"name": path.name, "exists": path.exists()}).encode()
    first_process = json.loads(_broadcast(this_process, accelerator))
    if differ := _count(first_process["name"] != path.name, accelerator):
        raise ConfigError(
            f"{differ} of {accelerator.num_processes} processes would make another {path.parent.name} than the first "
            f"one, which makes {first_process['name']}: give all nodes the same configuration, files and versions"
        )
    if not first_process["exists"]:
        if accelerator.is_main_process:
            write_atomically(path, make, keep_existing=True)
        else:
            with tempfile.TemporaryDirectory() as scratch:
                make(Path(scratch) / path.name)
        accelerator.wait_for_everyone()
    _copy_to_nodes(path, accelerator)
    return path


def _copy_to_nodes(path: Path, accelerator: Accelerator) -> None:
    """Send `path` from the first process to the first process of every node that lacks it."""
    lacking = accelerator.is_local_main_process and not path.exists()
    if not _count(lacking, accelerator):
        return
    source = path if accelerator.is_main_process else None
    if lacking:
        write_atomically(path, lambda draft: _transfer(source, draft, accelerator), keep_existing=True)
    else:
        _transfer(source, None, accelerator)
    accelerator.wait_for_everyone()


def _transfer(source: Path | None, target: Path | None, accelerator: Accelerator) -> None:
    """Send the file or folder `source` of the first process to all processes; those with a `target` write it there."""
    listing: list[tuple[str, int]] = []
    if source is not None:
        files = [source] if source.is_file() else sorted(file for file in source.rglob("*") if file.is_file())
        listing = [(file.relative_to(source).as_posix(), file.stat().st_size) for file in files]
    for name, size in json.loads(_broadcast(json.dumps(listing).encode(), accelerator)):
        with contextlib.ExitStack() as stack:
            reader = stack.enter_context((source / name).open("rb")) if source is not None else None
            writer = None
            if target is not None:
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                writer = stack.enter_context((target / name).open("wb"))
            for _ in range(0, size, CHUNK):
                chunk = _broadcast(reader.read(CHUNK) if reader is not None else b"", accelerator)
                if writer is not None:
                    writer.write(chunk)


def _count(holds: bool, accelerator: Accelerator) -> int:
    """The number of processes in which `holds` is true."""
    return int(accelerator.reduce(torch.tensor([float(holds)], device=accelerator.device), reduction="sum").item())


def _broadcast(content: bytes, accelerator: Accelerator) -> bytes:
    """Broadcast the `content` of the first process, which must not be empty, to all processes."""
    size = torch.tensor([len(content)], device=accelerator.device)
    torch.distributed.broadcast(size, 0)
    if accelerator.is_main_process:
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(accelerator.device)
    else:
        buffer = torch.empty(int(size), dtype=torch.uint8, device=accelerator.device)
    torch.distributed.broadcast(buffer, 0)
    return buffer.cpu().numpy().tobytes()

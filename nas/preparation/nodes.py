"""The cache in a launch of several processes, whose nodes may share a cache folder or have separate ones."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator

from distill import checksums
from distill.files import scratch_folder, state_of, write_atomically
from nas.config.schema import ConfigError

# Files are sent in chunks of this many bytes.
CHUNK = 64 * 2**20


def create_on_every_node(
    path: Path, make: Callable[[Path, Path], None], accelerator: Accelerator, *, together: bool = True
) -> Path:
    """The file or folder `path`, which afterwards exists in the cache of every node.

    If the path is missing in the cache of the first process, this process makes it, keeps it, and sends a copy to the
    nodes that lack it.

    Args:
        together: whether the other processes call `make` too, because it is a training in which all of them take part.
            Otherwise they wait.
        make: called with a draft of `path`, which it creates, and a folder for its state. What the first process saves
            there is in that folder in all processes if an earlier attempt to make `path` was interrupted.

    Raises:
        ConfigError: the processes have different paths, because their data or versions differ.
        DamagedError: it exists and is not as it was written.
    """
    if path.exists():
        checksums.verify(path)
    if accelerator.num_processes == 1:
        if not path.exists():
            _create(path, make)
        return path
    this_process = json.dumps({"name": path.name, "exists": path.exists()}).encode()
    first_process = json.loads(_broadcast(this_process, accelerator))
    if differ := _count(first_process["name"] != path.name, accelerator):
        raise ConfigError(
            f"{differ} of {accelerator.num_processes} processes would make another {path.parent.name} than the first "
            f"one, which makes {first_process['name']}: give all nodes the same configuration, files and versions"
        )
    if not first_process["exists"]:
        if accelerator.is_main_process:
            _create(path, make, lambda state: _transfer(state, None, accelerator) if together else None)
        elif together:
            with scratch_folder() as scratch:
                state = scratch / "state"
                _transfer(None, state, accelerator)
                make(scratch / path.name, state)
        accelerator.wait_for_everyone()
    _copy_to_nodes(path, accelerator)
    return path


def _create(path: Path, make: Callable[[Path, Path], None], share: Callable[[Path], None] = lambda state: None) -> None:
    """Make `path` atomically, after the state of an interrupted attempt was shared with the other processes."""
    with state_of(path) as state:
        share(state)
        checksums.forget(path)
        write_atomically(path, lambda draft: make(draft, state), keep_existing=True)
        checksums.record(path)


def _copy_to_nodes(path: Path, accelerator: Accelerator) -> None:
    """Send `path` from the first process to the first process of every node that lacks it."""
    lacking = accelerator.is_local_main_process and not path.exists()
    if not _count(lacking, accelerator):
        return
    source = path if accelerator.is_main_process else None
    if lacking:
        checksums.forget(path)
        write_atomically(path, lambda draft: _transfer(source, draft, accelerator), keep_existing=True)
        checksums.record(path)
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

"""The cache in a launch of several processes, whose nodes share its folder."""

from collections.abc import Callable
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

from foundation import checksums
from foundation.files import scratch_folder, state_of
from nas.config.schema import ConfigError


def check_shared(cache: Path, accelerator: Accelerator) -> None:
    """Check that all processes of a launch have the same cache folder.

    Raises:
        ConfigError: a node does not see what the first process writes there.
    """
    if accelerator.num_processes == 1:
        return
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    with scratch_folder(cache) as folder:
        name = broadcast_object_list([folder.name])[0]
        if lacking := sum(gather_object([not (cache / name).exists()])):
            raise ConfigError(
                f"{lacking} of {accelerator.num_processes} processes do not share the cache {cache} with the first "
                "one: set FFN_NAS_CACHE to a folder that all nodes share"
            )
        accelerator.wait_for_everyone()


def create_together(
    path: Path, make: Callable[[Path, Path], None], accelerator: Accelerator, *, together: bool = True
) -> Path:
    """Create the file or folder `path` of the cache unless it exists; returns `path`.

    Args:
        together: whether all processes call `make`, because it is a training in which all of them take part. What the
            others write is dropped. Otherwise they wait for the first one.
        make: called with a draft of `path`, which it creates, and a folder for its state, which the first process
            writes and, if an earlier attempt to make `path` was interrupted, all processes read.

    Raises:
        ConfigError: the processes have different paths, because their data or versions differ.
        foundation.checksums.DamagedError: it exists and is not as it was written.
    """
    exists = path.exists()
    if accelerator.num_processes > 1:
        # Another process may create it at any moment, so what the first one sees decides.
        (first, exists), *others = gather_object([(path.name, exists)])
        if differ := sum(name != first for name, _ in others):
            raise ConfigError(
                f"{differ} of {accelerator.num_processes} processes need another entry of {path.parent} than the first "
                f"process, which needs {first}: give all nodes the same configuration, data files and package versions"
            )
    if exists:
        checksums.verify(path)
    elif accelerator.is_main_process:
        with state_of(path) as state:
            if together and accelerator.num_processes > 1:
                broadcast_object_list([str(state)])
            checksums.create_once(path, lambda draft: make(draft, state))
    elif together:
        with scratch_folder() as scratch:
            make(scratch / path.name, Path(broadcast_object_list([""])[0]))
    accelerator.wait_for_everyone()
    return path

"""Checkpoint files, from which interrupted training runs resume."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile, is_zipfile

import torch

from foundation.errors import UserError, reason
from foundation.files import write_atomically


class CheckpointError(UserError, ValueError):
    """A checkpoint file cannot be resumed from."""


@dataclass(frozen=True)
class Checkpoint:
    """A file in which a training run saves its state after every `every` steps.

    If the file exists, the run resumes from it as if it had not been interrupted. The caller must remove the file.
    """

    path: Path
    every: int = 100

    def save(self, parts: Mapping[str, Any], losses: Sequence[float]) -> None:
        """Write the state of all parts (anything with a `state_dict`), the losses so far, and the random state.

        Raises:
            foundation.files.DiskFullError: there is no space left.
        """
        state = {name: part.state_dict() for name, part in parts.items()}
        # Objectives may keep information on past batches in non-persistent buffers, which are in no state dict.
        state["buffers"] = dict(parts["objective"].named_buffers())
        state["history"] = list(losses)
        state["random"] = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_available() else [])]
        write_atomically(self.path, lambda draft: torch.save(state, draft))

    def restore(self, parts: Mapping[str, Any]) -> list[float]:
        """Restore the saved state of all parts; returns the losses so far, an empty list if there is no file.

        Raises:
            CheckpointError: the file is damaged, or from another run.
        """
        if not self.path.exists():
            return []
        try:
            if not is_zipfile(self.path):  # the format of torch.save
                raise UnpicklingError("not a whole file of torch.save")
            with ZipFile(self.path) as file:
                if (part := file.testzip()) is not None:  # torch.load does not look at the checksums
                    raise UnpicklingError(f"{part} is not as it was written")
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except (RuntimeError, UnpicklingError, BadZipFile, OSError, ValueError, KeyError, EOFError) as error:
            raise CheckpointError(
                f"{self.path}: damaged ({reason(error)}); remove it to train from the beginning"
            ) from None
        try:
            for name, part in parts.items():
                part.load_state_dict(state[name])
            for name, buffer in parts["objective"].named_buffers():
                buffer.copy_(state["buffers"][name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{self.path}: the state of another training run ({reason(error)}); remove it"
            ) from None
        cpu_state, *gpu_state = state["random"]
        torch.set_rng_state(cpu_state)
        if gpu_state and torch.cuda.is_available():
            torch.cuda.set_rng_state(*gpu_state)
        return list(state["history"])

"""The entries of the cache that the preparation makes, as values: a search creates them, a dry run lists them, and the
estimate of a search's time adds up their work.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from distill.encoders.family import family_of
from nas.config.recipes import RecipeTable
from nas.config.schema import StudyConfig
from nas.preparation.context import PreparationContext
from nas.preparation.data import teacher_config
from nas.preparation.nodes import create_together
from nas.preparation.workspace import base_of_study
from search_spaces.architecture import Architecture
from supernet.build import base_of_teacher

# A training step computes about as much as this many forward passes.
TRAINING = 3


@dataclass(frozen=True)
class Work:
    """Computation that takes long.

    Attributes:
        what: its name in the progress of a search, such as "teacher: fine-tuning".
        architecture: of the model.
        sentences: how many the model processes, or the recipe of the training whose batches they are; None if it is not
            known.
        passes: the number of forward passes for each, or the number to which the computation is equivalent.
    """

    what: str
    architecture: Architecture
    sentences: float | RecipeTable | None
    passes: float = 1


@dataclass(frozen=True, eq=False)
class Entry:
    """A file or folder of the cache.

    Attributes:
        what: its name in a dry run.
        path: None until the earlier entries on which it depends exist.
        make: called with a draft of the path, which it writes, and with a folder for the state of a training, from
            which it continues after an interruption.
        work: what takes long when it is made.
        is_training: whether all processes of a launch take part in making it; otherwise the others wait for the first.
    """

    what: str
    path: Path | None
    make: Callable[[Path, Path], None]
    work: tuple[Work, ...] = ()
    is_training: bool = False

    @property
    def exists(self) -> bool:
        return self.path is not None and self.path.exists()

    def create(self, context: PreparationContext) -> None:
        """Make it unless it is in the cache."""
        assert self.path is not None, f"{self.what}: what it depends on has not been made"
        create_together(self.path, self.make, context.accelerator, together=self.is_training)


def create(context: PreparationContext, entries: Iterable[Entry]) -> None:
    for entry in entries:
        entry.create(context)


def teacher_of(config: StudyConfig) -> Architecture:
    """The architecture of a study's teacher; that of the supernet in place of a teacher that is a searched student."""
    teacher = teacher_config(config)
    if family_of(teacher).students_of:
        return largest(config)
    return Architecture.uniform(*base_of_teacher(teacher))


def largest(config: StudyConfig) -> Architecture:
    """The architecture of a study's supernet: the base graph with the largest stack in every layer."""
    return Architecture.uniform(*base_of_study(config), max(config.space.stacks))

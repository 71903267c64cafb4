"""Publishes a folder on the Hugging Face hub: the options, what is checked before any work, and the upload."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foundation.errors import UserError

# The names of the options.
OF_HUB = ("push", "private", "license", "base_model")
# The base model of a teacher that is not on the hub.
NOT_THERE = "none"


class HubError(UserError, ValueError):
    """A folder cannot be published."""


@dataclass(frozen=True)
class Publication:
    """Where a folder is published, and what its card says that nothing here can know.

    Attributes:
        repo: the name on the hub, "organization/name"; None: it is not published.
        license: the identifier of its license on the hub, such as "apache-2.0"; None if it was not given.
        base_model: the name on the hub of the model that it was made from, or `NOT_THERE`; None if it was not given.
        private: whether others cannot see it.
    """

    repo: str | None = None
    license: str | None = None
    base_model: str | None = None
    private: bool = False

    def check(self, known_base: str | None) -> None:
        """Refuse before the work what could not be published after it.

        Args:
            known_base: the base model's name on the hub, if the teacher was given by it.

        Raises:
            HubError: the license or the base model is missing, a name is wrong, or the hub does not know the user.
        """
        if self.license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.license):
            raise HubError(f"--license: must be an identifier of the hub such as apache-2.0, not {self.license!r}")
        if self.repo is None:
            if self.private:
                raise HubError("--private belongs to --push REPO: leave it out")
            return
        if self.license is None:
            raise HubError("--push needs the license of what is published: add --license, such as apache-2.0")
        if self.base_model is None and known_base is None:
            raise HubError(f"--push needs the teacher's name on the hub: add --base-model NAME, or {NOT_THERE}")
        with _in_one_line():
            from huggingface_hub import HfApi
            from huggingface_hub.utils import validate_repo_id

            for name in (self.repo, self.base_model):
                if name is not None:
                    validate_repo_id(name)
            HfApi().whoami()

    def push(self, folder: Path) -> str:
        """Upload the folder, without the configuration, which names files of this machine; returns its address.

        Raises:
            HubError: the hub does not take it.
        """
        assert self.repo is not None
        with _in_one_line(f"{folder} is complete, but "):
            from huggingface_hub import HfApi

            api = HfApi()
            made = api.create_repo(self.repo, private=self.private, exist_ok=True)
            api.upload_folder(repo_id=made.repo_id, folder_path=folder, ignore_patterns=["config.toml", ".*"])
        return str(made)


@contextmanager
def _in_one_line(before: str = "") -> Iterator[None]:
    """Report what the hub says, after this, as a mistake of the user.

    Raises:
        HubError: it refuses something, or cannot be reached.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    # That of the HTTP library, which depends on the version: the hub cannot be reached.
    error_of_http: Any = HfHubHTTPError.__bases__[0]
    try:
        yield
    except (error_of_http, HFValidationError, OSError) as error:
        raise HubError(f"--push: {before}{' '.join(str(error).split())}") from error


def hub_name(teacher: str) -> str | None:
    """The name of a teacher on the hub; None if it is a local folder."""
    return None if Path(teacher).exists() or teacher.startswith((".", "/", "~")) else teacher


def add_push_options(add: Any) -> None:
    """Add the options to a parser or group of one by its `add_argument`."""
    add("--push", metavar="REPO", help="upload the folder to the Hugging Face hub, with a model card")
    add("--private", action="store_true", help="so that others cannot see it there")
    add("--license", metavar="ID", help="license in the model card, such as apache-2.0 (needed for --push)")
    base = "name on the hub of the model it was made from, for the card; none: it is not there"
    add("--base-model", metavar="NAME", help=base)


def publication_of(options: Any) -> Publication:
    """What the options of `add_push_options` say."""
    return Publication(options.push, options.license, options.base_model, options.private)

"""Extensions: modules outside this project that add entries to its tables, such as `OBJECTIVES` or `UNARY`.

Every command and every worker of a search imports them first. They are the modules that installed packages declare in
the group `ffn_nas.extensions` of their entry points, and those that the environment variable FFN_NAS_EXTENSIONS lists.
"""

import os
from importlib import import_module
from importlib.metadata import entry_points

from foundation.errors import UserError

GROUP = "ffn_nas.extensions"
VARIABLE = "FFN_NAS_EXTENSIONS"


class ExtensionError(UserError, ImportError):
    """An extension cannot be imported."""


def load_extensions() -> None:
    """Import all extensions.

    Raises:
        ExtensionError: one of them cannot be imported.
    """
    for point in sorted(entry_points(group=GROUP)):
        _load(point.module, f"entry point {point.name} in the group {GROUP}", "fix or uninstall its package")
    for name in os.environ.get(VARIABLE, "").split(","):
        if name.strip():
            _load(name.strip(), VARIABLE, "install its package, or add its folder to PYTHONPATH")


def _load(name: str, source: str, remedy: str) -> None:
    try:
        import_module(name)
    except Exception as error:  # whatever the module's own code raises
        raise ExtensionError(f"{source}: cannot import {name!r} ({type(error).__name__}: {error}); {remedy}") from error

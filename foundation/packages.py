"""Checks that Python imports the packages of this project, some of whose names other distributions have, too."""

from importlib.util import find_spec
from pathlib import Path

from foundation import DISTRIBUTION

PACKAGES = ("foundation", "search_spaces", "distill", "supernet", "nas")


def check_packages(importer: str) -> None:
    """Raise ImportError if a package lies elsewhere than this one, or its `__init__.py` is another distribution's.

    Args:
        importer: the package that is being imported.
    """
    here = Path(__file__).parents[1]
    for name in PACKAGES:
        spec = find_spec(name)
        path = Path(str(spec and spec.origin))
        if path != here / name / "__init__.py" or f'DISTRIBUTION = "{DISTRIBUTION}"' not in path.read_text("utf-8"):
            raise ImportError(
                f"the package {name!r} in {path.parent} is not that of {DISTRIBUTION}, which is in {here}: "
                "uninstall the other, or start where it is not found",
                name=importer,  # `python -m` shows the error in one line
            )

"""The search: its command line, its stages and the evaluation of candidates. Ray Tune runs the trials and Optuna
records them. `compress_model` makes a smaller student without a search.
"""

from typing import TYPE_CHECKING, Any

from foundation.packages import check_packages

if TYPE_CHECKING:
    from nas.compress.python import Compressed, compress_model

DISTRIBUTION = "ffn-nas"

check_packages(__name__)

__all__ = ["Compressed", "compress_model"]


def __getattr__(name: str) -> Any:
    """What this package offers, which is imported when it is asked for: torch and transformers take seconds."""
    if name in __all__:
        from nas.compress import python

        return getattr(python, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Knowledge distillation: model outputs, losses, objectives, teachers, data, and the training loop. `distil` trains a
student from Python; what is below is imported lazily, on first use.
"""

from typing import TYPE_CHECKING, Any

from foundation.packages import check_packages

if TYPE_CHECKING:
    from distill.python import Distilled, distil

DISTRIBUTION = "ffn-nas"

check_packages(__name__)

__all__ = ["Distilled", "distil"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from distill import python

        return getattr(python, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

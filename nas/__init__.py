"""The search: its command line, its stages and the evaluation of candidates. Ray Tune runs the trials and Optuna
records them. `compress_model` makes a smaller student without a search, `run_search` searches, and `load_study` reads
what a search has found. The names below are imported lazily, on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from foundation.errors import UserError
from foundation.packages import check_packages

if TYPE_CHECKING:
    from nas.compress.python import Compressed, compress_model
    from nas.config.load import load_config
    from nas.studies import Study, load_study, run_search

DISTRIBUTION = "ffn-nas"

check_packages(__name__)

__all__ = ["Compressed", "Study", "UserError", "compress_model", "load_config", "load_study", "run_search"]
_MODULES = {
    "compress.python": ("Compressed", "compress_model"),
    "config.load": ("load_config",),
    "studies": ("Study", "load_study", "run_search"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""The samplers of architectures, all of which are `optuna.samplers.BaseSampler`s."""

from nas.samplers.evolution import Evolution
from nas.samplers.lanas import LaNAS
from nas.samplers.lanas_published import PublishedLaNAS
from nas.samplers.local import LocalSearch
from nas.samplers.milp import WeightedAllocation
from nas.samplers.nsga2 import NSGA2
from nas.samplers.proposer import Proposer, SamplerError, ZeroCostProxy
from nas.samplers.random import RandomSampler
from nas.samplers.tpe import TPE

SAMPLERS: dict[str, type[Proposer]] = {
    "lanas": LaNAS,
    "lanas-published": PublishedLaNAS,
    "milp": WeightedAllocation,
    "evolution": Evolution,
    "local": LocalSearch,
    "random": RandomSampler,
    "tpe": TPE,
    "nsga2": NSGA2,
}

__all__ = ["SAMPLERS", "Proposer", "SamplerError", "WeightedAllocation", "ZeroCostProxy"]

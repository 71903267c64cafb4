"""What a search can choose by name on the command line, with a line each: presets, samplers and goals.

As `distill.choices`, this module imports nothing that takes long.
"""

from distill.choices import described
from nas.config.load import preset_text, presets

# The keys of `nas.samplers.SAMPLERS`.
SAMPLERS = {
    "lanas": "a tree of classifiers, learned from the scores, tells good regions from bad ones",
    "lanas-published": "LaNAS as published: regressions of the score split the space; draws from the best region",
    "milp": "MILP allocations with weights learned from the scores, and neighbors of the best one (the demo)",
    "evolution": "regularized evolution: mutates the best of a random few, and forgets the oldest",
    "local": "local search: changes one gene of the best architecture at a time, with restarts",
    "random": "draws uniformly from the architectures within the budget",
    "tpe": "Optuna's tree-structured Parzen estimator, over the sizes",
    "nsga2": "Optuna's NSGA-II, for two goals (the default with two)",
}

# The values of `--goals`.
GOALS = {
    "score": "the best score within the budget (the default)",
    "score,params": "the Pareto front of score and parameters",
    "score,macs": "the Pareto front of score and multiply-accumulates",
    "score,latency": "the Pareto front of score and latency on this device",
}


def described_presets() -> dict[str, str]:
    """The presets with the first line of their files, which is a comment that says what they are for."""
    return {name: preset_text(name).partition("\n")[0].removeprefix("# ").rstrip(".") for name in presets()}


def samplers() -> dict[str, str]:
    """All samplers with their lines, also those that extensions have added."""
    from nas.samplers import SAMPLERS as known  # imports scikit-learn, which takes a second

    return described(SAMPLERS, known)

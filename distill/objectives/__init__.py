"""Objectives: weighted terms, each naming the outputs it needs."""

from collections.abc import Callable

from distill.objectives.base import Objective, Term, sum_of
from distill.objectives.codir import codir
from distill.objectives.critic import Critic
from distill.objectives.kd import distilbert, hard_labels, kd, none, pkd, theseus
from distill.objectives.layerwise import efficientbert, tinybert
from distill.objectives.microbert import microbert
from distill.objectives.moebert import moebert
from distill.objectives.relations import minilm, minilmv2, minimoe

__all__ = [
    "OBJECTIVES",
    "Critic",
    "Objective",
    "Term",
    "codir",
    "distilbert",
    "efficientbert",
    "hard_labels",
    "kd",
    "microbert",
    "minilm",
    "minilmv2",
    "minimoe",
    "moebert",
    "none",
    "pkd",
    "sum_of",
    "theseus",
    "tinybert",
]

OBJECTIVES: dict[str, Callable[..., Objective]] = {
    "efficientbert": efficientbert,
    "tinybert": tinybert,
    "moebert": moebert,
    "minimoe": minimoe,
    "microbert": microbert,
    "kd": kd,
    "pkd": pkd,
    "distilbert": distilbert,
    "minilm": minilm,
    "minilmv2": minilmv2,
    "codir": codir,
    "theseus": theseus,
    "none": none,
}
"""Recipes by name: `factory(student's configuration, teacher's configuration, settings)`."""

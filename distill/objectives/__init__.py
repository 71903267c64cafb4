"""Distillation objectives: weighted sums of loss terms, and the registry of their specifications by name.

Each is created from the Hugging Face configurations of a student and a teacher. The setting `balance` is the weight of
the load-balancing loss of the student's routers. Every objective raises ValueError for a weight that is negative or not
finite, another setting that is out of its range, and models that it cannot be used with.
"""

from distill.objectives.base import Objective, Term, sum_of
from distill.objectives.codir import CODIR, codir
from distill.objectives.critic import Critic
from distill.objectives.embeddings import EMBEDDINGS, embeddings
from distill.objectives.kd import DISTILBERT, KD, NONE, PKD, distilbert, hard_labels, kd, none, pkd
from distill.objectives.layerwise import EFFICIENTBERT, TINYBERT, efficientbert, tinybert
from distill.objectives.microbert import MICROBERT, microbert
from distill.objectives.moebert import MOEBERT, moebert
from distill.objectives.relations import MINILM, MINILMV2, MINIMOE, minilm, minilmv2, minimoe
from distill.objectives.reranking import RERANKING, reranking
from distill.objectives.spec import ObjectivePhase, ObjectiveSpec, Settings
from distill.objectives.theseus import THESEUS, theseus

__all__ = [
    "OBJECTIVES",
    "Critic",
    "Objective",
    "ObjectivePhase",
    "ObjectiveSpec",
    "Settings",
    "Term",
    "codir",
    "distilbert",
    "efficientbert",
    "embeddings",
    "hard_labels",
    "kd",
    "microbert",
    "minilm",
    "minilmv2",
    "minimoe",
    "moebert",
    "none",
    "pkd",
    "reranking",
    "sum_of",
    "theseus",
    "tinybert",
]

OBJECTIVES: dict[str, ObjectiveSpec] = {
    "efficientbert": EFFICIENTBERT,
    "tinybert": TINYBERT,
    "moebert": MOEBERT,
    "minimoe": MINIMOE,
    "microbert": MICROBERT,
    "kd": KD,
    "pkd": PKD,
    "distilbert": DISTILBERT,
    "minilm": MINILM,
    "minilmv2": MINILMV2,
    "codir": CODIR,
    "theseus": THESEUS,
    "embeddings": EMBEDDINGS,
    "reranking": RERANKING,
    "none": NONE,
}
"""All objectives by name. To add one: `OBJECTIVES[name] = ObjectiveSpec(factory)`."""

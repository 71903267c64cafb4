"""Distillation objectives: weighted sums of loss terms, and the registry of their specifications by name.

Each is created from the Hugging Face configurations of a student and a teacher. The setting `balance` is the weight of
the load-balancing loss of the student's routers. Every objective raises ValueError for a weight that is negative or not
finite, another setting that is out of its range, and models that it cannot be used with.
"""

from distill.objectives.base import Objective, Term
from distill.objectives.codir import bank_arguments, codir
from distill.objectives.critic import Critic
from distill.objectives.embeddings import embeddings
from distill.objectives.kd import distilbert, hard_labels, kd, none, pkd
from distill.objectives.layerwise import efficientbert, tinybert, tinybert_phases
from distill.objectives.microbert import microbert
from distill.objectives.moebert import moebert
from distill.objectives.relations import minilm, minilmv2, minimoe
from distill.objectives.reranking import reranking
from distill.objectives.spec import ObjectivePhase, ObjectiveSpec, Settings
from distill.objectives.theseus import replaced_layers, theseus

__all__ = ["Critic", "Objective", "ObjectivePhase", "Settings", "Term", "hard_labels"]

# The papers distill relations without labels, but on labeled rows a new head learns from nothing else.
_OF_RELATIONS: tuple[Settings, Settings] = {"labels": 1.0}, {"labels": 0.0}

OBJECTIVES: dict[str, ObjectiveSpec] = {
    spec.name: spec
    for spec in (
        ObjectiveSpec(efficientbert, without_labels={"prediction": 0.0}),
        ObjectiveSpec(tinybert, without_labels={"prediction": 0.0, "phase": "intermediate"}, phases=tinybert_phases),
        ObjectiveSpec(moebert, without_labels={"labels": 0.0, "prediction": 0.0}),
        ObjectiveSpec(minimoe, *_OF_RELATIONS),
        ObjectiveSpec(
            microbert,
            # Without labels no head is trained whose predictions a critic could read.
            without_labels={"labels": 0.0, "soft": 0.0, "critic_input": "cls_state"},
            # A critic of logits has a parameter for every class.
            of_one_task=lambda chosen: chosen.get("critic_input") == "logits" and bool(chosen.get("adversarial", True)),
        ),
        ObjectiveSpec(kd),
        ObjectiveSpec(pkd),
        ObjectiveSpec(distilbert, without_labels={"labels": 0.0, "soft": 0.0}),
        ObjectiveSpec(minilm, *_OF_RELATIONS),
        ObjectiveSpec(minilmv2, *_OF_RELATIONS),
        ObjectiveSpec(codir, row_arguments=bank_arguments),
        ObjectiveSpec(theseus, training_context=replaced_layers),
        ObjectiveSpec(embeddings, without_labels={"vector": 0.0, "similarity": 0.0}),
        ObjectiveSpec(
            reranking, without_labels={"score": 0.0, "margin": 0.0}, row_arguments=lambda rows: {"rows": rows}
        ),
        ObjectiveSpec(none, needs_teacher=False),
    )
}
"""All objectives by name. To add one: `OBJECTIVES[name] = ObjectiveSpec(factory)`."""

"""Students of encoder families: the classes of transformers with the mixins of `student`. They are made when they are
asked for: `NasRobertaModel` is a subclass of `RobertaModel`, and likewise for the other families, heads, configurations
and layers.
"""

import sys
from functools import cache
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES

from .anatomy import Family  # noqa: F401

# All modules of a student: transformers 5.1 copies only those that this one names.
from .attention import ExpertSelfAttention, NoSelfAttention
from .configuration import StudentConfig
from .dispatch import Tokens  # noqa: F401
from .embedding import LowRankEmbedding  # noqa: F401
from .expert_linear import ExpertLinear  # noqa: F401
from .families import FAMILIES
from .ffn import FFNBlock  # noqa: F401
from .routing import Router  # noqa: F401
from .student import Student, StudentLayer, with_mixin

# For each auto class of transformers, how a family's own class ends.
KINDS = {
    "AutoConfig": "Config",
    "AutoModel": "Model",
    "AutoModelForMaskedLM": "ForMaskedLM",
    "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForTokenClassification": "ForTokenClassification",
    "AutoModelForQuestionAnswering": "ForQuestionAnswering",
}


@cache
def classes_of(model_type: str) -> dict[str, Any]:
    """The classes of the students of a family: name of an auto class of transformers, such as "AutoModelForMaskedLM" ->
    the students' class.
    """
    prefix = CONFIG_MAPPING_NAMES[model_type].removesuffix("Config")
    own = {auto: cls for auto, kind in KINDS.items() if (cls := getattr(transformers, prefix + kind, None))}
    # Some families have no class for question answering; LayoutLM's also takes the boxes of a page.
    if model_type not in MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES:
        own.pop("AutoModelForQuestionAnswering", None)
    model = own["AutoModel"]
    # Plans for several devices name parts of FFNs that students do not have.
    attributes = {"model_type": f"nas_{model_type}", "base_model_tp_plan": None}
    config = _subclass(StudentConfig, own.pop("AutoConfig"), **attributes)
    classes = {auto: _subclass(Student, parent, config_class=config, _auto_class=auto) for auto, parent in own.items()}
    if recorded := model._can_record_outputs:
        attentions = recorded["attentions"]
        attentions = [*(attentions if isinstance(attentions, list) else [attentions]), NoSelfAttention]
        states = {"hidden_states": StudentLayer} if "hidden_states" in recorded else {}
        classes["AutoModel"]._can_record_outputs = {**recorded, **states, "attentions": attentions}
    for cls in classes.values():
        cls.encoder_class = classes["AutoModel"]
    return {"AutoConfig": config, **classes}


def _subclass(mixin: type, parent: type, **attributes: Any) -> Any:
    described = f"As `{parent.__name__}`, with the changes of `{mixin.__name__}`."
    return type(f"Nas{parent.__name__}", (mixin, parent), {"__module__": __name__, "__doc__": described, **attributes})


def __getattr__(name: str) -> Any:
    """The class of this name; `pickle` and transformers' loading of remote code ask for it."""
    if not name.startswith("Nas"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    prefixes = {prefix.removesuffix("Config"): model_type for model_type, prefix in CONFIG_MAPPING_NAMES.items()}
    for prefix in sorted(prefixes, key=len, reverse=True):
        ending = name.removeprefix(f"Nas{prefix}")
        if ending in KINDS.values():
            return next(cls for cls in classes_of(prefixes[prefix]).values() if cls.__name__ == name)
    for model_type in FAMILIES:
        if model_type in CONFIG_MAPPING_NAMES:
            model = getattr(transformers, CONFIG_MAPPING_NAMES[model_type].removesuffix("Config") + "Model")
            own = vars(sys.modules[model.__module__]).get(name.removeprefix("Nas"))
            if isinstance(own, type):
                return with_mixin(ExpertSelfAttention if name.endswith("SelfAttention") else StudentLayer, own)
    version, own = transformers.__version__, name.removeprefix("Nas")
    raise AttributeError(f"there is no {name}, as transformers {version} has no {own}; a newer version may have it")

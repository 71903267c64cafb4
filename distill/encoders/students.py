"""The classes of our students, by the family that they are students of, and their registration with transformers.

Once this module is imported, checkpoints of students are loaded with these classes; the code in a checkpoint's folder
is never run.
"""

from typing import Any

import transformers
from transformers import AutoConfig

from distill.encoders.family import family_of, supported
from distill.encoders.student import modeling_nas_bert
from distill.encoders.student.anatomy import Family
from distill.encoders.student.families import FAMILIES, SHIPPED, add
from distill.encoders.student.modeling_nas import KINDS, classes_of

_CONFIG = AutoConfig.__name__
# Family -> name of an auto class of transformers, such as "AutoModelForMaskedLM" -> the students' class.
CLASSES: dict[str, dict[str, Any]] = {}


def _register(model_type: str) -> None:
    of_bert = {auto: getattr(modeling_nas_bert, f"NasBert{kind}") for auto, kind in KINDS.items()}
    CLASSES[model_type] = classes = of_bert if model_type == "bert" else classes_of(model_type)
    AutoConfig.register(f"nas_{model_type}", classes[_CONFIG], exist_ok=True)
    for auto, model in classes.items():
        if auto != _CONFIG:
            getattr(transformers, auto).register(classes[_CONFIG], model, exist_ok=True)


for name in supported():
    _register(name)


def add_family(family: Family) -> None:
    """Support another type of encoders that transformers has, with its students. Their checkpoints say how it is built,
    so that they are loaded without this call.

    Raises:
        KeyError: transformers has no such type.
    """
    _register(family.model_type)
    add(family)


def student_family(template: Any = None) -> Family:
    """The family of students for the configuration of a teacher or of a student; by default that of BERT's students."""
    family = FAMILIES["bert"] if template is None else family_of(template)
    return family if family.students_of else FAMILIES[f"nas_{family.model_type}"]


def has_class(config: Any, auto: Any) -> bool:
    """Whether transformers has a class for encoders with this configuration that a class of transformers, such as
    `AutoModelForQuestionAnswering`, stands for.
    """
    family = family_of(config)
    return auto.__name__ in CLASSES[family.students_of or family.model_type]


def class_of(family: Family, auto: Any) -> Any:
    """The class of a family's students that a class of transformers, such as `AutoModelForMaskedLM`, stands for."""
    return CLASSES[str(family.students_of)][auto.__name__]


def student_config(family: Family, **settings: Any) -> Any:
    """A configuration of a family's students that says where their classes are, for `trust_remote_code`."""
    classes = CLASSES[str(family.students_of)]
    places = {auto: f"{cls.__module__.rpartition('.')[2]}.{cls.__name__}" for auto, cls in classes.items()}
    teacher = str(family.students_of)
    described = None if teacher in SHIPPED else FAMILIES[teacher].described()
    return classes[_CONFIG](auto_map=places, family=described, **settings)

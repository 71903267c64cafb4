"""Checks of a configuration that need neither weights nor rows, so that mistakes are found in the first seconds."""

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification

from distill.encoders.family import family_of
from distill.objectives import OBJECTIVES
from distill.tasks.readers.texts import check_source
from distill.tasks.task import TaskError
from distill.training.teacher import check_head, check_positions, load_config, load_tokenizer
from nas.config.schema import ConfigError, StudyConfig, reporting
from nas.preparation import data
from nas.preparation.phases import CANDIDATE, ON_TEXT, ONE_SHOT_ON_TEXT, settings_of, table_of
from nas.preparation.workspace import objectives, student_base
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from supernet.build import build, config_of
from supernet.cut import CutError, check_cut


def check(config: StudyConfig) -> None:
    """Refuse a configuration that cannot work, before anything is trained.

    Raises:
        ConfigError, distill.training.teacher.TeacherError: the configuration names what does not exist or cannot work.
    """
    if (source := config.cut_from) is not None:
        check(source)
    config.objective.check()
    config.objective.check_settings("final.objective", config.final.objective or {})
    config.supernet.check()
    data.check_tasks(config)
    check_corpora(config)
    teacher = data.teacher_config(config)
    for task in config.tasks:
        check_head(config.teacher, teacher, data.task_type_of(config, task).name)
    base, graph = student_base(config, teacher)
    student = Architecture.uniform(base, graph=graph)
    student_config = config_of(student, template=teacher)
    check_experts(config, student_config)
    for name, described in (("teacher", teacher), ("base", student_config)):
        positions = family_of(described).positions(described)
        for key, tokens in (("max_length", config.max_length), ("deployment.tokens", config.deployment.tokens or 0)):
            if tokens > positions:
                raise ConfigError(f"{key}: {tokens} tokens are more than the {name}'s {positions} positions; lower it")
    check_heads(config, base)
    if config.pretrain.assistant is not None:
        check_assistant(config, config.pretrain.assistant, student_config)
    if source is not None:
        with reporting("supernet.cut_from and base", CutError):
            check_cut(student_base(source, teacher)[0], base)
    with reporting("objective and base", ValueError):
        for name in ("warmup", *CANDIDATE, *ONE_SHOT_ON_TEXT, "one_shot"):
            if table := table_of(config, name):
                objectives(config, settings_of(config, name), table.build(1), student_config, teacher)
                if config.space.heads and not name.endswith("warmup"):
                    # Some objectives compare the attention of the last layer alone.
                    heads = [base.heads] * (base.depth - 1) + [min(config.space.heads)]
                    fewest = config_of(student.with_heads(heads), template=teacher)
                    objectives(config, settings_of(config, name), table.build(1), fewest, teacher)
        objective_spec = OBJECTIVES[config.objective.name]
        if objective_spec.training_context is not None:
            with torch.device("meta"):
                models = build(student, template=teacher), AutoModelForSequenceClassification.from_config(teacher)
            settings = objective_spec.defaults | config.objective.settings()
            with objective_spec.training_context(*models, settings=settings, steps=1, seed=config.seed):
                pass


def check_assistant(config: StudyConfig, assistant: str, student: Any) -> None:
    """Raise UserError if students with this configuration cannot learn from the assistant on text."""
    described = load_config(assistant, students=True)
    if load_tokenizer(assistant).get_vocab() != load_tokenizer(config.teacher).get_vocab():
        raise ConfigError(f"pretrain.assistant: the vocabulary of {assistant} is not that of {config.teacher}")
    check_positions(assistant, described, config.max_length, f"max_length {config.max_length}")
    settings = settings_of(config, "pretrain")
    with reporting("pretrain.assistant", ValueError):
        objectives(config, settings, config.pretrain.build(1), student, described)


def check_experts(config: StudyConfig, student: Any) -> None:
    """Raise ConfigError if students with this configuration cannot have the experts of the space."""
    space, family = config.space, family_of(student)
    for name, counts, possible in (
        ("experts", [choice.count for choice in space.experts], family.experts),
        ("attention_experts", space.attention_experts, family.attention_experts),
        ("head_experts", space.head_experts, hasattr(student, "head_experts")),
    ):
        if max(counts) > 1 and not possible:
            raise ConfigError(
                f"space.{name}: students of encoders of the type {family.students_of!r} cannot have them; leave it out"
            )


def check_heads(config: StudyConfig, base: Base) -> None:
    """Raise ConfigError if `space.heads` exceeds the base's heads, or no choice of experts allows fewer."""
    heads = config.space.heads or ()
    if heads and max(heads) > base.heads:
        raise ConfigError(f"space.heads: {max(heads)} is more than the base's {base.heads} heads per layer")
    if heads and min(config.space.attention_experts) > 1 and set(heads) != {base.heads}:
        raise ConfigError(
            f"space.heads: attention with experts keeps all {base.heads} heads: remove space.heads, or add 1 to "
            "space.attention_experts"
        )


def check_corpora(config: StudyConfig) -> None:
    """Raise ConfigError if a source of text does not exist."""
    tables = {"": config} | {f"{name}.": getattr(config, name) for name in ON_TEXT}
    for place, table in tables.items():
        for source in (table and table.corpus) or ():
            with reporting(f"{place}corpus", TaskError):
                check_source(source)

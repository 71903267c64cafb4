"""The objective of `python -m distill`: its settings, and whether it can be used with the models."""

from typing import Any

from distill.objectives import OBJECTIVES
from distill.training.students import planned
from distill.training.teacher import load_config, load_tokenizer
from foundation.errors import UserError, did_you_mean


def objective_settings(options: Any) -> dict[str, Any]:
    """The objective's settings from --set, converted to the types of their defaults.

    Raises:
        UserError: there is no such objective or setting, or the objective needs a teacher or labels that are missing.
    """
    name = options.objective
    if name not in OBJECTIVES:
        known = ", ".join(OBJECTIVES)
        raise UserError(f"unknown objective {name!r}{did_you_mean(str(name), OBJECTIVES)} (objectives: {known})")
    objective_spec = OBJECTIVES[name]
    if options.teacher is None and objective_spec.needs_teacher:
        without = ", ".join(other for other, spec in OBJECTIVES.items() if not spec.needs_teacher)
        raise UserError(f"--objective {name} needs a --teacher; these objectives do not: {without}")
    settings: dict[str, Any] = {}
    if options.corpus and not options.masked_lm:
        try:
            settings |= objective_spec.settings_without_labels()
        except ValueError as error:
            raise UserError(f"--objective {error}; choose another, or add --masked-lm") from None
    defaults = objective_spec.defaults
    for assignment in options.set:
        key, separator, text = assignment.partition("=")
        if not separator or key not in defaults:
            listed = ", ".join(f"{setting}={value}" for setting, value in defaults.items())
            raise UserError(f"--set {assignment}: {name} has {listed}{did_you_mean(key, defaults)}")
        settings[key] = _converted(assignment, key, text, type(defaults[key]))
    return settings


def _converted(assignment: str, key: str, text: str, kind: type) -> Any:
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        expected = {bool: "true or false", int: "a whole number"}.get(kind, "a number")
        raise UserError(f"--set {assignment}: {key} is {expected}") from None


def check_models(options: Any, settings: dict[str, Any]) -> None:
    """Check before any training that the objective can be used with all models of the chain.

    Raises:
        UserError: the objective cannot be used with a model and its teacher.
    """
    if options.teacher is None:
        return
    objective_spec = OBJECTIVES[options.objective]
    if not options.corpus or options.masked_lm:
        settings = objective_spec.settings_with_labels(settings)
    teacher, tokenizer = load_config(options.teacher, students=True), load_tokenizer(options.teacher)
    for name in [*options.assistant, options.student]:
        student = planned(name, teacher, tokenizer)
        try:
            for phase in objective_spec.phases(settings):
                objective_spec.make(phase.settings, student, teacher)
        except ValueError as error:
            raise UserError(f"--objective {options.objective}: {error}") from None
        teacher = student

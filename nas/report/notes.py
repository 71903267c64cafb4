"""The note of a trial, which the Optuna dashboard shows on the trial's page: what the architecture is, what it costs,
how good it is beside the study's baselines and, if there is no score, why.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from distill.table import Column, Table, count
from distill.training.evaluation import Load
from nas.report.architecture import layers
from nas.study import ledger
from nas.study.attributes import (
    CHOICES,
    COSTS,
    DUPLICATE_OF,
    EXPERT_LOAD,
    FAILURE,
    ORIGIN,
    RUNG,
    SEED,
    TEACHER,
    attribute,
    goals_of,
    metric_of,
)
from nas.study.storage import id_of, storage_of, trial_id
from search_spaces.architecture import Architecture
from search_spaces.formula import layers_latex
from search_spaces.genes import outside_ffns

# Where the dashboard keeps the notes of trials: among the system attributes of their study, by the trial's id, in parts
# of limited length, since some databases limit the length of a value.
VERSION = "dashboard:{}:note_ver"
PART = "dashboard:{}:note_str:{}"
PART_LENGTH = 2045
# The longest line of formulas and JSON, in characters: the dashboard does not break lines, and long ones make its page
# wider than a screen.
WIDTH = 84


def note(trial: FrozenTrial, architecture: Architecture, baselines: Sequence[FrozenTrial], study: optuna.Study) -> str:
    """The note of a trial that has ended, in Markdown.

    Args:
        baselines: the trials to compare it with.
    """
    attributes, goals = trial.user_attrs, goals_of(study)
    origin = attributes.get(ORIGIN, "")
    seed = f", seed {attributes[SEED]}" if SEED in attributes else ""
    lines = [f"### Trial {trial.number}: {origin}{seed}", "", _result(trial, goals, study.user_attrs.get(TEACHER)), ""]
    if DUPLICATE_OF in attributes:
        lines += [f"It computes the same function as trial {attributes[DUPLICATE_OF]} and was not evaluated again.", ""]
    lines += [_costs(trial), "", layers(architecture).markdown()]
    if whole := outside_ffns(architecture):
        lines += ["", f"It has {whole}."]
    if loads := attribute(trial, EXPERT_LOAD):
        lines += ["", "Shares of the tokens that each expert processes:", ""]
        lines += [f"- {Load(**load)}" for load in loads]
    if baselines and SEED not in attributes:  # in a study of confirmations all trials were enqueued
        lines += ["", _baselines(baselines, goals[0]).markdown()]
    # The dashboard does not render formulas, so they come as text.
    lines += ["", "```latex", *(line for latex in layers_latex(architecture) for line in _wrapped(latex)), "```"]
    lines += ["", "The architecture as a file:", "", "```json", *_wrapped(json.dumps(architecture.to_json())), "```"]
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    """A formula or JSON in lines of at most `WIDTH` where it has spaces; further lines are indented."""
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _result(trial: FrozenTrial, goals: Sequence[str], teacher: Mapping[str, Any] | None) -> str:
    """The score of a trial, or why it has none."""
    attributes = trial.user_attrs
    if trial.state == TrialState.FAIL:
        return f"**Failed:** {attributes.get(FAILURE, 'no reason given')}"
    if trial.state == TrialState.PRUNED:
        step = attributes[RUNG]
        value = trial.intermediate_values.get(step)
        reached = "" if value is None else f" with score {value:.4f}"
        return f"**Pruned** after {step} steps{reached}: its score was among the lowest there."
    result = f"**{goals[0]} {trial.values[0]:.4f}**"
    if "standard_error" in attributes:
        result += f" ± {attributes['standard_error']:.4f}"
    if teacher is None:
        return result
    shown = f"; score {metric_of(trial, teacher['task']):.4f}" if goals[0] != "score" else ""
    return f"{result}{shown}; the teacher's score is {teacher['score']:.4f}"


def _costs(trial: FrozenTrial) -> str:
    attributes = trial.user_attrs
    parts = [write(attributes[name]) for name, write in COSTS.items() if name in attributes]
    if attributes["params_active"] != attributes["params"]:
        parts.insert(1, f"{attributes['params_active']:,} active for a token")
    if "seconds" in attributes and DUPLICATE_OF not in attributes:
        parts.append(f"evaluated in {attributes['seconds']:.1f} s")
    return ", ".join(parts)


def _baselines(trials: Sequence[FrozenTrial], goal: str) -> Table:
    rows = [
        (
            trial.user_attrs[ORIGIN],
            f"{trial.values[0]:.4f}" if trial.state == TrialState.COMPLETE else trial.state.name.lower(),
            trial.user_attrs["params"],
        )
        for trial in trials
    ]
    return Table((Column("baseline", is_text=True), Column(goal), Column("parameters", count)), rows)


def add_note(study: optuna.Study, number: int, references: Sequence[FrozenTrial] = ()) -> None:
    """Store the note of a trial that has ended where the dashboard looks for it.

    `optuna_dashboard.save_note` does not take trials that have ended, and reads all notes of the study.

    Args:
        references: trials of another study with which the trial is compared.
    """
    trials = study.get_trials(deepcopy=False)
    trial = trials[number]
    # Trials that have ended, whose architectures were enqueued and not proposed by a sampler.
    ended = [one for one in trials if one.state.is_finished() and ORIGIN in one.user_attrs and one is not trial]
    baselines = [one for one in ended if attribute(one, CHOICES) is None and DUPLICATE_OF not in one.user_attrs]
    text = note(trial, ledger.architecture_of(trial), [*references, *baselines], study)
    storage, study_id, own = storage_of(study), id_of(study), trial_id(study, number)
    for place, first in enumerate(range(0, len(text), PART_LENGTH)):
        part = text[first : first + PART_LENGTH]
        storage.set_study_system_attr(study_id, PART.format(own, place), part)
    storage.set_study_system_attr(study_id, VERSION.format(own), 1)


def add_missing_notes(study: optuna.Study, references: Sequence[FrozenTrial] = ()) -> None:
    """Add a note to every trial that has ended and has none; see `add_note`."""
    noted = storage_of(study).get_study_system_attrs(id_of(study)).keys()
    for trial in study.get_trials(deepcopy=False):
        if trial.state.is_finished() and VERSION.format(trial_id(study, trial.number)) not in noted:
            add_note(study, trial.number, references)

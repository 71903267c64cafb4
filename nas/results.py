"""What a search has found so far: winner, baselines, teacher and front, as plain values and as tables."""

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial
from rich import box
from rich.console import Console
from rich.table import Table

from nas.finalists import ALLOCATED, BASE_MODEL, GLOBAL, UNIFORM, different, front
from nas.study import ledger
from nas.study.attributes import (
    DUPLICATE_OF,
    FAILURE,
    FUNCTION,
    IN_BUDGET,
    ORIGIN,
    TEACHER,
    attribute,
    goals_of,
    metric_of,
)
from nas.study.description import formula
from nas.study.folder import STAGES, Folder
from nas.study.names import CONFIRMATION, existing_studies

# Columns that the tables need: rich cuts figures off if the terminal is narrower.
WIDTH = 160
# The baselines of the first stage, in the order in which they are shown.
BASELINES = (BASE_MODEL, UNIFORM, GLOBAL, *ALLOCATED)


def results_of(folder: Folder, storage: str) -> dict[str, Any]:
    """The results of all stages that have begun, as values that `json.dumps` accepts.

    Keys:
        study: the folder.
        done: whether all stages that have begun have ended.
        compared_by: what the first stage compares candidates by.
        teacher: its score, or None.
        winner: the entry of the last stage's winner or of the best trial so far, or None.
        models: the entries of the baselines and of every stage's winner, see `entry`.
        front: the entries of the Pareto front if there are two goals.
        errors: the failed trials.
        files: the files of the study that exist.

    Raises:
        StorageError: the storage cannot be opened.
    """
    studies = existing_studies(folder, storage)
    begun = [stage for stage in STAGES if f"stage-{stage}" in studies]
    confirmed = confirmed_scores(studies.get(CONFIRMATION))
    result: dict[str, Any] = {
        "study": str(folder.path),
        "done": bool(begun) and all(folder.best(stage).exists() for stage in begun),
        "compared_by": None,
        "teacher": None,
        "winner": None,
        "models": [],
        "front": [],
        "errors": [],
    }
    for stage in begun:
        study = studies[f"stage-{stage}"]
        result["compared_by"] = result["compared_by"] or goals_of(study)[0]
        teacher = study.user_attrs.get(TEACHER)
        result["teacher"] = result["teacher"] or teacher
        trials = study.get_trials(deepcopy=False)
        result["errors"] += [
            {"stage": stage, "trial": trial.number, "failure": trial.user_attrs[FAILURE]}
            for trial in trials
            if FAILURE in trial.user_attrs and DUPLICATE_OF not in trial.user_attrs
        ]
        if stage == begun[0]:
            of_origin = {trial.user_attrs[ORIGIN]: trial for trial in reversed(ledger.scored(study))}
            result["models"] += [
                entry(of_origin[origin], origin, stage, study, confirmed) for origin in BASELINES if origin in of_origin
            ]
        trial, name = leader(study, stage, folder)
        if trial is not None:
            result["winner"] = entry(trial, name, stage, study, confirmed) | {"lead": lead_of(folder, stage)}
            result["models"].append(result["winner"])
        if len(study.directions) > 1:
            best = sorted(different(front(ledger.ranked(study))), key=lambda trial: trial.values[1])
            result["front"] = [entry(trial, trial.user_attrs[ORIGIN], stage, study, confirmed) for trial in best]
    files = [folder.config, folder.architecture, *(folder.best(stage) for stage in begun)]
    result["files"] = [str(file) for file in files if file.exists()]
    return result


def leader(study: optuna.Study, stage: str, folder: Folder) -> tuple[FrozenTrial | None, str]:
    """The winner of a stage or, before its end, the best trial so far; and what to call it."""
    if (outcome := folder.outcome(stage)) is not None:
        return study.get_trials(deepcopy=False)[outcome["winner"]["trial"]], f"winner of stage {stage}"
    return next(iter(ledger.ranked(study)), None), f"best of stage {stage} so far"


def lead_of(folder: Folder, stage: str) -> dict[str, Any] | None:
    """The lead of a stage's winner over the best baseline (`nas.finalists.lead`); None before its end."""
    outcome = folder.outcome(stage)
    return None if outcome is None else outcome["winner"].get("lead")


def confirmed_scores(study: optuna.Study | None) -> dict[str, list[tuple[float, float]]]:
    """For the function of every architecture that was trained with fresh seeds the scores and standard errors."""
    found: dict[str, list[tuple[float, float]]] = {}
    for trial in () if study is None else ledger.scored(study):
        if DUPLICATE_OF not in trial.user_attrs:
            score = trial.values[0], trial.user_attrs["standard_error"]
            found.setdefault(attribute(trial, FUNCTION), []).append(score)
    return found


def entry(
    trial: FrozenTrial,
    name: str,
    stage: str,
    study: optuna.Study,
    confirmed: Mapping[str, Sequence[tuple[float, float]]],
) -> dict[str, Any]:
    """A trial with a score as plain values: `value` is what candidates are compared by, `score` the task's metric (None
    if it is not known), `confirmed` the mean score after training with fresh seeds (None without), `latency_us`
    microseconds.
    """
    attributes = trial.user_attrs
    teacher = study.user_attrs.get(TEACHER)
    by_score = goals_of(study)[0] == "score"
    scores = confirmed.get(attribute(trial, FUNCTION), ())
    return {
        "name": name,
        "stage": stage,
        "trial": trial.number,
        "origin": attributes[ORIGIN],
        "value": trial.values[0],
        "standard_error": attributes["standard_error"],
        "score": trial.values[0] if by_score else teacher and metric_of(trial, teacher["task"]),
        "confirmed": fmean(score for score, _ in scores) if scores else None,
        "confirmed_standard_error": fmean(error for _, error in scores) if scores else None,
        "confirmed_seeds": len(scores),
        "params": attributes["params"],
        "macs": attributes["macs"],
        "latency_us": attributes.get("latency"),
        "within_budget": attributes[IN_BUDGET],
        "formula": formula(ledger.architecture_of(trial)),
    }


def table(results: Mapping[str, Any]) -> Table:
    """The models and the teacher, with scores and costs."""
    entries = results["models"]
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1))
    fidelity = results["compared_by"] == "fidelity"
    latency = any(row["latency_us"] is not None for row in entries)
    columns = ["model", "trial", *(["fidelity"] if fidelity else []), "score", "after training", "parameters", "MACs"]
    for column in [*columns, *(["latency"] if latency else [])]:
        result.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    if results["teacher"] is not None:
        cells = ["teacher", "", *([""] if fidelity else []), f"{results['teacher']['score']:.4f}"]
        result.add_row(*cells)
    for row in entries:
        error = f" ± {row['standard_error']:.4f}"
        score = "" if row["score"] is None else f"{row['score']:.4f}"
        result.add_row(
            row["name"] + ("" if row["within_budget"] else " (exceeds the budget)"),
            f"{row['stage']}/{row['trial']}",
            *([f"{row['value']:.4f}{error}"] if fidelity else []),
            score if fidelity else f"{row['value']:.4f}{error}",
            confirmed_cell(row),
            millions(row["params"]),
            millions(row["macs"]),
            *([latency_cell(row)] if latency else []),
            style="bold" if row is results["winner"] else None,
        )
    return result


def front_table(results: Mapping[str, Any]) -> Table:
    """The Pareto front, the cheapest first."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1), title="front", title_justify="left")
    latency = any(row["latency_us"] is not None for row in results["front"])
    for column in ("trial", results["compared_by"], "parameters", "MACs", *(["latency"] if latency else [])):
        result.add_column(column, justify="right", no_wrap=True)
    for row in results["front"]:
        result.add_row(
            f"{row['stage']}/{row['trial']}",
            f"{row['value']:.4f} ± {row['standard_error']:.4f}",
            millions(row["params"]),
            millions(row["macs"]),
            *([latency_cell(row)] if latency else []),
        )
    return result


def confirmed_cell(row: Mapping[str, Any]) -> str:
    """The score after training with fresh seeds."""
    if row["confirmed"] is None:
        return ""
    seeds = f"{row['confirmed_seeds']} seed{'s' if row['confirmed_seeds'] > 1 else ''}"
    return f"{row['confirmed']:.4f} ± {row['confirmed_standard_error']:.4f} ({seeds})"


def millions(number: float | None) -> str:
    """A number in millions, with four significant digits or more; empty if it is None."""
    if number is None:
        return ""
    digits = max(0, 4 - len(str(int(number) // 10**6))) if number >= 10**6 else 4
    return f"{number / 1e6:,.{digits}f} M"


def latency_cell(row: Mapping[str, Any]) -> str:
    """The latency in milliseconds."""
    return "" if row["latency_us"] is None else f"{row['latency_us'] / 1000:.2f} ms"


def show_results(folder: Folder, storage: str, console: Console, as_json: bool = False) -> None:
    """Print the results: tables and how to go on, or with `as_json` one JSON object on stdout.

    Raises:
        StorageError: the storage cannot be opened.
    """
    results = results_of(folder, storage)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    if not results["models"]:
        return
    console.width = max(console.width, WIDTH)
    console.print(table(results))
    if results["front"]:
        console.print(front_table(results))
    if results["errors"]:
        first = results["errors"][0]
        console.print(
            f"{len(results['errors'])} trials failed, such as {first['stage']}/{first['trial']}: {first['failure']}"
        )
    where = f"{folder.path}" + ("" if storage == folder.storage else f" --storage {storage}")
    if folder.architecture.exists():
        console.print(f"layers of the winner: python -m nas.inspect {folder.architecture}")
    else:
        console.print(f"to use the best so far: python -m nas.pick {where}")
    if results["front"]:
        console.print(f"to choose from the front: python -m nas.pick {where} --trial N")
    if results["done"]:
        console.print(f"wrote {folder.architecture}; next: ffn-train-final {folder.architecture}")

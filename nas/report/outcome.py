"""What a search has found so far: winners, baselines, teacher and front, as plain values and as tables."""

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from statistics import fmean
from typing import Any

from rich.console import Console

from distill.table import Column, Table, difference, millions, milliseconds, plural, with_error
from nas.planning.finalists import shown
from nas.report.study import COMPLETE, FAILED, Candidate, Stage, Study, read
from nas.study.description import formula
from nas.study.folder import Folder

# A model with its name and the stage that it is from.
Named = tuple[str, Candidate, Stage]


def results_of(study: Study) -> dict[str, Any]:
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
    """
    folder, stages = study.folder, study.stages
    last = stages[-1]
    models = [entry(study, *model) for model in models_of(study)]
    front = last.front(last.goals[1]) if len(last.goals) > 1 else []
    files = [folder.config, folder.architecture, *(folder.best(stage.name) for stage in stages)]
    return {
        "study": str(folder.path),
        "done": all(stage.best is not None for stage in stages),
        "compared_by": stages[0].goals[0],
        "teacher": next((stage.teacher for stage in stages if stage.teacher), None),
        "winner": models[-1] if last.leader is not None else None,
        "models": models,
        "front": [entry(study, candidate.origin, candidate, last) for candidate in front],
        "errors": [
            {"stage": stage.name, "trial": candidate.number, "failure": candidate.reason}
            for stage in stages
            for candidate in stage.candidates
            if candidate.state == FAILED and candidate.duplicate_of is None
        ],
        "files": [str(file) for file in files if file.exists()],
    }


def models_of(study: Study) -> list[Named]:
    """The reference models, the baselines of the first stage, and the winner or the best so far of every stage."""
    first = study.stages[0]
    references = [(candidate.origin, candidate, first) for candidate in study.references if candidate.state == COMPLETE]
    baselines = {candidate.origin: (candidate.origin, candidate, first) for candidate in reversed(first.baselines)}
    winners = [
        (f"winner of stage {stage.name}" if stage.best else f"best of stage {stage.name} so far", stage.leader, stage)
        for stage in study.stages
        if stage.leader is not None
    ]
    return [*references, *reversed(baselines.values()), *winners]


def entry(study: Study, name: str, candidate: Candidate, stage: Stage) -> dict[str, Any]:
    """A candidate with a score as plain values: `value` is what its stage compares candidates by (`compared_by`:
    "score" or "fidelity"), `score` the task's metric (None if it is not known), `confirmed` the mean score after
    training with fresh seeds (None without), `lead` that of a finalist over the best baseline (None without),
    `latency_us` microseconds.
    """
    confirmed = list(study.confirmed.get(candidate.function, {}).values())
    value, error = candidate.result
    finalist = stage.finalists.get(candidate.number, {}) if candidate.stage == stage.name else {}
    return {
        "name": name,
        "stage": candidate.stage,
        "trial": candidate.number,
        "origin": candidate.origin,
        "compared_by": stage.goals[0],
        "value": value,
        "standard_error": error,
        "score": stage.metric(candidate),
        "confirmed": fmean(one.score for one in confirmed) if confirmed else None,
        "confirmed_standard_error": fmean(one.result[1] or 0.0 for one in confirmed) if confirmed else None,
        "confirmed_seeds": len(confirmed),
        "params": candidate.costs["params"],
        "params_active": candidate.costs.get("params_active"),
        "macs": candidate.costs["macs"],
        "latency_us": candidate.costs.get("latency"),
        "within_budget": candidate.in_budget,
        "formula": formula(candidate.architecture),
        "lead": finalist.get("lead"),
    }


def models_table(
    entries: Sequence[Mapping[str, Any]],
    teacher: Mapping[str, Any] | None,
    strong: int | None = None,
    caption: str = "",
) -> Table:
    """Models with their scores and costs, below the teacher.

    Args:
        entries: as `entry` makes them.
        teacher: its score on the rows on which candidates are scored; None if it is not known or not to be shown.
        strong: the number of the entry that stands out.
    """
    columns = (
        Column("model", is_text=True),
        Column("trial"),
        Column("fidelity", with_error),
        Column("score", lambda score: score if isinstance(score, str) else f"{score:.4f}"),
        Column("after training"),
        Column("lead"),
        Column("parameters", millions),
        Column("active", millions),
        Column("MACs", millions),
        Column("latency", milliseconds),
    )
    rows: list[tuple[Any, ...]] = []
    if teacher is not None:
        rows.append(("teacher", None, None, teacher["score"], *6 * [None]))
    for row in entries:
        value, by_fidelity = (row["value"], row["standard_error"]), row["compared_by"] == "fidelity"
        rows.append(
            (
                shown(row["name"]) + ("" if row["within_budget"] else " (outside the budget)"),
                f"{row['stage']}/{row['trial']}",
                value if by_fidelity else None,
                row["score"] if by_fidelity else with_error(value),
                _confirmed(row),
                _lead(row),
                row["params"],
                None if row["params_active"] == row["params"] else row["params_active"],
                row["macs"],
                row["latency_us"],
            )
        )
    return Table(columns, rows, caption, None if strong is None else strong + len(rows) - len(entries))


def _confirmed(row: Mapping[str, Any]) -> str | None:
    """The score after training with fresh seeds."""
    score = row["confirmed"], row["confirmed_standard_error"]
    return None if score[0] is None else f"{with_error(score)} ({plural(row['confirmed_seeds'], 'seed')})"


def _lead(row: Mapping[str, Any]) -> str | None:
    """The lead over the best baseline."""
    lead = row["lead"]
    if lead is None:
        return None
    is_reference = lead["over_trial"] == row["trial"]
    return "is the best baseline" if is_reference else difference((lead["value"], lead["standard_error"]))


def front_table(study: Study, stage: Stage, caption: str) -> Table:
    """The Pareto front of a stage with two goals, the cheapest first."""
    cost = stage.goals[1]
    best = stage.knee(cost)
    entries = [
        entry(study, f"trial {candidate.number}{' (knee)' if candidate is best else ''}", candidate, stage)
        for candidate in stage.front(cost)
    ]
    return models_table(entries, None, caption=caption)


def show_results(folder: Folder, storage: str, console: Console, as_json: bool = False) -> None:
    """Print the results: tables and how to go on, or with `as_json` one JSON object on stdout.

    Raises:
        ConfigError: no stage has begun.
        StorageError: the storage cannot be opened.
    """
    study = read(folder, storage)
    results = results_of(study)
    if as_json:
        print(json.dumps(results, indent=2))
        return
    if not results["models"]:
        return
    winner_place = None if results["winner"] is None else len(results["models"]) - 1
    models_table(results["models"], results["teacher"], winner_place).print(console)
    if results["front"]:
        front_table(study, study.stages[-1], "front").print(console)
    if results["errors"]:
        first = results["errors"][0]
        count = plural(len(results["errors"]), "trial")
        console.print(f"{count} failed, such as {first['stage']}/{first['trial']}: {first['failure']}")
    winner = quote(str(folder.architecture))
    where = quote(str(folder.path)) + ("" if storage == folder.storage else f" --storage {quote(storage)}")
    if folder.architecture.exists():
        console.print(f"layers of the winner: python -m nas.inspect {winner}")
    else:
        console.print(f"to use the best so far: python -m nas.pick {where}")
    if results["front"]:
        console.print(f"to choose from the front: python -m nas.pick {where} --trial N")
    if results["done"]:
        console.print(f"wrote {folder.architecture}; next: ffn-train-final {winner}")

"""How long, and with how much memory, commands read a study of many trials."""

import contextlib
import io
import json
import random
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from optuna.distributions import distribution_to_json
from optuna.trial import TrialState
from sqlalchemy import MetaData, insert

from benchmarks.memory.process_memory import MIB, peak_rss
from benchmarks.processes import in_new_process
from benchmarks.report import Report
from benchmarks.search.orchestration import SEED, demo_space, score_of
from nas.config.load import load_config
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import CHOICES, CONSTRAINTS, FOR_PROGRAMS, ORIGIN
from nas.study.description import Parameters, architecture_attributes, constraints, identity
from nas.study.folder import Folder
from nas.study.notes import PART, PART_LENGTH, VERSION, note
from nas.study.storage import open_storage
from search_spaces.architecture import Architecture
from search_spaces.spaces import Space

STAGE = "1"
# What the dashboard's page of a study asks its server for.
PAGES = ("/api/studies", "/api/studies/1")
LABELS = 2


def write_study(path: Path, trials: int) -> float:
    """Write the folder of a study of stage 1 with so many finished trials, its database by one statement for each of
    Optuna's tables; returns the seconds.
    """
    began = time.monotonic()
    config, folder = load_config("demo"), Folder(path)
    folder.create(config)
    folder.begin(STAGE, config, None)
    space, rng = demo_space(), random.Random(SEED)
    study = ledger.open_study(folder.storage, f"{path.name}/stage-{STAGE}", SAMPLERS["random"](space, SEED))
    ledger.enqueue(study, Parameters.of(space), Architecture.uniform(space.base), "base model")
    first, _ = ledger.ask(study, space, "base model", LABELS)
    ledger.complete(study, first.number, 0.8, {"standard_error": 0.01, "seconds": 0.5})
    tables: dict[str, list[dict[str, Any]]] = {}
    baseline = study.get_trials(deepcopy=False)
    for number in range(1, trials):
        _add(tables, number, space, space.sample(rng))
    engine = open_storage(folder.storage).engine
    schema = MetaData()
    schema.reflect(engine)
    with engine.begin() as connection:
        for name, rows in tables.items():
            connection.execute(insert(schema.tables[name]), rows)
    reopened = ledger.open_study(folder.storage, study.study_name)
    notes = []
    for trial in reopened.get_trials(deepcopy=False)[1:]:
        text = note(trial, ledger.architecture_of(trial), baseline, reopened)
        parts = {
            PART.format(trial.number + 1, place): text[start : start + PART_LENGTH]
            for place, start in enumerate(range(0, len(text), PART_LENGTH))
        }
        notes += [_json_row(study_id=1, key=key, value=value) for key, value in parts.items()]
        notes.append(_json_row(study_id=1, key=VERSION.format(trial.number + 1), value=1))
    with engine.begin() as connection:
        connection.execute(insert(schema.tables["study_system_attributes"]), notes)
    return time.monotonic() - began


def _json_row(*, key: str, value: Any, **ids: int) -> dict[str, Any]:
    return {**ids, "key": key, "value_json": json.dumps(value)}


def _add(tables: dict[str, list[dict[str, Any]]], number: int, space: Space, architecture: Architecture) -> None:
    """Add the rows of a finished trial to those of all tables."""
    ids, now, parameters = {"trial_id": number + 1}, datetime.now(), Parameters.of(space)
    attributes = architecture_attributes(architecture, space, LABELS) | identity(architecture)
    attributes |= {ORIGIN: "random", "standard_error": 0.01, "seconds": 0.5}
    hidden = {CHOICES: space.choices(architecture), CONSTRAINTS: constraints(architecture, space)}
    hidden |= {key: attributes.pop(key) for key in FOR_PROGRAMS & attributes.keys()}
    row = {**ids, "number": number, "study_id": 1, "state": TrialState.COMPLETE.name}
    rows: dict[str, list[dict[str, Any]]] = {
        "trials": [{**row, "datetime_start": now, "datetime_complete": now}],
        "trial_values": [
            {**ids, "objective": 0, "value": score_of(str(hidden["architecture"])), "value_type": "FINITE"}
        ],
        "trial_intermediate_values": [
            {**ids, "step": step, "intermediate_value": 0.7, "intermediate_value_type": "FINITE"} for step in (0, 30)
        ],
        "trial_user_attributes": [_json_row(key=key, value=value, **ids) for key, value in attributes.items()],
        "trial_system_attributes": [_json_row(key=key, value=value, **ids) for key, value in hidden.items()],
        "trial_params": [
            {
                **ids,
                "param_name": name,
                "param_value": distribution.to_internal_repr(parameters.values(architecture)[name]),
                "distribution_json": distribution_to_json(distribution),
            }
            for name, distribution in parameters.distributions.items()
        ],
    }
    for name, new in rows.items():
        tables.setdefault(name, []).extend(new)


def report_page(path: Path) -> int:
    """`python -m nas.report`; returns its exit status."""
    from nas.report.command import main

    return main([str(path)])


def pick(path: Path) -> int:
    """`python -m nas.pick --max-params 20M`; returns its exit status."""
    from nas.pick.command import main

    return main([str(path), "--max-params", "20M"])


def overview(path: Path) -> int:
    """`python -m nas` in the folder of the study's folder; returns its exit status."""
    from nas.__main__ import main

    return main(["--out", str(path.parent)])


def dashboard(path: Path) -> int:
    """What the dashboard's server answers to the first page of a study; returns 0 if all answers are good."""
    from optuna_dashboard import wsgi

    application = wsgi(Folder(path).storage)
    return int(not all(json.loads(_answer(application, page)) for page in PAGES))


def _answer(application: Any, page: str) -> bytes:
    """The body of the answer to a GET request."""

    def start(status: str, headers: object, exc_info: object = None) -> None:
        assert status.startswith("200"), f"{page}: {status}"

    given = {"REQUEST_METHOD": "GET", "PATH_INFO": page, "wsgi.input": io.BytesIO(), "wsgi.errors": sys.stderr}
    return b"".join(application(given, start))


READERS: dict[str, Callable[[Path], int]] = {
    "nas.report": report_page,
    "nas.pick": pick,
    "python -m nas": overview,
    "dashboard's server": dashboard,
}


def measure(name: str, path: Path) -> tuple[float, float, int]:
    """Run a reader; returns its seconds, its processor seconds, and the peak of this process's resident memory."""
    began, began_processor = time.monotonic(), time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        status = READERS[name](path)
    assert status == 0, f"{name} failed"
    return time.monotonic() - began, time.process_time() - began_processor, peak_rss()


def read_back(report: Report, trials: int, folder: Path) -> dict[str, Any]:
    """Measure all readers on a study of so many trials, print their table, and return the raw numbers."""
    path = folder / "studies" / "long"
    path.parent.mkdir()
    seconds = in_new_process(write_study, path, trials)
    database = (path / "study.db").stat().st_size
    report.progress(f"a study of {trials} trials: written in {seconds:.0f} s")
    measured = {name: in_new_process(measure, name, path) for name in READERS}
    rows = [
        (name, f"{wall:.1f}", f"{processor:.1f}", f"{peak / MIB:.0f}")
        for name, (wall, processor, peak) in measured.items()
    ]
    columns = (f"{trials} trials, {database / MIB:.0f} MiB", "seconds", "processor seconds", "peak resident, MiB")
    report.table(columns, rows)
    return {"database of a study that is read": database, "readers": measured}

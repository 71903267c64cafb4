"""The study that is read back is one that a search could have written."""

from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from benchmarks.memory.read_back import LABELS, READERS, write_study
from benchmarks.search.orchestration import demo_space, score_of
from nas.study import ledger
from nas.study.attributes import ARCHITECTURE, attribute
from nas.study.storage import sqlite_url


def trials_in(path: Path) -> list[FrozenTrial]:
    storage = RDBStorage(sqlite_url(path))
    try:
        (name,) = optuna.get_all_study_names(storage)
        return optuna.load_study(study_name=name, storage=storage).get_trials()
    finally:
        storage.engine.dispose()


def test_the_study_is_what_the_ledger_writes(tmp_path: Path) -> None:
    write_study(tmp_path / "long", 5)
    baseline, *written = trials_in(tmp_path / "long" / "study.db")
    space = demo_space()
    study = ledger.open_study(sqlite_url(tmp_path / "other.db"), "stage-1")

    class Fixed(optuna.samplers.BaseSampler):
        infer_relative_search_space = sample_relative = lambda *arguments: {}

        def sample_independent(self, study, trial, name, distribution):  # type: ignore[no-untyped-def]
            return ledger.choices_of(written[trial.number])[name]

    study.sampler = Fixed()
    for number, trial in enumerate(written):
        ledger.ask(study, space, "random", LABELS)
        for step in (0, 30):
            ledger.report(study, number, step, 0.7)
        score = score_of(attribute(trial, ARCHITECTURE))
        ledger.complete(study, number, score, {"standard_error": 0.01, "seconds": 0.5})
    expected = trials_in(tmp_path / "other.db")
    assert baseline.state == written[0].state

    def content(trial: FrozenTrial) -> tuple[object, ...]:
        parts = (trial.params, trial.distributions, trial.user_attrs, trial.system_attrs)
        return trial.state, trial.values, trial.intermediate_values, *parts

    assert list(map(content, written)) == list(map(content, expected))
    for name in ("nas.pick", "python -m nas", "dashboard's server"):
        assert READERS[name](tmp_path / "long") == 0, name

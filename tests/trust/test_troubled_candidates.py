"""A search some of whose candidates get into trouble, each in another way."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from optuna.trial import TrialState

from foundation.extensions import VARIABLE
from nas.study import ledger
from tests.nas.records import facts, results
from tests.nas.tiny_study import PROJECT, TinyStudy, trials_of
from tests.trust.trouble import FILE, REASONS
from tests.trust_counts import Cases


@pytest.mark.slow
@pytest.mark.trust
def test_candidates_in_trouble(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Callable[..., Cases]
) -> None:
    """Candidates raise, hang, diverge, need too much memory, lose their worker: their trials have that reason.

    All other trials and the winner are those of an undisturbed search, and --resume runs nothing again.
    """
    counts, rng = cases(sample=1, full=3), random.Random(0)
    preset = tiny_study.variant(
        tmp_path / "tiny.toml", ("trials = 6", "trials = 14"), ("seed = 0", "seed = 0\ntrial_timeout = 20")
    )
    search = ("--study", "s", "--workers", "1")
    assert tiny_study.run(*tiny_study.search(tmp_path / "sound", *search, preset=preset)).returncode == 0
    expected = trials_of(tmp_path / "sound" / "s")
    confirmed = {ledger.architecture_of(trial) for trial in trials_of(tmp_path / "sound" / "s", "confirmation")}
    others = [
        trial
        for trial in expected
        if trial.state == TrialState.COMPLETE
        and ledger.DUPLICATE_OF not in trial.user_attrs
        and ledger.architecture_of(trial) not in confirmed
    ]
    file, environment = (
        tmp_path / "trouble.json",
        {FILE: str(tmp_path / "trouble.json"), VARIABLE: "tests.trust.trouble"},
    )
    for name, value in {**environment, "PYTHONPATH": str(PROJECT)}.items():
        monkeypatch.setenv(name, value)
    for case in range(counts.wanted):
        chosen = dict(zip(rng.sample([trial.number for trial in others], len(REASONS)), REASONS, strict=True))
        spelled = {
            json.dumps(ledger.architecture_of(expected[number]).to_json()): kind for number, kind in chosen.items()
        }
        file.write_text(json.dumps(spelled))
        file.with_suffix(".lost").unlink(missing_ok=True)
        command = tiny_study.search(tmp_path / f"{case}", *search, preset=preset)
        finished = tiny_study.run(*command)
        assert (finished.returncode, "Traceback" in finished.stderr) == (0, False), finished.stderr
        folder = tmp_path / f"{case}" / "s"
        for mine, theirs in zip(trials_of(folder), expected, strict=True):
            kind = chosen.get(mine.number)
            reason = REASONS[kind] if kind else None
            if reason is None:
                assert facts(mine) == facts(theirs)
                assert mine.user_attrs.get(ledger.ATTEMPT, 1) == (2 if kind else 1)
            else:
                assert mine.state == TrialState.FAIL and mine.values is None
                assert mine.user_attrs[ledger.FAILURE].startswith(reason)
                assert ledger.architecture_of(mine) == ledger.architecture_of(theirs)
            if kind:
                counts[kind] += 1
        architecture = (tmp_path / "sound" / "s" / "architecture.json").read_text()
        assert (folder / "architecture.json").read_text() == architecture
        before = results(folder)
        assert tiny_study.run(*command, "--resume").returncode == 0
        assert results(folder) == before

"""What a search repeats, with one worker and with several, as docs/search.md says it."""

import random
from pathlib import Path
from typing import Any

import optuna
import pytest

from nas.samplers import SAMPLERS
from nas.study.description import choices_of
from nas.study.ledger import architecture_of
from search_spaces import Architecture
from tests.nas.samplers.test_samplers import OUTCOMES, SPACE, ask, new_study, tell
from tests.nas.tiny_study import TinyStudy, trials_of


def proposed(study: optuna.Study) -> list[Architecture]:
    return [architecture_of(trial) for trial in study.get_trials()]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_order_in_which_running_trials_end_does_not_matter(sampler: str) -> None:
    """Four trials run at a time; they end in any order before the next four are asked for."""

    def search(order: random.Random | None) -> list[Architecture]:
        study = new_study(sampler, 5)
        for _ in range(5):
            numbers = [ask(study)[0] for _ in range(4)]
            if order is not None:
                order.shuffle(numbers)
            for number in numbers:
                tell(study, number, OUTCOMES["mixed"](number))
        return proposed(study)

    expected = search(None)
    assert search(random.Random(0)) == expected
    assert search(random.Random(1)) == expected


def test_random_search_proposes_the_same_with_any_number_of_workers() -> None:
    """Each worker asks for its next trial as soon as it has ended one, which takes any time."""

    def search(workers: int) -> list[Architecture]:
        study, running = new_study("random", 5), list[int]()
        order = random.Random(workers)
        while len(study.trials) < 40:
            while len(running) < workers:
                running.append(ask(study)[0])
            number = running.pop(order.randrange(len(running)))
            tell(study, number, OUTCOMES["mixed"](number))
        return proposed(study)[:40]

    expected = search(1)
    assert all(one in SPACE for one in expected)
    assert search(2) == expected
    assert search(7) == expected


@pytest.mark.slow
def test_scores_do_not_depend_on_the_number_of_workers(tiny_study: TinyStudy, searched: Path, tmp_path: Path) -> None:
    """One worker and two, each trial on one thread: random search has the same ledger, to the last digit."""
    result = tiny_study.run(*tiny_study.search(tmp_path, "--study", "s", "--workers", 2))
    assert result.returncode == 0, result.stderr

    def ledger(folder: Path) -> list[tuple[Any, ...]]:
        return [
            (trial.number, trial.state, trial.params, choices_of(trial), trial.values, trial.intermediate_values)
            for study in ("stage-1", "confirmation")
            for trial in trials_of(folder, study)
        ]

    assert ledger(tmp_path / "s") == ledger(searched)
    assert (tmp_path / "s" / "architecture.json").read_text() == (searched / "architecture.json").read_text()

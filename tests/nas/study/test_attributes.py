"""A user's task may have the name of a trial's attribute."""

from dataclasses import replace

import optuna

from distill.training.evaluation import Load
from nas.evaluation.score import Score
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, ROWS, attribute, score_attribute
from nas.workers.runner import attributes_of
from search_spaces.limits import Limit
from tests.nas.study.test_ledger import SPACE

# All that a trial remembers by names that a task may have.
TAKEN = (
    *(ledger.ARCHITECTURE, ledger.ORIGIN, ledger.SEED, ledger.FAILURE, ledger.WITHIN_BUDGET, ledger.FUNCTION),
    *(
        ledger.DUPLICATE_OF,
        ledger.CHOICES,
        ledger.RUNG,
        ledger.ATTEMPT,
        "params",
        "params_active",
        "macs",
        "latency",
        "seconds",
    ),
    *("standard_error", EXPERT_LOAD, ROWS, "inherited", "score"),
)


def test_scores_of_tasks_hide_nothing() -> None:
    study = optuna.create_study(direction="maximize", sampler=SAMPLERS["random"](SPACE, 0))
    space = replace(SPACE, limits=(Limit("latency", 7, lambda base, genes: 1, 10**6),))
    trials = [ledger.ask(study, space, "random")[0] for _ in range(2)]
    parts = {name: 1 + number / 8 for number, name in enumerate(TAKEN)}
    load = Load(0, "ffn", (0.5, 0.5))
    for trial, behind in zip(trials, (parts, {}), strict=True):
        score = Score(0.5, 0.01, behind, (load,))
        ledger.complete(study, trial.number, score.value, attributes_of(score) | {"seconds": 1.0})
    with_parts, without = (trial.user_attrs for trial in study.get_trials())
    assert with_parts["standard_error"] == 0.01
    assert attribute(study.get_trials()[0], EXPERT_LOAD) == [load.to_json()]
    assert with_parts["latency"] == 10
    assert with_parts.keys() - without.keys() == {score_attribute(name) for name in TAKEN}
    assert {name: with_parts[score_attribute(name)] for name in TAKEN} == parts
    assert all(with_parts[key] == value for key, value in trials[0].user_attrs.items())
    missing = [key for key in without if key not in trials[1].user_attrs]
    assert missing == ["standard_error", "seconds"]

"""Golden runs: what this version proposes, records and learns, kept in the JSON files beside this one.

A difference means that studies, caches and results of earlier versions cannot be repeated with this one. If it is not
meant, it is a bug, even if every other test passes: a random number was drawn more or less often, trials were read in
another order, or a loss is another one. If it is meant, it belongs into CHANGELOG.md, and

    python -m pytest tests/golden --write-golden

writes the files anew. Architectures, duplicates and states must be equal. Scores and losses must be equal to the last
digit on the processor and with the version of PyTorch that a file names, and nearly equal elsewhere, where sums have
another order or there is no bfloat16.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from distill.objectives import Objective, efficientbert, hard_labels, kd, minilm
from distill.training.loop import train
from distill.training.recipe import Recipe
from distill.training.teacher_outputs import LiveTeacher
from nas.latency.settings import device_name
from nas.samplers import SAMPLERS
from nas.study.attributes import DUPLICATE_OF, ORIGIN, WITHIN_BUDGET
from nas.study.description import formula
from nas.study.ledger import architecture_of
from tests.nas.samplers.test_samplers import OUTCOMES, SPACE, drawn
from tests.nas.tiny_study import trials_of
from tests.tiny import batch, bert

# Other processors, versions of PyTorch and numbers of threads round differently. Losses in float32 then differ by up to
# 4e-7 of their values (measured without vector instructions and oneDNN, and with two threads). Scores are shares of 48
# rows, and differ by up to 4 of these, as training is in bfloat16 where the processor has it.
SCORE_ATOL, LOSS_RTOL = 0.1, 4e-6

OBJECTIVES: dict[str, Callable[[Any, Any], Objective]] = {
    "none": lambda student, teacher: hard_labels(),
    "kd": kd,
    "efficientbert": efficientbert,
    "minilm": minilm,
}


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, Any], Any]:
    """`golden(name, measured)`: the content of NAME.json; with --write-golden, `measured` is written there first."""

    def read(name: str, measured: Any) -> Any:
        file = Path(__file__).parent / f"{name}.json"
        if request.config.getoption("--write-golden", default=False):
            file.write_text(json.dumps(measured, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        return json.loads(file.read_text(encoding="utf-8"))

    return read


def environment() -> dict[str, Any]:
    """What the last digits depend on."""
    return {"processor": device_name("cpu"), "torch": torch.__version__, "threads": torch.get_num_threads()}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_first_proposals(sampler: str, golden: Callable[[str, Any], Any]) -> None:
    """Twelve proposals, of which the trials complete with random scores, fail and are pruned."""
    proposals = list(map(formula, drawn(sampler, 3, 12, SPACE, OUTCOMES["mixed"])))
    assert proposals == golden(f"proposals-{sampler}", proposals)


def test_search_log(searched: Path, golden: Callable[[str, Any], Any]) -> None:
    """The ledger of the tiny study's stage 1 with its reference model and its confirmation. On another processor scores
    differ in their last digits, and the architectures that are confirmed are those with the best scores there.
    """
    proposed, confirmed = (
        [trial for study in studies for trial in trials_of(searched, study)]
        for studies in (("reference", "stage-1"), ("confirmation",))
    )
    trials = proposed + confirmed
    log = [
        {
            "state": trial.state.name,
            "origin": trial.user_attrs[ORIGIN],
            "duplicate of": trial.user_attrs.get(DUPLICATE_OF),
            "in budget": trial.user_attrs[WITHIN_BUDGET],
            "architecture": formula(architecture_of(trial)),
        }
        for trial in trials
    ]
    scores = [[*trial.intermediate_values.values(), *(trial.values or ())] for trial in trials]
    measured = {"environment": environment(), "trials": log, "scores": scores}
    expected = golden("search", measured)
    if measured["environment"] == expected["environment"]:
        assert measured == expected
    else:
        count = len(proposed)
        assert log[:count] == expected["trials"][:count]
        for mine, theirs in zip(scores[:count], expected["scores"][:count], strict=True):
            assert mine == pytest.approx(theirs, abs=SCORE_ATOL)


@pytest.fixture
def one_thread() -> Any:
    """The order of sums depends on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_loss_curves(accelerator: Accelerator, one_thread: None, golden: Callable[[str, Any], Any]) -> None:
    """Twelve steps of a tiny student with dropout, in float32, by objective."""
    recipe = Recipe(steps=12, learning_rate=5e-3, batch_size=8)
    curves: dict[str, list[float]] = {}
    for name, objective in OBJECTIVES.items():
        teacher, student = bert(2, num_hidden_layers=4), bert(1)
        chosen = objective(student.config, teacher.config)
        curves[name] = train(
            student,
            (batch(8, seed=seed) for seed in range(recipe.steps)),
            chosen,
            recipe,
            accelerator=accelerator,
            teacher=LiveTeacher(teacher, chosen.needs, accelerator),
            seed=1,
        )
    measured = {"environment": environment(), "losses": curves}
    expected = golden("losses", measured)
    assert curves.keys() == expected["losses"].keys()
    for name, losses in expected["losses"].items():
        here = measured["environment"] == expected["environment"]
        assert curves[name] == (losses if here else pytest.approx(losses, rel=LOSS_RTOL)), name

"""The examples of docs/extending.md work as they are printed."""

import random
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from distill.encoders.student import ffn
from distill.encoders.student.routing import ROUTERS
from distill.objectives import OBJECTIVES, losses
from distill.objectives.outputs import run
from distill.tasks import readers
from distill.tasks.readers import load_task
from distill.tasks.task import Task
from distill.tasks.types import TASK_TYPES
from nas.config.load import load_config
from nas.samplers import SAMPLERS
from search_spaces import UNARY, Architecture, Base, Experts, FFNGraph, Space, cost
from search_spaces.routing import ROUTINGS
from supernet.build import build
from supernet.experts.routers import TABLES
from supernet.inherit import inherit
from tests.scores import score
from tests.tiny import BASE, batch, bert, inputs

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
TABLES_OF_THE_PAGE = (UNARY, ffn.UNARY, ROUTINGS, ROUTERS, TABLES, OBJECTIVES, SAMPLERS)


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that an example adds are removed after the test."""
    for table in TABLES_OF_THE_PAGE:
        for name in ("square", "modulo", "last_states", "smallest"):
            monkeypatch.setitem(table, name, None)  # type: ignore[arg-type]
            monkeypatch.delitem(table, name)  # type: ignore[arg-type]
    monkeypatch.setattr(readers, "READERS", [*readers.READERS])


def execute(section: str) -> dict[str, Any]:
    """The names that the example of a section defines."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {section}\n")[1].split("\n## ")[0]
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def student(architecture: Architecture) -> torch.nn.Module:
    """A student that has inherited from a random supernet."""
    supernet = build(Architecture.uniform(BASE), num_labels=3)
    model = build(architecture, num_labels=3, weights=inherit(supernet.state_dict(), architecture))
    return model.eval()


def test_an_operation() -> None:
    execute("An operation")
    graph = FFNGraph.parse("project(square(expand(x)))")
    model = student(Architecture.uniform(BASE, graph=graph))
    assert model(**inputs(batch())).logits.isfinite().all()
    params = [cost.params(Architecture.uniform(BASE, expansion=fraction)) for fraction in (Fraction(1, 8), Fraction(1))]
    space = Space(BASE, {"stack": (1,), "expansion": (Fraction(1, 8), Fraction(1))}, *params, 1.0)
    rng = random.Random(0)
    assert any("square(" in genes.formula for _ in range(50) for genes in space.sample(rng).ffns)


def test_a_router() -> None:
    execute("A router")
    dense = Architecture.uniform(BASE).ffns
    architecture = Architecture.of_ffns(
        BASE, tuple(replace(genes, experts=Experts(2, Fraction(1), "modulo")) for genes in dense)
    )
    model = student(architecture)
    assert model(**inputs(batch())).logits.isfinite().all()
    table = next(value for name, value in model.state_dict().items() if name.endswith("router.table"))
    assert table.tolist() == [token % 2 for token in range(BASE.vocabulary)]


def test_an_objective() -> None:
    names = execute("An objective")
    student, teacher = bert(hidden_size=16), bert(num_hidden_layers=4)
    objective = names["last_states"](student.config, teacher.config, hidden=0.5)
    rows = batch()
    s, t = run(student, rows, objective.needs), run(teacher, rows, objective.teacher_needs)
    state = objective.projections["hidden"](s.hidden_states[2])
    expected = (
        F.cross_entropy(s.logits, rows["labels"])
        + losses.symmetric_kl(s.logits, t.logits)
        + 0.5 * losses.hidden_mse(state, t.hidden_states[4], rows["attention_mask"])
    )
    torch.testing.assert_close(objective(s, t, rows), expected)


def test_a_sampler() -> None:
    execute("A sampler")
    assert load_config("demo-ffn", {"stage1.sampler": "smallest"}).stage1.sampler == "smallest"
    base = Base(depth=2, width=16, heads=2, inner=32, vocabulary=100)
    fractions = tuple(Fraction(fraction, 32) for fraction in range(1, 33))
    params = [cost.params(Architecture.uniform(base, expansion=fraction)) for fraction in (fractions[0], fractions[-1])]
    space = Space(base, {"stack": (1,), "expansion": fractions}, *params, 0.1)

    def inner(architecture: Architecture) -> int:
        return sum(genes.inner(base) for genes in architecture.ffns)

    proposer = SAMPLERS["smallest"](space, 0)
    proposed = [inner(next(proposer.propose([], random.Random(seed)))) for seed in range(20)]
    drawn = [inner(space.sample(random.Random(seed))) for seed in range(20)]
    assert sum(proposed) < sum(drawn) / 2


def test_a_task() -> None:
    execute("A task")
    rows = load_task("parity")
    assert rows.task.labels == ("even", "odd")
    assert len(rows.train.texts) + len(rows.search.texts) + len(rows.dev.texts) == 600
    assert all(len(text.split()) % 2 == label for text, label in zip(rows.dev.texts, rows.dev.labels, strict=True))


def test_a_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = TASK_TYPES["classification"].metrics
    monkeypatch.setitem(metrics, "worst_recall", None)  # type: ignore[arg-type]
    execute("A metric")
    task = Task("t", ("no", "yes"), metrics=("worst_recall",))
    found = score(task, np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]))["worst_recall"]
    assert found.value == pytest.approx(2 / 3) and found.standard_error > 0

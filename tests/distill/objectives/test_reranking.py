"""The objective of rerankers."""

from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from distill.objectives import OBJECTIVES, reranking
from distill.objectives.outputs import HIDDEN_STATES, LOGITS, Outputs, of_layers
from distill.tasks.encoding import Encoded
from distill.tasks.types import REGRESSION
from distill.training.processes import process_rows
from tests.tiny import SIZES, bert

MASK = torch.ones(5, 3, dtype=torch.long)
BATCH = {"attention_mask": MASK, "groups": torch.tensor([7, 7, 3, 7, 3])}
CONFIG = bert(labels=1).config
NOTHING = {"score": 0.0, "margin": 0.0, "hidden": 0.0}


def outputs(seed: int) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    states = [torch.randn(5, 3, SIZES["hidden_size"], generator=generator) for _ in range(3)]
    return Outputs(torch.randn(5, 1, generator=generator), REGRESSION, hidden_states=tuple(states))


def test_the_terms() -> None:
    student, teacher = outputs(0), outputs(1)
    s, t = student.logits[:, 0], teacher.logits[:, 0]
    loss = reranking(CONFIG, CONFIG, **NOTHING | {"score": 2.0})(student, teacher, BATCH)
    torch.testing.assert_close(loss, 2 * (s - t).square().mean())
    groups = BATCH["groups"].tolist()
    margins = [((s[i] - s[j]) - (t[i] - t[j])) ** 2 for i, j in combinations(range(5), 2) if groups[i] == groups[j]]
    assert len(margins) == 4
    loss = reranking(CONFIG, CONFIG, **NOTHING | {"margin": 1.0})(student, teacher, BATCH)
    torch.testing.assert_close(loss, torch.stack(margins).mean())
    loss = reranking(CONFIG, CONFIG, **NOTHING | {"hidden": 1.0})(student, teacher, BATCH)
    pairs = zip(student.hidden_states[1:], teacher.hidden_states[1:], strict=True)
    torch.testing.assert_close(loss, sum((a - b).square().mean() for a, b in pairs))
    assert reranking(CONFIG, CONFIG).teacher_needs == {LOGITS} | of_layers(HIDDEN_STATES, [1, 2])


def test_a_shift_of_all_scores_of_a_query_has_no_margin() -> None:
    teacher, loss = outputs(0), reranking(CONFIG, CONFIG, **NOTHING | {"margin": 1.0})
    shift = torch.tensor([1.0, 1.0, -2.0, 1.0, -2.0])[:, None]
    shifted = Outputs(teacher.logits + shift, REGRESSION)
    assert float(loss(shifted, teacher, BATCH)) == pytest.approx(0, abs=1e-10)
    alone = {"attention_mask": MASK, "groups": torch.arange(5)}
    assert float(loss(outputs(1), teacher, alone)) == 0


def test_rows_without_queries() -> None:
    rows = Encoded(np.ones(5, np.int32), np.zeros(5, np.int8), np.arange(6), np.zeros(5, np.float32), REGRESSION)
    OBJECTIVES["reranking"].make({}, CONFIG, CONFIG, rows)
    with pytest.raises(ValueError, match="margin compares the passages of a query, and these rows have none"):
        OBJECTIVES["reranking"].make({"margin": 1.0}, CONFIG, CONFIG, rows)


def test_processes_get_the_passages_of_a_query_together() -> None:
    batch = {"input_ids": torch.arange(14).view(7, 2), "groups": torch.tensor([4, 4, 0, 0, 0, 2, 2])}
    processes: list[Any] = [SimpleNamespace(num_processes=2, process_index=index, device="cpu") for index in range(2)]
    shares = [process_rows(batch, process) for process in processes]
    assert [share["groups"].tolist() for share in shares] == [[4, 4, 0], [0, 0, 2, 2]]
    assert torch.equal(torch.cat([share["input_ids"] for share in shares]), batch["input_ids"])

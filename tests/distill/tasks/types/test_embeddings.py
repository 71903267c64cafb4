"""Sentence vectors: their pooling, and the metrics that compare them with the teacher's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from distill.tasks.metrics import COSINE, NEIGHBOURS
from distill.tasks.types import EMBEDDINGS, get_task_type, task_type_of
from distill.tasks.types.embeddings import CLS, MODES, POOLING, pool
from tests import requirements
from tests.tiny import bert

MASKS = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]])


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_pooling_is_that_of_sentence_transformers(mode: str, normalize: bool) -> None:
    requirements.module("sentence_transformers", "demo")
    from sentence_transformers.sentence_transformer.modules import Pooling

    states = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
    # sentence-transformers takes the first token, even if that is padding on the left.
    rows = slice(0, 2) if mode == CLS else slice(0, 3)
    given = {"token_embeddings": states[rows], "attention_mask": MASKS[rows]}
    expected = Pooling(6, mode)(given)["sentence_embedding"]
    if normalize:
        expected = F.normalize(expected, dim=1)
    config = SimpleNamespace(**{POOLING: {"mode": mode, "normalize": normalize}})
    torch.testing.assert_close(pool(states, MASKS, config)[rows], expected)


def test_only_encoders_with_a_pooling_are_sentence_encoders() -> None:
    model = bert().bert
    assert task_type_of(model) is None
    setattr(model.config, POOLING, {"mode": CLS, "normalize": False})
    assert task_type_of(model) is get_task_type(EMBEDDINGS)
    assert task_type_of(bert()) is not get_task_type(EMBEDDINGS)


@pytest.mark.parametrize("rows", [2, 7, 40])
def test_metrics_against_sorted_neighbours(rows: int) -> None:
    random = np.random.default_rng(rows)
    teacher = random.normal(size=(rows, 5)).astype(np.float32)
    student = teacher + random.normal(size=(rows, 5)).astype(np.float32)
    pairs = np.stack([student, teacher], axis=1)
    unit = [vectors / np.linalg.norm(vectors, axis=1)[:, None] for vectors in (student, teacher)]
    np.testing.assert_allclose(COSINE.contributions(pairs, (), ()), (unit[0] * unit[1]).sum(axis=1), rtol=1e-5)
    count, shared = min(10, rows - 1), []
    for row in range(rows):
        nearest = [[other for other in np.argsort(-(of @ of[row])) if other != row][:count] for of in unit]
        shared.append(len({*nearest[0]} & {*nearest[1]}) / count)
    np.testing.assert_allclose(NEIGHBOURS.contributions(pairs, (), ()), shared)


def test_neighbours_in_several_parts() -> None:
    """More rows than are compared at once: a row is not its own neighbour."""
    vectors = np.random.default_rng(0).normal(size=(1005, 3)).astype(np.float32)
    pairs = np.stack([vectors, vectors], axis=1)
    assert NEIGHBOURS.contributions(pairs, (), ()).min() == 1
    # All but two are the same vector for the student, of which any ten are the nearest.
    pairs[:, 0] = [1, 0, 0]
    assert NEIGHBOURS.contributions(pairs, (), ()).mean() < 0.1

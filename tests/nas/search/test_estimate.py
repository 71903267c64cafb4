"""The estimated time of a search, against multiply-accumulates by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from distill.tasks.encoding import Encoded, save_encoded
from distill.tasks.types import CLASSIFICATION
from nas.config.load import load_config
from nas.preparation.entries import teacher_of
from nas.search.estimate import OVERHEAD, Estimator, Sizes, usual_candidate
from search_spaces import cost
from tests.nas.tiny_study import TinyStudy

SPEED, SIZES = 1e9, Sizes(tokens=10, train=900, search=100)


@pytest.mark.parametrize(("fraction", "rows"), [(None, 100), (0.05, 50), (0.5, 100)])
def test_a_trial(tiny_study: TinyStudy, fraction: float | None, rows: int) -> None:
    """Six steps of eight rows, each as much as three passes, and the rows of the search split that it is scored on."""
    config = tiny_study.config
    estimator = Estimator(config, SIZES, SPEED, usual_candidate(config))
    table = config.stage1.model_copy(update={"search_fraction": fraction})
    passes = 3 * 6 * 8 + rows
    assert estimator.trial(table, "1") == pytest.approx(OVERHEAD + passes * cost.macs(estimator.student, 10) / SPEED)
    taught = estimator.training(100, taught=True) - estimator.training(100)
    assert taught == pytest.approx(6 * 8 * cost.macs(teacher_of(config), 10) / SPEED)
    (confirmed,) = (part for part in estimator.parts((), ("2",)) if part.what == "confirmation of stage 2")
    assert confirmed.total == confirmed.start + 6 * estimator.training(100, taught=True)


def test_rows_of_several_windows(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """Untrained candidates are scored on all windows of their first texts: three of each, of 90 rows at most."""
    for name, texts in (("train", 50), ("search", 30)):
        rows = Encoded(
            input_ids=np.ones(15 * texts, np.int32),
            token_type_ids=np.zeros(15 * texts, np.int32),
            offsets=np.arange(0, 15 * texts + 1, 5),
            labels=np.zeros(3 * texts, np.int32),
            task_type=CLASSIFICATION,
            sources=np.repeat(np.arange(texts, dtype=np.int32), 3),
        )
        save_encoded(rows, tmp_path / f"{name}.npz")
    config = tiny_study.config
    sizes = Sizes.of(config, tmp_path)
    assert sizes == Sizes(tokens=5, train=150, search=90, windows=3)
    estimator = Estimator(config, sizes, SPEED, usual_candidate(config))
    for texts, scored in ((20, 60), (50, 90), (None, 90)):
        table = config.stage1.model_copy(update={"evaluation": "untrained", "rows": texts})
        work = scored * cost.macs(estimator.student, 5) / SPEED
        assert estimator.trial(table, "1") == pytest.approx(OVERHEAD + work)


def test_candidates_are_as_large_as_the_budget(tiny_study: TinyStudy) -> None:
    """A limit on the latency, which has not been measured, counts for the teacher's MACs; 12 ms say nothing."""
    config = tiny_study.config
    whole = cost.macs(teacher_of(config))
    sizes = {
        limit: cost.macs(usual_candidate(load_config(str(tiny_study.preset), {"space.max_latency": limit}))) / whole
        for limit in ("12ms", "0.85x", "0.8x")
    }
    assert sizes["12ms"] == cost.macs(usual_candidate(config)) / whole > 0.85
    assert 0.83 < sizes["0.85x"] <= 0.85 and 0.78 < sizes["0.8x"] <= 0.8


def test_the_teacher_is_not_the_student(tiny_study: TinyStudy, tmp_path: Path) -> None:
    base = teacher_of(tiny_study.config).base
    smaller = "{depth = 1, width = 16, heads = 4, inner = 16}"
    preset = tmp_path / "smaller.toml"
    preset.write_text(f'extends = "{tiny_study.preset}"\nbase = {smaller}\n')
    assert teacher_of(load_config(str(preset))).base == base != replace(base, depth=1)

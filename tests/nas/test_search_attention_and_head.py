"""A search that varies the experts of attention and head: its stages pass them on, and an architecture is trained."""

import random
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest

from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.finalists import BASE_MODEL, GLOBAL, UNIFORM
from nas.planning.stages import plan
from nas.preparation.workspace import Workspace
from search_spaces import FFN, Architecture, Attention, Layer, PredictionHead
from tests.nas.tiny_study import TinyStudy

SPACE = """\
attention_experts = [1, 2, 3]
head_experts = [1, 2]
min_params = 1
max_params = "60K"
"""
CHANGES = (
    ('tasks = ["library", "neighbours"]', 'tasks = ["library"]'),
    ('uniform = "1/2"\n', SPACE),
    ("[stage3]\n", '[stage3]\nevaluation = "trained"\n'),
)


def counts(architecture: Architecture) -> tuple[tuple[int, ...], int]:
    return tuple(layer.attention.experts for layer in architecture.layers), architecture.head.experts


@pytest.fixture
def preset(tiny_study: TinyStudy, tmp_path: Path) -> Path:
    return tiny_study.variant(tmp_path / "wide.toml", *CHANGES)


def test_plans_of_the_stages(preset: Path, workspace: Workspace) -> None:
    config = load_config(str(preset))
    first = plan(config, workspace, "1", None, ())
    samples = (first.space.sample(random.Random(seed)) for seed in range(99))
    start = next(member for member in samples if counts(member) == ((3, 1), 2))
    second, third = (plan(config, workspace, stage, start, ()) for stage in ("2", "3"))
    assert [origin for _, origin, _ in first.baselines][:3] == [BASE_MODEL, UNIFORM, GLOBAL]
    assert all(counts(architecture) == ((1, 1), 1) for architecture, _, _ in first.baselines)
    assert all(counts(architecture) == ((3, 1), 2) for architecture, _, _ in second.baselines)
    assert {counts(second.space.sample(random.Random(seed))) for seed in range(20)} == {((3, 1), 2)}
    drawn = {counts(third.space.sample(random.Random(seed))) for seed in range(400)}
    assert drawn == set(product(product((1, 2, 3), repeat=2), (1, 2)))


def test_a_candidate_is_trained(workspace: Workspace) -> None:
    base, graph = workspace.base()
    ffns = (FFN(graph, 1, Fraction(1, 2)),) * 2
    layers = (Layer(Attention(base.heads, 2), ffns[0]), Layer(Attention(base.heads), ffns[1]))
    architecture = Architecture(base, layers, PredictionHead(3))
    one, again = (TrainedEvaluator(workspace, "cpu").evaluate(architecture, 0) for _ in range(2))
    assert one == again
    shares = [(load.layer, load.part, len(load.shares)) for load in one.loads]
    assert sorted(shares) == [(-1, "head", 3), (0, "attention", 2)]

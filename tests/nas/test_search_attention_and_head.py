"""A search that varies the experts of attention and head: it is interrupted and resumed, its stages pass them on, and
an architecture is trained.
"""

import json
import os
import random
import signal
from fractions import Fraction
from itertools import product
from pathlib import Path

import pytest
import torch
from optuna.trial import TrialState
from transformers import AutoModelForSequenceClassification

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.final.command import main as train_final
from nas.planning.finalists import BASE_MODEL, GLOBAL, UNIFORM
from nas.planning.stages import check_start, plan
from nas.preparation.workspace import Workspace
from nas.study import ledger
from search_spaces import FFN, Architecture, Attention, Head, Layer, cost
from tests.nas.tiny_study import TinyStudy, states, trials_of, wait

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
    ("trials = 6\n", "trials = 10\n"),
    ("confirm_seeds = 2", "confirm_seeds = 1"),
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


def test_a_start_with_numbers_that_the_study_has_not(preset: Path, workspace: Workspace) -> None:
    base, graph = workspace.base()
    start = Architecture.uniform(base, graph, expansion=Fraction(1, 2), attention_experts=4)
    with pytest.raises(ConfigError, match=r"has attention_experts 4: add 4 to space\.attention_experts"):
        check_start(start, load_config(str(preset)), base)


def test_a_candidate_is_trained(workspace: Workspace) -> None:
    base, graph = workspace.base()
    ffns = (FFN(graph, 1, Fraction(1, 2)),) * 2
    layers = (Layer(Attention(base.heads, 2), ffns[0]), Layer(Attention(base.heads), ffns[1]))
    architecture = Architecture(base, layers, Head(3))
    one, again = (TrainedEvaluator(workspace, "cpu").evaluate(architecture, 0) for _ in range(2))
    assert one == again
    shares = [(load.layer, load.part, len(load.shares)) for load in one.loads]
    assert sorted(shares) == [(-1, "head", 3), (0, "attention", 2)]


@pytest.mark.slow
def test_a_whole_search(
    shared_study: TinyStudy, preset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    always = ("-m", "nas.search", "--preset", preset, "--study", "s", "--out", out, "--workers", "1")
    with shared_study.running(*always, "--stage", "all") as process:
        wait(process, lambda: states(out / "s")["COMPLETE"] >= 5)
        os.killpg(process.pid, signal.SIGINT)
        process.communicate()
    assert states(out / "s")["COMPLETE"] < 9
    before = [ledger.architecture_of(trial) for trial in trials_of(out / "s") if trial.state == TrialState.COMPLETE]
    resumed = shared_study.run(*always, "--stage", "all", "--resume")
    assert (resumed.returncode, resumed.stderr) == (0, "")

    trials = trials_of(out / "s")
    assert [ledger.architecture_of(trial) for trial in trials[: len(before)]] == before
    proposed = {counts(ledger.architecture_of(trial)) for trial in trials[2:]}
    assert any(len(set(attentions)) > 1 for attentions, _ in proposed) and {head for _, head in proposed} == {1, 2}
    for study in ("stage-1", "stage-2", "stage-3", "confirmation"):
        for trial in trials_of(out / "s", study):
            assert trial.state in (TrialState.COMPLETE, TrialState.PRUNED)
            architecture = ledger.architecture_of(trial)
            assert trial.user_attrs["params"] == cost.params(architecture, 3)
            assert trial.user_attrs["macs"] == cost.macs(architecture, labels=3)
            if study != "stage-2":
                attentions = tuple(trial.params[f"layer {number}/experts in attention"] for number in (1, 2))
                assert (attentions, trial.params["experts in head"]) == counts(architecture)
    start = Architecture.load(out / "s" / "stage-2" / "start.json")
    assert {counts(ledger.architecture_of(trial)) for trial in trials_of(out / "s", "stage-2")} == {counts(start)}

    mixture = next(
        architecture
        for trial in trials
        if min(max(counts(architecture := ledger.architecture_of(trial))[0]), architecture.head.experts) > 1
    )  # fmt: skip
    mixture.save(out / "s" / "mixture.json")
    assert train_final([str(out / "s" / "mixture.json"), "--device", "cpu", "--skip-base"]) == 0
    assert "experts of head" in capsys.readouterr().out
    facts = json.loads((out / "s" / "final" / "metrics.json").read_text())["models"]["student"]
    assert facts["params_active"] < facts["params"] == cost.params(mixture, 3)
    model = AutoModelForSequenceClassification.from_pretrained(out / "s" / "final", trust_remote_code=True)
    ids = torch.arange(5, 12)[None]
    assert torch.isfinite(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits).all()

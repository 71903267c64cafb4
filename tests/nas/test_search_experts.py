"""Experts are searched in stages 1 and 3, kept in stage 2, trained and exported."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from distill.training.teacher_outputs import SavedTeacher
from nas.config.load import load_config
from nas.evaluation.trained import TrainedEvaluator
from nas.final.command import main as train_final
from nas.preparation.prepare import prepare
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, attribute, score_attribute
from search_spaces import DENSE, Architecture, Experts, cost
from tests.nas.tiny_study import TinyStudy, trials_of

EXPERTS = """\
stacks = [1, 2]
experts = [
    {count = 1},
    {count = 2, shared = "1/2", routing = "hash"},
    {count = 4, shared = "2/3", routing = "balanced_hash"},
    {count = 2, shared = "1/2", routing = "token_gate", capacity = "5/4"},
    {count = 4, shared = "2/3", routing = "sentence_gate"},
]
attention_experts = [1, 2]
max_params = "60K"
"""


@pytest.fixture(scope="module")
def studied(shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that has run all stages."""
    out = tmp_path_factory.mktemp("experts")
    preset = shared_study.variant(
        out / "experts.toml",
        ("stacks = [1, 2]\n", EXPERTS),
        ('uniform = "1/2"\n', ""),
        ("[finetune]", '[objective]\nname = "moebert"\n\n[finetune]'),
        ("confirm_seeds = 2", "confirm_seeds = 0"),
    )
    always = ("-m", "nas.search", "--preset", preset, "--study", "s", "--out", out, "--workers", "1")
    result = shared_study.run(*always, "--stage", "all")
    assert (result.returncode, result.stderr) == (0, "")
    return out / "s"


def test_stages_1_and_3_search_experts(studied: Path) -> None:
    for stage in ("1", "3"):
        trials = trials_of(studied, f"stage-{stage}")
        found = {ffn.experts for trial in trials for ffn in ledger.architecture_of(trial).ffns}
        assert DENSE in found and len(found) > 2
        assert {layer.attention.experts for trial in trials for layer in ledger.architecture_of(trial).layers} == {1, 2}
        for trial in trials:
            architecture = ledger.architecture_of(trial)
            attributes = trial.user_attrs
            assert attributes["params_active"] == cost.params_active(architecture, 3) <= attributes["params"]
            mixtures = [place for place, ffn in enumerate(architecture.ffns) if ffn.experts != DENSE]
            loads = [load for load in attribute(trial, EXPERT_LOAD, []) if load["part"] == "ffn"]
            assert sorted({load["layer"] for load in loads}) == mixtures
            assert all(sum(load["shares"]) == pytest.approx(1) for load in loads)


def test_stage_2_varies_graphs_alone_and_stage_3_sizes_alone(studied: Path) -> None:
    for stage, kept in (
        ("2", lambda layer: (layer.attention, layer.ffn.stack, layer.ffn.expansion, layer.ffn.experts)),
        ("3", lambda layer: layer.ffn.graph),
    ):
        start = Architecture.load(studied / f"stage-{stage}" / "start.json")
        before = json.loads((studied / f"stage-{int(stage) - 1}" / "best.json").read_text())
        assert start.to_json() == before["winner"]["architecture"]
        architectures = {ledger.architecture_of(trial) for trial in trials_of(studied, f"stage-{stage}")}
        assert len(architectures) > 2
        for architecture in architectures:
            assert list(map(kept, architecture.layers)) == list(map(kept, start.layers))


def test_stage_3_trains_none_and_scores_all_tasks(studied: Path, tiny_study: TinyStudy) -> None:
    for trial in trials_of(studied, "stage-3"):
        assert trial.intermediate_values == {}
        parts = [trial.user_attrs[score_attribute(task)] for task in tiny_study.config.tasks]
        assert trial.values == pytest.approx([sum(parts) / 2])


def test_a_mixture_is_trained_and_exported(
    studied: Path, tiny_study: TinyStudy, capsys: pytest.CaptureFixture[str]
) -> None:
    mixtures = [
        ledger.architecture_of(trial)
        for trial in trials_of(studied, "stage-1")
        if any(ffn.experts.gated for ffn in ledger.architecture_of(trial).ffns)
    ]
    chosen = mixtures[0]
    chosen.save(studied / "mixture.json")
    assert train_final([str(studied / "mixture.json"), "--device", "cpu", "--skip-base"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "experts of layer" in shown.out
    facts = json.loads((studied / "final" / "metrics.json").read_text())
    student = facts["models"]["student"]
    assert student["params_active"] < student["params"] == cost.params(chosen, 3)
    assert facts["expert_load"]
    model = AutoModelForSequenceClassification.from_pretrained(studied / "final", trust_remote_code=True)
    ids = torch.arange(5, 12)[None]
    assert torch.isfinite(model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits).all()


def test_a_mixture_learns_relations_from_saved_outputs(tiny_study: TinyStudy, tmp_path: Path) -> None:
    objective = '[objective]\nname = "minimoe"\nrelation_heads = 4\n\n[finetune]'
    config = load_config(str(tiny_study.variant(tmp_path / "minimoe.toml", ("[finetune]", objective))))
    workspace = prepare(config, "cpu")
    base, graph = workspace.base()
    experts = Experts(2, Fraction(1), "token_gate")
    architecture = Architecture.uniform(base, graph, expansion=Fraction(1, 2), experts=experts)
    one, again = (TrainedEvaluator(workspace, "cpu").evaluate(architecture, 0) for _ in range(2))
    assert one == again
    assert [(load.layer, load.part, len(load.shares)) for load in one.loads] == [(0, "ffn", 2), (1, "ffn", 2)]
    saved = SavedTeacher(dict(workspace.outputs)["candidate"])
    relations = saved(0, {"input_ids": torch.zeros(config.candidate.batch_size, 1)}).relations
    assert len(relations) == 3
    other = TrainedEvaluator(workspace, "cpu").evaluate(architecture, 5)  # a live teacher
    assert other.value > 1 / 4

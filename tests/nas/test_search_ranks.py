"""A search that varies the rank of the word embedding: its stages pass it on, and allocate and train it."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.allocation import PredictedLosses
from nas.planning.budget import latencies_of, limits_of
from nas.planning.finalists import BASE_MODEL, GLOBAL, UNIFORM
from nas.planning.stages import check_start, plan
from nas.preparation.prepare import prepare
from nas.study.description import Parameters, formula
from search_spaces import Architecture, Embedding, cost
from tests import requirements
from tests.nas.tiny_study import TinyStudy, trials_of

# No architecture with all words is within this budget.
RANKS = 'ranks = [4, 16]\nmax_params = "14.5K"\n'
CHANGES = (
    ('tasks = ["library", "neighbours"]', 'tasks = ["library"]'),
    ('uniform = "1/2"\n', RANKS),
    (
        "[stage3]\n",
        '[supernet]\ninheritance = "compensated"\ncalibration_rows = 100\n\n[stage3]\nevaluation = "trained"\n',
    ),
)


@pytest.fixture
def preset(tiny_study: TinyStudy, tmp_path: Path) -> Path:
    return tiny_study.variant(tmp_path / "ranks.toml", *CHANGES)


def test_plans_of_the_stages(preset: Path) -> None:
    config = load_config(str(preset))
    workspace = prepare(config, "cpu", outputs=False)
    first = plan(config, workspace, "1", None, ())
    origins = {origin: architecture for architecture, origin, _ in first.baselines}
    assert all(origins[name].embedding == Embedding() for name in (BASE_MODEL, UNIFORM, GLOBAL))
    assert first.space.embedding_sizes == (Embedding(), Embedding(4), Embedding(16))
    allocated = [each for each in origins.values() if each in first.space]
    losses = PredictedLosses.load(workspace.compensation.predictions, *workspace.base())
    assert {each.embedding.rank for each in allocated} <= {4, 16} and len(losses.ranks[0]) == 33
    assert len(allocated) >= 3 and not any(origins[name] in allocated for name in (BASE_MODEL, UNIFORM, GLOBAL))
    assert (
        losses.of_embedding(Embedding(4)) > losses.of_embedding(Embedding(16)) > losses.of_embedding(Embedding()) == 0
    )
    samples = [first.space.sample(random.Random(seed)) for seed in range(60)]
    assert {each.embedding.rank for each in samples} == {4, 16}
    start = next(each for each in samples if each.embedding.rank == 16)
    second, third = (plan(config, workspace, stage, start, ()) for stage in ("2", "3"))
    assert {second.space.sample(random.Random(seed)).embedding.rank for seed in range(20)} == {16}
    assert {third.space.sample(random.Random(seed)).embedding.rank for seed in range(60)} == {4, 16}
    assert Parameters.of(first.space).values(start)["embedding rank"] == 16
    assert formula(start).endswith(" [embedding of rank 16]")

    model = TrainedEvaluator(workspace, "cpu").student(start)
    assert sum(p.numel() for p in model.parameters()) == cost.params(start, workspace.num_labels)
    with pytest.raises(ConfigError, match=r"has rank 8: add 8 to space\.ranks"):
        check_start(replace(start, embedding=Embedding(8)), config, start.base)
    with pytest.raises(ConfigError, match=r"has rank 16: add 16 to space\.ranks"):
        check_start(start, config.with_table("space", ranks=None), start.base)


def test_latencies_include_the_map(preset: Path) -> None:
    preset.write_text(preset.read_text().replace("[4, 16]", '[4, 16]\nmax_latency = "9x"'))
    config = load_config(str(preset))
    workspace = prepare(config, "cpu", outputs=False)
    (limit,) = limits_of(config, workspace, "cpu")
    space = plan(config, workspace, "1", None, (limit,)).space
    table = latencies_of(config, workspace, "cpu")
    samples = [space.sample(random.Random(seed)) for seed in range(60)]
    assert {each.embedding.rank for each in samples} == {4, 16}
    for each in samples:
        whole = table.total(replace(each, embedding=Embedding()))
        assert limit.total(each) == table.total(each) == whole + table.embedding(each.embedding)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([('evaluation = "trained"', 'evaluation = "one_shot"')], "the one-shot supernet only has the full rank"),
        ([("[4, 16]", "[4, 4]")], "space.ranks: 4 is given twice"),
        ([("[4, 16]", "[0]")], "space.ranks"),
    ],
)
def test_ranks_that_cannot_be(preset: Path, changes: list[tuple[str, str]], message: str) -> None:
    text = preset.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    preset.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(str(preset))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_ranks_of_the_width(preset: Path, tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset.write_text(preset.read_text().replace("[4, 16]", "[4, 32]"))
    result = tiny_study.run(*tiny_study.search(tmp_path, "--dry-run", preset=preset))
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == "nas.search: ranks: 32 is not below base.width (32)\n"


@pytest.mark.slow
def test_a_search(preset: Path, tiny_study: TinyStudy, tmp_path: Path) -> None:
    """The rank of the winner comes out of stage 1, stays in stage 2, and is in the model that is exported."""
    requirements.module("onnxruntime", "onnx")
    preset.write_text(preset.read_text().replace("[4, 16]", '[4, 16]\nmax_latency = "9x"'))
    for stage in ("1", "2", "3"):
        arguments = tiny_study.search(tmp_path / "out", "--study", "s", preset=preset) if stage == "1" else (
            "-m", "nas.search", "--stage", stage, "--study", "s", "--out", tmp_path / "out", "--workers", "2",
        )  # fmt: skip
        result = tiny_study.run(*arguments)
        assert (result.returncode, result.stderr) == (0, ""), result.stderr
    folder = tmp_path / "out" / "s"
    ranks: Mapping[str, set[Any]] = {
        stage: {trial.params.get("embedding rank") for trial in trials_of(folder, f"stage-{stage}")} for stage in "123"
    }
    assert {4, 16, 32} <= ranks["1"] and ranks["2"] == {None} and len(ranks["3"]) > 1
    best = {stage: json.loads((folder / f"stage-{stage}" / "best.json").read_text()) for stage in "12"}
    winners = [Architecture.from_json(best[stage]["winner"]["architecture"]) for stage in "12"]
    assert winners[0].embedding == winners[1].embedding and winners[0].embedding.rank in (4, 16)
    out = tmp_path / "final"
    result = tiny_study.run("train_final.py", folder / "architecture.json", "--out", out, "--skip-base")
    assert result.returncode == 0, result.stderr
    architecture = Architecture.load(out / "architecture.json")
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert sum(p.numel() for p in model.parameters()) == cost.params(architecture, model.config.num_labels) <= 14_500
    assert torch.isfinite(model(**model.dummy_inputs).logits).all()
    exported = tmp_path / "exported"
    result = tiny_study.run("-m", "nas.export", out, "--out", exported, "--onnx", "--int8", "--skip-latency")
    assert result.returncode == 0, result.stderr
    assert {path.name for path in (exported / "onnx").iterdir()} == {"model.onnx", "model_int8.onnx"}

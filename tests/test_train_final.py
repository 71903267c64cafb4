"""`python train_final.py`: from an architecture to a checkpoint that loads anywhere."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from distill.data import load_encoded
from distill.metrics import standard_error
from nas.config import load_config
from nas.prepare import prepare
from search_spaces import PUBLISHED, Architecture, cost
from supernet.modeling_nas_bert import NasBertForSequenceClassification
from tests.nas import house as houses
from tests.nas.house import House
from train_final import main

ELSEWHERE = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"nas", "supernet", "distill", "search_spaces", "train_final"}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Absent())

import json
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, sentences = sys.argv[1], json.loads(sys.argv[2])
model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
batch = tokenizer(sentences, padding=True, return_tensors="pt")
with torch.inference_mode():
    logits = model(**batch).logits
print(json.dumps([batch["input_ids"].tolist(), logits.tolist(), model.config.id2label]))
"""
SENTENCES = ["Badofi kule moni.", "Paru."]


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> House:
    built = houses.shared(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("FFN_NAS_CACHE", str(built.cache))
    return built


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return houses.finished(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory, searched: Path) -> Path:
    """A checkpoint of the winner, where the command puts it by itself."""
    result = houses.shared(tmp_path_factory.getbasetemp()).run("train_final.py", searched / "architecture.json")
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert str(searched / "final") in result.stdout.replace("\n", "")
    return searched / "final"


def test_it_loads_where_this_project_is_not_installed(final: Path, tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    result = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(final), json.dumps(SENTENCES)],
        cwd=tmp_path,
        env=environment | {"HF_MODULES_CACHE": str(tmp_path / "modules"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    ids, logits, labels = json.loads(result.stdout)
    model = NasBertForSequenceClassification.from_pretrained(final).eval()
    batch = AutoTokenizer.from_pretrained(final)(SENTENCES, padding=True, return_tensors="pt")
    assert batch["input_ids"].tolist() == ids
    with torch.inference_mode():
        torch.testing.assert_close(model(**batch).logits, torch.tensor(logits), atol=1e-6, rtol=0)
    assert list(labels.values()) == ["numpy", "python", "torch"]


def test_what_it_leaves(final: Path, searched: Path, house: House) -> None:
    architecture = Architecture.load(searched / "architecture.json")
    assert Architecture.load(final / "architecture.json") == architecture
    assert load_config(str(final / "config.toml")) == house.config
    model = NasBertForSequenceClassification.from_pretrained(final)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.params(architecture, 3)


def test_metrics(final: Path, searched: Path, house: House) -> None:
    architecture = Architecture.load(searched / "architecture.json")
    full = Architecture.uniform(architecture.base)
    facts = json.loads((final / "metrics.json").read_text())
    workspace = prepare(house.config, "cpu")
    rows = len(load_encoded(workspace.data / "dev.npz"))
    assert (facts["task"], facts["dev_rows"], facts["seed"], facts["batch"]) == ("library", rows, 0, 1)
    models = facts["models"]
    assert list(models) == ["teacher", "student", "base model"]
    for name, genes in (("teacher", full), ("student", architecture), ("base model", full)):
        row = models[name]
        score = row["accuracy"]["value"]
        assert 1 / 3 < score <= 1
        assert score * rows == pytest.approx(round(score * rows))
        assert row["accuracy"]["standard_error"] == pytest.approx(standard_error(score, rows))
        assert row["params"] == cost.params(genes, 3)
        assert row["ffn_params"] == sum(cost.ffn_params(genes.base, layer) for layer in genes.layers)
        assert row["macs"] == cost.macs(genes, facts["tokens"], 3)
        lower, upper = row["latency_quartiles_ms"]
        assert 0 < lower <= row["latency_ms"] <= upper
    assert models["student"]["params"] < models["teacher"]["params"]


def refused(arguments: list[object], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    error = capsys.readouterr().err
    assert status == 2, error
    assert error.startswith("train_final.py: ")
    assert error.count("\n") == 1
    return error


def test_it_overwrites_nothing(final: Path, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in final.rglob("*")}
    assert f"--out {final} exists and is not empty" in refused([searched / "architecture.json"], capsys)
    assert {path: path.stat().st_mtime_ns for path in final.rglob("*")} == before
    (tmp_path / "file").touch()
    arguments = [searched / "architecture.json", "--out"]
    assert "is no folder" in refused([*arguments, tmp_path / "file"], capsys)
    assert "ot a directory" in refused([*arguments, tmp_path / "file" / "final"], capsys)


def test_mistakes(house: House, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = searched / "architecture.json"
    elsewhere = ["--preset", house.preset, "--out", tmp_path / "final"]
    assert "missing.json: no such file" in refused([tmp_path / "missing.json"], capsys)
    assert "is a directory" in refused([searched], capsys)
    assert "unknown preset 'dem'; did you mean 'demo'?" in refused([given, "--preset", "dem"], capsys)
    assert "--seed -1: from 0" in refused([given, *elsewhere, "--seed", "-1"], capsys)
    assert "required: architecture" in refused([], capsys)
    published = tmp_path / "published.json"
    PUBLISHED["efficientbert"].save(published)
    assert "base" in refused([published, *elsewhere], capsys)
    base = Architecture.load(given).base
    Architecture.uniform(base, stack=3).save(published)
    assert "stack" in refused([published, *elsewhere], capsys)
    broken = json.loads(given.read_text())
    broken["layers"][1]["graph"] = "project(gleu(expand(x)))"
    published.write_text(json.dumps(broken))
    message = "published.json: layers[1].graph: unknown operation 'gleu'; did you mean 'gelu'?"
    assert message in refused([published, *elsewhere], capsys)
    published.write_text("{")
    assert "published.json: not JSON" in refused([published, *elsewhere], capsys)
    assert not any((tmp_path / "final").glob("*"))


def test_training_that_diverges(
    house: House, searched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    last = "learning_rate = {}\n\n[sharing]"  # of the table [final]
    preset = house.variant(tmp_path / "hot.toml", (last.format("1e-3"), last.format("1e30")))
    arguments = [searched / "architecture.json", "--preset", preset, "--out", tmp_path / "final", "--device", "cpu"]
    assert "final: the loss is" in refused(arguments, capsys)

"""python -m supernet.experts on a small BERT and files of its own: as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertTokenizerFast

from search_spaces import Architecture, ArchitectureError
from supernet.build import from_teacher
from supernet.experts.command import channel_scores, main, mixture, split
from tests.tiny import batch, bert, inputs

WORDS = [f"w{number}" for number in range(40)]
COMMON = ["--text", "text", "--label", "kind", "--max-length", "16", "--batch-size", "4", "--importance-batches", "2"]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experts")
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    model = bert(labels=2)
    model.config.id2label, model.config.label2id = {0: "bad", 1: "good"}, {"bad": 0, "good": 1}
    model.save_pretrained(folder / "bert")
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder / "bert")
    for name, size in (("train", 24), ("dev", 12)):
        texts = [" ".join(WORDS[row % 30 : row % 30 + 3 + row % 5]) for row in range(size)]
        rows = [f"{text}\t{'good' if row % 3 else 'bad'}" for row, text in enumerate(texts)]
        (folder / f"{name}.tsv").write_text("text\tkind\n" + "\n".join(rows) + "\n")
    return folder


def command(house: Path, checkpoint: str, out: str, *given: str) -> list[str]:
    rows = ["--train", str(house / "train.tsv"), "--dev", str(house / "dev.tsv"), "--device", "cpu"]
    return [str(house / checkpoint), "--out", str(house / out), *rows, *COMMON, *given]


def test_split_train_thin_out_and_load_as_a_stranger(house: Path) -> None:
    asked = command(house, "bert", "mixture", "--experts", "4", "--routing", "token_gate", "--steps", "3")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "supernet.experts", *asked], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "after 3 steps: accuracy" in done.stdout and "layer 2 ffn:" in done.stdout
    facts = json.loads((house / "mixture" / "metrics.json").read_text())
    assert set(facts["models"]) == {"dense", "split", "after 3 steps"} and facts["dev_rows"] == 12
    made, dense = facts["models"]["split"], facts["models"]["dense"]
    assert made["params_active"] < dense["params"] < made["params"] and made["macs"] < dense["macs"]
    assert [round(sum(load["shares"]), 9) for load in made["expert_load"]] == [1, 1]
    model = AutoModelForSequenceClassification.from_pretrained(house / "mixture", trust_remote_code=True)
    assert model.config.id2label == {0: "bad", 1: "good"}
    assert sum(parameter.numel() for parameter in model.parameters()) == made["params"]
    asked = command(house, "mixture", "thin", "--fuse", "3")
    done = subprocess.run(
        [sys.executable, "-m", "supernet.experts", *asked],
        capture_output=True,
        text=True,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "mixture: accuracy" in done.stdout and "fused: accuracy" in done.stdout
    smaller = Architecture.load(house / "thin" / "architecture.json")
    assert any(genes.experts.count < 4 for genes in smaller.layers)


@pytest.mark.parametrize("routing", ["hash", "balanced_hash", "sentence_gate"])
def test_copies_compute_what_the_dense_model_computes(routing: str) -> None:
    dense = bert()
    architecture = mixture(dense.config, 4, copy=True, routing=routing)
    scores = channel_scores(dense, [batch()], "importance")
    model = split(dense, architecture, scores, torch.ones(50, dtype=torch.long))
    if routing == "sentence_gate":
        for block in (block for layer in model.bert.encoder.layer for block in layer.ffn):
            block.router.weight.data.zero_()  # then every expert has the probability 1 / 4
    with torch.no_grad():
        found, expected = model(**inputs(batch())).logits, dense(**inputs(batch())).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_orders_of_channels() -> None:
    dense = bert()
    importance, inverse = (channel_scores(dense, [batch()], order) for order in ("importance", "inverse"))
    random, again, other = (channel_scores(dense, [], "random", seed) for seed in (0, 0, 1))
    for layer in range(2):
        assert torch.equal(importance[layer][0], -inverse[layer][0])
        assert torch.equal(random[layer][0], again[layer][0]) and not torch.equal(random[layer][0], other[layer][0])
    weights = split(dense, mixture(dense.config, 2, width=8, shared=8), importance).state_dict()
    first = importance[0][0].argsort(descending=True)[:8]
    expected = from_teacher(dense, stack=1).state_dict()["bert.encoder.layer.0.ffn.0.expand.weight"][first]
    assert torch.equal(weights["bert.encoder.layer.0.ffn.0.expand.weight"][1], expected)


def test_moebert_of_bert_base() -> None:
    config = bert(num_hidden_layers=2, hidden_size=24, intermediate_size=3072).config
    architecture = mixture(config, 4)
    genes = architecture.layers[0]
    assert (genes.inner(architecture.base), genes.shared(architecture.base)) == (768, 512)


def test_widths_that_do_not_fit_are_explained() -> None:
    config = bert(intermediate_size=3072).config
    with pytest.raises(ArchitectureError, match="= 1,152 channels each, not 2,048"):
        mixture(config, 4, width=2048, shared=512)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "give --experts N"),
        (["--experts", "4", "--drop", "1/4"], "give --experts N"),
        (["--experts", "4", "--width", "40", "--shared", "10"], "= 19 channels each, not 40"),
        (["--experts", "4", "--width", "60"], "--width: from 1 to 48 channels, not 60"),
        (["--experts", "4", "--shared", "13"], "--shared: from 0 to 12 channels, not 13"),
        (["--experts", "0"], "experts.count: must be from 1 to 64, not 0"),
        (["--experts", "4", "--top-k", "5"], "experts.top_k: 5 of 4 experts"),
        (["--experts", "4", "--routing", "sentence_gate", "--capacity", "5/4"], "experts.capacity"),
        (["--experts", "4", "--task", "word_order"], "give the rows"),
        (["--experts", "4", "--steps", "-1"], "--steps: must be at least 0"),
        (["--experts", "4", "--max-length", "2"], "--max-length"),
        (["--experts", "4", "--max-length", "30"], "the model has 20 positions, not 30"),
        (["--experts", "4", "--text", "words"], "no column 'words'; its columns are text, kind"),
        (["--experts", "4", "--label", "text"], "the column 'text' is named twice"),
        (["--experts", "4", "--text", "kind", "--label", "text"], "is none of bad, good"),
        (["--drop", "1/4"], "has no architecture.json"),
    ],
)
def test_mistakes_are_one_line(house: Path, capsys: pytest.CaptureFixture[str], given: list[str], message: str) -> None:
    assert main(command(house, "bert", "never", *given)) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1 and not (house / "never").exists()


def task(house: Path, *given: str) -> list[str]:
    """As `command`, on a task in place of files; it is refused before anything is written."""
    rows = ["--max-length", "16", "--device", "cpu"]
    return [str(house / "bert"), "--out", str(house / "never"), "--experts", "4", *rows, *given]


def test_a_task_s_official_files(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "CoLA").mkdir()
    for name, size in (("train", 24), ("dev", 12)):
        lines = [f"x\t{row % 2}\t\t{' '.join(WORDS[row : row + 4])}" for row in range(size)]
        (tmp_path / "CoLA" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    given = ["--task", "cola", "--data", str(tmp_path)]
    assert main(task(house, *given)) == 2
    assert "its classes are bad, good; those of the rows are unacceptable, accept" in capsys.readouterr().err
    model = bert(labels=2)
    model.save_pretrained(tmp_path / "bert")
    BertTokenizerFast(vocab=str(house / "vocab.txt")).save_pretrained(tmp_path / "bert")
    asked = task(house, *given, "--importance-batches", "2")
    asked[0], asked[2] = str(tmp_path / "bert"), str(tmp_path / "out")
    assert main(asked) == 0
    facts = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert facts["dev_rows"] == 12 and facts["options"]["data"] == str(tmp_path)


def test_tasks_of_other_kinds_are_refused(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "dev"):
        (tmp_path / f"{name}.txt").write_text("w1 O\nw2 B-X\n\nw3 O\n")
    files = ["--train", "train.tsv", "--dev", "dev.tsv"]
    for given, message in (
        (["--task", "conll", "--data", str(tmp_path)], "--task conll: is a token_classification; only"),
        (["--task", "sst2", "--data", str(tmp_path / "none")], "sst2"),
        (["--task", "wordorder"], "unknown task 'wordorder'; did you mean 'word_order'"),
        (["--data", str(tmp_path), *files], "--data: is of a --task"),
    ):
        assert main(task(house, *given)) == 2
        shown = capsys.readouterr().err
        assert message in shown and shown.count("\n") == 1 and not (house / "never").exists()


@pytest.mark.parametrize("value", ["0", "-1", "x", "1/0", "1e9"])
def test_shares_that_are_none(house: Path, capsys: pytest.CaptureFixture[str], value: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main(command(house, "bert", "never", f"--drop={value}"))
    assert stop.value.code == 2 and "--drop" in capsys.readouterr().err


def test_a_checkpoint_of_another_shape(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "gpt2"}')
    for source, message in (("other", "other"), ("nothing", "nothing")):
        asked = command(house, "bert", "never", "--experts", "4")
        assert main([str(tmp_path / source), *asked[1:]]) == 2
        shown = capsys.readouterr().err
        assert message in shown and shown.count("\n") == 1

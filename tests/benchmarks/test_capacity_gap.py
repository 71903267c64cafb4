"""The benchmark of the capacity gap: its smallest run, its table from known scores, and options that cannot be used."""

import json
from argparse import ArgumentParser
from pathlib import Path

import pytest
import torch
from transformers import BertModel

from benchmarks.__main__ import main
from benchmarks.capacity_gap import Trainings, add_options, lowest_layers, table
from tests.benchmarks.tables import cells_of
from tests.nas.tiny_study import TinyStudy
from tests.tiny import bert, tokenizer

SMALL = ["--layers", "1", "--experts", "2", "--steps", "3", "--seeds", "1", "2"]


def run(study: TinyStudy, path: Path, *options: str) -> dict[str, float]:
    command = ["capacity_gap", "--preset", str(study.preset), *SMALL, *options, "--json", str(path)]
    assert main(command) == 0
    return json.loads(path.read_text())["results"]["measured"]


def test_the_smallest_run(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = run(tiny_study, tmp_path / "a.json")
    lines = cells_of(capsys.readouterr().out)
    teachers = json.loads((tmp_path / "a.json").read_text())["results"]["settings"]["teachers"]
    assert lines["teacher"][:2] == [f"{teachers[name]['score']:.4f}" for name in ("1 layer", "2 layers")]
    assert teachers["1 layer"]["parameters"] < teachers["2 layers"]["parameters"]
    assert set(scores) == {
        f"{teacher}, {student}, seed {seed}"
        for teacher in teachers
        for student in ("1 expert", "2 experts")
        for seed in (1, 2)
    }
    gains = [
        scores[f"2 layers, 2 experts, seed {seed}"] - scores[f"2 layers, 1 expert, seed {seed}"] for seed in (1, 2)
    ]
    assert lines["gain of the experts"][1].startswith(f"{sum(gains) / 2:+.4f}")
    assert all(0 < score <= 1 for score in scores.values())

    # Nothing is measured again; other options need another file.
    assert run(tiny_study, tmp_path / "a.json") == scores and "seed" not in capsys.readouterr().err
    other = ["--preset", str(tiny_study.preset), *SMALL, "--steps", "2"]
    assert main(["capacity_gap", *other, "--json", str(tmp_path / "a.json")]) == 2
    assert "a.json is of another run (steps): give another --json" in capsys.readouterr().err

    # The same teachers from folders: the same students.
    folders = [str(lowest_layers(tiny_study.config, depth)) for depth in (1, 2)]
    again = run(tiny_study, tmp_path / "b.json", "--teachers", *folders)
    assert list(again.values()) == list(scores.values())


def test_students_of_a_seed_start_alike(tiny_study: TinyStudy) -> None:
    """They are the encoder's lowest layer, and experts are copies of its FFN."""
    parser = ArgumentParser()
    add_options(parser)
    trainings = Trainings(parser.parse_args(["--preset", str(tiny_study.preset), *SMALL]))
    dense, again, mixture = trainings.student(1, 1), trainings.student(1, 1), trainings.student(2, 1)
    assert all(torch.equal(one, other) for one, other in zip(dense.parameters(), again.parameters(), strict=True))
    torch.testing.assert_close(mixture.classifier.weight, dense.classifier.weight)
    encoder = BertModel.from_pretrained(tiny_study.teacher, num_hidden_layers=1).eval()
    ids_BT = torch.randint(5, 60, (3, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = encoder(ids_BT).last_hidden_state
        torch.testing.assert_close(dense.base_model.eval()(ids_BT).last_hidden_state, expected)
    weights = mixture.state_dict()
    for name, tensor in dense.state_dict().items():
        if ".expand." in name or ".project." in name:
            torch.testing.assert_close(weights[name], tensor.expand(2, *tensor.shape))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "3"], "--layers 3: {teacher} has 2 layers; choose 1 to 2"),
        (["--experts", "1"], "--experts 1: at least 2, to compare with the student without experts"),
        (["--teachers", "{other}"], "--teachers {other}: its vocabulary is not that of {teacher}"),
    ],
)
def test_mistakes(
    options: list[str], message: str, tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bert().save_pretrained(tmp_path)
    tokenizer(tmp_path, ["other"]).save_pretrained(tmp_path)
    names = {"teacher": str(tiny_study.teacher), "other": str(tmp_path)}
    given = [option.format(**names) for option in options]
    assert main(["capacity_gap", "--preset", str(tiny_study.preset), *SMALL, *given]) == 2
    assert f"capacity_gap: {message.format(**names)}" in capsys.readouterr().err


def test_the_table() -> None:
    """The mixture gains from the larger teacher, and the dense student does not."""
    after = {
        ("small", 1): [0.70, 0.72],
        ("large", 1): [0.69, 0.73],
        ("small", 4): [0.71, 0.75],
        ("large", 4): [0.74, 0.76],
    }
    assert table(after, {"small": 0.8, "large": 0.83}) == [
        ["teacher", "0.8000", "0.8300", "+0.0300"],
        ["1 expert", "0.7100 ± 0.0100", "0.7100 ± 0.0200", "+0.0000 ± 0.0100"],
        ["4 experts", "0.7300 ± 0.0200", "0.7500 ± 0.0100", "+0.0200 ± 0.0100"],
        ["gain of the experts", "+0.0200 ± 0.0100", "+0.0400 ± 0.0100", "+0.0200 ± 0.0200"],
    ]

"""`python -m nas.compress` and `compress_model`."""

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from datasets import ClassLabel, Dataset, Features, Sequence, Value
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from distill.memory import ModelError, RowsError, naming_memory, rows_of, write_rows, write_splits
from distill.tasks.readers.tables import TableError, read_rows
from distill.training.teacher import TeacherError
from nas.compress.command import config_of, main, parser
from nas.compress.python import Compressed, compress_model
from nas.compress.run import fitted
from nas.config.schema import ConfigError
from nas.report.drawing import svg
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.layer import Attention
from tests.commands import Refused
from tests.nas.tiny_study import TinyStudy, corpus
from tests.tiny import bert

TOPICS = {"python": "code", "numpy": "numbers"}
GIVEN: dict[str, Any] = {"text": "message", "label": "topic", "max_length": 24, "device": "cpu"}


def rows(count: int = 300) -> list[dict[str, str]]:
    """Sentences of two libraries, with the name of their topic."""
    columns = zip(corpus().texts, corpus().sources, strict=True)
    found = [{"message": text, "topic": TOPICS[source]} for text, source in columns if source in TOPICS]
    return found[:: len(found) // count][:count]


@pytest.fixture(scope="module")
def compressed(shared_study: TinyStudy) -> Compressed:
    """The teacher of the tiny study, which is fine-tuned first, with two thirds of its parameters."""
    steps = {"steps": 4, "finetune_teacher": 40}
    return compress_model(str(shared_study.teacher), rows(), max_params=12_000, **steps, **GIVEN)


def test_a_compressed_model(compressed: Compressed, tmp_path: Path) -> None:
    student = compressed.student
    size = sum(parameter.numel() for parameter in student.parameters())
    assert size == cost.params(compressed.architecture, 2) <= 12_000
    assert student.config.id2label == {0: "code", 1: "numbers"} and not student.training
    assert set(compressed.metrics["models"]) == {"teacher", "student"}
    assert "accuracy − teacher's" in compressed.table() and "student" in compressed.table()
    compressed.save(tmp_path / "student")
    again = Compressed.load(tmp_path / "student")
    assert (again.architecture, again.metrics) == (compressed.architecture, compressed.metrics)
    assert again._repr_html_() == compressed._repr_html_() and svg(again.architecture) in again._repr_html_()
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "student", trust_remote_code=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(tmp_path / "student")
    given = tokenizer("ba do fi .", return_tensors="pt")
    given.pop("token_type_ids", None)
    with torch.no_grad():
        assert torch.equal(loaded.eval()(**given).logits, student(**given).logits)


def test_a_model_in_memory(shared_study: TinyStudy, tmp_path: Path) -> None:
    """It is not changed, and its classes keep their order, which is not that of their names. The student learns from
    text alone.
    """
    text = tmp_path / "texts.txt"
    text.write_text("\n".join(corpus().texts))
    labels = {"id2label": {0: "numbers", 1: "code"}, "label2id": {"numbers": 0, "code": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(shared_study.teacher, **labels).train()
    tokenizer: Any = AutoTokenizer.from_pretrained(shared_study.teacher)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    settings = GIVEN | {"steps": 0, "pretrain_steps": 2, "corpus": str(text), "metric": "f1_macro"}
    result = compress_model(model, rows(), rows(40), tokenizer=tokenizer, max_params=12_000, **settings)
    assert len(result.metrics["losses"]["student"]["pre-training"]) == 2 and result.metrics["metrics"][0] == "f1_macro"
    assert "fine-tuning" not in result.metrics["losses"]["student"]
    with pytest.raises(RowsError, match="corpus: is the text for pretrain_steps: give both"):
        compress_model(model, rows(), tokenizer=tokenizer, corpus=str(text))
    assert model.training and all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert result.student.config.id2label == {0: "numbers", 1: "code"}
    score = result.metrics["models"]["teacher"]["accuracy"]["value"]
    texts, topics = zip(*((row["message"], row["topic"]) for row in rows(40)), strict=True)
    given = tokenizer(list(texts), return_tensors="pt", padding=True)
    with torch.no_grad():
        numbers = model.eval()(given["input_ids"], given["attention_mask"]).logits.argmax(dim=-1).tolist()
    found = [labels["id2label"][number] for number in numbers]
    assert score == pytest.approx(sum(map(str.__eq__, found, topics)) / len(topics), abs=0.03)


def test_a_teacher_without_a_trained_head(shared_study: TinyStudy, tmp_path: Path) -> None:
    AutoModel.from_pretrained(shared_study.teacher).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(shared_study.teacher).save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match="has no trained head for this task: fine-tune it first"):
        compress_model(str(tmp_path), rows(), max_params=12_000, **GIVEN)


@pytest.mark.parametrize(
    ("model", "settings", "said"),
    [
        (bert(), {}, "tokenizer: give that of the model"),
        (torch.nn.Linear(2, 2), {}, "model: must be a model of transformers, .* a folder or a name, not Linear"),
        ("folder", {"tokenizer": 1}, "tokenizer: a folder or name has its own"),
    ],
)
def test_models_that_cannot_be_compressed(model: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        compress_model(model, rows(), **settings)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_latency": 0.3}, "^max_latency: a latency is a time above 0 such as '12ms' .*, not '0.3'"),
        ({"runtime": "tflite"}, "^runtime: Input should be 'torch', 'onnx' or 'onnx-int8', not 'tflite'"),
        ({"finetune_teacher": -1}, "^finetune_teacher: Input should be greater than or equal to 0, not -1"),
        ({"steps": -1}, "^steps: Input should be greater than or equal to 0, not -1"),
        ({"metric": "f2"}, "unknown metric 'f2'"),
    ],
)
def test_arguments_that_cannot_be(shared_study: TinyStudy, settings: dict[str, Any], said: str) -> None:
    """Messages name the argument and not its place in the configuration."""
    with pytest.raises(ConfigError, match=said):
        compress_model(str(shared_study.teacher), rows(), **GIVEN, **settings)


COLUMNS = ("message", "topic")


def test_kinds_of_rows() -> None:
    expected = rows(20)
    assert rows_of(expected, "train", COLUMNS) == expected
    assert rows_of(pandas.DataFrame(expected), "train", COLUMNS) == expected
    assert rows_of(Dataset.from_list(expected), "train", COLUMNS) == expected
    features = Features({"message": Value("string"), "topic": ClassLabel(names=["code", "numbers"])})
    numbered = [{**row, "topic": ["code", "numbers"].index(row["topic"])} for row in expected]
    for form in (None, "numpy", "torch"):
        data = Dataset.from_list(numbered, features=features).with_format(form)
        assert rows_of(data, "train", COLUMNS) == expected
    features_of_several = Features({"topic": Sequence(ClassLabel(names=["code", "numbers"]))})
    several = Dataset.from_list([{"topic": [1, 0]}, {"topic": []}], features=features_of_several)
    for form in (None, "numpy", "torch"):
        found = rows_of(several.with_format(form), "train", COLUMNS)
        assert found == [{"topic": ["numbers", "code"]}, {"topic": []}]
    unlabeled = Dataset.from_list([{"message": "a", "topic": -1}], features=features)
    with pytest.raises(RowsError, match="train: row 1 has no label in the column 'topic', but -1"):
        rows_of(unlabeled, "train", COLUMNS)
    with pytest.raises(RowsError, match="dev: must be a Dataset, a data frame or a list of dictionaries, not int"):
        rows_of(3, "dev", COLUMNS)
    with pytest.raises(RowsError, match="train: row 1 must be a dictionary, not str"):
        rows_of(["a"], "train", COLUMNS)
    with pytest.raises(RowsError, match="train: is a dictionary of 'train', 'test': give one of its splits"):
        rows_of({"train": expected, "test": expected}, "train", COLUMNS)
    assert rows_of(unlabeled, "train", ["message"])[0]["message"] == "a", "other columns need no classes"


def test_rows_that_are_held_out(tmp_path: Path) -> None:
    """Their lines are those of their numbers. Rows with the same text are in the same file."""
    train, dev = numbers_of(write_rows(tmp_path, [{"number": number} for number in range(25)]))
    assert dev == {10: 9, 20: 19} and train == {number + 1: number for number in range(25) if number not in (9, 19)}
    twice = [
        {"text": f" {text}"[number % 2 :], "number": number} for number, text in enumerate([*range(25), *range(25)])
    ]
    train, dev = numbers_of(write_rows(tmp_path, twice, by=["text"]))
    assert list(dev.values()) == [9, 19, 34, 44] and len(train) == 46
    with pytest.raises(RowsError, match="9 different texts in the column 'text' are too few to hold every tenth out"):
        write_rows(tmp_path, [{"text": number % 9} for number in range(40)], by=["text"])


@pytest.mark.parametrize("kind", [str, lambda name: [name, "often"], lambda name: numpy.array([name])])
def test_rare_classes_are_not_held_out(tmp_path: Path, kind: Callable[[str], Any]) -> None:
    """Dev rows would have classes that no training row has."""
    found = [{"number": number, "label": kind("rare" if number == 9 else "often")} for number in range(40)]
    _, dev = numbers_of(write_rows(tmp_path, found, classes="label"))
    assert [*dev.values()] == [19, 29, 39]


def numbers_of(files: tuple[Path, Path]) -> list[dict[int, int]]:
    """The column "number" of the rows of each file, by their lines."""
    lines = [enumerate(file.read_text().splitlines(), 1) for file in files]
    return [{number: json.loads(line)["number"] for number, line in some if line} for some in lines]


@pytest.mark.parametrize(
    "kind",
    [int, float, numpy.int64, numpy.float32, numpy.array, torch.tensor, Decimal, lambda number: str(float(number))],
)
def test_numbers_of_other_libraries(tmp_path: Path, kind: Callable[[int], Any]) -> None:
    found = [{"text": f"a {number}", "label": kind(number % 2)} for number in range(20)]
    train, _ = write_splits(tmp_path, found, None, ("text", "label"), by=["text"])
    assert read_rows(train, "text", "label")[0].labels[:8] == (0, 1) * 4


@pytest.mark.parametrize("missing", [None, float("nan"), numpy.float32("nan"), pandas.NA, pandas.NaT])
@pytest.mark.parametrize("column", ["text", "label"])
def test_rows_in_which_something_is_missing(tmp_path: Path, column: str, missing: Any) -> None:
    """They are counted as they were given, from 1 on, and not after every tenth is held out."""
    found: list[dict[str, Any]] = [{"text": f"a {number}", "label": number % 2} for number in range(40)]
    found[34][column] = missing
    with (
        pytest.raises(TableError, match=f"^train: row 35 has nothing in the column '{column}'$"),
        naming_memory(tmp_path, held_out=True),
    ):
        read_rows(write_splits(tmp_path, found, None, ("text", "label"), by=["text"])[0], "text", "label")
    found[34][column] = {"a"}
    with (
        pytest.raises(RowsError, match=r"^train: row 35 cannot be used: it has \{'a'\}, which is neither text nor"),
        naming_memory(tmp_path, held_out=True),
    ):
        write_splits(tmp_path, found, None, ("text", "label"), by=["text"])


@pytest.mark.parametrize(
    ("data", "settings", "said"),
    [
        ([], {}, "train: there are no rows"),
        ([{"text": "a"}], {}, "train: row 1 has no column 'sentence'; it has 'text'"),
        ([{"sentence": "a"}], {}, "train: row 1 has no column 'label'; it has 'sentence'"),
        ([{"sentence": "a", "label": 1}] * 7, {}, "train: 7 rows are too few to hold every tenth out; give dev, too"),
        ([{"sentence": "a", "label": 1}] * 20, {"dev": []}, "dev: there are no rows"),
    ],
)
def test_rows_without_the_columns(data: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(RowsError, match=said):
        compress_model("bert-base-uncased", data, **settings)


def test_the_choices_are_those_of_the_teacher(shared_study: TinyStudy) -> None:
    words = [str(shared_study.teacher), "--task", "library", "--out", "x", "--max-length", "24"]
    config = fitted(config_of(parser().parse_args(words)))
    assert config.space.heads == (0, 1, 2, 3, 4) and config.deployment.threads is None
    assert min(config.space.expansions) * 64 >= 1 and max(config.space.expansions) == Fraction(1, 2)
    config = fitted(config_of(parser().parse_args([*words, "--max-latency", "0.6x"])))
    assert max(config.space.expansions) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the rows by --task NAME, or by --train FILE and --dev FILE"),
        (["--task", "sst2", "--unlabeled", "x"], "--unlabeled cannot be combined with --task or --train"),
        (["--dev", "x", "--unlabeled", "x"], "--dev describes the rows of --train FILE"),
        (["--finetune-teacher", "9", "--unlabeled", "x"], "--finetune-teacher cannot be combined with --unlabeled"),
        (["--train", "x"], "--train needs --dev FILE"),
        (["--task", "library", "--max-params", "many"], "--max-params: "),
        (["--task", "library", "--max-latency", "fast"], "--max-latency"),
        (["--task", "library", "--learning-rate", "0"], "--learning-rate"),
        (["--task", "nothing"], "nothing"),
        (["--task", "library", "--corpus", "x"], "--corpus is the text for --pretrain-steps N: give both"),
        (["--task", "library", "--pretrain-steps", "-1"], "--pretrain-steps"),
        (["--task", "library", "--pretrain-steps", "1", "--corpus", "x.txt"], "x.txt"),
        (["--task", "library", "--push", "me/small"], "--push needs the license"),
        (["--unlabeled", "nothing.txt"], "nothing.txt: No such file or directory"),
        (["--embeddings", "nothing.txt"], "nothing.txt: No such file or directory"),
        (["--reranking", "nothing.tsv"], "nothing.tsv: No such file or directory"),
        (["--retrieval", "x"], "--retrieval is measured with vectors or scores: give --embeddings FILE or --reranking"),
        (["--embeddings", "x", "--unlabeled", "x"], "--embeddings cannot be combined with --unlabeled"),
        (["--embeddings", "x", "--task", "sst2"], "--embeddings cannot be combined with --task or --train"),
        (["--reranking", "x", "--unlabeled", "x"], "--reranking cannot be combined with --unlabeled"),
    ],
)
def test_mistakes(words: list[str], said: str, shared_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    assert said in refused(main, shared_study.teacher, "--out", tmp_path / "out", "--max-length", "24", *words)


def test_one_width_needs_no_padding(shared_study: TinyStudy) -> None:
    given = GIVEN | {"steps": 0, "finetune_teacher": 20, "uniform": True}
    teacher = AutoModelForSequenceClassification.from_pretrained(shared_study.teacher)
    limit = sum(parameter.numel() for parameter in teacher.parameters()) - 3_000
    found = compress_model(str(shared_study.teacher), rows(), max_params=limit, **given).architecture
    (ffn,) = set(found.ffns)
    assert {layer.attention for layer in found.layers} == {Attention(found.base.heads)}
    assert cost.params(found, 2) <= limit < cost.params(Architecture.uniform(found.base), 2)
    wider = replace(ffn, expansion=ffn.expansion + Fraction(1, found.base.inner))
    assert cost.params(found.with_ffns([wider] * found.base.depth), 2) > limit
    with pytest.raises(ConfigError, match="no width of the FFNs is within the limits if heads and layers are kept"):
        compress_model(str(shared_study.teacher), rows(), max_params=7_000, **given)
    with pytest.raises(ConfigError, match="max_params"):
        compress_model(str(shared_study.teacher), rows(), max_params=100, **given | {"uniform": False})


@pytest.mark.slow
def test_the_command(shared_study: TinyStudy, compressed: Compressed, tmp_path: Path) -> None:
    """With labels, and without, where the teacher's predictions are learned."""
    (tmp_path / "texts.txt").write_text("\n".join(row["message"] for row in rows()))
    for name, data in (("train", rows()[:250]), ("dev", rows()[250:])):
        pandas.DataFrame(data).to_csv(tmp_path / f"{name}.csv", index=False)
    files = ("--train", tmp_path / "train.csv", "--dev", tmp_path / "dev.csv", "--text", "message", "--label", "topic")
    always = ("--max-length", "24", "--steps", "0", "--device", "cpu", "--json", "--max-latency", "0.9x")
    before = ("--pretrain-steps", "2", "--corpus", tmp_path / "texts.txt")
    teacher = tmp_path / "teacher"
    labels = {"id2label": {0: "code", 1: "numbers"}, "label2id": {"code": 0, "numbers": 1}}
    model = AutoModelForSequenceClassification.from_pretrained(shared_study.teacher, **labels).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(shared_study.teacher)
    texts = tokenizer([row["message"] for row in rows()], return_tensors="pt", padding=True)
    with torch.no_grad():  # so that it predicts both classes
        logits = model(texts["input_ids"], texts["attention_mask"]).logits
        model.classifier.bias -= logits.median(dim=0).values
    model.save_pretrained(teacher)
    tokenizer.save_pretrained(teacher)
    for name, words in {
        "labels": (shared_study.teacher, "--finetune-teacher", "40", *files),
        "texts": (teacher, "--unlabeled", tmp_path / "texts.txt", *before),
    }.items():
        result = shared_study.run("-m", "nas.compress", *words, *always, "--out", tmp_path / name)
        assert result.returncode == 0, result.stderr
        assert set(json.loads(result.stdout)["models"]) == {"teacher", "student"}
        assert (tmp_path / name / "architecture.json").exists()

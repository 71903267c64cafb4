"""Words and tags from files and from the hub's tables, and back from a model's logits."""

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.entities import entities_of
from distill.tasks.readers import load_task
from distill.tasks.readers.conll import HUB, from_columns, load, read, tags_of
from distill.tasks.readers.hub import columns
from distill.tasks.splits import TaggedSplit
from distill.tasks.task import Task, TaskError
from tests import requirements

TRAIN = """-DOCSTART- -X- O O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
it PRP I-NP O

Peter NNP I-NP B-PER
Blackburn NNP I-NP I-PER


BRUSSELS NNP I-NP B-LOC
"""
DEV = "Ann\tB-PER\r\nlives\tO\r\n\r\nHere\tO\r\n\u00a0\tO"


def folder_of(
    folder: Path, train: str = TRAIN, dev: str = DEV, names: tuple[str, str] = ("train.txt", "dev.txt")
) -> Path:
    for name, content in zip(names, (train, dev), strict=True):
        (folder / name).write_bytes(content.encode())
    return folder


@pytest.mark.parametrize("names", [("train.txt", "dev.conll"), ("train.conll", "valid.txt")])
def test_columns_by_blanks_or_tabs(tmp_path: Path, names: tuple[str, str]) -> None:
    data = load("conll2003", folder_of(tmp_path, names=names))
    tags = ("O", "B-LOC", "B-ORG", "B-PER", "I-PER")
    assert data.task == Task("conll2003", tags, "token_classification", ("f1", "accuracy"))
    assert data.dev == TaggedSplit((("Ann", "lives"), ("Here", "\u00a0")), ((3, 0), (0, 0)))
    sentences = {("EU", "rejects", "it"): (2, 0, 0), ("Peter", "Blackburn"): (3, 4), ("BRUSSELS",): (1,)}
    words, tags_ = data.train.words + data.search.words, data.train.tags + data.search.tags
    assert dict(zip(words, tags_, strict=True)) == sentences
    assert data == load_task("conll2003", tmp_path)


def test_tags_that_are_no_entities_are_scored_by_accuracy(tmp_path: Path) -> None:
    data = load("conll", folder_of(tmp_path, "a DET\nb NOUN\n\nc NOUN\n", "a NOUN\n"))
    assert (data.task.labels, data.task.metrics) == (("DET", "NOUN"), ("accuracy",))


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        (TRAIN, "Ann B-PER\nX B-PRE\n", "dev.txt:2: unknown tag 'B-PRE'; did you mean 'B-PER'? (in training: O,"),
        (TRAIN, "Ann B-PER\nlives\n", "dev.txt:2: needs a word and its tag"),
        (TRAIN, "Ann\tB-PER\n\tO\n", "dev.txt:2: needs a word and its tag"),
        (TRAIN, "Ann\t\n", "dev.txt:1: needs a word and its tag"),
        (TRAIN, "\n\n", "dev.txt: no sentences"),
        (TRAIN, "-DOCSTART- -X- O\n", "dev.txt: no sentences"),
        ("", "Ann O\n", "train.txt: no sentences"),
        ("a O\n\nb O\n", "a O\n", "train.txt: Task 'conll': needs two or more distinct labels, not ('O',)"),
        ("a O\nb B-x\n", "a O\n", "1 training rows are too few"),
    ],
)
def test_faults_are_named(train: str, dev: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError) as fault:
        load("conll", folder_of(tmp_path, train, dev))
    assert message in str(fault.value) and "\n" not in str(fault.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has none of the files train.conll, train.txt"):
        load("conll", tmp_path)
    with pytest.raises(TaskError, match="'conll' reads files of your own: give their folder"):
        load("conll")
    with pytest.raises(TaskError, match="from the hub"):
        load("wnut17")


@pytest.mark.parametrize("name", HUB)
@pytest.mark.usefixtures("hub_cache")
def test_tables_of_the_hub(name: str, tmp_path: Path) -> None:
    tags = HUB[name][1]
    table = pyarrow.table(
        {"id": ["0", "1", "2"], "tokens": [["EU", "it"], [], ["Ann"]], "ner_tags": [[1, 0], [], [len(tags) - 1]]}
    )
    parquet.write_table(table, tmp_path / "validation-00000-of-00001.parquet")
    found = columns(str(tmp_path), "validation")
    assert from_columns(name, found, tags) == TaggedSplit((("EU", "it"), ("Ann",)), ((1, 0), (len(tags) - 1,)))
    with pytest.raises(TaskError, match=f"{name}: the tag number {len(tags) - 1} is out of range; there are 3 tags"):
        from_columns(name, found, tags[:3])
    with pytest.raises(TaskError, match="no column 'ner_tags'; its columns are tokens"):
        from_columns(name, {"tokens": []}, tags)


def test_the_real_files() -> None:
    data = load_task("wnut17", requirements.data() / "wnut17")
    assert (len(data.train) + len(data.search), len(data.dev)) == (3_394, 1_009)
    assert set(data.task.labels) == set(HUB["wnut17"][1])
    assert sum(map(len, data.dev.words)) == 15_733
    test = list(read(requirements.data() / "wnut17" / "test.conll"))
    assert len(test) == 1_287 and set(tags_of(word[1] for row in test for word in row)) <= set(data.task.labels)


@pytest.mark.parametrize(
    "comment", ["# id 1-0\tdomain=en", "# text = a b", "#x", "# newdoc", "-DOCSTART- -X- O", "-DOCSTART-"]
)
def test_comments_and_marks_of_documents_are_no_words(comment: str, tmp_path: Path) -> None:
    separator = "\t" if "\t" in comment else " "
    lines = [comment, "# second one here", f"a{separator}O", f"#b{separator}B-X", "", comment, f"#c{separator}O", ""]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    words = [[word for word, _, _ in sentence] for sentence in read(tmp_path / "a.txt")]
    assert words == [["a", "#b"], ["#c"]]


@pytest.mark.parametrize("separator", [" ", "  ", "\t"])
def test_other_spaces_are_part_of_words(separator: str, tmp_path: Path) -> None:
    """As in 10 000, whose space is not broken; only blanks and tabs separate columns."""
    words = ["10\u00a0000", "a\u2009b", "\u3000", "c\u2028", "\u00a0d", "e\x0bf", "g\x85"]
    (tmp_path / "a.txt").write_text("".join(f"{word}{separator}O\n" for word in words), encoding="utf-8")
    assert [word for sentence in read(tmp_path / "a.txt") for word, _, _ in sentence] == words


@pytest.mark.parametrize(
    "tags",
    [
        ["B-X", "I-X", "L-X", "O", "U-Y", "B-X"],
        ["B-X", "M-X", "E-X", "O", "S-Y", "B-X"],
        ["X-B", "X-I", "X-E", "O", "Y-S", "X-B"],
        ["I_X", "I_X", "I_X", "O", "B_Y", "B_X"],
    ],
)
def test_entities_in_every_scheme(tags: list[str], tmp_path: Path) -> None:
    rows = "".join(f"w {tag}\n" for tag in tags)
    assert load("conll", folder_of(tmp_path, f"{rows}\nv {tags[0]}\n", rows)).task.metrics == ("f1", "accuracy")
    assert entities_of(tags) == [("X", 0, 2), ("Y", 4, 4), ("X", 5, 5)]
    assert entities_of(["B", "I", "O", "B", "B"]) == [("", 0, 1), ("", 3, 3), ("", 4, 4)]


def test_tags_without_places_get_a_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load("conll", folder_of(tmp_path, "a PER\nb O\n\nc O\n", "a O\n")).task.metrics == ("accuracy",)
    assert "accuracies of words, not F1 of entities: the tag 'PER' has no place such as B- or I-" in caplog.text

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers.texts import check_source, read_lines, read_paragraphs, text_key
from distill.tasks.task import TaskError
from tests import requirements


def read_text(source: str | Path) -> list[str]:
    return [text for text in read_paragraphs(source) if text]


def test_documents_end_with_an_empty_string(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n\none\ntwo\n\n\nthree\n = Title = \n\nfour")
    (tmp_path / "b.txt").write_text("five\n\n")
    (tmp_path / "c.txt").write_text("\n")
    expected = ["one", "two", "", "three", "", "four", "", "five", ""]
    assert list(read_paragraphs(tmp_path)) == expected


def test_a_file_and_a_folder(tmp_path: Path) -> None:
    wiki = " = Robert <unk> = \n \n Robert is an actor . \n = = Life = = \n\n He said 1 + 1 = 2 . \n= a\n"
    (tmp_path / "b.txt").write_text(wiki)
    texts = ["Robert is an actor .", "He said 1 + 1 = 2 .", "= a"]
    assert read_text(tmp_path / "b.txt") == read_text(str(tmp_path / "b.txt")) == texts
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "first.txt").write_bytes("\ufeffEinß\u2028x\r\nzwei".encode())
    (tmp_path / "notes.md").write_text("no text")
    assert read_text(tmp_path) == ["Einß\u2028x", "zwei", *texts]
    one, both = text_key(tmp_path / "b.txt"), text_key(tmp_path)
    (tmp_path / "notes.md").write_text("still no text")
    assert (text_key(str(tmp_path / "b.txt")), text_key(tmp_path)) == (one, both)
    (tmp_path / "b.txt").write_text(wiki + "more\n")
    assert text_key(tmp_path / "b.txt") != one and text_key(tmp_path) != both


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"no .txt file below this folder"):
        read_text(tmp_path)
    (tmp_path / "a.txt").write_text(" = Title = \n\n")
    with pytest.raises(TaskError, match=r"a.txt: no text"):
        read_text(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_bytes(b"good\nb\xe4d\n")
    with pytest.raises(TaskError, match=r"a.txt: not UTF-8 at byte 6; convert it"):
        read_text(tmp_path / "a.txt")
    for reading in (read_text, text_key):
        with pytest.raises(TaskError, match=r"b.txt: No such file"):
            reading(tmp_path / "b.txt")
    with pytest.raises(TaskError, match=r"wikitext .* from the hub; give the folder"):
        read_text("wikitext:wikitext-103-raw-v1")


@pytest.mark.usefixtures("hub_cache")
def test_a_table_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name on the hub is told from a folder; here it stands for a folder below the one that is current."""
    for name, column in (("text", "text"), ("other", "body")):
        (tmp_path / name).mkdir()
        table = pyarrow.table({column: ["", " = Title = \n", None, "One.\nTwo.\n"]})
        parquet.write_table(table, tmp_path / name / "train-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    assert read_text("./text:default") == ["One.", "Two."]
    assert text_key("./text:default") == text_key("./text:default")
    for reading in (read_text, text_key):
        with pytest.raises(TaskError, match=r"no column 'text'; its columns are body"):
            reading("./other:default")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.CSV", "rows.tsv", "rows.json", "rows.parquet"])
def test_tables_are_no_text(tmp_path: Path, name: str) -> None:
    """Their lines would be sentences: labels, quotes and braces too."""
    (tmp_path / name).write_text('{"text": "One.", "label": 1}\n')
    for reading in (read_text, text_key, check_source):
        with pytest.raises(
            TaskError, match=f"{name}: this is a table; write its texts to a .txt file, one on each line"
        ):
            reading(str(tmp_path / name))


def test_lines(tmp_path: Path) -> None:
    for content, lines in ((b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n\nb\n", ["a", "", "b"])):
        (tmp_path / "lines").write_bytes(content)
        assert read_lines(tmp_path / "lines") == lines


def test_the_real_files() -> None:
    texts = read_text(requirements.data() / "text")
    assert len(texts) > 50_000 and all(text == text.strip() != "" for text in texts)
    assert 2.0e6 < sum(len(text.split()) for text in texts) < 2.2e6
    assert not any(text.startswith("= ") and text.endswith(" =") for text in texts)

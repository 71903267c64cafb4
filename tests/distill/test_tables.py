"""A user's own rows: what stands in the file arrives, and faults are named."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.glue import TASKS, read
from distill.kinds import REGRESSION
from distill.tables import TableError, read_rows, table_task
from distill.tasks import Task, hold_out
from tests.distill.real import DATA, needs_data

ROWS = [("a \"quoted start", "x", "yes"), ("12", "y, z", "no"), ("NA", "null", "no"), ("it's", "w", "yes")]


def written(folder: Path, suffix: str) -> Path:
    path = folder / f"rows{suffix}"
    if suffix == ".tsv":
        path.write_text("s\tp\tl\n" + "".join("\t".join(row) + "\n" for row in ROWS))
    elif suffix == ".csv":
        quoted = lambda cell: '"' + cell.replace('"', '""') + '"'  # noqa: E731
        path.write_text("s,p,l\n" + "".join(",".join(map(quoted, row)) + "\n" for row in ROWS))
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps(dict(zip("spl", row, strict=True))) + "\n" for row in ROWS))
    else:
        columns = zip("spl", map(list, zip(*ROWS, strict=True)), strict=True)
        parquet.write_table(pyarrow.table(dict(columns)), path)
    return path


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    split, labels = read_rows(written(tmp_path, suffix), "s", "l", "p")
    assert labels == ("no", "yes")
    assert split.texts == tuple(row[0] for row in ROWS)
    assert split.pairs == tuple(row[1] for row in ROWS)
    assert split.labels == (1, 0, 0, 1)


def test_a_quote_in_a_tsv_is_a_character(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text('sentence\tlabel\n"one\t0\ntwo"\t1\nthree\t0\n')
    assert read_rows(path, "sentence", "label")[0].texts == ('"one', 'two"', "three")


def test_the_order_of_known_classes_is_kept(tmp_path: Path) -> None:
    split, labels = read_rows(written(tmp_path, ".tsv"), "s", "l", labels=("yes", "maybe", "no"))
    assert labels == ("yes", "maybe", "no") and split.labels == (0, 2, 2, 0) and split.pairs is None


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        ("s\tl\na\t0\nb\t1\n", ("t", "l"), "no column 't'; its columns are s, l"),
        ("s\tl\na\t0\nb\t1\n", ("s", "m"), "no column 'm'"),
        ("s\tl\n", ("s", "l"), "no rows"),
        ("", ("s", "l"), "rows.tsv: "),
        ("s\tl\na\t0\nb\t\n", ("s", "l"), "row 2 has nothing in the column 'l'"),
        ("s\tl\na\t0\nb\t0\n", ("s", "l"), "has one class alone, '0'"),
        ("s\tl\na\t0\nb\n", ("s", "l"), "rows.tsv: "),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, columns: tuple[str, str], message: str) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(text)
    with pytest.raises(TableError) as fault:
        read_rows(path, *columns)
    assert message in str(fault.value) and str(path) in str(fault.value)


def test_unknown_classes_files_and_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the class 'no' is none of yes, perhaps"):
        read_rows(written(tmp_path, ".tsv"), "s", "l", labels=("yes", "perhaps"))
    with pytest.raises(TableError, match="No such file"):
        read_rows(tmp_path / "nothing.csv", "s", "l")
    with pytest.raises(TableError, match="a table ends in"):
        read_rows(tmp_path / "rows.xlsx", "s", "l")


SCORED = "a\tb\tscore\n" + "".join(f"text {row}\tpair {row}\t{row / 4}\n" for row in range(20))


def test_numbers_to_predict(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(SCORED)
    split, labels = read_rows(path, "a", "score", "b", kind=REGRESSION)
    assert labels == () and split.labels == tuple(row / 4 for row in range(20))
    assert all(isinstance(label, float) for label in split.labels)
    for cell in ("high", "nan", "inf"):
        path.write_text(SCORED.replace("\t0.5\n", f"\t{cell}\n"))
        with pytest.raises(TableError, match=f"row 3 has the label '{cell}', which is no finite number"):
            read_rows(path, "a", "score", kind=REGRESSION)
    with pytest.raises(TableError, match="not 'token_classification'"):
        read_rows(path, "a", "score", kind="token_classification")


def test_a_task_of_two_files(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.csv"
    train.write_text("text\tmood\n" + "".join(f"text {row}\t{('bad', 'good')[row % 2]}\n" for row in range(30)))
    dev.write_text("text,mood\nfine,good\npoor,bad\n")
    data = table_task(train, dev, text="text", label="mood", metrics=("f1",))
    assert data.task == Task("mood", ("bad", "good"), metrics=("f1",))
    assert data.dev.texts == ("fine", "poor") and data.dev.labels == (1, 0)
    assert (data.train, data.search) == hold_out(read_rows(train, "text", "mood")[0])
    dev.write_text("text,mood\nfine,better\n")
    with pytest.raises(TableError, match=r"dev.csv: the class 'better' is none of bad, good"):
        table_task(train, dev, text="text", label="mood")
    with pytest.raises(TableError, match="unknown metric 'pearson'"):
        table_task(train, dev, text="text", label="mood", metrics=("pearson",))
    with pytest.raises(TableError, match="no column 'txt'; did you mean 'text'"):
        table_task(train, dev, text="txt", label="mood")


def test_a_regression_of_two_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(SCORED)
    data = table_task(path, path, text="a", pair="b", label="score", kind=REGRESSION)
    assert data.task == Task("score", (), REGRESSION, ("spearmanr", "pearson"))
    assert len(data.dev) == 20 == len(data.train) + len(data.search)


@needs_data
def test_no_row_of_the_real_files_is_lost() -> None:
    for name, folder, text, pair in (("sst2", "SST-2", "sentence", None), ("rte", "RTE", "sentence1", "sentence2")):
        for file in ("train.tsv", "dev.tsv"):
            path = DATA / "glue" / folder / file
            found, _ = read_rows(path, text, "label", pair)
            official = read(TASKS[name], path)
            assert found.texts == tuple(cell.strip() for cell in official.texts)
            assert found.labels == official.labels

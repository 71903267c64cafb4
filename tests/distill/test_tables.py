"""A user's own rows: what stands in the file arrives, and faults are named."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.tables import TableError, read_rows

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

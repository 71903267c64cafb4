"""A user's own rows: what stands in the file arrives, and faults are named."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers.tables import TableError, read_rows, table_task
from distill.tasks.splits import Split
from distill.tasks.task import Task, hold_out
from distill.tasks.types import MULTI_LABEL, REGRESSION

ROWS = [('a "quoted start', "x", "yes"), ("12", "y, z", "no"), ("NA", "null", "no"), ("it's", "w", "yes")]


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


@pytest.mark.parametrize(
    ("values", "classes"),
    [([10, 9, 2], ("2", "9", "10")), (["1.5", "-3", "20"], ("-3", "1.5", "20")), (["10", "9", "b"], ("10", "9", "b"))],
)
def test_classes_that_are_numbers_are_in_their_order(tmp_path: Path, values: list[object], classes: object) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"s": "a", "l": value}) + "\n" for value in values))
    assert read_rows(tmp_path / "rows.jsonl", "s", "l")[1] == classes


def test_the_order_of_known_classes_is_kept(tmp_path: Path) -> None:
    split, labels = read_rows(written(tmp_path, ".tsv"), "s", "l", labels=("yes", "maybe", "no"))
    assert labels == ("yes", "maybe", "no") and split.labels == (0, 2, 2, 0) and split.pairs is None


GOOD = '{"s": "a", "l": "x"}\n{"s": "b", "l": "y"}\n'
OF_JSON = [
    ("", "no rows"),
    (GOOD[:-4], ":2: not JSON: Unterminated string"),
    (GOOD.replace("\n", " "), ":1: not JSON: Extra data"),
    (GOOD + "[" * 100_000, ":3: not JSON: "),
    (GOOD + "3\n", ":3: 3 is not a JSON object"),
    ("[" + GOOD.replace("}\n{", "},{") + "]", ":1: not JSON: "),
    (GOOD + '{"s": "c"}\n', ":3 has nothing in the column 'l'"),
    (GOOD + '{"s": "c", "l": NaN}\n', ":3 has nothing in the column 'l'"),
    (GOOD + '{"s": "c \\ud83d", "l": "x"}\n', ":3 has half of a character in the column 's': 'c \\ud83d'"),
    (GOOD + '{"s": ["c"], "l": "x"}\n', ":3 has ['c'] in the column 's', which is not text"),
    (GOOD.replace("s", "t"), "no column 's'; its columns are t, l"),
]


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        *((text, None, message) for text, message in OF_JSON),
        ("s\tl\na\t0\nb\t1\n", ("t", "l"), "no column 't'; its columns are s, l"),
        ("s;l\na;0\nb;1\n", ("s", "l"), "its columns are s;l (a single one: in a .csv commas separate columns, in a"),
        ("s\tl\na\t0\nb\t1\n", ("s", "m"), "no column 'm'"),
        ("s\tl\n", ("s", "l"), "no rows"),
        ("", ("s", "l"), "rows.tsv: "),
        ("s\tl\n\na\t0\nb\t\n", ("s", "l"), "rows.tsv:4 has nothing in the column 'l'"),
        ("s\tl\na\t0\nb\t0\n", ("s", "l"), "has only one class, '0'"),
        ("s\tl\n\na\t0\nb\n", ("s", "l"), "rows.tsv:4: Expected 2 columns, got 1: b"),
        ("s\tl\na\t0\n\0\t1\n", ("s", "l"), "rows.tsv:3 has nothing in the column 's'"),
        ("s\tl\tl\na\t0\t1\nb\t1\t0\n", ("s", "l"), "2 columns 'l'; its columns are s, l, l"),
        ("S\tl\na\t0\nb\t1\n", ("s", "l"), "no column 's'; did you mean 'S'?; its columns are S, l"),
        ("s\tl\na\t0\nb\t1\n", ("s", "s"), "the column 's' is named twice"),
        ("\t".join(f"c{n}" for n in range(99)) + "\n", ("s", "l"), "c10, c11 and 87 more"),
        ("s\tl\na\t0\n" + "b" * 9_000, ("s", "l"), "rows.tsv:3: Expected 2 columns"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, columns: tuple[str, str] | None, message: str) -> None:
    path = tmp_path / ("rows.tsv" if columns else "rows.jsonl")
    path.write_text(text)
    fault = fault_of(path, *columns or ())
    assert message in fault and str(path) in fault and len(fault) < 500 + len(str(path))


def fault_of(path: Path, text: str = "s", label: str = "l") -> str:
    with pytest.raises(TableError) as fault:
        read_rows(path, text, label)
    return str(fault.value)


def test_faults_of_parquet_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_text("s\tl\na\tb\n")
    assert re.search("not a parquet file|Parquet magic bytes not found", fault_of(path))  # by the version of pyarrow
    parquet.write_table(pyarrow.table({"s": [b"a", b"b"], "l": ["x", "y"]}), path)
    assert "row 1 has b'a' in the column 's', which is not text" in fault_of(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert str(path) in fault_of(path)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_encodings_and_long_rows(tmp_path: Path, suffix: str) -> None:
    """A byte order mark, line ends of Windows, rows of megabytes; other encodings are refused."""
    path = written(tmp_path, suffix)
    expected = read_rows(path, "s", "l", "p")
    text = path.read_text()
    path.write_bytes(b"\xef\xbb\xbf" + text.rstrip("\n").replace("\n", "\r\n").encode())
    assert read_rows(path, "s", "l", "p") == expected
    path.write_text(text.replace("it's", "word " * 500_000))
    assert read_rows(path, "s", "l", "p")[0].texts[3] == ("word " * 500_000).strip()
    for encoding in ("latin-1", "utf-16"):
        path.write_bytes(text.replace("it's", "é").encode(encoding))
        assert "not UTF-8 at byte" in fault_of(path)


def test_json_is_taken_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"s": "2020-01-01", "l": 1}\n\n{"s": 7, "l": 0, "more": [{}]}\n{"l": 1, "s": "\\u00e9"}')
    split, labels = read_rows(path, "s", "l")
    assert (split.texts, split.labels, labels) == (("2020-01-01", "7", "é"), (1, 0, 1), ("0", "1"))


def test_unknown_classes_files_and_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="the class 'no' is not one of yes, perhaps"):
        read_rows(written(tmp_path, ".tsv"), "s", "l", labels=("yes", "perhaps"))
    with pytest.raises(TableError, match="No such file"):
        read_rows(tmp_path / "nothing.csv", "s", "l")
    with pytest.raises(TableError, match="the name of a table must end in"):
        read_rows(tmp_path / "rows.xlsx", "s", "l")


SCORED = "a\tb\tscore\n" + "".join(f"text {row}\tpair {row}\t{row / 4}\n" for row in range(20))


def test_numbers_to_predict(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text(SCORED)
    split, labels = read_rows(path, "a", "score", "b", task_type=REGRESSION)
    assert labels == () and split.labels == tuple(row / 4 for row in range(20))
    assert all(isinstance(label, float) for label in split.labels)
    for cell in ("high", "nan", "inf", "1e39"):
        path.write_text(SCORED.replace("\t0.5\n", f"\t{cell}\n"))
        with pytest.raises(TableError, match=f"rows.tsv:4 has the label '{cell}', which is not a finite number"):
            read_rows(path, "a", "score", task_type=REGRESSION)
    path.write_text("a\tscore\nb\t1\nc\t1.0\n")
    with pytest.raises(TableError, match=r"the column 'score' has only one value, 1.0"):
        read_rows(path, "a", "score", task_type=REGRESSION)
    with pytest.raises(TableError, match="not 'token_classification'"):
        read_rows(path, "a", "score", task_type="token_classification")


def test_a_task_of_two_files(tmp_path: Path) -> None:
    train, dev = tmp_path / "train.tsv", tmp_path / "dev.csv"
    train.write_text("text\tmood\n" + "".join(f"text {row}\t{('bad', 'good')[row % 2]}\n" for row in range(30)))
    dev.write_text("text,mood\nfine,good\npoor,bad\n")
    data = table_task(train, dev, text="text", label="mood", metric="f1")
    assert data.task == Task("mood", ("bad", "good"), metrics=("f1", "accuracy"))
    assert data.dev.texts == ("fine", "poor") and data.dev.labels == (1, 0)
    assert (data.train, data.search) == hold_out(read_rows(train, "text", "mood")[0])
    dev.write_text("text,mood\nfine,better\n")
    with pytest.raises(TableError, match=r"dev.csv: the class 'better' is not one of bad, good"):
        table_task(train, dev, text="text", label="mood")
    with pytest.raises(TableError, match="unknown metric 'pearson'"):
        table_task(train, dev, text="text", label="mood", metric="pearson")
    with pytest.raises(TableError, match="no column 'txt'; did you mean 'text'"):
        table_task(train, dev, text="txt", label="mood")
    dev.unlink()
    dev.symlink_to(train)
    with pytest.raises(TableError, match=r"dev.csv: this is the file of the training rows; scores are measured on"):
        table_task(train, dev, text="text", label="mood")


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_lists_of_classes(tmp_path: Path, suffix: str) -> None:
    cells = [["joy", "fear"], [], ["fear"]]
    path = tmp_path / f"rows{suffix}"
    if suffix == ".csv":
        path.write_text('s,l\na,"joy, fear"\na,\na,fear\n')
    elif suffix == ".jsonl":
        path.write_text("".join(json.dumps({"s": "a", "l": cell}) + "\n" for cell in cells))
    else:
        parquet.write_table(pyarrow.table({"s": ["a"] * 3, "l": cells}), path)
    split, classes = read_rows(path, "s", "l", task_type=MULTI_LABEL)
    assert classes == ("fear", "joy") and split.labels == ((1, 1), (0, 0), (1, 0))
    with pytest.raises(TableError, match="the class 'joy' is not one of fear, anger"):
        read_rows(path, "s", "l", labels=("fear", "anger"), task_type=MULTI_LABEL)


@pytest.mark.parametrize("suffix", [".tsv", ".jsonl", ".parquet"])
@pytest.mark.parametrize("kind", [int, float, bool])
def test_a_number_for_each_class(tmp_path: Path, suffix: str, kind: type) -> None:
    """As transformers takes them: they are not names of two classes, of which every row has both."""
    rows = [(1, 0, 1), (0, 0, 0), (0, 1, 1)]
    path = of_lists(tmp_path / f"rows{suffix}", [list(map(kind, row)) for row in rows])
    assert read_rows(path, "s", "l", task_type=MULTI_LABEL) == (
        Split(("a",) * 3, None, tuple(rows)),
        ("LABEL_0", "LABEL_1", "LABEL_2"),
    )
    names = ("joy", "fear", "anger")
    assert read_rows(path, "s", "l", labels=names, task_type=MULTI_LABEL)[0].labels == tuple(rows)
    with pytest.raises(TableError, match="a row has 3 numbers in the column 'l'; all need a 0 or 1 for each of 2"):
        read_rows(path, "s", "l", labels=names[:2], task_type=MULTI_LABEL)
    of_lists(path, [list(map(kind, row)) for row in [*rows, (0, 1)]])
    with pytest.raises(TableError, match="a row has 2 numbers in the column 'l'; all need a 0 or 1 for each of 3"):
        read_rows(path, "s", "l", task_type=MULTI_LABEL)


def of_lists(path: Path, cells: Sequence[Sequence[object]]) -> Path:
    if path.suffix == ".tsv":
        path.write_text("s\tl\n" + "".join(f"a\t{','.join(f'{int(each)}' for each in cell)}\n" for cell in cells))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"s": "a", "l": cell}) + "\n" for cell in cells))
    else:
        parquet.write_table(pyarrow.table({"s": ["a"] * len(cells), "l": cells}), path)
    return path


def test_classes_whose_names_are_0_and_1(tmp_path: Path) -> None:
    path = of_lists(tmp_path / "rows.jsonl", [[0], [1, 0], [], [1]])
    split, classes = read_rows(path, "s", "l", task_type=MULTI_LABEL)
    assert (classes, split.labels) == (("0", "1"), ((1, 0), (1, 1), (0, 0), (0, 1)))
    of_lists(path, [[1, 0], [0, 1]])  # dev rows, of which all have both
    assert read_rows(path, "s", "l", labels=classes, task_type=MULTI_LABEL)[0].labels == ((1, 1), (1, 1))


@pytest.mark.parametrize("cell", ["['joy', 'fear']", "[0, 1]", "[]"])
def test_lists_as_python_writes_them(tmp_path: Path, cell: str) -> None:
    (tmp_path / "rows.tsv").write_text(f"s\tl\na\tjoy\na\t{cell}\n")
    with pytest.raises(TableError, match=re.escape(f":3 has {cell!r} in the column 'l'; write names as in joy, fear")):
        read_rows(tmp_path / "rows.tsv", "s", "l", task_type=MULTI_LABEL)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", [".tsv", ".csv"])
def test_a_carriage_return_inside_of_a_text(tmp_path: Path, suffix: str, end: str) -> None:
    """It ends a row where all lines end in one, as in old files of Macs."""
    rows = [("s", "l"), ("a\rb", "x"), ("c \u240d", "y")]
    path = tmp_path / f"rows{suffix}"
    comma = "\t" if suffix == ".tsv" else ","
    path.write_text("".join(comma.join(row) + end for row in rows), newline="")
    assert read_rows(path, "s", "l") == (Split(("a\rb", "c \u240d"), None, (0, 1)), ("x", "y"))
    path.write_text("".join(comma.join(row) + "\r" for row in rows).replace("a\rb", "a b"), newline="")
    assert read_rows(path, "s", "l") == (Split(("a b", "c \u240d"), None, (0, 1)), ("x", "y"))


@pytest.mark.parametrize(("cell", "line"), [("b", 7), ('5" of b', 7), ('"b\n\nc ""d"""', 9), ("b\r", 7), ("\0", 6)])
def test_rows_of_csv_are_counted_by_their_lines(tmp_path: Path, cell: str, line: int) -> None:
    """Cells in quotes may have several."""
    (tmp_path / "rows.csv").write_text(f's,l\n"a\n\nb",x\n\n{cell},y\n,x\n', newline="")
    assert f"rows.csv:{line} has nothing in the column 's'" in fault_of(tmp_path / "rows.csv")


def test_rows_of_json_are_counted_by_their_lines(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("\n" + GOOD + '\n{"s": "", "l": "x"}\n')
    assert ":5 has nothing in the column 's'" in fault_of(tmp_path / "rows.jsonl")


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (["joy", "fear"], ":1 has 'joy' in the column 'l', which is not a list"),
        ([["joy"], None], ":2 has None in the column 'l', which is not a list"),
        ([["joy"], [["fear"]]], ":2 has \\['fear'\\] in the column 'l', which is not text"),
        ([["joy"], [""]], ":2 has nothing in the column 'l'"),
        ([["joy"], []], "the column 'l' has only one class, 'joy'"),
        ([[], []], "the column 'l' has no class in any row"),
    ],
)
def test_faults_of_lists_are_named(tmp_path: Path, cells: list[object], said: str) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"s": "a", "l": cell}) + "\n" for cell in cells))
    with pytest.raises(TableError, match=said):
        read_rows(tmp_path / "rows.jsonl", "s", "l", task_type=MULTI_LABEL)

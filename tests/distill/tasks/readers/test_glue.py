"""GLUE's files and the hub's tables: every row arrives as it stands, and what is none is named."""

import logging
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers import load_task
from distill.tasks.readers.glue import TASKS, from_columns, load
from distill.tasks.readers.hub import columns
from distill.tasks.splits import Split
from distill.tasks.task import TaskError
from distill.tasks.types import REGRESSION
from tests import requirements

HEADERS = {
    "sst2": "sentence label",
    "mrpc": "Quality|#1 ID|#2 ID|#1 String|#2 String",
    "stsb": "index genre filename year old_index source1 source2 sentence1 sentence2 score",
    "qqp": "id qid1 qid2 question1 question2 is_duplicate",
    "mnli": "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse "
    "sentence1 sentence2 label1 gold_label",
    "qnli": "index question sentence label",
    "rte": "index sentence1 sentence2 label",
    "wnli": "index sentence1 sentence2 label",
    "snli": "sentence1 sentence2 label",
}
HEADERS["mnli_mismatched"] = HEADERS["mnli"]
TEXTS = ('"The cat', "it's a `test`\u2028here", 'so "she" said', 'ends here"', "a\u0085b", "x" * 40)


def spelled(name: str, label: float) -> str:
    source = TASKS[name]
    if source.task.task_type == REGRESSION or source.numbers:
        return str(label)
    return source.task.labels[int(label)]


def rows_of(name: str, count: int) -> list[tuple[list[str], float]]:
    """Texts full of traps, and labels."""
    source = TASKS[name]
    texts = [[f"{TEXTS[(row + place) % 6]} {row}" for place in range(len(source.texts))] for row in range(count)]
    classes = len(source.task.labels)
    return [(row, place % classes if classes else place / 4) for place, row in enumerate(texts)]


def lines_of(name: str, rows: list[tuple[list[str], float]]) -> list[str]:
    source = TASKS[name]
    header = list(source.header or HEADERS[name].split("|" if "|" in HEADERS[name] else " "))
    lines = [] if source.header else ["\t".join(header)]
    for texts, label in rows:
        cells = dict.fromkeys(header, "other") | dict(zip(source.texts, texts, strict=True))
        lines.append("\t".join((cells | {source.label: spelled(name, label)})[column] for column in header))
    return lines


def write(folder: Path, name: str, sizes: tuple[int, int] = (30, 7)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file, size in zip(("train.tsv", TASKS[name].dev_file), sizes, strict=True):
        content = "\n".join(lines_of(name, rows_of(name, size))) + "\n"
        (folder / file).write_bytes(content.encode())


def expected(name: str, count: int) -> Split:
    rows = rows_of(name, count)
    pairs = tuple(texts[1] for texts, _ in rows) if len(rows[0][0]) > 1 else None
    return Split(tuple(texts[0] for texts, _ in rows), pairs, tuple(label for _, label in rows))


@pytest.mark.parametrize("name", TASKS)
def test_every_task_from_its_files(name: str, tmp_path: Path) -> None:
    write(tmp_path / TASKS[name].folder, name)
    data = load(name, tmp_path)
    assert data == load(name, tmp_path / TASKS[name].folder) == load_task(name, tmp_path)
    assert data.task == TASKS[name].task and data.task.name == name
    assert data.dev == expected(name, 7)
    together = sorted(zip(data.train.texts + data.search.texts, data.train.labels + data.search.labels, strict=True))
    assert together == sorted(zip(expected(name, 30).texts, expected(name, 30).labels, strict=True))
    assert (len(data.train), len(data.search)) == (27, 3)


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.usefixtures("hub_cache")
def test_every_task_from_tables_of_the_hub(name: str, tmp_path: Path) -> None:
    """From a folder as the hub has it: parquet files, and their configuration and splits at the head of the README."""
    source = TASKS[name]
    rows = rows_of(name, 9)
    table: dict[str, list] = {
        column: [texts[place] for texts, _ in rows] for place, column in enumerate(source.hub_texts)
    }
    table |= {"label": [label for _, label in rows], "idx": list(range(9))}
    configuration = source.hub[1] or "plain_text"
    folder = tmp_path / "data" / configuration
    folder.mkdir(parents=True)
    card = f"---\nconfigs:\n- config_name: {configuration}\n  data_files:\n"
    for split in ("train", source.hub_dev):
        parquet.write_table(pyarrow.table(table), folder / f"{split}-00000-of-00001.parquet")
        card += f"  - split: {split}\n    path: {configuration}/{split}-*\n"
    (tmp_path / "data" / "README.md").write_text(card + "---\n")
    found = columns(str(tmp_path / "data"), source.hub_dev, source.hub[1])
    assert from_columns(source, found) == expected(name, 9)


@pytest.mark.parametrize(
    ("name", "line", "change", "message"),
    [
        ("sst2", 3, "one cell", "train.tsv:3: 1 tab-separated cells; the header has 2"),
        ("sst2", 3, "a\tb\tc", "train.tsv:3: 3 tab-separated cells"),
        ("sst2", 3, "", "train.tsv:3: 1 tab-separated cells"),
        ("sst2", 4, "good\tpositive", "train.tsv:4: the label 'positive' is not one of 0, 1"),
        ("sst2", 4, "good\t", "train.tsv:4: the label '' is not one of 0, 1"),
        ("sst2", 2, " \t1", "train.tsv:2: a text is empty"),
        ("sst2", 1, "text\tlabel", "no column 'sentence'; its columns are text, label"),
        ("sst2", 1, "sentence\tlabel\tlabel", "train.tsv: 2 columns 'label'; its columns are sentence, label, label"),
        ("cola", 1, "gj04\t2\t\tA sentence.", "train.tsv:1: the label '2' is not one of 0, 1"),
        ("cola", 1, "sentence\tlabel", "train.tsv:1: 2 tab-separated cells; the header has 4"),
        ("rte", 5, "1\ta\tb\t-", "train.tsv:5: the label '-' is not one of entailment, not_entailment"),
        ("stsb", 2, "\t".join("0123456ab") + "\thigh", "train.tsv:2: the label 'high' is not a finite number"),
        *(
            ("stsb", 2, "\t".join("0123456ab") + f"\t{cell}", f"the label '{cell}' is not a finite number")
            for cell in ("nan", "inf", "1e39")
        ),
    ],
)
def test_a_line_that_is_no_row_is_named(name: str, line: int, change: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, name)
    lines = lines_of(name, rows_of(name, 30))
    lines[line - 1] = change
    (tmp_path / "train.tsv").write_bytes(("\n".join(lines) + "\n").encode())
    with pytest.raises(TaskError) as fault:
        load(name, tmp_path)
    assert message in str(fault.value) and "\n" not in str(fault.value)


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(
        TaskError, match=r"no train.tsv and dev_matched.tsv of the task 'mnli', nor in a subfolder MNLI"
    ):
        load("mnli", tmp_path)
    write(tmp_path, "sst2")
    (tmp_path / "dev.tsv").unlink()
    with pytest.raises(TaskError, match=r"dev.tsv: No such file"):
        load("sst2", tmp_path)
    for content, message in ((b"", "the file is empty"), (b"sentence\tlabel\n", "no rows"), (b"\xff\n", "byte 0")):
        (tmp_path / "dev.tsv").write_bytes(content)
        with pytest.raises(TaskError, match=message):
            load("sst2", tmp_path)


def test_flaws_of_the_official_files_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """QQP has lines without all columns and rows without a second question; SNLI rows without an agreed label."""
    write(tmp_path / "QQP", "qqp")
    with (tmp_path / "QQP" / "dev.tsv").open("a") as file:
        file.write('"\tWho was it?\t0\n7\t1\t2\tHow?\t\t0\n')
    write(tmp_path / "snli", "snli")
    with (tmp_path / "snli" / "dev.tsv").open("a") as file:
        file.write("a\tb\t-\nc\td\tneutral\n")
    with caplog.at_level(logging.WARNING):
        questions, inference = load("qqp", tmp_path).dev, load("snli", tmp_path).dev
    assert (len(questions), questions.pairs and questions.pairs[-1]) == (8, "")
    assert (len(inference), inference.texts[-1], inference.labels[-1]) == (8, "c", 1)
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "1 of 9 lines are no rows, and are left out",
        "1 rows without an agreed label are left out",
    ]
    caplog.clear()
    (tmp_path / "snli" / "dev.tsv").write_text("sentence1\tsentence2\tlabel\na\tb\t-\n")
    with pytest.raises(TaskError, match=r"dev.tsv: no rows but 1 without an agreed label"):
        load("snli", tmp_path)
    assert not caplog.records
    table = {"premise": ["a", "c"], "hypothesis": ["b", "d"], "label": [-1, 2]}
    assert from_columns(TASKS["snli"], table) == Split(("c",), ("d",), (2,))


def test_tables_of_another_form() -> None:
    with pytest.raises(TaskError, match="nyu-mll/glue:rte: no column 'sentence2'; did you mean 'sentence1'"):
        from_columns(TASKS["rte"], {"sentence1": ["a"], "label": [0]})
    with pytest.raises(TaskError, match="nyu-mll/glue:sst2, row 0: the label '-1' is not one of 0, 1"):
        from_columns(TASKS["sst2"], {"sentence": ["a"], "label": [-1]})


def test_the_hub_out_of_reach_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"nyu-mll/glue .* from the hub; give the folder of its files") as fault:
        load_task("sst2")
    assert "\n" not in str(fault.value)
    with pytest.raises(TaskError, match="from the hub"):
        columns(str(tmp_path / "nothing"), "train")


@pytest.mark.parametrize(
    ("name", "folder", "train", "dev"),
    [
        ("sst2", "glue", 67_349, 872),
        ("cola", "glue", 8_551, 1_043),
        ("rte", "glue/RTE", 2_490, 277),
        ("snli", "", 20_000, 9_842),
    ],
)
def test_row_counts_of_the_real_files(name: str, folder: str, train: int, dev: int) -> None:
    data = load(name, requirements.data() / folder)
    assert (len(data.train) + len(data.search), len(data.dev)) == (train, dev)
    assert set(data.dev.labels) == set(range(len(data.task.labels)))
    assert not set(data.train.keys()) & set(data.search.keys())

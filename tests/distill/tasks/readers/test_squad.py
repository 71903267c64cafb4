"""Questions from SQuAD's JSON and the hub's tables, and answers from logits."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers import load_task
from distill.tasks.readers.hub import columns
from distill.tasks.readers.squad import from_columns, load, read
from distill.tasks.splits import QuestionSplit
from distill.tasks.task import Task, TaskError
from distill.tasks.types import QUESTION_ANSWERING
from tests import requirements

CONTEXT = "Ann lives in Bern. Berns are rare."
WHERE = [{"text": "Bern", "answer_start": 13}, {"text": "in Bern", "answer_start": 10}]
QUESTIONS: list[dict[str, Any]] = [
    {"id": "q1", "question": "Where?", "answers": WHERE},
    {"id": "q2", "question": "Who?", "answers": [{"text": "Ann", "answer_start": 0}], "is_impossible": False},
]
IMPOSSIBLE = {
    "id": "q3",
    "question": "When?",
    "answers": [],
    "is_impossible": True,
    "plausible_answers": [{"text": "Bern", "answer_start": 13}],
}


def content(*contexts: str, questions: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    paragraphs = [
        {"context": context, "qas": [asked | {"id": f"{number}{asked['id']}"} for asked in questions or QUESTIONS]}
        for number, context in enumerate(contexts)
    ]
    return {"version": "1.1", "data": [{"title": "Ann", "paragraphs": paragraphs}]}


def write(folder: Path, version: str = "v1.1", questions: list[dict[str, Any]] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    for name, contexts in (("train", (CONTEXT, CONTEXT + " So?")), ("dev", (CONTEXT,))):
        (folder / f"{name}-{version}.json").write_text(json.dumps(content(*contexts, questions=questions)))


def test_questions_from_the_official_files(tmp_path: Path) -> None:
    write(tmp_path / "squad")
    data = load("squad", tmp_path)
    assert data == load("squad", tmp_path / "squad") == load_task("squad", tmp_path)
    assert data.task == Task("squad", (), QUESTION_ANSWERING, ("f1", "exact_match"))
    answers = ((("Bern", 13), ("in Bern", 10)), (("Ann", 0),))
    assert data.dev == QuestionSplit(("0q1", "0q2"), ("Where?", "Who?"), (CONTEXT, CONTEXT), answers)
    assert (len(data.train), len(data.search)) == (2, 2)
    assert not set(data.train.contexts) & set(data.search.contexts)


def test_questions_without_an_answer(tmp_path: Path) -> None:
    write(tmp_path, "v2.0", [*QUESTIONS, IMPOSSIBLE])
    data = load("squad_v2", tmp_path)
    assert data.task.name == "squad_v2" and data.dev.answers[2] == ()
    write(tmp_path, "v1.1", [*QUESTIONS, IMPOSSIBLE])
    with pytest.raises(TaskError, match=r"train-v1.1.json: the question '0q3' has no answer: use the task squad_v2"):
        load("squad", tmp_path)


def test_which_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"there is no train\*v1.1.json or train.json, nor in a subfolder squad"):
        load("squad", tmp_path)
    write(tmp_path)
    (tmp_path / "train-other-v1.1.json").write_text("{}")
    with pytest.raises(TaskError, match=r"there must be only one of train-other-v1.1.json and train-v1.1.json"):
        load("squad", tmp_path)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(content(CONTEXT, "Ann at Bern, a Bern?")))
    with pytest.raises(TaskError, match="there must be only one of"):
        load("squad", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c, p: p.pop("context"),
            "data[0].paragraphs[0]: not in SQuAD's format: there is no 'context' of type str",
        ),
        (lambda c, p: c["data"][0].pop("paragraphs"), "data[0]: not in SQuAD's format: there is no 'paragraphs'"),
        (lambda c, p: c.pop("data"), "dev-v1.1.json: not in SQuAD's format: there is no 'data' of type list"),
        (lambda c, p: c["data"].clear(), "no questions"),
        (lambda c, p: p["qas"][1].pop("answers"), "there is no 'answers'"),
        (lambda c, p: p["qas"].append("x"), "there is no 'id'"),
        (
            lambda c, p: p["qas"][0]["answers"][0].update(answer_start=12),
            "dev-v1.1.json: question '0q1': at character 12 is not 'Bern', but ' Ber'",
        ),
        (lambda c, p: p["qas"][1].update(question="a \ud83d"), "paragraphs[0]: 'question' has half of a character"),
        (lambda c, p: p["qas"][0]["answers"][0].update(answer_start="13"), "there is no 'answer_start' of type int"),
    ],
)
def test_faults_are_named(change, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    faulty = json.loads(json.dumps(content(CONTEXT)))
    change(faulty, faulty["data"][0]["paragraphs"][0])
    (tmp_path / "dev-v1.1.json").write_text(json.dumps(faulty))
    with pytest.raises(TaskError) as fault:
        load("squad", tmp_path)
    assert message in str(fault.value) and "\n" not in str(fault.value)


def test_files_that_are_no_json(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text("{,}")
    with pytest.raises(TaskError, match=r"dev.json: not JSON"):
        read(tmp_path / "dev.json")
    (tmp_path / "dev.json").write_text("[" * 100_000)
    with pytest.raises(TaskError, match=r"dev.json: not JSON: (maximum recursion depth|Stack overflow)"):
        read(tmp_path / "dev.json")
    with pytest.raises(TaskError, match=r"none.json: No such file"):
        read(tmp_path / "none.json")
    with pytest.raises(TaskError, match=r"rajpurkar/squad .* from the hub"):
        load("squad")


@pytest.mark.usefixtures("hub_cache")
def test_tables_of_the_hub(tmp_path: Path) -> None:
    write(tmp_path, "v2.0", [*QUESTIONS, IMPOSSIBLE])
    expected = read(tmp_path / "dev-v2.0.json")
    table = {
        "id": expected.ids,
        "title": ["Ann"] * 3,
        "context": expected.contexts,
        "question": expected.questions,
        "answers": [
            {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
            for answers in expected.answers
        ],
    }
    (tmp_path / "hub").mkdir()
    parquet.write_table(pyarrow.table(table), tmp_path / "hub" / "validation-00000-of-00001.parquet")
    assert from_columns("squad_v2", columns(str(tmp_path / "hub"), "validation")) == expected
    with pytest.raises(TaskError, match="squad_v2: no column 'answers'; its columns are id, question, context"):
        from_columns("squad_v2", {"id": [], "question": [], "context": []})


def test_the_real_files() -> None:
    data = load_task("squad", requirements.data() / "squad")
    assert (len(data.train) + len(data.search), len(data.dev)) == (11_877, 10_570)
    assert not set(data.train.contexts) & set(data.search.contexts)
    assert all(data.dev.answers) and max(map(len, data.dev.answers)) > 1

"""Questions from SQuAD's JSON and the hub's tables, and answers from logits."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from transformers import BertTokenizerFast

from distill.tasks.encoding import Encoded, encode
from distill.tasks.metrics import score
from distill.tasks.readers import load_task
from distill.tasks.readers.hub import columns
from distill.tasks.readers.squad import MAX_ANSWER, from_columns, load, predicted_answers, read
from distill.tasks.task import QuestionSplit, Task, TaskError
from distill.tasks.types import QUESTION_ANSWERING
from tests.distill.real import DATA, needs_data
from tests.tiny import tokenizer

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
    with pytest.raises(TaskError, match=r"train-v1.1.json: the question '0q3' has no answer: take the task squad_v2"):
        load("squad", tmp_path)


def test_which_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has no train\*v1.1.json or train.json, nor has a folder squad in it"):
        load("squad", tmp_path)
    write(tmp_path)
    (tmp_path / "train-other-v1.1.json").write_text("{}")
    with pytest.raises(TaskError, match=r"which one, train-other-v1.1.json or train-v1.1.json\?"):
        load("squad", tmp_path)
    for name in ("train", "dev"):
        (tmp_path / f"{name}.json").write_text(json.dumps(content(CONTEXT, "Ann at Bern, a Bern?")))
    with pytest.raises(TaskError, match="which one"):
        load("squad", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda c, p: p.pop("context"),
            "data[0].paragraphs[0]: not in SQuAD's form, for want of 'context' (of type str)",
        ),
        (lambda c, p: c["data"][0].pop("paragraphs"), "data[0]: not in SQuAD's form, for want of 'paragraphs'"),
        (lambda c, p: c.pop("data"), "dev-v1.1.json: not in SQuAD's form, for want of 'data' (of type list)"),
        (lambda c, p: c["data"].clear(), "no questions"),
        (lambda c, p: p["qas"][1].pop("answers"), "for want of 'answers'"),
        (lambda c, p: p["qas"].append("x"), "for want of 'id'"),
        (
            lambda c, p: p["qas"][0]["answers"][0].update(answer_start=12),
            "dev-v1.1.json: question '0q1': at character 12 is not 'Bern', but ' Ber'",
        ),
        (lambda c, p: p["qas"][0]["answers"][0].update(answer_start="13"), "of 'answer_start' (of type int)"),
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
    with pytest.raises(TaskError, match=r"dev.json: no JSON"):
        read(tmp_path / "dev.json")
    (tmp_path / "dev.json").write_text("[" * 100_000)
    with pytest.raises(TaskError, match=r"dev.json: no JSON: maximum recursion depth"):
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


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> BertTokenizerFast:
    return tokenizer(tmp_path_factory.mktemp("tokenizer"), [*"abcdefgh", "where", *(f"w{n}" for n in range(60))])


def by_hand(rows: Encoded, logits: list[np.ndarray], split: QuestionSplit, may_be_none: bool) -> list[str]:
    """Every pair of every window, one after another."""
    assert rows.sources is not None and rows.places is not None
    found = []
    for question, context in enumerate(split.contexts):
        best, text, none = -np.inf, "", np.inf
        for window in np.flatnonzero(rows.sources == question):
            first, last = logits[window]
            none = min(none, first[0] + last[0])
            places = rows.places[rows.offsets[window] : rows.offsets[window + 1]]
            inside = [token for token, place in enumerate(places) if place[0] >= 0]
            for start, end in product(inside, inside):
                if start <= end < start + MAX_ANSWER and first[start] + last[end] > best:
                    best, text = first[start] + last[end], context[places[start, 0] : places[end, 1]]
        found.append("" if may_be_none and none > best else text)
    return found


words = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=30)


@settings(max_examples=25)
@given(st.lists(words, min_size=1, max_size=3), st.integers(0, 99), st.booleans())
def test_answers_are_the_best_pairs(
    pieces: BertTokenizerFast, contexts: list[list[str]], seed: int, may_be_none: bool
) -> None:
    joined = tuple(" ".join(context) for context in contexts)
    split = QuestionSplit(tuple("q" * len(joined)), ("where",) * len(joined), joined, ((),) * len(joined))
    rows = encode(pieces, split, 14)
    rng = np.random.default_rng(seed)
    logits = [rng.normal(size=(2, length + 3)) for length in rows.lengths]  # padding has logits, too
    assert predicted_answers(rows, logits, split, may_be_none) == by_hand(rows, logits, split, may_be_none)


def test_answers_end_after_they_start_and_are_short(pieces: BertTokenizerFast) -> None:
    context = " ".join(f"w{n}" for n in range(60))
    split = QuestionSplit(("q",), ("where",), (context,), ((),))
    rows = encode(pieces, split, 100)
    logits = np.zeros((2, int(rows.lengths[0])))
    offset = 3  # [CLS] where [SEP] w0 ...
    logits[0, offset + 50], logits[1, offset + 8] = 9, 6  # the wrong way round
    logits[0, offset + 10], logits[1, offset + 10 + MAX_ANSWER] = 8, 6  # a token too long
    logits[1, offset + 52] = 1
    assert predicted_answers(rows, [logits], split, False) == ["w50 w51 w52"]
    logits[1, offset + 9 + MAX_ANSWER] = 4
    assert predicted_answers(rows, [logits], split, False) == [" ".join(f"w{n}" for n in range(10, 10 + MAX_ANSWER))]


def test_no_answer_where_the_lowest_first_token_outdoes_it(pieces: BertTokenizerFast) -> None:
    """The question has two windows; one of them alone may claim that there is no answer."""
    split = QuestionSplit(("q",), ("where",), ("a b c d e f g h a b",), ((),))
    rows = encode(pieces, split, 12)
    assert len(rows) == 2
    logits = [np.zeros((2, length)) for length in rows.lengths]
    logits[0][:, 0] = 9  # no answer in the first window
    logits[1][:, 0] = 1
    logits[1][0, 5] = logits[1][1, 5] = 2
    answer = predicted_answers(rows, logits, split, True)[0]
    assert answer == predicted_answers(rows, logits, split, False)[0] != ""
    logits[1][:, 0] = 2.5
    assert predicted_answers(rows, logits, split, True) == [""]
    assert predicted_answers(rows, logits, split, False) == [answer]


@needs_data
def test_the_real_files() -> None:
    data = load_task("squad", DATA / "squad")
    assert (len(data.train) + len(data.search), len(data.dev)) == (11_877, 10_570)
    assert not set(data.train.contexts) & set(data.search.contexts)
    assert all(data.dev.answers) and max(map(len, data.dev.answers)) > 1


@needs_data
def test_right_logits_on_the_real_files_are_right() -> None:
    """Only answers that are a part of a word piece cannot be said."""
    whole = load_task("squad", DATA / "squad")
    split = whole.dev.take(range(1500))
    vocabulary = BertTokenizerFast(vocab=str(DATA / "vocab" / "bert-base-uncased-vocab.txt"))
    rows = encode(vocabulary, split, 128)
    assert rows.labels is not None and len(rows) > len(split) and rows.lengths.max() == 128
    logits = []
    for length, (first, last) in zip(rows.lengths, rows.labels, strict=True):
        logits.append(np.zeros((2, length)))
        logits[-1][0, first], logits[-1][1, last] = (9, 9) if first else (1, 1)
    right = [[text for text, _ in answers] for answers in split.answers]
    for may_be_none in (False, True):
        found = score(whole.task, predicted_answers(rows, logits, split, may_be_none), right)
        assert found["exact_match"].value > 0.98 and found["f1"].value > 0.98

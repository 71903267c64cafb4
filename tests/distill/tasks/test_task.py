from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.tasks.readers import load_task
from distill.tasks.splits import QuestionSplit, Split, TaggedSplit, joined
from distill.tasks.task import HELD_OUT, Task, TaskData, TaskError, hold_out
from distill.tasks.types import QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION

SPLIT = Split(("a", "b", "c"), None, (0, 1, 0))
TAGGED = TaggedSplit((("a", "b"), ("c",)), ((0, 1), (1,)))
QUESTIONS = QuestionSplit(("1", "2"), ("who?", "what?"), ("it was Ann", "rain"), ((("Ann", 7),), ()))


def test_unknown_names() -> None:
    with pytest.raises(TaskError, match="unknown task 'neighbors'; did you mean 'neighbours'"):
        load_task("neighbors")
    with pytest.raises(ValueError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        Task("t", ("a", "b"), metrics=("acuracy",))
    with pytest.raises(ValueError, match=r"unknown metric 'accuracy' \(regression has pearson, spearmanr\)"):
        Task("t", task_type=REGRESSION)
    with pytest.raises(ValueError, match="needs a metric"):
        Task("t", ("a", "b"), metrics=())
    with pytest.raises(ValueError, match="two or more"):
        Task("t", ("a", "a"))
    with pytest.raises(ValueError, match="'regresion'; did you mean 'regression'"):
        Task("t", ("a", "b"), task_type="regresion")
    with pytest.raises(ValueError, match="regression has no classes"):
        Task("t", ("a", "b"), task_type=REGRESSION, metrics=("pearson",))
    with pytest.raises(ValueError, match="f1 is of 2 classes, not 3"):
        Task("t", ("a", "b", "c"), metrics=("f1",))


def test_splits_are_checked() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Split(("a", "b"), None, (0,))
    with pytest.raises(ValueError, match="differ in length"):
        Split(("a", "b"), ("c",), (0, 1))
    with pytest.raises(ValueError, match="row 1 has 2 words and 1 tags"):
        TaggedSplit((("a",), ("b", "c")), ((0,), (1,)))
    with pytest.raises(ValueError, match="row 0 has 0 words"):
        TaggedSplit(((),), ((),))
    with pytest.raises(ValueError, match="question '7': at character 6 is not 'Ann', but ' An'"):
        QuestionSplit(("7",), ("who?",), ("it was Ann",), ((("Ann", 6),),))
    assert [len(split) for split in (SPLIT, TAGGED, QUESTIONS)] == [3, 2, 2]


@pytest.mark.parametrize(
    ("task", "dev", "message"),
    [
        (Task("t", ("a", "b")), Split(("a",), None, (2,)), "dev: classes 2 to 2, of 2"),
        (Task("t", ("a", "b")), Split((), None, ()), "dev: no rows"),
        (Task("t", ("a", "b")), TAGGED, "a TaggedSplit does not hold rows for classification"),
        (Task("t", task_type=REGRESSION, metrics=("pearson",)), Split(("a",), None, (float("nan"),)), "not finite"),
    ],
)
def test_data_is_checked(task: Task, dev: Split, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TaskData(task, SPLIT, SPLIT, dev)


def test_data_of_every_kind() -> None:
    tags = Task("t", ("O", "B-x"), TOKEN_CLASSIFICATION, ("f1",))
    assert TaskData(tags, TAGGED, TAGGED, TAGGED).task is tags
    with pytest.raises(ValueError, match="classes 0 to 3, of 2"):
        TaskData(tags, TAGGED, TAGGED, TaggedSplit((("a", "b"),), ((0, 3),)))
    asked = Task("t", (), QUESTION_ANSWERING, ("f1", "exact_match"))
    assert len(TaskData(asked, QUESTIONS, QUESTIONS, QUESTIONS).dev) == 2


@given(st.lists(st.integers(0, 30), min_size=1, max_size=200), st.integers(0, 3))
def test_rows_held_out_are_never_trained_on(texts: list[int], seed: int) -> None:
    split = Split(tuple(map(str, texts)), None, tuple(range(len(texts))))
    if len(set(texts)) == 1:
        with pytest.raises(TaskError, match="too few"):
            hold_out(split, seed)
        return
    try:
        train, search = hold_out(split, seed)
    except TaskError:
        assert len(set(texts)) < 12
        return
    assert not set(train.texts) & set(search.texts)
    assert sorted(train.labels + search.labels) == list(split.labels)
    assert list(train.labels) == sorted(train.labels)
    wanted = max(1, len(split) // 10)
    assert wanted <= len(search) < wanted + max(Counter(texts).values())
    assert hold_out(split, seed) == (train, search)


def test_what_is_held_out() -> None:
    many = Split(tuple(map(str, range(50_000))), tuple(map(str, range(50_000))), (0,) * 50_000)
    train, search = hold_out(many)
    assert (len(train), len(search)) == (50_000 - HELD_OUT, HELD_OUT)
    assert hold_out(many, seed=1)[1] != search
    for fraction, count in ((0.01, 500), (0.1, 5_000), (0.000001, 1)):
        train, search = hold_out(many, fraction=fraction)
        assert (len(train), len(search)) == (50_000 - count, count)
    train, search = hold_out(many, fraction=0.1, last=True)
    assert train.texts == many.texts[:45_000] and search.texts == many.texts[:44_999:-1]
    with pytest.raises(TaskError, match="too few"):
        hold_out(SPLIT, fraction=0.9, last=True)
    two = QuestionSplit(("1", "2", "3"), ("a?", "b?", "c?"), ("x", "x", "y"), ((), (), ()))
    train_, search_ = hold_out(two)
    assert {len(set(train_.contexts)), len(set(search_.contexts))} == {1}
    tagged = TaggedSplit((("a",), ("b",), ("a",)), ((0,), (1,), (0,)))
    assert not set(hold_out(tagged)[0].words) & set(hold_out(tagged)[1].words)


@pytest.mark.parametrize("split", [SPLIT, Split(("a", "b"), ("c", "d"), (0.5, 1.0)), TAGGED, QUESTIONS])
def test_parts_joined_are_the_whole(split) -> None:  # type: ignore[no-untyped-def]
    assert joined(split.take([0]), split.take(range(1, len(split)))) == split
    assert split.take(range(len(split))) == split and len(split.keys()) == len(split)

"""Scores of models of every kind against a plain loop over single rows."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertTokenizerFast,
)

from distill.tasks.encoding import collate
from distill.tasks.splits import AnySplit, QuestionSplit, Split, TaggedSplit
from distill.tasks.task import Task, scores_of
from distill.tasks.types import (
    QUESTION_ANSWERING,
    REGRESSION,
    TOKEN_CLASSIFICATION,
    encode,
    question_answering,
    token_classification,
)
from distill.training.evaluation import EvalSet, batch_logits, comparable_outputs, split_batches
from tests.scores import score
from tests.tiny import SIZES, WORDS, inputs, shaken, tokenizer


def sentences(count: int, longest: int, seed: int = 0) -> list[list[str]]:
    rng = np.random.default_rng(seed)
    return [[WORDS[word] for word in rng.integers(0, 40, rng.integers(1, longest))] for _ in range(count)]


def texts(count: int, longest: int, seed: int = 0) -> tuple[str, ...]:
    return tuple(map(" ".join, sentences(count, longest, seed)))


TAGS = ("O", "B-x", "I-x")
TAGGED = tuple(map(tuple, sentences(130, 25)))
CONTEXTS = texts(130, 40, seed=2)
CASES: dict[str, tuple[Task, AnySplit]] = {
    "classes": (
        Task("t", ("a", "b"), metrics=("f1", "accuracy", "matthews_correlation")),
        Split(texts(130, 15), texts(130, 15, seed=1), tuple(row % 2 for row in range(130))),
    ),
    "numbers": (
        Task("t", (), REGRESSION, ("spearmanr", "pearson")),
        Split(texts(130, 15), None, tuple(float(row % 7) for row in range(130))),
    ),
    "tags": (
        Task("t", TAGS, TOKEN_CLASSIFICATION, ("f1", "accuracy")),
        TaggedSplit(
            TAGGED, tuple(tuple((row + place) % 3 for place in range(len(words))) for row, words in enumerate(TAGGED))
        ),
    ),
    "questions": (
        Task("t", (), QUESTION_ANSWERING, ("f1", "exact_match")),
        QuestionSplit(
            tuple(map(str, range(130))),
            texts(130, 4, seed=3),
            CONTEXTS,
            tuple((((context.split()[0], 0),) if row % 3 else ()) for row, context in enumerate(CONTEXTS)),
        ),
    ),
}
MODELS = {
    "classes": BertForSequenceClassification,
    "numbers": BertForSequenceClassification,
    "tags": BertForTokenClassification,
    "questions": BertForQuestionAnswering,
}
LABELS = {"classes": 2, "numbers": 1, "tags": 3, "questions": 2}
LENGTH = 20


@pytest.fixture(scope="module")
def pieces() -> BertTokenizerFast:
    return tokenizer()


def model_of(case: str) -> nn.Module:
    torch.manual_seed(0)
    kind = {"problem_type": "regression"} if case == "numbers" else {}
    return shaken(MODELS[case](BertConfig(**SIZES, num_labels=LABELS[case], **kind)).eval())


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first", [None, 1, 60, 1000])
def test_scores_of_a_whole_split(
    case: str, first: int | None, pieces: BertTokenizerFast, accelerator: Accelerator
) -> None:
    task, split = CASES[case]
    rows = encode(pieces, split, LENGTH, task_type=task.task_type)
    model = model_of(case)
    seen = range(len(split))[:first]
    by_row = EvalSet(task, split, rows, 0).contributions(model, accelerator, first)
    found = scores_of(task, by_row)
    logits = []
    for row in range(len(rows)):
        with torch.no_grad():
            out = model(**inputs(collate(rows, np.array([row]), 0)))
        own = torch.stack((out.start_logits[0], out.end_logits[0])) if case == "questions" else out.logits[0]
        logits.append(own.numpy())
    if case == "classes":
        assert isinstance(split, Split)
        chosen = [int(logits[row].argmax()) for row in seen]
        expected = score(task, chosen, split.labels[:first])
        # Batches are of similar length, but the contributions are in the order of the split.
        assert by_row["accuracy"].tolist() == [a == b for a, b in zip(chosen, split.labels, strict=False)]
        assert list(by_row) == list(task.metrics)
    elif case == "numbers":
        assert isinstance(split, Split)
        expected = score(task, [float(logits[row][0]) for row in seen], split.labels[:first])
    elif case == "tags":
        assert isinstance(split, TaggedSplit)
        tagged = token_classification.predict(rows, logits, split, TAGS)
        assert max(map(len, split.words)) > LENGTH
        expected = score(task, tagged[:first], split.tags[:first])
    else:
        assert isinstance(split, QuestionSplit) and len(rows) > len(split)
        right = [[text for text, _ in answers] for answers in split.answers]
        answers = question_answering.best_answers(rows, logits, split.contexts, True)
        assert "" in answers and set(answers) != {""}
        expected = score(task, answers[:first], right[:first])
    assert list(found) == list(task.metrics)
    # Rounding in a batch may exchange the ranks of two nearly equal numbers, which Spearman's correlation shows.
    tolerance = 1e-3 if case == "numbers" else 1e-6
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value.value, abs=tolerance), name
        assert found[name].standard_error == pytest.approx(value.standard_error, abs=tolerance), name


def test_rows_of_another_split_are_refused(pieces: BertTokenizerFast) -> None:
    task, split = CASES["classes"]
    rows = encode(pieces, split, LENGTH, task_type=task.task_type)
    with pytest.raises(ValueError, match=r"130 encoded rows \(classification\) are not the 50 of a split"):
        EvalSet(task, split.take(range(50)), rows, 0)
    with pytest.raises(ValueError, match=r"are not the 130 of a split \(regression\)"):
        EvalSet(*CASES["numbers"], rows, 0)


@pytest.mark.parametrize("case", CASES)
def test_outputs_that_are_compared_are_those_of_single_rows(
    case: str, pieces: BertTokenizerFast, accelerator: Accelerator
) -> None:
    task, split = CASES[case]
    rows = encode(pieces, split, LENGTH, task_type=task.task_type)
    model = model_of(case)
    batches = split_batches(rows, 0, 60)
    logits = batch_logits(model, batches, accelerator=accelerator)
    found_NC = comparable_outputs(logits, batches, task.type)
    expected: list[np.ndarray] = []
    for row in (int(index) for batch in batches for index in batch["rows"]):
        batch = collate(rows, np.array([row]), 0)
        with torch.no_grad():
            out = model(**inputs(batch))
        if case == "tags":
            expected += list(out.logits[0][batch["labels"][0] >= 0].numpy())
        elif case == "questions":
            expected += [out.start_logits[0].numpy(), out.end_logits[0].numpy()]
        else:
            expected.append(out.logits[0].numpy())
    if case != "numbers":
        expected = [choices - choices.mean() for choices in expected]
    if case in ("classes", "tags"):
        expected = list(np.array(expected) - np.mean(expected, axis=0))
    padded = [np.pad(choices, (0, found_NC.shape[1] - len(choices))) for choices in expected]
    np.testing.assert_allclose(found_NC, padded, atol=1e-5)
    if case != "numbers":
        shifted = [part + 3.0 for part in logits]
        np.testing.assert_allclose(comparable_outputs(shifted, batches, task.type), found_NC, atol=1e-5)

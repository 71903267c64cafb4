"""What the demo's teacher reaches on each of the demo's tasks, and what a bag of words reaches on the same rows."""

import re
from argparse import ArgumentParser, Namespace

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from benchmarks.report import Report
from distill.tasks.metrics import accuracy, standard_error
from distill.tasks.readers.embedded import TASKS, demo_task
from distill.tasks.splits import Split
from distill.tasks.task import TaskData
from distill.training.evaluation import measure
from distill.training.teacher import load_model
from nas.config.load import load_config
from nas.preparation.checks import check
from nas.preparation.context import preparation_context
from nas.preparation.teacher import prepare_task

WORD = re.compile(r"\w+")


def bags(split: Split) -> list[list[str]]:
    """The words of each sentence. For pairs of sentences: both bags and the words that they share, each with a mark."""
    first = [set(WORD.findall(text.lower())) for text in split.texts]
    if split.pairs is None:
        return [sorted(words) for words in first]
    second = [set(WORD.findall(text.lower())) for text in split.pairs]
    return [
        [f"{mark}:{word}" for mark, words in (("1", a), ("2", b), ("both", a & b)) for word in sorted(words)]
        for a, b in zip(first, second, strict=True)
    ]


def bag_of_words(data: TaskData[Split]) -> np.ndarray:
    """The class indices that logistic regression on word counts predicts for the dev split."""
    vectorizer = CountVectorizer(analyzer=list, min_df=2)
    model = LogisticRegression(C=0.3, max_iter=200, tol=1e-3)
    model.fit(vectorizer.fit_transform(bags(data.train)), np.asarray(data.train.labels))
    return model.predict(vectorizer.transform(bags(data.dev)))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TASKS)}")


def run(options: Namespace, report: Report) -> None:
    results, lines = {}, []
    for name in options.tasks or TASKS:
        config = load_config("demo", {"tasks": [name]})
        check(config)
        context = preparation_context(config)
        folders = prepare_task(context)
        data = demo_task(name, context.corpus())
        teacher = load_model(str(folders.teacher), folders.task.labels)
        rows = folders.rows("dev")
        score = measure(teacher, rows, accelerator=context.accelerator, pad_id=context.tokenizer.pad_token_id)
        bag = accuracy(bag_of_words(data), data.dev.labels)
        with_errors = (f"{one:.4f} ± {standard_error(one, len(rows)):.4f}" for one in (score, bag))
        chance = 1 / len(data.task.labels)
        sizes = (f"{len(data.train):,}", f"{len(rows):,}", f"{config.finetune.steps}")
        lines.append((name, *with_errors, f"{chance:.3f}", *sizes))
        results[name] = {"teacher": score, "bag of words": bag, "rows of train": len(data.train), "of dev": len(rows)}
        report.progress(f"{name}: teacher {score:.4f}, bag of words {bag:.4f}")
    report.table(("task", "teacher", "bag of words", "chance", "rows of train", "of dev", "steps"), lines)
    report.save(results, seeds=[config.seed])

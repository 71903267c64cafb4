"""What a bag of words reaches on the demo tasks: the accuracy an encoder has to beat.

    python -m benchmarks.bag_of_words [TASK ...]

Needs scikit-learn (extra ``test``).
"""

import argparse
import re

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from distill.corpora import embedded_corpus
from distill.tasks import TASKS, Split, TaskData, accuracy, demo_task, standard_error

WORD = re.compile(r"\w+")


def bags(split: Split) -> list[list[str]]:
    """The words of each sentence; of two sentences: both bags and the shared words, told apart by a mark."""
    first = [set(WORD.findall(text.lower())) for text in split.texts]
    if split.pairs is None:
        return [sorted(words) for words in first]
    second = [set(WORD.findall(text.lower())) for text in split.pairs]
    return [
        [f"{mark}:{word}" for mark, words in (("1", a), ("2", b), ("both", a & b)) for word in sorted(words)]
        for a, b in zip(first, second, strict=True)
    ]


def bag_of_words(data: TaskData) -> np.ndarray:
    """Class indices that logistic regression on word counts predicts for the dev split."""
    vectorizer = CountVectorizer(analyzer=list, min_df=2)
    model = LogisticRegression(C=0.3, max_iter=200, tol=1e-3)
    model.fit(vectorizer.fit_transform(bags(data.train)), np.asarray(data.train.labels))
    return model.predict(vectorizer.transform(bags(data.dev)))


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy of a bag of words on the demo tasks")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TASKS)}")
    arguments = parser.parse_args()
    corpus = embedded_corpus()
    for name in arguments.tasks or TASKS:
        try:
            data = demo_task(name, corpus)
        except ValueError as error:
            parser.error(str(error))
        score = accuracy(bag_of_words(data), data.dev.labels)
        rows = len(data.dev)
        print(
            f"{name:12} {score:.3f} +- {standard_error(score, rows):.3f} on {rows} rows of dev "
            f"(chance {1 / len(data.task.labels):.3f}, {len(data.train)} rows of train)",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""What the demo's teacher reaches on each of the demo tasks, and what a bag of words does.

python -m benchmarks teachers [TASK ...]
"""

import argparse
import re

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from transformers.utils import logging

from distill.tasks.encoding import load_encoded
from distill.tasks.metrics import accuracy, standard_error
from distill.tasks.readers.embedded import TASKS, demo_task
from distill.tasks.task import Split, TaskData
from distill.training.evaluation import measure
from distill.training.teacher import load_model
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation.prepare import Preparation, check

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


def bag_of_words(data: TaskData[Split]) -> np.ndarray:
    """Class indices that logistic regression on word counts predicts for the dev split."""
    vectorizer = CountVectorizer(analyzer=list, min_df=2)
    model = LogisticRegression(C=0.3, max_iter=200, tol=1e-3)
    model.fit(vectorizer.fit_transform(bags(data.train)), np.asarray(data.train.labels))
    return model.predict(vectorizer.transform(bags(data.dev)))


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy of the demo's teacher and of a bag of words")
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"default: {' '.join(TASKS)}")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    for name in arguments.tasks or TASKS:
        config = load_config("demo", {"tasks": [name]})
        try:
            check(config)
        except ConfigError as error:
            parser.error(str(error))
        made = Preparation(config)
        data = demo_task(name, made.corpus())
        teacher = load_model(str(made.teacher), made.task.labels)
        rows = load_encoded(made.data / "dev.npz")
        score = measure(teacher, rows, accelerator=made.accelerator, pad_id=made.tokenizer.pad_token_id)
        bag = accuracy(bag_of_words(data), data.dev.labels)
        print(
            f"{name:12} teacher {score:.4f} ± {standard_error(score, len(rows)):.4f}  "
            f"bag of words {bag:.4f} ± {standard_error(bag, len(rows)):.4f}  "
            f"chance {1 / len(data.task.labels):.3f}  ({len(data.train)} rows of train, {len(rows)} of dev, "
            f"{config.finetune.steps} steps)",
            flush=True,
        )


if __name__ == "__main__":
    main()

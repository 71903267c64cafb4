"""The table `[rows.NAME]` of a configuration."""

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from distill.defaults import LABEL, TEXT
from distill.tasks.splits import THRESHOLD, class_weights_of
from nas.config.values import Distinct, Table


class RowsTable(Table):
    """A task on the user's own files (.tsv, .csv, .jsonl or .parquet).

    Attributes:
        train, dev: paths, in a preset relative to its folder.
        text, pair: the columns of the sentence and, if there is one, of the second sentence.
        label: the column of the class; with `regression` of the number, with `multi_label` of the list of classes.
        regression, multi_label: whether a number is predicted, or any number of classes.
        embeddings: whether the vector of a sentence encoder is predicted, without labels.
        reranking: whether the score of a reranker for the query `text` and the passage `pair` is, without labels.
        labels: the names of the classes in the order of the teacher's outputs; None: the teacher's if it
            has these classes, otherwise those that occur, in order.
        metric: the score, such as "f1_macro" or "matthews"; None: accuracy, Spearman's correlation of numbers, or
            "f1_micro" with `multi_label`.
        threshold: the probability from which a class is predicted with `multi_label`.
        class_weights: weights of classes in the loss with labels: "balanced", inverse to how often they occur, or by
            their names; 1 for others.
    """

    train: str
    dev: str
    text: str = TEXT
    pair: str | None = None
    label: str = LABEL
    regression: bool = False
    multi_label: bool = False
    embeddings: bool = False
    reranking: bool = False
    labels: Distinct[str] | None = None
    metric: str | None = None
    threshold: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = THRESHOLD
    class_weights: Annotated[str | dict[str, float] | None, BeforeValidator(class_weights_of)] = None

    @model_validator(mode="after")
    def _one_kind(self) -> "RowsTable":
        kinds = [name for name in ("regression", "multi_label", "embeddings", "reranking") if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} cannot be combined: keep one of them")
        if self.reranking and self.pair is None:
            raise ValueError("reranking scores pairs of a query and a passage: name the column of passages by pair")
        for name in ("labels", "metric"):
            if (self.embeddings or self.reranking) and getattr(self, name) is not None:
                raise ValueError(f"{name}: rows with {kinds[0]} have no labels: leave it out")
        if self.threshold != THRESHOLD and not self.multi_label:
            raise ValueError("threshold is for rows with any number of classes: add multi_label = true")
        if self.class_weights is not None and kinds not in ([], ["multi_label"]):
            raise ValueError(f"class_weights: rows with {kinds[0]} have no classes: leave it out")
        return self

"""The interface of task types, which define how rows are encoded, learned, predicted and scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification

from distill.tasks.metrics import Metric

Batch = dict[str, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskType:
    """A type of task. To add one, write a module that defines it and register it in `distill.tasks.types.TASK_TYPES`.

    The labels in a batch and the logits of B sentences of T tokens have these shapes:

    type                  labels                                            logits
    classification        (B,) int64                                        (B, C)
    regression            (B,) float32                                      (B, 1)
    token_classification  (B, T) int64, IGNORED where nothing is predicted  (B, T, C)
    question_answering    (B, 2) int64, the answer's first and last token,  (B, 2, T), of first and last
                          both 0 (the first token) where there is none
    masked_lm             as token_classification, the classes are the words of the vocabulary

    Attributes:
        name: the key in `TASK_TYPES`, which is also used in stored files.
        model: the Hugging Face auto class of its models. If types share a class, all but the first one in `TASK_TYPES`
            must have a different `problem_type`.
        head: the entry of `search_spaces.cost.HEADS` for the model's head.
        problem_type: the `problem_type` of the models' configurations.
        outputs: the number of outputs of the head; None means one per label, or per word of the vocabulary.
        classes: whether its labels are named classes.
        loss: (logits, batch, reduction) -> the loss with the labels of the batch, in float32: the mean, or with the
            reduction "sum" the sum, over sentences or labelled tokens. 0 where there are no labels.
        distributions: (logits, batch) -> the logits (N, choices), in float32, of all distributions that are predicted;
            padding is neither a row nor a choice. None: numbers are predicted.
        split: the class of its splits; None if it learns from text.
        metrics: metrics by name; the first metric that a task names is its score.
        encode: (tokenizer, split, max_length, stride) -> `distill.tasks.encoding.Encoded`.
        predict: (encoded rows, logits of each row without batch dimension, split, labels) -> the predictions for the
            metrics, for the first rows of the split, as many as there are logits.
        references: split -> the references with which the metrics compare predictions.
        problem: (split, labels) -> a description of what is wrong with the labels of the rows, or "".
    """

    name: str
    model: Any
    head: str
    loss: Callable[[Tensor, Batch, str], Tensor]
    distributions: Callable[[Tensor, Batch], Tensor] | None = None
    problem_type: str | None = None
    outputs: int | None = None
    classes: bool = False
    split: Any = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    encode: Callable[[Any, Any, int, int], Any] | None = None
    predict: Callable[[Any, Sequence[Any], Any, Sequence[str]], Sequence[Any] | Any] | None = None
    references: Callable[[Any], Sequence[Any]] | None = None
    problem: Callable[[Any, Sequence[str]], str] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def of_sentences(self) -> bool:
        """Whether predictions are for whole sentences, from their pooled states; such a head may have experts."""
        return self.model is AutoModelForSequenceClassification

    @property
    def single_label(self) -> bool:
        """Whether the label of a row is the index of one class."""
        return self.classes and self.of_sentences and self.problem_type in (None, "single_label_classification")

    @property
    def of_numbers(self) -> bool:
        """Whether numbers are predicted rather than distributions."""
        return self.distributions is None


def cross_entropy(logits_NC: Tensor, classes_N: Tensor, reduction: str) -> Tensor:
    """The cross-entropy with the classes; 0 if there are none."""
    if not len(logits_NC):
        return logits_NC.sum()
    return F.cross_entropy(logits_NC, classes_N, reduction=reduction)

"""What a task type is: the value that says how its rows are encoded, learned, predicted and scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoModelForTokenClassification

from distill.tasks.metrics import Metric

Batch = dict[str, Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskType:
    """A type of task. To add one, write a module with its value and enter it in `distill.tasks.types.TASK_TYPES`.

    B sentences of T tokens have labels in a batch and logits of these shapes:

    type                  labels                                            logits
    classification        (B,) int64                                        (B, C)
    regression            (B,) float32                                      (B, 1)
    token_classification  (B, T) int64, IGNORED where nothing is predicted  (B, T, C)
    question_answering    (B, 2) int64, the answer's first and last token,  (B, 2, T), of first and last
                          both 0 (the first token) where there is none
    masked_lm             as token_classification, the classes are the words of the vocabulary

    Attributes:
        name: the key in `TASK_TYPES`, by which stored files call this type.
        model: the Hugging Face auto class of its models. Of the types that share one, all but the first in `TASK_TYPES`
            have a `problem_type` of their own.
        head: the entry of `search_spaces.cost.HEADS` for what follows the encoder.
        problem_type: of the models' configurations.
        outputs: of the head; None: one for each label, or each word.
        classes: whether its labels are named classes.
        loss: (logits, batch, reduction) -> the loss with the labels of the batch, in float32: the mean, or with the
            reduction "sum" the sum, over sentences or labelled tokens. 0 where there are no labels.
        distributions: (logits, batch) -> the logits (N, choices), in float32, of all distributions that are predicted;
            padding is neither a row nor a choice. None: numbers are predicted.
        split: the class of its rows; None: it learns from text.
        metrics: by name; the first metric that a task names is its score.
        encode: (tokenizer, split, max_length, stride) -> `distill.tasks.encoding.Encoded`.
        predict: (encoded rows, logits of each as an array without the batch's dimension, split, labels) -> the
            predictions that its metrics take, of the first rows of the split: those whose logits there are.
        references: split -> what its metrics compare predictions with.
        fault: (split, labels) -> what is wrong with the labels of the rows, or "".
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
    fault: Callable[[Any, Sequence[str]], str] | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def of_sentences(self) -> bool:
        """Whether it predicts something of whole sentences, from their pooled states; such a head may have experts."""
        return self.model is AutoModelForSequenceClassification

    @property
    def of_tokens(self) -> bool:
        """Whether it predicts something of every labelled token."""
        return self.model in (AutoModelForTokenClassification, AutoModelForMaskedLM)

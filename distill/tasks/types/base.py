"""The interface of task types, which define a model's class and head, and how rows are encoded, learned, predicted and
scored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from distill.tasks.metrics import Metric
from search_spaces.cost import HeadCost

Batch = dict[str, Tensor]

# How transformers calls the problem of models that predict any number of classes.
MULTI_LABEL_PROBLEM = "multi_label_classification"


@dataclass(frozen=True, eq=False, kw_only=True)
class TaskType:
    """A type of task. To add one, write a module that defines it and register it in `distill.tasks.types.TASK_TYPES`.

    The labels in a batch and the logits of B sentences of T tokens have these shapes:

    type                  labels                                            logits
    classification        (B,) int64                                        (B, C)
    multi_label_classification  (B, C) float32, 1 for the classes of a row  (B, C)
    regression            (B,) float32                                      (B, 1)
    token_classification  (B, T) int64, IGNORED where nothing is predicted  (B, T, C)
    question_answering    (B, 2) int64, the answer's first and last token,  (B, 2, T), of first and last
                          both 0 (the first token) where there is none
    masked_lm             as token_classification, the classes are the words of the vocabulary
    embeddings            (B, D) float32, the teacher's vectors             (B, D), the vectors

    Attributes:
        name: the key in `TASK_TYPES`, which is also used in stored files.
        model: the Hugging Face auto class of its models. If types share a class, all but the first one in `TASK_TYPES`
            must have a different `problem_type`.
        head: what the head's cost depends on, and its number of outputs; 0 if models have no head.
        pipeline: the pipeline of transformers that its models are for, which is also the hub's pipeline tag.
        outputs: the names of the models' outputs; several outputs (B, T) become logits (B, outputs, T).
        pool: (output (B, T, D), attention mask (B, T), configuration) -> the logits (B, D), if these are pooled states.
            The labels are then what the teacher predicts.
        output_names: names for the head's outputs where these are no classes; a pipeline shows them in place of
            LABEL_0.
        problem_type: the `problem_type` of the models' configurations.
        classes: whether its labels are named classes.
        loss: (logits, batch, reduction) -> the loss with the labels of the batch, in float32: the mean, or with the
            reduction "sum" the sum, over sentences or labeled tokens, times the `weights` of the batch if it has some.
            0 where there are no labels.
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
    head: HeadCost
    pipeline: str
    loss: Callable[[Tensor, Batch, str], Tensor]
    distributions: Callable[[Tensor, Batch], Tensor] | None = None
    problem_type: str | None = None
    outputs: tuple[str, ...] = ("logits",)
    pool: Callable[[Tensor, Tensor, Any], Tensor] | None = None
    output_names: tuple[str, ...] = ()
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
    def suffix(self) -> str:
        """How the names of its models' classes end, such as `ForTokenClassification`; `Model` without a head."""
        return str(self.model.__name__).removeprefix("AutoModel") or "Model"

    @property
    def single_label(self) -> bool:
        """Whether the label of a row is the index of one class."""
        return self.classes and self.head.pooled and self.problem_type in (None, "single_label_classification")

    @property
    def multi_label(self) -> bool:
        """Whether the label of a row says of each class whether the row has it."""
        return self.classes and self.problem_type == MULTI_LABEL_PROBLEM

    @property
    def of_positions(self) -> bool:
        """Whether positions are predicted: the choices are the tokens of a row."""
        return len(self.outputs) > 1

    def logits(self, outputs: Mapping[str, Tensor], batch: Batch, config: Any) -> Tensor:
        """The logits, in the shape above, of the output of a Hugging Face model with this configuration."""
        tensors = [outputs[name] for name in self.outputs]
        if self.pool is not None:
            return self.pool(tensors[0], batch["attention_mask"], config)
        return torch.stack(tensors, dim=1) if self.of_positions else tensors[0]


def cross_entropy(logits_NC: Tensor, classes_N: Tensor, reduction: str) -> Tensor:
    """The cross-entropy with the classes; 0 if there are none."""
    if not len(logits_NC):
        return logits_NC.sum()
    return F.cross_entropy(logits_NC, classes_N, reduction=reduction)


def weighted(losses: Tensor, batch: Batch, reduction: str) -> Tensor:
    """The mean, or with the reduction "sum" the sum, of losses times the weights of the batch if it has some."""
    losses = losses * batch["weights"] if "weights" in batch else losses
    return losses.sum() if reduction == "sum" else losses.mean()

"""The registry of task types. `TaskType` is their interface; the modules beside this one define them."""

from typing import Any

from distill.tasks.encoding import IGNORED, Encoded
from distill.tasks.long_texts import UNTRUNCATED, divided
from distill.tasks.splits import CUT, AnySplit, Split
from distill.tasks.types import embeddings, question_answering, sentences, token_classification
from distill.tasks.types.base import TaskType
from distill.tasks.types.embeddings import EMBEDDINGS, POOLING
from distill.tasks.types.question_answering import QUESTION_ANSWERING
from distill.tasks.types.sentences import CLASSIFICATION, MULTI_LABEL, REGRESSION
from distill.tasks.types.token_classification import MASKED_LM, TOKEN_CLASSIFICATION
from foundation.errors import UserError, did_you_mean

__all__ = [
    "CLASSIFICATION",
    "EMBEDDINGS",
    "IGNORED",
    "MASKED_LM",
    "MULTI_LABEL",
    "QUESTION_ANSWERING",
    "REGRESSION",
    "TOKEN_CLASSIFICATION",
]

TASK_TYPES: dict[str, TaskType] = {
    task_type.name: task_type
    for task_type in (
        *sentences.TYPES,
        token_classification.TYPE,
        question_answering.TYPE,
        token_classification.MASKED_LM_TYPE,
        embeddings.TYPE,
    )
}


def get_task_type(task_type: str) -> TaskType:
    """The task type of this name.

    Raises:
        ValueError: there is none.
    """
    if task_type not in TASK_TYPES:
        suggestion = did_you_mean(task_type, TASK_TYPES)
        raise ValueError(f"unknown task type {task_type!r}{suggestion} (task types: {', '.join(TASK_TYPES)})")
    return TASK_TYPES[task_type]


def task_type_of(model: Any) -> TaskType | None:
    """The task type of the head of a model, which can be one of ours or one of transformers; None if it has no head and
    is no sentence encoder.
    """
    return task_type_of_class(type(model).__name__, model.config)


def task_type_of_class(name: str, config: Any) -> TaskType | None:
    """As `task_type_of`, of a model whose class has this name."""
    pools = getattr(config, POOLING, None) is not None
    of_class = [known for known in TASK_TYPES.values() if name.endswith(known.suffix) and (pools or not known.pool)]
    of_problem = (known for known in of_class if known.problem_type == config.problem_type)
    return next(of_problem, of_class[0] if of_class else None)


def predicts_numbers(config: Any) -> bool:
    """Whether models with this Hugging Face configuration predict numbers, as its `problem_type` says, or vectors."""
    if getattr(config, POOLING, None) is not None:
        return True
    types = [known for known in TASK_TYPES.values() if known.pool is None]
    return any(known.distributions is None for known in types if known.problem_type == config.problem_type)


def encode(
    tokenizer: Any,
    rows: AnySplit,
    max_length: int = 64,
    stride: int | None = None,
    *,
    task_type: str,
    long_texts: str = CUT,
) -> Encoded:
    """Tokenize a split.

    Rows are truncated to `max_length` tokens, except for a question's context, which is divided into as many
    overlapping windows, one row each, as necessary, and for single texts as `long_texts` says.

    Args:
        tokenizer: a fast Hugging Face tokenizer.
        stride: number of tokens that consecutive windows have in common; by default a third of
            `max_length`, which is the usual 128 for 384.
        task_type: the name of the split's task type.
        long_texts: a value of `distill.tasks.splits.LongTexts`.

    Raises:
        ValueError: there are no rows, rows of another task type, or no room for text in `max_length` and `stride`.
        UserError: `long_texts` is not for these rows.
    """
    if not len(rows):
        raise ValueError("nothing to encode: no rows")
    chosen = get_task_type(task_type)
    if chosen.encode is None or not isinstance(rows, chosen.split):
        raise ValueError(f"a {type(rows).__name__} does not hold rows for {task_type}")
    if max_length <= tokenizer.num_special_tokens_to_add(pair=rows.paired):
        raise ValueError(f"max_length = {max_length}: no room for text besides the special tokens")
    stride = max_length // 3 if stride is None else stride
    if long_texts != CUT and (rows.paired or not (chosen.head.pooled and isinstance(rows, Split))):
        what = "pairs of texts" if rows.paired else f"rows for {task_type}"
        raise UserError(
            f'long texts: "{long_texts}" is for single texts with classes or a number; choose "cut" for {what}'
        )
    encoded: Encoded = chosen.encode(tokenizer, rows, max_length if long_texts == CUT else UNTRUNCATED, stride)
    return encoded if long_texts == CUT else divided(encoded, tokenizer, max_length, stride, long_texts)

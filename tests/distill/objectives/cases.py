"""Random outputs of a student and a teacher on a batch of any kind of task, and references on them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig

from distill.objectives.outputs import Batch, Outputs, dot_products
from distill.tasks.types import CLASSIFICATION, IGNORED, MASKED_LM, QUESTION_ANSWERING, REGRESSION, TOKEN_CLASSIFICATION
from tests.distill.objectives import references

KINDS = (CLASSIFICATION, REGRESSION, TOKEN_CLASSIFICATION, QUESTION_ANSWERING, MASKED_LM)


@dataclass(frozen=True)
class Case:
    """The student's outputs are leaves that take gradients. `lengths` are those of the sentences."""

    student_config: Any
    teacher_config: Any
    student: Outputs
    teacher: Outputs
    batch: Batch
    lengths: tuple[int, ...]

    @property
    def configs(self) -> tuple[Any, Any]:
        return self.student_config, self.teacher_config

    @property
    def given(self) -> tuple[Outputs, Outputs, Batch]:
        return self.student, self.teacher, self.batch

    def unlabeled(self) -> "Case":
        return replace(self, batch={name: tensor for name, tensor in self.batch.items() if name != "labels"})


def case(
    kind: str = CLASSIFICATION,
    lengths: tuple[int, ...] = (5, 3, 1),
    classes: int = 3,
    depths: tuple[int, int] = (2, 4),
    widths: tuple[int, int] = (12, 12),
    heads: tuple[int, int] = (2, 2),
    experts: int = 0,
    seed: int = 0,
    extra: int = 0,
) -> Case:
    """`extra` more tokens of padding change nothing else. With `experts`, two gated routers have this many."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = len(lengths), max(lengths)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def draw(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    def side(number: int) -> Outputs:
        filling = (0.5, float("inf"))[number]  # what models make of padding

        def leaf(tensor: Tensor, *padding: int) -> Tensor:
            return F.pad(tensor, padding, value=filling).requires_grad_(number == 0)

        shapes = {REGRESSION: (rows, 1), CLASSIFICATION: (rows, classes), QUESTION_ANSWERING: (rows, 2, tokens)}
        logits = random(*shapes.get(kind, (rows, tokens, classes)))
        ends = {QUESTION_ANSWERING: (0, extra), TOKEN_CLASSIFICATION: (0, 0, 0, extra), MASKED_LM: (0, 0, 0, extra)}
        states = [random(rows, tokens, widths[number]) for _ in range(depths[number] + 1 + 3)]
        padded = tuple(leaf(state, 0, 0, 0, extra) for state in states)
        queries = [(random(rows, tokens, widths[number]), random(rows, tokens, widths[number])) for _ in states[4:]]
        scores = tuple(leaf(dot_products(q, k, heads[number]), 0, extra, 0, extra) for q, k in queries)
        routings = []
        for _ in range(2 if experts and number == 0 else 0):
            probabilities = random(sum(lengths), experts).softmax(dim=-1).requires_grad_()
            routings.append((probabilities, probabilities.argmax(dim=-1)))
        return Outputs(leaf(logits, *ends.get(kind, ())), kind, padded[3:], scores, padded[:3], tuple(routings))

    mask_BT = (torch.arange(tokens) < torch.tensor(lengths)[:, None]).long()
    labels = draw(classes, rows)
    if kind == REGRESSION:
        labels = random(rows)
    elif kind == QUESTION_ANSWERING:
        labels = torch.stack([draw(length, 2) for length in lengths])
    elif kind in (TOKEN_CLASSIFICATION, MASKED_LM):
        unlabeled = (mask_BT == 0) | (torch.rand(rows, tokens, generator=generator) < 0.4)
        labels = F.pad(draw(classes, rows, tokens).masked_fill(unlabeled, IGNORED), (0, extra), value=IGNORED)
    batch = {
        "input_ids": F.pad(draw(50, rows, tokens), (0, extra)),
        "attention_mask": F.pad(mask_BT, (0, extra)),
        "token_type_ids": torch.zeros(rows, tokens + extra, dtype=torch.int64),
        "labels": labels,
        "rows": torch.randperm(8, generator=generator)[:rows],
    }
    configs = [
        BertConfig(
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=number,
            num_labels={REGRESSION: 1, QUESTION_ANSWERING: 2, MASKED_LM: 2}.get(kind, classes),
            problem_type=REGRESSION if kind == REGRESSION else None,
        )
        for width, depth, number in zip(widths, depths, heads, strict=True)
    ]
    return Case(*configs, side(0), side(1), batch, lengths)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def distributions(given: Case, every_token: bool = False) -> tuple[list[Any], list[Any], list[int]]:
    """The student's and the teacher's logits of every choice, without what is no choice, and the labels' indices."""
    places: list[Any] = [(row,) for row in range(len(given.lengths))]
    labels = given.batch.get("labels")
    if given.student.task_type == QUESTION_ANSWERING:
        places = [(row, end, slice(0, length)) for row, length in enumerate(given.lengths) for end in (0, 1)]
    elif given.student.task_type != CLASSIFICATION:
        places = references.tokens(given.lengths)
        if labels is not None and not every_token:
            places = [place for place in places if labels[place] != IGNORED]
    student, teacher = ([array(side.logits)[place].tolist() for place in places] for side in given.given[:2])
    return student, teacher, [] if labels is None else [int(labels[place[: labels.dim()]]) for place in places]


def hard(given: Case) -> float:
    """The loss with the labels."""
    if given.student.task_type == REGRESSION:
        return references.square(array(given.student.logits)[:, 0], array(given.batch["labels"]))
    student, _, labels = distributions(given)
    return references.cross_entropy(student, labels)


def soft(given: Case, name: str, *settings: Any, every_token: bool = False) -> float:
    """The loss of this name in the references with the teacher's predictions; of a regression the square error."""
    if given.student.task_type == REGRESSION:
        return references.square(array(given.student.logits)[:, 0], array(given.teacher.logits)[:, 0])
    student, teacher, _ = distributions(given, every_token)
    return getattr(references, name)(student, teacher, *settings)


def mapped(tensor: Tensor, module: nn.Module | None) -> np.ndarray:
    """W x + b in float64; without a module, x."""
    if module is None:
        return array(tensor)
    return array(tensor) @ array(module.weight).T + array(module.bias)


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=2e-6, abs=2e-6)


def reached(given: Case) -> set[str]:
    """The student's outputs that have a gradient other than 0, states and relations by their numbers."""
    sides = {"logits": given.student.logits}
    for name in ("hidden_states", "attention_scores", "relations"):
        sides |= {f"{name}.{number}": tensor for number, tensor in enumerate(getattr(given.student, name))}
    sides |= {f"routings.{number}": routing[0] for number, routing in enumerate(given.student.routings)}
    return {name for name, tensor in sides.items() if tensor.grad is not None and tensor.grad.any()}

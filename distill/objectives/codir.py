"""CoDIR's objective: contrastive distillation of the intermediate representations of sentences.

The released code pools by the [CLS] state (`pooling="cls"`), uses the teacher's layers 1, 3, 5, ..., takes the positive
from the bank too, and uses NCE with normalizers that are fixed at the first batch. It sums CE and KL over a batch,
while L_CRD is a mean. Its defaults of beta, T and K, the number of negatives, are used here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_choice, check_fractions, check_positive
from distill.objectives.kd import labels_and_predictions
from distill.objectives.outputs import HIDDEN_STATES, Batch, Outputs, of_layers
from distill.tasks.encoding import Encoded
from distill.tasks.types import get_task_type

WIDTH = 128
# Largest number of negatives per sentence; each needs WIDTH numbers for the student and for the teacher.
MAX_NEGATIVES = 65_536


def codir(
    student: Any,
    teacher: Any,
    *,
    rows: int,
    labels: Sequence[int] | None = None,
    beta: float = 0.5,
    temperature: float = 2.0,
    contrastive: float = 1.0,
    negatives: int = 100,
    contrast_temperature: float = 0.07,
    momentum: float = 0.5,
    pooling: str = "mean",
    balance: float = 0.0,
) -> Objective:
    """CoDIR (Sun et al., 2020): (1 - beta) CE(labels) + beta T^2 KL(teacher || student) + contrastive L_CRD.

    CE and KL are as in `kd`. The feature z of the student, and that of the teacher, is a vector (B, 128) of length 1: a
    learned linear map of the concatenated, pooled states of its layers (all layers of the student, and the last of each
    group of the teacher's). L_CRD is InfoNCE, mean over sentences and over both directions, with the student or the
    teacher as the anchor:

        -log(exp(z z+ / t) / (exp(z z+ / t) + sum over K negatives of exp(z z- / t))),

    where z+ is the other model's feature of the same sentence, and z- are the other model's features of training rows
    with another label, drawn with replacement. The latter come from memory banks of student and teacher, (rows, 128
    each); in training mode, the features of a batch are merged into them with `momentum` after computing the loss. A
    batch needs `rows` (B,), the index of each of its sentences among the training rows. Since the banks depend on these
    rows, they are not in the state dict. The two maps are trained with the student.

    Args:
        rows: number of training rows.
        labels: the classes of the rows; None if rows have no class (text, or a task that labels words), in which case
            all other rows are negatives.
        beta: weight of the teacher's predictions, from 0 to 1; with 1 the batches need no labels.
        temperature: T.
        contrastive: weight of L_CRD.
        negatives: K.
        contrast_temperature: t.
        momentum: weight of the old feature when a row of a bank is updated.
        pooling: "mean" over valid tokens, or "cls".

    Raises:
        ValueError: the student's depth does not divide the teacher's; there are not as many labels as rows, or all rows
            have the same label. The loss raises it if the batch has no `rows`, or an index out of range.
    """
    check_fractions(beta=beta, momentum=momentum)
    check_positive(contrast_temperature=contrast_temperature)
    if not 1 <= negatives <= MAX_NEGATIVES:
        raise ValueError(f"negatives={negatives}: from 1 to {MAX_NEGATIVES:,} are possible")
    check_choice("pooling", pooling, ("mean", "cls"))
    pairs = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)[1:]
    states = {"student": [m for m, _ in pairs], "teacher": [n for _, n in pairs]}
    bank = Bank(rows, labels, momentum)
    maps: dict[str, nn.Module] = {
        "student": nn.Linear(len(pairs) * student.hidden_size, WIDTH),
        "teacher": nn.Linear(len(pairs) * teacher.hidden_size, WIDTH),
        "bank": bank,
    }
    loss = Contrast(maps, bank, states, pooling, negatives, contrast_temperature)
    needs, teacher_needs = frozenset({HIDDEN_STATES}), of_layers(HIDDEN_STATES, states["teacher"])
    return Objective(
        [
            *labels_and_predictions(beta, temperature),
            Term("contrastive", contrastive, needs, loss, teacher_needs),
            terms.balance(balance),
        ],
        maps if contrastive else {},
    )


def bank_arguments(rows: Encoded | None) -> dict[str, Any]:
    """The size of the memory banks and the classes of their rows."""
    classes = None
    if rows is not None and rows.labels is not None and get_task_type(rows.task_type).single_label:
        classes = rows.labels.tolist()
    return {"rows": 2 if rows is None else len(rows), "labels": classes}


@dataclass(frozen=True, eq=False)
class Contrast:
    """L_CRD of `codir`.

    Attributes:
        maps: the learned maps of "student" and "teacher".
        states: the hidden states that the features of "student" and "teacher" are made of.
    """

    maps: Mapping[str, nn.Module]
    bank: "Bank"
    states: Mapping[str, Sequence[int]]
    pooling: str
    negatives: int
    temperature: float

    def __call__(self, s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        bank = self.bank
        if "rows" not in batch:
            raise ValueError("codir needs the number of each sentence among the training rows: batch['rows'], (B,)")
        if batch["rows"].max() >= len(bank.order):
            count, row = len(bank.order), int(batch["rows"].max())
            raise ValueError(f"codir was made for {count} training rows; the batch has row {row}")
        rows_N = batch["rows"][batch["attention_mask"].any(dim=1)]
        student_ND, teacher_ND = self.features("student", s, batch), self.features("teacher", t, batch)
        others_NK = bank.others(rows_N, self.negatives)
        student_to_teacher = losses.contrastive(student_ND, teacher_ND, bank.teacher[others_NK], self.temperature)
        teacher_to_student = losses.contrastive(teacher_ND, student_ND, bank.student[others_NK], self.temperature)
        if bank.training:
            bank.update(rows_N, student_ND.detach(), teacher_ND.detach())
        return (student_to_teacher + teacher_to_student) / 2

    def features(self, side: str, outputs: Outputs, batch: Batch) -> Tensor:
        """The features (N, 128) of the sentences that are not only padding; `side` is "student" or "teacher"."""
        mask_BT = batch["attention_mask"]
        chosen = (outputs.hidden_states[state] for state in self.states[side])
        if self.pooling == "mean":
            pooled = [losses.mean_state(state, mask_BT) for state in chosen]
        else:
            pooled = [state[:, 0].float() for state in chosen]
        return F.normalize(self.maps[side](torch.cat(pooled, dim=1)[mask_BT.any(dim=1)]).float(), dim=-1)


class Bank(nn.Module):
    """The memory banks: features of length 1 of all training rows, for the student and for the teacher, initially
    random.

    It also has the classes of the rows, for drawing negatives of another class. `order` has the rows sorted by class:
    the rows of the same class as `row` are at the `size[row]` places from `first[row]` on.
    """

    student: Tensor
    teacher: Tensor
    order: Tensor
    first: Tensor
    size: Tensor

    def __init__(self, rows: int, labels: Sequence[int] | None, momentum: float) -> None:
        super().__init__()
        if rows < 2:
            raise ValueError(f"rows={rows}: at least 2 training rows are needed, to tell one from another")
        classes = torch.arange(rows) if labels is None else torch.as_tensor(labels)
        if classes.shape != (rows,):
            raise ValueError(f"labels: {rows} rows need as many, not {tuple(classes.shape)}; or None")
        ordered, order = classes.sort(stable=True)
        first = torch.searchsorted(ordered, classes)
        size = torch.searchsorted(ordered, classes, right=True) - first
        if size[0] == rows:
            raise ValueError(f"labels: all {rows} rows are of class {classes[0]}, so none has a negative; use None")
        self.momentum = momentum
        for name, tensor in {"order": order, "first": first, "size": size}.items():
            self.register_buffer(name, tensor, persistent=False)
        for name in ("student", "teacher"):
            self.register_buffer(name, F.normalize(torch.randn(rows, WIDTH), dim=-1), persistent=False)

    def others(self, rows_N: Tensor, count: int) -> Tensor:
        """Indices (N, count) of rows of another class than each given row, drawn uniformly with replacement."""
        first_N1, size_N1 = self.first[rows_N][:, None], self.size[rows_N][:, None]
        draws = torch.rand(len(rows_N), count, dtype=torch.float64, device=rows_N.device)
        places_NK = (draws * (len(self.order) - size_N1)).long()
        return self.order[torch.where(places_NK < first_N1, places_NK, places_NK + size_N1)]

    def update(self, rows_N: Tensor, student_ND: Tensor, teacher_ND: Tensor) -> None:
        """Merge new features of these rows, gathered from all processes, into the banks."""
        rows_N, student_ND, teacher_ND = _of_all_processes(rows_N, student_ND, teacher_ND)
        for bank, new_ND in ((self.student, student_ND), (self.teacher, teacher_ND)):
            bank[rows_N] = F.normalize(self.momentum * bank[rows_N] + (1 - self.momentum) * new_ND, dim=-1)


def _of_all_processes(*tensors: Tensor) -> list[Tensor]:
    """Concatenate each tensor's rows from all processes; their numbers of rows may differ."""
    if not dist.is_initialized():
        return list(tensors)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, [tensor.cpu() for tensor in tensors])
    gathered = zip(*parts, strict=True)
    return [torch.cat(rows).to(tensor.device) for tensor, rows in zip(tensors, gathered, strict=True)]

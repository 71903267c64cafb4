"""CoDIR's objective: contrastive distillation of the intermediate representations of sentences."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from distill.objectives import layer_maps, losses, terms
from distill.objectives.base import Objective, Term, check_positive, check_shares, check_weights
from distill.objectives.outputs import HIDDEN_STATES, Batch, Outputs, of_layers
from distill.objectives.spec import ObjectiveSpec
from distill.tasks.encoding import Encoded
from distill.tasks.types import CLASSIFICATION

WIDTH = 128
# Greatest number of negatives of one sentence; each takes WIDTH numbers for the student and for the teacher.
MOST = 65_536


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

    CE and KL are as in `kd`. Either side's feature z, (B, 128) of length 1, is a learned linear map of the pooled
    states of its layers, concatenated: all of the student's, and the last of each group of the teacher's. L_CRD is
    InfoNCE, mean over sentences and over both directions, with either side as the anchor:

        -log(exp(z z+ / t) / (exp(z z+ / t) + sum over K negatives of exp(z z- / t))),

    z+ the same sentence's feature on the other side, z- the other side's features of training rows of another label,
    drawn with replacement. They come from a memory bank of either side, (rows, 128), in which a batch's features, after
    their loss, are averaged with `momentum` while the objective is in training mode. A batch needs `rows` (B,), the
    number of each of its sentences among the training rows. The banks belong to these rows alone: they are in no state
    dict. The two maps are learned with the student.

    The released code pools by the [CLS] state (`pooling="cls"`), takes the teacher's layers 1, 3, 5, ... and the
    positive from the bank too, and estimates by NCE with normalisers that it fixes at the first batch; it sums CE and
    KL over a batch, where L_CRD is a mean. Its defaults of beta, T and K are those here.

    Args:
        student, teacher: Hugging Face configurations.
        rows: number of training rows.
        labels: the classes of the rows; None where rows have no class (text, or a task that labels words): all other
            rows are negatives then.
        beta: share of the teacher's predictions; 1 needs no labels in the batches.
        temperature: T.
        contrastive: weight of L_CRD.
        negatives: K.
        contrast_temperature: t.
        momentum: share of a bank's row that stays.
        pooling: "mean" over valid tokens, or "cls".
        balance: weight of the load balance of the student's routers.

    Raises:
        ValueError: the student's depth does not divide the teacher's; a setting is out of its range; the number of
            labels is not that of rows, or all rows have the same label. In use: the batch has no `rows`, or rows
            beyond these.
    """
    check_weights(contrastive=contrastive, balance=balance)
    check_shares(beta=beta, momentum=momentum)
    check_positive(temperature=temperature, contrast_temperature=contrast_temperature)
    if not 1 <= negatives <= MOST:
        raise ValueError(f"negatives={negatives}: from 1 to {MOST:,} are possible")
    if pooling not in ("mean", "cls"):
        raise ValueError(f"unknown pooling {pooling!r}: choose mean or cls")
    pairs = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers)[1:]
    states = {"student": [m for m, _ in pairs], "teacher": [n for _, n in pairs]}
    bank = Bank(rows, labels, momentum)
    maps: dict[str, nn.Module] = {
        "student": nn.Linear(len(pairs) * student.hidden_size, WIDTH),
        "teacher": nn.Linear(len(pairs) * teacher.hidden_size, WIDTH),
        "bank": bank,
    }

    def features(side: str, outputs: Outputs, batch: Batch) -> Tensor:
        """(N, 128), of the sentences that have a token."""
        mask_BT = batch["attention_mask"]
        chosen = (outputs.hidden_states[state] for state in states[side])
        if pooling == "mean":
            pooled = [losses.mean_state(state, mask_BT) for state in chosen]
        else:
            pooled = [state[:, 0].float() for state in chosen]
        return F.normalize(maps[side](torch.cat(pooled, dim=1)[mask_BT.any(dim=1)]).float(), dim=-1)

    def contrast(s: Outputs, t: Outputs | None, batch: Batch) -> Tensor:
        assert t is not None
        if "rows" not in batch:
            raise ValueError("codir needs the number of each sentence among the training rows: batch['rows'], (B,)")
        if batch["rows"].max() >= rows:
            raise ValueError(f"codir was made for {rows} training rows; the batch has row {int(batch['rows'].max())}")
        rows_N = batch["rows"][batch["attention_mask"].any(dim=1)]
        student_ND, teacher_ND = features("student", s, batch), features("teacher", t, batch)
        others_NK = bank.others(rows_N, negatives)
        forth = losses.contrastive(student_ND, teacher_ND, bank.teacher[others_NK], contrast_temperature)
        back = losses.contrastive(teacher_ND, student_ND, bank.student[others_NK], contrast_temperature)
        if bank.training:
            bank.update(rows_N, student_ND.detach(), teacher_ND.detach())
        return (forth + back) / 2

    needs, taught = frozenset({HIDDEN_STATES}), of_layers(HIDDEN_STATES, states["teacher"])
    return Objective(
        [
            terms.labels(1 - beta),
            terms.soft_labels("soft", beta, lambda s, t: losses.soft_kl(s, t, temperature)),
            Term("contrastive", contrastive, needs, contrast, taught),
            terms.balance(balance),
        ],
        maps if contrastive else {},
    )


def _bank_arguments(rows: Encoded | None) -> dict[str, Any]:
    """The size of the memory banks and the classes of their rows."""
    classes = None if rows is None or rows.kind != CLASSIFICATION or rows.labels is None else rows.labels.tolist()
    return {"rows": 2 if rows is None else len(rows), "labels": classes}


CODIR = ObjectiveSpec(codir, row_arguments=_bank_arguments)


class Bank(nn.Module):
    """Features of length 1 of all training rows, of the student and of the teacher, random at first; and the classes of
    the rows, to draw negatives of another class.

    `order` sorts the rows by class: the class of a row takes `size[row]` places in it, from place `first[row]`.
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
        """(N, count) row numbers of another class than each row's, drawn uniformly with replacement."""
        first_N1, size_N1 = self.first[rows_N][:, None], self.size[rows_N][:, None]
        draws = torch.rand(len(rows_N), count, dtype=torch.float64, device=rows_N.device)
        places_NK = (draws * (len(self.order) - size_N1)).long()
        return self.order[torch.where(places_NK < first_N1, places_NK, places_NK + size_N1)]

    def update(self, rows_N: Tensor, student_ND: Tensor, teacher_ND: Tensor) -> None:
        """Move the features of these rows towards new ones, those of all processes."""
        rows_N, student_ND, teacher_ND = _of_all_processes(rows_N, student_ND, teacher_ND)
        for bank, new_ND in ((self.student, student_ND), (self.teacher, teacher_ND)):
            bank[rows_N] = F.normalize(self.momentum * bank[rows_N] + (1 - self.momentum) * new_ND, dim=-1)


def _of_all_processes(*tensors: Tensor) -> list[Tensor]:
    """Each tensor with its rows from all processes, which may differ in number."""
    if not dist.is_initialized():
        return list(tensors)
    shares: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(shares, [tensor.cpu() for tensor in tensors])
    gathered = zip(*shares, strict=True)
    return [torch.cat(parts).to(tensor.device) for tensor, parts in zip(tensors, gathered, strict=True)]

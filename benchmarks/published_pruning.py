"""Two published methods that prune a fine-tuned encoder without training it, implemented anew from the papers.

Both keep some of the attention heads and FFN channels (units) of a teacher within a budget of MACs, and see only
training rows:

Kwon: units are ranked in the whole network by the diagonal of the empirical Fisher matrix of their masks; of all
    numbers of heads, the best is taken together with as many channels as the budget then leaves; every kept unit of a
    layer may change places with a pruned one; and one factor per kept unit is solved for, from the lowest sublayer up,
    so that the sums are those of a model that is pruned half as much (Kwon et al., 2022, section 4).
K-prune: from the lowest sublayer up, all units that are not decided yet are scored in the pruned model by what the
    predictions and the sublayer's output would lose per MAC; the sublayer is pruned by a threshold for the whole
    remaining network, and the weight of its output map is solved for by least squares, without a ridge, so that its sum
    is the teacher's (Park et al., 2024, section 3).

Settings that the papers do not give are those of the published code. Other than there, every FFN keeps a channel, sums
are over batches in float64, and Kwon's factors have no intercept, which is dropped there after it has been solved for.

Dimensions: N tokens without padding (or batches), C channels of an output map's input, D its outputs, U units.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import Any

import torch
from scipy.sparse.linalg import lsmr
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.common import BenchmarkError
from distill.encoders.family import family_of
from distill.encoders.heads import heads_of
from distill.encoders.parts import encoder_layers, part
from distill.encoders.student.anatomy import CHANNELS, HEADS
from distill.objectives.losses import soft_kl
from distill.objectives.outputs import LOGITS, Batch, run
from distill.tasks.types import task_type_of
from search_spaces import cost
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from search_spaces.graph import FFNGraph
from search_spaces.layer import FFN, Attention, Layer
from supernet.module_inputs import module_inputs
from supernet.order.gradients import INPUT, Loss, gradients
from supernet.order.importance import summed_loss
from supernet.pruning import Kept, cut

BATCH = 32
# Kwon: training rows; how strongly factors are kept at 1; and the factor above which a sublayer and all others above it
# are left as they are.
ROWS, DAMPING, LARGEST = 2048, 1.0, 10.0
# K-prune: tokens; the weights of the change of outputs against that of predictions; the factor of the scores of heads;
# and the temperature.
TOKENS, WEIGHTS, HEAD_FACTOR, TEMPERATURE = 100_000, (2.5e-4, 1e-5), 64, 2.0


@dataclass(frozen=True)
class Sublayer:
    """The attention or the FFN of a layer.

    Attributes:
        unit: what is pruned of it, `HEADS` or `CHANNELS`.
        size: the channels of a unit.
        macs: those of a unit.
    """

    layer: int
    unit: str
    size: int
    macs: int

    @property
    def least(self) -> int:
        """The number of units that are kept in any case."""
        return int(self.unit == CHANNELS)

    def maps(self, model: PreTrainedModel) -> tuple[Any, Any]:
        """Its output map, and the LayerNorm of the sum of that map's output and the sublayer's input."""
        layer, family = encoder_layers(model)[self.layer], family_of(model)
        if self.unit == CHANNELS:
            return layer.ffn[0].project, layer.ffn[0].LayerNorm
        return part(layer, family.output), part(layer, family.attention_norm)


OfUnits = Mapping[Sublayer, Tensor]  # of each sublayer a value for every unit, such as whether it is kept: (U,)


@dataclass(frozen=True, eq=False)
class Teacher:
    """What is pruned, and on what.

    Attributes:
        model: a student with one block per layer that is still whole.
        tokens: of the sentence whose MACs count.
        units: what may be pruned, `CHANNELS` or both.
        batches: of training rows, with labels.
        precision: returns the context in which models run.
    """

    model: PreTrainedModel
    base: Base
    graph: FFNGraph
    tokens: int
    units: Sequence[str]
    batches: Sequence[Batch]
    precision: Callable[[], AbstractContextManager[object]]

    @property
    def sublayers(self) -> list[Sublayer]:
        """Those that may be pruned, the lowest first."""
        base = self.base
        sizes = {HEADS: base.width // base.heads, CHANNELS: 1}
        costs = {
            HEADS: cost.layer_macs(base, Layer(Attention(1), FFN(stack=0)), self.tokens),
            CHANNELS: cost.layer_macs(base, Layer(Attention(0), FFN(expansion=Fraction(1, base.inner))), self.tokens),
        }
        units = [unit for unit in (HEADS, CHANNELS) if unit in self.units]
        return [Sublayer(layer, unit, sizes[unit], costs[unit]) for layer in range(base.depth) for unit in units]

    def whole_macs(self) -> int:
        """The MACs of all layers of the model."""
        return macs(Architecture.uniform(self.base, self.graph), self.tokens)

    def for_units(self, budget: int) -> int:
        """What a budget leaves for the sublayers that may be pruned.

        Raises:
            BenchmarkError: it is too small for a head and a channel in every layer.
        """
        counts = {HEADS: self.base.heads, CHANNELS: self.base.inner}
        left = budget - self.whole_macs() + sum(counts[one.unit] * one.macs for one in self.sublayers)
        if left < sum(one.macs for one in self.sublayers):
            raise BenchmarkError(f"--budgets: the fewest heads and channels exceed {budget:,} MACs: give a smaller one")
        return left

    def only(self, model: PreTrainedModel, masks: OfUnits) -> PreTrainedModel:
        """The model with only these of its units, and all of the sublayers that are not mentioned."""
        units = units_of(model)
        chosen = {HEADS: list(units.heads), CHANNELS: list(units.channels)}
        for sublayer, mask_U in masks.items():
            chosen[sublayer.unit][sublayer.layer] = tuple(torch.nonzero(mask_U)[:, 0].tolist())
        kept = Kept(*map(tuple, chosen.values()))
        return cut(model, kept, kept.architecture(self.base, self.graph)).to(model.device)


def units_of(model: PreTrainedModel) -> Kept:
    """All heads and all channels that a student with one block per layer has."""
    heads = (tuple(range(len(of_layer))) for of_layer in heads_of(model.config))
    return Kept(tuple(heads), tuple(tuple(range(of_layer["inner"])) for of_layer in model.config.ffn))


def macs(architecture: Architecture, tokens: int) -> int:
    """The MACs of all layers for a sentence of `tokens` tokens, attention products included."""
    return sum(cost.layer_macs(architecture.base, layer, tokens) for layer in architecture.layers)


def kwon(teacher: Teacher, budget: int) -> PreTrainedModel:
    """The teacher pruned to at most `budget` MACs as Kwon et al. do."""
    sublayers, whole = teacher.sublayers, teacher.model

    def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
        with teacher.precision():
            return summed_loss(model, batch) / len(batch["input_ids"])

    of_channels, _ = mask_gradients(whole, sublayers, teacher.batches, mean_loss)
    of_units = [
        of.unflatten(1, (-1, sublayer.size)).sum(dim=2) for sublayer, of in zip(sublayers, of_channels, strict=True)
    ]
    importance = {sublayer: (of**2).sum(dim=0) for sublayer, of in zip(sublayers, of_units, strict=True)}
    half_budget = int((budget * teacher.whole_macs()) ** 0.5)
    wanted = sums(teacher, teacher.only(whole, most_important(importance, teacher.for_units(half_budget))))
    masks = most_important(importance, teacher.for_units(budget))
    model = teacher.only(
        whole, {sublayer: rearranged(of, masks[sublayer]) for sublayer, of in zip(sublayers, of_units, strict=True)}
    )
    task_type = task_type_of(model)
    assert task_type is not None
    for sublayer in sublayers:
        if sublayer.unit == HEADS and (sublayer.layer == 0 or not masks[sublayer].any()):
            continue
        # Only the state of the first token of the uppermost layer is read by a head for sentences.
        of_first = task_type.head.pooled and sublayer == sublayers[-1]
        squares_CC, products_CD = moments(teacher, model, wanted[sublayer], sublayer, of_first)
        if not rescale(sublayer.maps(model)[0], sublayer.size, squares_CC, products_CD):
            break
    return model


def k_prune(teacher: Teacher, budget: int, weight: float) -> PreTrainedModel:
    """The teacher pruned to at most `budget` MACs as K-prune does.

    Args:
        weight: of the change of outputs in the scores.
    """
    outputs, rows = frozenset({LOGITS}), sum(len(batch["input_ids"]) for batch in teacher.batches)
    with torch.no_grad(), teacher.precision():
        moved = ({name: tensor.to(teacher.model.device) for name, tensor in of.items()} for of in teacher.batches)
        batches = [{**batch, "teacher": run(teacher.model, batch, outputs).logits} for batch in moved]

    def divergence(model: nn.Module, batch: Batch) -> Tensor:
        with teacher.precision():
            logits = run(model, batch, outputs).logits
        task_type = task_type_of(model)
        if task_type is None or task_type.distributions is None:
            return F.mse_loss(logits.float(), batch["teacher"].float())
        student_NC, teacher_NC = (task_type.distributions(of, batch) for of in (logits, batch["teacher"]))
        return soft_kl(student_NC, teacher_NC, TEMPERATURE)

    model, left, wanted = teacher.model, teacher.for_units(budget), sums(teacher, teacher.model)
    for place, sublayer in enumerate(teacher.sublayers):
        undecided, scores = teacher.sublayers[place:], []
        for one, gradient_NC, square_C in zip(
            undecided, *mask_gradients(model, undecided, batches, divergence), strict=True
        ):
            of_predictions_C = (gradient_NC**2).sum(dim=0) / 2 / rows
            of_outputs_C = square_C * (one.maps(model)[0].weight.detach() ** 2).mean(dim=0).double().cpu()
            score_U = (of_predictions_C + weight * of_outputs_C).unflatten(0, (-1, one.size)).mean(dim=1)
            scores.append(score_U * (HEAD_FACTOR if one.unit == HEADS else 1) / one.macs)
        mask_U = affordable(scores, [one.macs for one in undecided], [one.least for one in undecided], left)[0]
        model = teacher.only(model, {sublayer: mask_U})
        left -= int(mask_U.sum()) * sublayer.macs
        if mask_U.any():
            solve_again(sublayer.maps(model)[0], *moments(teacher, model, wanted[sublayer], sublayer))
    return model


def mask_gradients(
    model: PreTrainedModel, sublayers: Sequence[Sublayer], batches: Sequence[Batch], loss: Loss
) -> tuple[list[Tensor], list[Tensor]]:
    """For every sublayer the gradients (N, C) of the loss of each batch with respect to a factor of every channel that
    its output map reads, and the mean squares (C,) of these channels over all tokens.
    """
    places = {number: (sublayer.maps(model)[0], INPUT) for number, sublayer in enumerate(sublayers)}
    found: list[list[Tensor]] = [[] for _ in sublayers]
    squares: list[Any] = [0.0 for _ in sublayers]
    tokens = sum(int(batch["attention_mask"].sum()) for batch in batches)
    for batch, values in gradients(model, batches, loss, places):
        valid_BT = batch["attention_mask"].bool()
        for number, (value_BTC, gradient_BTC) in values.items():
            assert gradient_BTC is not None
            found[number].append((value_BTC.detach() * gradient_BTC).sum(dim=(0, 1)).double().cpu())
            squares[number] = squares[number] + (value_BTC.detach()[valid_BT].double() ** 2).sum(dim=0).cpu() / tokens
    return [torch.stack(of) for of in found], squares


def affordable(scores: Sequence[Tensor], costs: Sequence[int], least: Sequence[int], budget: int) -> list[Tensor]:
    """Which units (U,) of each sublayer are kept: the `least` best of every sublayer, and then the best of all, until
    the next one costs more than is left.

    Args:
        costs: of one unit of each sublayer.
    """
    first = [of.index_fill(0, of.topk(count).indices, inf) for of, count in zip(scores, least, strict=True)]
    order = torch.cat(first).argsort(descending=True, stable=True)
    spent = torch.cat([torch.full((len(of),), price) for of, price in zip(scores, costs, strict=True)])[order].cumsum(0)
    is_kept = torch.zeros(len(order), dtype=torch.bool)
    is_kept[order[spent <= budget]] = True
    return list(is_kept.split([len(of) for of in scores]))


def most_important(importance: OfUnits, budget: int) -> dict[Sublayer, Tensor]:
    """Kwon's choice before rearrangement: the number of heads, at least one, with which the sum of the importances of
    what is kept is largest.

    Args:
        importance: of the units of each sublayer.
        budget: MACs, enough for a head and a channel in every layer.
    """
    heads, channels = ([one for one in importance if one.unit == unit] for unit in (HEADS, CHANNELS))
    of_heads, of_channels = (
        [0.0, *torch.cat([torch.empty(0), *(importance[one] for one in some)]).sort(descending=True).values.cumsum(0)]
        for some in (heads, channels)
    )
    price = heads[0].macs if heads else 0
    pairs = [
        (number, min((budget - number * price) // channels[0].macs, len(of_channels) - 1))
        for number in range(min(1, len(heads)), len(of_heads))
    ]
    possible = [pair for pair in pairs if pair[1] >= len(channels)]
    numbers = max(possible, key=lambda pair: float(of_heads[pair[0]] + of_channels[pair[1]]))
    masks: dict[Sublayer, Tensor] = {}
    for some, number in zip((heads, channels), numbers, strict=True):
        if some:
            chosen = affordable([importance[one] for one in some], [1] * len(some), [one.least for one in some], number)
            masks |= dict(zip(some, chosen, strict=True))
    return masks


def rearranged(gradients_NU: Tensor, mask_U: Tensor) -> Tensor:
    """Let every kept unit of a sublayer, the least important first, change places with the pruned one that makes the
    summed gradient of what is pruned shortest, if that makes it shorter (Kwon et al., section 4.2).
    """
    is_kept = mask_U.clone()
    pruned_N = gradients_NU[:, ~is_kept].sum(dim=1)
    for unit in (gradients_NU**2).sum(dim=0).argsort().tolist():
        if not mask_U[unit] or bool(mask_U.all()):
            continue
        others_O = torch.nonzero(~is_kept)[:, 0]
        swapped_NO = (pruned_N + gradients_NU[:, unit])[:, None] - gradients_NU[:, others_O]
        lengths_O = (swapped_NO**2).sum(dim=0)
        best = int(lengths_O.argmin())
        if lengths_O[best] < (pruned_N**2).sum():
            pruned_N = swapped_NO[:, best]
            is_kept[unit], is_kept[others_O[best]] = False, True
    return is_kept


def sums(teacher: Teacher, model: PreTrainedModel) -> dict[Sublayer, Tensor]:
    """What the LayerNorm of every sublayer receives in a model: (N, D)."""
    norms = [sublayer.maps(model)[1] for sublayer in teacher.sublayers]
    received = module_inputs(model, norms, teacher.batches, teacher.precision)
    return dict(zip(teacher.sublayers, received, strict=True))


def moments(
    teacher: Teacher, model: PreTrainedModel, wanted_ND: Tensor, sublayer: Sublayer, of_first: bool = False
) -> tuple[Tensor, Tensor]:
    """With X (N, C) what the sublayer's output map reads in the model, and E (N, D) by how much its sum before
    LayerNorm differs from the wanted one: X'X (C, C) and X'E (C, D), in float64.

    Args:
        of_first: whether only the first token of each row counts.
    """
    modules, lengths = sublayer.maps(model), [batch["attention_mask"].sum(dim=1) for batch in teacher.batches]
    squares_CC, products_CD = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    wanted = wanted_ND.split([int(of_batch.sum()) for of_batch in lengths])
    for batch, length_B, of_batch_ND in zip(teacher.batches, lengths, wanted, strict=True):
        input_NC, sum_ND = module_inputs(model, modules, [batch], teacher.precision)
        input_NC, error_ND = input_NC.double(), of_batch_ND.double() - sum_ND.double()
        if of_first:
            first_B = length_B.cumsum(0) - length_B
            input_NC, error_ND = input_NC[first_B], error_ND[first_B]
        squares_CC, products_CD = squares_CC + input_NC.t() @ input_NC, products_CD + input_NC.t() @ error_ND
    return squares_CC, products_CD


@torch.no_grad()
def rescale(output: Any, size: int, squares_CC: Tensor, products_CD: Tensor) -> bool:
    """Solve for one factor for every unit of `size` channels of an output map, by damped least squares around 1;
    leaves the map as it is, and returns False, if a factor is too large or the solver does not converge.

    As in the published code, LSMR is applied to the normal equations.

    Args:
        squares_CC, products_CD: as `moments` returns them.
    """
    weight_DC = output.weight.double().cpu()
    moments_UU = (squares_CC * (weight_DC.t() @ weight_DC)).unflatten(1, (-1, size)).sum(dim=2)
    moments_UU = moments_UU.unflatten(0, (-1, size)).sum(dim=1)
    target_U = (products_CD * weight_DC.t()).sum(dim=1).unflatten(0, (-1, size)).sum(dim=1)
    change_U, stopped, *_ = lsmr(moments_UU.numpy(), target_U.numpy(), damp=DAMPING, maxiter=5 * len(target_U))
    factor_U = 1 + torch.from_numpy(change_U)
    if stopped > 2 or float(factor_U.abs().max()) > LARGEST:
        return False
    output.weight.copy_(weight_DC * factor_U.repeat_interleave(size))
    return True


@torch.no_grad()
def solve_again(output: Any, squares_CC: Tensor, products_CD: Tensor) -> None:
    """Solve for the weight of an output map by least squares without a ridge; of several solutions, the one that
    changes it least.

    Args:
        squares_CC, products_CD: as `moments` returns them.
    """
    change_CD = torch.linalg.pinv(squares_CC, hermitian=True) @ products_CD
    output.weight.add_(change_CD.t().to(output.weight))

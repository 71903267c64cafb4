"""Orders channels and attention heads by forward selection: each next one most reduces the error of reconstructing the
output of the linear layer that reads them.

A block computes y = W h + b from the channels h (E,) of the input of `project`. If only the channels S are kept and W
and b are refitted, the error of y is W_R (h_R - L[h_R | h_S]), where R are the other channels and L[. | .] is the best
linear predictor. Its size in the metric F of the output is tr(G C_S), with G = W' F W and C_S the covariance of h after
regression on h_S. Every step adds the channel that reduces it most. Heads are selected alike, with all channels of a
head at once; the linear layer is then the attention's output projection.
"""

import torch
from torch import Tensor

from supernet.order.moments import Moments

# The covariance is updated after so many steps, with one matrix product.
_PANEL = 64
# A channel has nothing new if regression on the selected ones leaves less than this fraction of its variance.
_NEGLIGIBLE = 1e-9


def forward_selection(moments: Moments, weight_DE: Tensor) -> Tensor:
    """The channels of a block (E,), the most useful first, by the weight of its `project`. Those that are constant, or
    linearly dependent on those before them, come last.
    """
    inner = weight_DE.shape[1]
    output_ED = weight_DE.double().t() @ root_of(moments.metric_DD)
    covariance_EE = moments.covariance_EE.clone()
    variance_E = covariance_EE.diagonal().clone()
    negligible_E = variance_E * _NEGLIGIBLE
    product_ED = covariance_EE @ output_ED  # the covariance of each channel with the output, in the metric
    gain_E = (product_ED**2).sum(dim=1)
    order: list[int] = []
    available_E = variance_E > 0
    columns_EP = torch.zeros(inner, _PANEL, dtype=torch.float64)
    rows_PD = torch.zeros(_PANEL, output_ED.shape[1], dtype=torch.float64)
    filled = 0
    while len(order) < inner:
        available_E &= variance_E > negligible_E
        if not bool(available_E.any()):
            break
        score_E = torch.where(available_E, gain_E / variance_E.clamp(min=1e-300), -torch.inf)
        channel = int(score_E.argmax())
        scale = float(variance_E[channel]) ** 0.5
        # Column of the covariance, and row of the product, after regression on the channels selected so far.
        column_E = covariance_EE[:, channel] - columns_EP[:, :filled] @ columns_EP[channel, :filled]
        column_E /= scale
        row_D = (product_ED[channel] - columns_EP[channel, :filled] @ rows_PD[:filled]) / scale
        along_E = product_ED @ row_D - columns_EP[:, :filled] @ (rows_PD[:filled] @ row_D)
        reduction = float(row_D @ row_D)
        gain_E += column_E * (reduction * column_E - 2 * along_E)
        variance_E -= column_E**2
        columns_EP[:, filled], rows_PD[filled] = column_E, row_D
        filled += 1
        available_E[channel] = False
        order.append(channel)
        if filled == _PANEL:
            covariance_EE -= columns_EP @ columns_EP.t()
            product_ED -= columns_EP @ rows_PD
            gain_E, variance_E = (product_ED**2).sum(dim=1), covariance_EE.diagonal().clone()
            filled = 0
    score_E = gain_E.clamp(min=0) / variance_E.clamp(min=1e-300)
    score_E = torch.where(variance_E > negligible_E, score_E, -1.0)
    chosen = set(order)
    rest = torch.argsort(score_E, descending=True, stable=True).tolist()
    return torch.tensor([*order, *(channel for channel in rest if channel not in chosen)])


def forward_selection_of_heads(moments: Moments, weight_DE: Tensor, heads: int) -> Tensor:
    """The heads of an attention (heads,), the most useful first, by the weight of its output projection. Heads that
    are constant, or linearly dependent on those before them, come last.
    """
    size = weight_DE.shape[1] // heads
    covariance_EE = moments.covariance_EE.clone()
    variance_E = covariance_EE.diagonal()
    # Constant channels need a ridge, too.
    ridge_E = variance_E.clamp(min=max(1e-200, float(variance_E.max()) * _NEGLIGIBLE)) * _NEGLIGIBLE
    product_ED = covariance_EE @ weight_DE.double().t() @ root_of(moments.metric_DD)
    order: list[int] = []
    while len(order) < heads:
        best, most = -1, -1.0
        for head in sorted({*range(heads)} - {*order}):
            own = slice(head * size, (head + 1) * size)
            # What the head explains beyond those selected so far.
            explained_SD = product_ED[own]
            solved_SD = torch.linalg.solve(covariance_EE[own, own] + ridge_E[own].diag(), explained_SD)
            if (gain := float((explained_SD * solved_SD).sum())) > most:
                best, most = head, gain
        own = slice(best * size, (best + 1) * size)
        slope_SE = torch.linalg.solve(covariance_EE[own, own] + ridge_E[own].diag(), covariance_EE[own])
        product_ED = product_ED - slope_SE.t() @ product_ED[own]
        covariance_EE = covariance_EE - slope_SE.t() @ covariance_EE[own]
        order.append(best)
    return torch.tensor(order)


def root_of(metric_DD: Tensor) -> Tensor:
    """A matrix R (D, D) with R R' = the metric, so that |v R|^2 is the size of v in it."""
    values_D, vectors_DD = torch.linalg.eigh(metric_DD)
    return vectors_DD * values_D.clamp(min=0).sqrt()

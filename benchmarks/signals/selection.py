"""Whether backward elimination, or swaps after forward selection, keep better channels than forward selection.

All of them minimise the same error of a block's output (`supernet.order.reconstruction`). Backward elimination starts
from all channels and drops, at every step, the one that increases the error least; like forward selection it gives one
order for all widths. Swaps (as in OSSCAR, Meng et al., 2024) start from the channels that forward selection keeps at
one width: as long as that reduces the error, one of the channels that are missed least is exchanged for the best one of
the others. The result is for this width alone, so its slices are not nested. Errors are those of the lowest block of
each layer, relative to forward selection.

Dimensions are those of `supernet.order.moments`; K channels are kept.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

from benchmarks.measuring import timed
from benchmarks.report import Report
from benchmarks.signals.prepared import prepared_inputs
from nas.config.load import load_config
from supernet.order.moments import BlockMoments, block_moments
from supernet.order.reconstruction import forward_selection

# Each swap drops one of the DROPPED channels that are missed least; there are at most SWAPS swaps.
DROPPED, SWAPS = 6, 60
# The ridge, relative to the mean variance of the channels, without which the regression on all channels is undefined.
RIDGE = 1e-9


@dataclass(frozen=True)
class Regression:
    """What any set of channels explains of a block's output.

    Attributes:
        covariance_EE: of the channels.
        product_ED: the covariance of the channels with the output, in the metric of the loss.
        total: twice the error without any channel.
    """

    covariance_EE: Tensor
    product_ED: Tensor
    total: float

    @classmethod
    def of(cls, moments: BlockMoments, weight_DE: Tensor) -> "Regression":
        """That of a block whose `project` has this weight."""
        values_D, vectors_DD = torch.linalg.eigh(moments.metric_DD)
        output_ED = weight_DE.double().t() @ (vectors_DD * values_D.clamp(min=0).sqrt())
        variance = moments.covariance_EE.diagonal().mean()
        covariance_EE = moments.covariance_EE + RIDGE * variance * torch.eye(len(output_ED), dtype=torch.float64)
        product_ED = covariance_EE @ output_ED
        return cls(covariance_EE, product_ED, float((product_ED * output_ED).sum()))

    def error(self, kept: Sequence[int]) -> float:
        """The error that remains if these channels are kept, in nats per token."""
        chosen = list(kept)
        factor_KK = torch.linalg.cholesky(self.covariance_EE[chosen][:, chosen])
        explained_KD = torch.linalg.solve_triangular(factor_KK, self.product_ED[chosen], upper=False)
        return (self.total - float(explained_KD.square().sum())) / 2

    def increases(self, kept: Sequence[int]) -> Tensor:
        """(K,), by how much the error rises if each of these channels is dropped."""
        chosen = list(kept)
        inverse_KK = torch.linalg.inv(self.covariance_EE[chosen][:, chosen])
        solution_KD = inverse_KK @ self.product_ED[chosen]
        return solution_KD.square().sum(dim=1) / inverse_KK.diagonal() / 2

    def gains(self, kept: Sequence[int]) -> Tensor:
        """(E,), by how much the error falls if each channel is added to these; -1 for these and for channels
        that are linear in them.
        """
        chosen = list(kept)
        factor_KK = torch.linalg.cholesky(self.covariance_EE[chosen][:, chosen])
        across_KE = torch.linalg.solve_triangular(factor_KK, self.covariance_EE[chosen], upper=False)
        explained_KD = torch.linalg.solve_triangular(factor_KK, self.product_ED[chosen], upper=False)
        variance_E = self.covariance_EE.diagonal()
        remaining_E = variance_E - across_KE.square().sum(dim=0)
        remaining_ED = self.product_ED - across_KE.t() @ explained_KD
        gain_E = remaining_ED.square().sum(dim=1) / remaining_E.clamp(min=1e-300) / 2
        gain_E[remaining_E <= 1e-9 * variance_E] = -1.0
        gain_E[chosen] = -1.0
        return gain_E


def backward_elimination(regression: Regression) -> list[int]:
    """All channels in the order in which they are kept, the one that is dropped last first."""
    inverse_EE = torch.linalg.inv(regression.covariance_EE)
    solution_ED = inverse_EE @ regression.product_ED
    left = torch.arange(len(inverse_EE))
    dropped: list[int] = []
    while len(left):
        place = int((solution_ED.square().sum(dim=1) / inverse_EE.diagonal()).argmin())
        dropped.append(int(left[place]))
        keep = torch.arange(len(left)) != place
        column_E = inverse_EE[keep, place] / inverse_EE[place, place]
        solution_ED = solution_ED[keep] - column_E[:, None] * solution_ED[place]
        inverse_EE = inverse_EE[keep][:, keep] - column_E[:, None] * inverse_EE[place, keep]
        left = left[keep]
    return dropped[::-1]


def swapped(regression: Regression, kept: Sequence[int]) -> tuple[list[int], int]:
    """The channels after swaps, and the number of swaps."""
    chosen, error = list(kept), regression.error(kept)
    for swaps in range(SWAPS):
        for place in regression.increases(chosen).argsort()[:DROPPED].tolist():
            without = chosen[:place] + chosen[place + 1 :]
            candidate = [*without, int(regression.gains(without).argmax())]
            if (smaller := regression.error(candidate)) < error * (1 - 1e-6):
                chosen, error = candidate, smaller
                break
        else:
            return chosen, swaps
    return chosen, SWAPS


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--widths", type=int, nargs="+", default=[24, 48, 96, 192], help="default: 24 48 96 192")


def run(options: Namespace, report: Report) -> None:
    config = load_config(options.preset)
    _, inputs = prepared_inputs(config)
    moments = block_moments(inputs.model, inputs.batches, inputs.sampled_loss)
    results = []
    for layer, (of_layer, blocks) in enumerate(zip(moments, inputs.blocks, strict=True)):
        weight_DE = blocks[0].project.weight.detach().cpu()
        regression = Regression.of(of_layer[0], weight_DE)
        selection, selecting = timed(lambda: forward_selection(of_layer[0], weight_DE, max(options.widths)))  # noqa: B023
        forward = selection.order_E.tolist()
        backward, eliminating = timed(lambda: backward_elimination(regression))  # noqa: B023
        for width in options.widths:
            (kept, swaps), swapping = timed(lambda: swapped(regression, forward[:width]))  # noqa: B023
            errors = {
                "forward": regression.error(forward[:width]),
                "backward": regression.error(backward[:width]),
                "swapped": regression.error(kept),
            }
            seconds = {"forward": selecting, "backward": eliminating, "swapped": swapping}
            results.append({"layer": layer, "width": width, "errors": errors, "swaps": swaps, "seconds": seconds})
            report.save(results, seeds=[config.seed])
        report.progress(f"layer {layer}")
    rows = []
    for width in options.widths:
        of_width = [row for row in results if row["width"] == width]
        cells = []
        for name in ("backward", "swapped"):
            changes = [100 * (row["errors"][name] / row["errors"]["forward"] - 1) for row in of_width]
            cells.append(f"{mean(changes):+.1f} % ({min(changes):+.1f} % to {max(changes):+.1f} %)")
        rows.append((width, *cells, f"{mean(row['swaps'] for row in of_width):.0f}"))
    report.table(("channels", "backward elimination", "forward selection and swaps", "swaps"), rows)
    seconds = {name: mean(row["seconds"][name] for row in results) for name in results[0]["seconds"]}
    report.note(
        f"seconds for a layer: forward selection {seconds['forward']:.1f}, "
        f"backward elimination {seconds['backward']:.1f}; "
        f"swaps after forward selection {seconds['swapped']:.1f} for each width"
    )

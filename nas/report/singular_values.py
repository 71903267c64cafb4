"""Singular values of a checkpoint's FFN output projections: how much of them a low-rank decomposition would need
(MiniMoE, appendix G, table 12).
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nas.config.schema import ConfigError

# The parts of the largest singular value above which values are counted, as in the paper.
THRESHOLDS = (0.2, 0.1, 0.05)


@dataclass(frozen=True)
class Spectrum:
    """The singular values of one FFN output projection.

    Attributes:
        layer, block, expert: from 1; `block` in the stack of the layer, `expert` None in a dense layer.
        values: relative to the largest one, in descending order.
        shape: of the map, (width, inner width).
    """

    layer: int
    block: int
    expert: int | None
    values: np.ndarray
    shape: tuple[int, int]

    def above(self, threshold: float) -> int:
        """How many values are above this part of the largest one."""
        return int((self.values > threshold).sum())

    def params(self, threshold: float) -> int:
        """The weights of a decomposition with the values above `threshold`, or those of the map itself if it has
        fewer.
        """
        rows, columns = self.shape
        return min(rows * columns, self.above(threshold) * (rows + columns))


def spectra(folder: Path) -> list[Spectrum]:
    """The spectra of all FFN output projections of a checkpoint, in the order of layers, blocks and experts.

    Raises:
        ConfigError: the folder has no weights, or none of FFNs, or they are not finite.
        distill.training.teacher.TeacherError: it is not the checkpoint of an encoder that is supported.
    """
    from safetensors import safe_open

    from distill.encoders.family import family_of
    from distill.training.teacher import load_config

    file = folder / "model.safetensors"
    if not file.exists():
        raise ConfigError(f"{folder} has no {file.name}: give the folder of a checkpoint")
    family = family_of(load_config(str(folder), students=True))
    output = re.compile(re.escape(f"{family.project}.weight").replace(r"\{\}", r"(\d+)"))
    result = []
    with safe_open(file, framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118  (it is not iterable itself)
            parts = family.split(name)
            if parts and (match := output.fullmatch(parts[2])):
                layer, block = parts[1] + 1, int(match[1]) + 1 if match.groups() else 1
                weight = weights.get_tensor(name).float().numpy()
                if not np.isfinite(weight).all():
                    raise ConfigError(f"{file}: {name} is not finite")
                for expert, own in [(None, weight)] if weight.ndim == 2 else enumerate(weight, start=1):
                    values = np.linalg.svd(own, compute_uv=False)
                    values /= max(values[0], np.finfo(values.dtype).tiny)
                    result.append(Spectrum(layer, block, expert, values, (own.shape[0], own.shape[1])))
    if not result:
        raise ConfigError(f"{file} has no FFN")
    return sorted(result, key=lambda one: (one.layer, one.block, one.expert or 0))

"""A word embedding of lower rank than the width of the model."""

from torch import Tensor, nn
from torch.nn import functional as F


class LowRankEmbedding(nn.Embedding):
    """A table with rows of size `rank`, and a linear map to the width of the model: ids (...) -> (..., width)."""

    def __init__(self, vocabulary: int, rank: int, width: int, padding_idx: int | None = None) -> None:
        super().__init__(vocabulary, rank, padding_idx)
        self.map = nn.Linear(rank, width, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        words: Tensor = self.map(super().forward(ids))
        return words


class LowRankDecoder(nn.Linear):
    """The output embedding of a masked language model that is tied to a `LowRankEmbedding`, possibly with a bias for
    every token: (..., width) -> (..., vocabulary).
    """

    def __init__(self, vocabulary: int, rank: int, width: int, bias: bool) -> None:
        super().__init__(rank, vocabulary, bias)
        self.map = nn.Linear(rank, width, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return F.linear(hidden_states @ self.map.weight, self.weight, self.bias)

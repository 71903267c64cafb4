"""The kinds of routing from tokens to the experts of a layer.

This module has only the properties that architectures, cost functions and weight initialization need. The router
modules themselves are in `distill.encoders.student.routing.ROUTERS`, under the same names.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoutingKind:
    """The properties of a routing.

    Attributes:
        learned: whether tokens are routed by a learned gate, a linear map from the width to the experts that every
            block of a layer has for itself. Otherwise they are routed by a fixed table from token ids to experts, which
            all blocks of a layer share.
        by_sentence: whether the gate decides once for each sentence, so that all of its tokens go to the same experts.
        needs_frequencies: whether the table is computed from the frequencies of the token ids in training data.
    """

    learned: bool
    by_sentence: bool = False
    needs_frequencies: bool = False

    def __post_init__(self) -> None:
        if self.by_sentence and not self.learned:
            raise ValueError(
                "by_sentence: a table decides by the token's id, so only a gate can decide by the sentence"
            )
        if self.needs_frequencies and self.learned:
            raise ValueError("needs_frequencies: a gate is learned; only a table can be made from frequencies")


ROUTINGS: dict[str, RoutingKind] = {
    "hash": RoutingKind(learned=False),
    "balanced_hash": RoutingKind(learned=False, needs_frequencies=True),
    "token_gate": RoutingKind(learned=True),
    "sentence_gate": RoutingKind(learned=True, by_sentence=True),
}

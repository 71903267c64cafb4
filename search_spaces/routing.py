"""The ways in which tokens are sent to the experts of a layer, as far as everything that does not compute them has to
know: what an architecture may say, what it costs, and how its weights start.

The modules that route are `supernet.model.routing.ROUTERS`, under the same names.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RoutingKind:
    """The properties of a routing.

    Attributes:
        learned: a gate, a linear map from the width to the experts, decides; every block of a layer has its own. If
            not, a fixed table from token ids to experts decides, and all blocks of a layer share it.
        by_sentence: all tokens of a sentence go to the same experts, by one decision of the gate.
        needs_frequencies: the table is made from the frequencies of the token ids in training data.
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

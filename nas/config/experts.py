"""Which settings go together with experts of the attention and of the head as genes of a search."""

from collections.abc import Mapping, Sequence


def problem_of_experts(
    counts: Mapping[str, Sequence[int]], measured: str, evaluations: Mapping[str, str], start: str, widths: bool
) -> str:
    """Why a study cannot search these numbers of experts in attention and head; empty if it can.

    Args:
        counts: the keys `attention_experts` and `head_experts` of the space.
        measured: the key of the configuration because of which latencies are measured; empty if they are not.
        evaluations: the name of each stage with its evaluation.
        start: where the student of the final training starts, `final.start`.
        widths: whether there are `one_shot.widths`.
    """
    for name, values in counts.items():
        if measured and len(values) > 1:
            return (
                f"space.{name}: {measured} is measured for a single number of them: give one, or limit max_macs instead"
            )
    if max(counts["head_experts"]) > 1:
        for name, evaluation in evaluations.items():
            if evaluation != "trained":
                why = "start with random weights" if evaluation == "untrained" else "are not in the one-shot supernet"
                return f'space.head_experts: prediction layers {why}: set {name}.evaluation = "trained"'
        if start == "one_shot":
            return "space.head_experts: prediction layers are not in the one-shot supernet: set another final.start"
    if max(counts["attention_experts"]) > 1 and widths:
        return "space.attention_experts: no step with one_shot.widths trains several of them: leave out one_shot.widths"
    return ""

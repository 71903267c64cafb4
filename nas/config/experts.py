"""Which settings go together with experts of the attention and of the head as genes of a search."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nas.config.schema import StudyConfig


def problem_of_experts(config: "StudyConfig") -> str:
    """Why the study cannot search these numbers of experts in attention and head; empty if it can."""
    counts: Mapping[str, tuple[int, ...]] = {
        "attention_experts": config.space.attention_experts,
        "head_experts": config.space.head_experts,
    }
    measured = (
        "space.max_latency" if config.space.max_latency is not None
        else "goals: latency" if "latency" in config.goals
        else "keep.cost" if config.keep is not None and config.keep.cost == "latency"
        else ""
    )  # fmt: skip
    for name, values in counts.items():
        if measured and len(values) > 1:
            return (
                f"space.{name}: {measured} is measured for a single number of them: give one, or limit max_macs instead"
            )
    if max(config.space.head_experts) > 1:
        for name in ("stage1", "stage2", "stage3"):
            evaluation = getattr(config, name).evaluation
            if evaluation != "trained":
                why = "start with random weights" if evaluation == "untrained" else "are not in the one-shot supernet"
                return f'space.head_experts: prediction layers {why}: set {name}.evaluation = "trained"'
        if config.final.start == "shared":
            return "space.head_experts: prediction layers are not in the one-shot supernet: set another final.start"
    if max(config.space.attention_experts) > 1 and config.sharing.widths:
        return "space.attention_experts: no step with sharing.widths trains several of them: leave out sharing.widths"
    return ""

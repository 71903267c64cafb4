"""How the graphs of a random architecture are drawn: near the base graph, or as EfficientBERT's released code does.

A `Draw` makes one random choice for a parameter of a space's `suggest`, whose name starts with that of a layer.
"""

import random
from collections.abc import Callable, Mapping, Sequence

from search_spaces.operations import BINARY, UNARY
from search_spaces.spelling import NONE, PLAIN

Draw = Callable[[str, Sequence[str], random.Random], str]

NEAR, RELEASED = "near", "released"
DRAWS = (NEAR, RELEASED)
SEGMENTS = ("pre", "mid", "post")
# In the released code a layer's graph is an expression tree to which genetic programming applies four mutations,
# again and again until one of 1,000 results is valid. Of 5,200 trees that it draws in stage 1, so many percent differ
# from the base graph in these segments: in none (-), by another unary operation (u), or by a binary one (b).
FREQUENCIES = {
    ("u", "-", "-"): 25.6,
    ("-", "-", "u"): 25.2,
    ("u", "u", "-"): 10.8,
    ("-", "u", "u"): 10.6,
    ("-", "b", "-"): 9.8,
    ("-", "-", "-"): 6.9,
    ("-", "-", "b"): 3.3,
    ("u", "-", "u"): 1.9,
    ("b", "-", "-"): 1.4,
    ("-", "u", "b"): 1.4,
    ("-", "u", "-"): 1.0,
    ("u", "b", "-"): 0.8,
    ("u", "u", "u"): 0.8,
    ("b", "u", "-"): 0.3,
    ("u", "-", "b"): 0.2,
}


def near(start: Mapping[str, str], mutation_rate: float) -> Draw:
    """With probability 1 - mutation_rate a choice is the start's if there is one, else the base graph's, which is the
    first of the choices; otherwise all are equally likely.

    Args:
        start: the choices that define the graphs of the start; empty if there is none.
    """

    def draw(name: str, choices: Sequence[str], rng: random.Random) -> str:
        default = start.get(name, choices[0] if name.endswith("/op") else None)
        if default is None:
            return rng.choice(choices)
        others = [choice for choice in choices if choice != default]
        return rng.choice(others) if rng.random() < mutation_rate else default

    return draw


def released(start: Mapping[str, str], activation: str) -> Draw:
    """The draws for one architecture: every layer has the base graph or, as often, the start's, but for the segments
    that FREQUENCIES says. There, operations are uniform; a binary one combines the segment's input with `x`, both as
    they are, except that the activation of `mid` stays, before or after it.

    Args:
        start: see `near`.
        activation: of the base graph.
    """
    layers: dict[str, tuple[dict[str, str], Mapping[str, str], bool]] = {}

    def draw(name: str, choices: Sequence[str], rng: random.Random) -> str:
        layer, segment, *rest = name.split("/")
        if layer not in layers:
            kinds = rng.choices(list(FREQUENCIES), list(FREQUENCIES.values()))[0]
            seed = start if rng.random() < 0.5 else {}
            layers[layer] = dict(zip(SEGMENTS, kinds, strict=True)), seed, rng.random() < 0.5
        kinds_of, seed, activated_first = layers[layer]
        kind, default = kinds_of[segment], seed.get(name)
        if kind == "-" and default is not None and default in choices:
            return default
        if rest in (["op"], ["unary", "op"]):
            others = [choice for choice in choices if choice not in (NONE, default or choices[0])]
            wanted = [choice for choice in others if (choice in BINARY) == (kind == "b")]
            return choices[0] if kind == "-" else rng.choice(wanted or others)
        if rest[-1] == "op":
            return choices[0]
        if segment == "mid" and rest == (["left"] if activated_first else ["outer"]):
            kept = seed.get(f"{layer}/mid/op", activation)
            return kept if kept in UNARY else activation
        if PLAIN in choices:
            return PLAIN
        return "x" if "x" in choices else rng.choice(choices)

    return draw

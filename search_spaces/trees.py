"""The grammar of graphs whose binary operations may be nested, as in EfficientBERT's released code.

There a graph is an expression tree whose height is limited: the number of operations on its longest path, 3 for
`project(gelu(expand(x)))`. Here it has the segments of `search_spaces.grammar`, but the arguments of a binary operation
may be binary operations themselves, in any depth that the height leaves room for, each with an activation of its
result: `mul(add(x,tanh(x)),x)`. The leaves of these trees are `x` and the segment's input, in `mid` also the gate, with
an activation or without.

All released trees up to the height can be expressed, except for those with both linear maps in parallel, and up to the
order of arguments: an argument that contains the segment's input is the first one. Beyond them, a segment may use its
input several times. As in the released code, two equal arguments are allowed if they are binary operations themselves.

No operation is chosen that the height leaves no room for, so any choices give a graph. Every graph is spelled in one
way.
"""

from collections.abc import Mapping
from typing import NamedTuple

from search_spaces.operations import BINARY, UNARY
from search_spaces.spelling import NONE, OWN, PLAIN, GraphTrial, activation_of, activations

# The heights that EfficientBERT's released code allows. A tree of height 7 has at most 255 terms, and `FFNGraph` allows
# more (`MAX_TERMS`), so it refuses none.
MIN_HEIGHT, MAX_HEIGHT = 3, 7


class Value(NamedTuple):
    """The formula of a value and its height."""

    text: str
    height: int

    def after(self, op: str) -> "Value":
        """The value of an operation with one argument on this one."""
        return Value(f"{op}({self.text})", self.height + 1)


# The leaves of a segment's trees by their names: OWN, the segment's input, and earlier values.
Leaves = Mapping[str, Value]
X = Value("x", 0)


def suggest_tree(trial: GraphTrial, name: str, activation: str, gated: bool, max_height: int) -> str:
    """The formula that a trial's choices define, see `search_spaces.grammar.suggest_graph`."""
    pre = _suggest_segment(trial, f"{name}/pre", NONE, {OWN: X}, max_height - 3)
    leaves = {OWN: pre.after("expand"), "x": X} | ({"gate": pre.after("gate")} if gated else {})
    mid = _suggest_segment(trial, f"{name}/mid", activation, leaves, max_height - 1)
    return _suggest_segment(trial, f"{name}/post", NONE, {OWN: mid.after("project"), "x": X}, max_height).text


def count_trees(gated: bool, max_height: int) -> int:
    """The number of formulas that `suggest_tree` can return."""
    total = 0
    for pre, ways in _by_height(0, (), max_height - 3).items():
        others = (0, pre + 1) if gated else (0,)
        for mid, ways_of_mid in _by_height(pre + 1, others, max_height - 1).items():
            if mid == pre + 1:
                ways_of_mid -= 1  # the segment's input alone
            total += ways * ways_of_mid * _count(mid + 1, (0,), max_height)[0]
    return total


def _suggest_segment(trial: GraphTrial, name: str, first: str, leaves: Leaves, limit: int) -> Value:
    """A segment of at most the height `limit`; `first` is its operation in the base graph."""
    own = leaves[OWN]
    if own.height == limit:
        return own
    operations = [first, *(op for op in (*UNARY, *BINARY) if op != first)]
    if not _joins(OWN, leaves, limit):
        name_of_op, operations = f"{name}/unary/op", [op for op in operations if op not in BINARY]
    else:
        name_of_op = f"{name}/op"
    op = trial.suggest_categorical(name_of_op, tuple(operations))
    if op in BINARY:
        return _suggest_binary(trial, name, op, OWN, leaves, limit)
    return own if op == NONE else own.after(op)


def _suggest_binary(trial: GraphTrial, name: str, op: str, first: str, leaves: Leaves, limit: int) -> Value:
    """A binary operation of at most the height `limit`, activated or not, whose first leaf is the one of this name."""
    left, leaf = _suggest_left(trial, f"{name}/left", first, leaves, limit - 1)
    right = _suggest_right(trial, f"{name}/right", leaf, leaves, limit - 1)
    joined = Value(f"{op}({left.text},{right.text})", 1 + max(left.height, right.height))
    return _suggest_activation(trial, f"{name}/outer", joined, limit)


def _suggest_activation(trial: GraphTrial, name: str, value: Value, limit: int, different: str | None = None) -> Value:
    """The value with an activation or without, if there is room for one; `different` is excluded."""
    choices = _activations(value, limit, different)
    chosen = choices[0] if value.height == limit else trial.suggest_categorical(name, choices)
    return value if chosen == PLAIN else value.after(chosen)


def _activations(value: Value, limit: int, different: str | None = None) -> tuple[str, ...]:
    """The activations of a value for which there is room, except for `different`."""
    return tuple(
        activation
        for activation in (activations() if value.height < limit else (PLAIN,) * (value.height == limit))
        if activation != different
    )


def _suggest_left(
    trial: GraphTrial, name: str, first: str, leaves: Leaves, limit: int
) -> tuple[Value, tuple[str, str] | None]:
    """The first argument of a binary operation, and the leaf and the activation that it is unless it is nested."""
    if _joins(first, leaves, limit):
        op = trial.suggest_categorical(f"{name}/op", (NONE, *BINARY))
        if op != NONE:
            return _suggest_binary(trial, name, op, first, leaves, limit), None
    value = _suggest_activation(trial, name, leaves[first], limit)
    activation = activation_of(value.text, leaves[first].text)
    assert activation is not None
    return value, (first, activation)


def _suggest_right(trial: GraphTrial, name: str, left: tuple[str, str] | None, leaves: Leaves, limit: int) -> Value:
    """The second argument of a binary operation, which differs from the leaf and activation `left`."""
    if nestable := tuple(leaf for leaf in leaves if _joins(leaf, leaves, limit)):
        op = trial.suggest_categorical(f"{name}/op", (NONE, *BINARY))
        if op != NONE:
            first = _suggest_leaf(trial, f"{name}/of", nestable)
            return _suggest_binary(trial, name, op, first, leaves, limit)
    excluded = {} if left is None else dict([left])
    names = tuple(leaf for leaf, value in leaves.items() if _activations(value, limit, excluded.get(leaf)))
    leaf = _suggest_leaf(trial, name, names)
    different = excluded.get(leaf)
    name_of_activation = f"{name}/{leaf}" if different is None else f"{name}/{leaf}-not-{different}"
    return _suggest_activation(trial, name_of_activation, leaves[leaf], limit, different)


def _suggest_leaf(trial: GraphTrial, name: str, names: tuple[str, ...]) -> str:
    return trial.suggest_categorical(f"{name}/{'-'.join(names)}", names) if len(names) > 1 else names[0]


def _joins(first: str, leaves: Leaves, limit: int) -> bool:
    """Whether a binary operation of at most the height `limit` can have this leaf as its first one."""
    room = limit - 1 - leaves[first].height
    others = (value for name, value in leaves.items() if name != first)
    return room > 0 or (room == 0 and any(value.height < limit for value in others))


def _by_height(own: int, others: tuple[int, ...], limit: int) -> dict[int, int]:
    """For every height up to `limit` the number of segments of exactly this height, given those of the leaves."""
    counts = {height: _count(own, others, height)[0] for height in range(own - 1, limit + 1)}
    return {height: counts[height] - counts[height - 1] for height in range(own, limit + 1)}


def _count(own: int, others: tuple[int, ...], limit: int) -> tuple[int, int]:
    """The number of arguments of at most the height `limit` whose first leaf is of height `own`, and that of all
    arguments. A segment is like an argument that begins with its input.
    """
    if limit < 0:
        return 0, 0

    def leaves(*heights: int) -> int:
        return sum((height <= limit) + len(UNARY) * (height < limit) for height in heights)

    plain, activated = (_count_binary(own, others, height) for height in (limit, limit - 1))
    first, every = (plain[number] + len(UNARY) * activated[number] for number in (0, 1))
    return leaves(own) + first, leaves(own, *others) + every


def _count_binary(own: int, others: tuple[int, ...], limit: int) -> tuple[int, int]:
    """As `_count`, of binary operations without an activation of their result."""
    first, every = _count(own, others, limit - 1)
    equal = [(height < limit) + len(UNARY) * (height < limit - 1) for height in (own, *others)]
    return len(BINARY) * (first * every - equal[0]), len(BINARY) * (every * every - sum(equal))

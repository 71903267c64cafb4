"""Objectives on the self-attention relations of a single layer: MiniLM, MiniLMv2 and MiniMoE."""

import math
from typing import Any

from torch import Tensor, nn

from distill.encoders.heads import UNKNOWN, Heads, heads_of, select_heads
from distill.objectives import losses, terms
from distill.objectives.base import Objective, Term, sum_of
from distill.objectives.heads import OTHERS, check_any, check_heads, places
from distill.objectives.outputs import HIDDEN_STATES, RELATIONS, Batch, Outputs, of_layers

NAMES = ("query", "key", "value")


def minilm(
    student: Any,
    teacher: Any,
    *,
    attention: float = 1.0,
    values: float = 1.0,
    labels: float = 0.0,
    balance: float = 0.0,
    teacher_layer: int = 0,
) -> Objective:
    """MiniLM's objective (Wang et al., 2020, sections 3.1 and 3.2): attention L_AT + values L_VR,

        L_AT = KL(A of the teacher || A of the student), A = softmax(Q K^T / sqrt(width / H)),
        L_VR = KL(R of the teacher || R of the student), R = softmax(V V^T / sqrt(width / H)),

    of the H heads of the last layers, (B, H, T, T); mean over heads and valid query rows, without keys of padding. The
    paper averages over the rows of each sentence separately, which is the same for sentences of equal length, as in its
    pre-training.

    A student with fewer heads in its last layer compares each of them with the same head of the teacher's layer, and H
    in the mean is their number.

    Args:
        attention, values: weights.
        labels: weight of the loss with labels; the paper distills without.
        teacher_layer: the teacher's layer, counted from 1; 0 is the last, as in the paper.

    Raises:
        ValueError: the models have different numbers of heads, the student's last layer has none, or the teacher's
            lacks one of them; or the teacher has no such layer.
    """
    heads = teacher.num_attention_heads
    if student.num_attention_heads != heads:
        raise ValueError(
            f"minilm needs equal head counts: student {student.num_attention_heads}, teacher {heads}; "
            f"give the student {heads} heads, or take minilmv2, whose relation heads are independent of them"
        )
    needs, (teacher_needs, number, taught) = frozenset({RELATIONS}), _taught(teacher_layer, teacher)
    if attention or values:
        check_heads(student, teacher, student.num_hidden_layers, number, "minilm")

    def attention_loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        (student_q, student_k, _), (teacher_q, teacher_k, _), kept = _of_same_heads(s, t, taught, "minilm")
        return losses.attention_kl((student_q, student_k), (teacher_q, teacher_k), batch["attention_mask"], kept)

    def value_loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        (*_, student_v), (*_, teacher_v), kept = _of_same_heads(s, t, taught, "minilm")
        return losses.relation_kl(student_v, teacher_v, batch["attention_mask"], kept)

    return Objective(
        [
            Term("attention", attention, needs, attention_loss, teacher_needs, by_heads=True),
            Term("values", values, needs, value_loss, teacher_needs, by_heads=True),
            terms.labels(labels),
            terms.balance(balance),
        ]
    )


def minilmv2(
    student: Any,
    teacher: Any,
    *,
    relation: float = 1.0,
    labels: float = 0.0,
    balance: float = 0.0,
    relation_heads: int = 48,
    teacher_layer: int = 0,
) -> Objective:
    """MiniLMv2's objective (Wang et al., 2021, section 3):

        sum over A in {query, key, value} of KL(rel(A of the teacher) || rel(A of the student)),
        rel(A) = softmax(A A^T / sqrt(width / R)) in each of R relation heads, (B, R, T, T),

    mean over relation heads and valid query rows, without keys of padding. The student's A are those of its last layer,
    so the feed-forward network or experts of that layer learn nothing from this objective.

    If the student has k of its teacher's H heads there, A of both models are the channels of these heads, in the
    teacher's order. They are divided into R k / H relation heads, which have as many channels as the R of all heads; if
    that is no whole number, each of the k heads is a relation head. If the models have different numbers of heads, or
    the student's configuration does not say which ones it has kept, A of each model is all that it has, divided into R.

    Args:
        relation: weight of the relations.
        labels: weight of the loss with labels; the paper distills without.
        relation_heads: R, 48 for base teachers, 64 for large ones.
        teacher_layer: the teacher's layer, counted from 1; 0 is the last, the paper's choice for base teachers. For
            large teachers the paper uses an earlier one, 21 of BERT-large's 24.

    Raises:
        ValueError: R does not divide both widths, the student's last layer has no heads or the teacher's lacks one of
            them, or the teacher has no such layer.
    """
    needs, number, taught = _taught(teacher_layer, teacher)
    own, most = heads_of(student)[-1], teacher.num_attention_heads
    same = student.num_attention_heads == most and UNKNOWN not in own + taught
    if relation:
        check_any(own, "student", student.num_hidden_layers, "minilmv2")
        check_any(taught, "teacher", number, "minilmv2", f"take another teacher_layer, or {OTHERS}")
        if same:
            check_heads(student, teacher, student.num_hidden_layers, number, "minilmv2")
    sides = ((student, most if same else len(own)), (teacher, most if same else len(taught)))
    _check_relation_heads(relation_heads, *(_channels(model, heads) for model, heads in sides))

    def relation_loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        if not same:
            _check_last_layer(s, "minilmv2")
            return _relations(s.relations, t.relations, batch, relation_heads)
        student_states, teacher_states, kept = _of_same_heads(s, t, taught, "minilmv2")
        whole, rest = divmod(relation_heads * kept, most)
        return _relations(student_states, teacher_states, batch, kept if rest else whole)

    relations = Term("relation", relation, frozenset({RELATIONS}), relation_loss, needs, by_heads=True)
    return Objective([relations, terms.labels(labels), terms.balance(balance)])


def minimoe(
    student: Any,
    teacher: Any,
    *,
    relation: float = 1.0,
    labels: float = 0.0,
    balance: float = 0.01,
    relation_heads: int = 32,
    teacher_layer: int = 0,
) -> Objective:
    """MiniMoE's objective, section 3.2, on the relations of `minilmv2`:

        mean over A in {query, key, value} of KL(rel(A of the teacher) || rel(A of the student)),

    averaged over relation heads and valid query rows. The student's A come from an auxiliary block on its last hidden
    state: three linear maps that are trained with the student and not exported. This way the experts of the last layer
    learn too, and it does not matter which heads the student has.

    The paper sums over the three A, which corresponds to `relation=3`, and divides by width / R without the square
    root. The released code uses mean and square root as here, but applies dropout to the student's probabilities, adds
    1e-7 to the probabilities of both models, and adds -10,000 to the scores of masked keys.

    Args:
        labels: weight of the loss with labels; the paper distills without.
        relation_heads: R.
        teacher_layer: the teacher's layer, counted from 1; 0 is the last, as in the paper and the released code.

    Raises:
        ValueError: R does not divide both widths, or the teacher has no such layer, or no heads there.
    """
    needs, number, taught = _taught(teacher_layer, teacher)
    if relation:
        check_any(taught, "teacher", number, "minimoe", f"take another teacher_layer, or {OTHERS}")
    _check_relation_heads(relation_heads, student.hidden_size, _channels(teacher, len(taught)))
    auxiliary: dict[str, nn.Module] = {name: nn.Linear(student.hidden_size, student.hidden_size) for name in NAMES}

    def relation_loss(s: Outputs, t: Outputs, batch: Batch) -> Tensor:
        student_relations = tuple(auxiliary[name](s.hidden_states[-1]) for name in NAMES)
        return _relations(student_relations, t.relations, batch, relation_heads) / len(NAMES)

    relations = Term("relation", relation, frozenset({HIDDEN_STATES}), relation_loss, needs, by_heads=True)
    return Objective([relations, terms.labels(labels), terms.balance(balance)], auxiliary)


def _relations(student: tuple[Tensor, ...], teacher: tuple[Tensor, ...], batch: Batch, heads: int) -> Tensor:
    _check_relation_heads(heads, student[0].shape[-1], teacher[0].shape[-1])
    pairs = zip(student, teacher, strict=True)
    return sum_of(losses.relation_kl(a, b, batch["attention_mask"], heads) for a, b in pairs)


def _of_same_heads(
    s: Outputs, t: Outputs, taught: Heads, what: str
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], int]:
    """Query, key and value of the student, with its heads in the teacher's order; those of the same heads of the
    teacher's layer; and how many heads these are.

    Args:
        taught: the heads of that layer.
    """
    _check_last_layer(s, what)
    chosen = places(s, len(s.heads), taught)
    if chosen is None:
        return s.relations, t.relations, len(taught)
    order = sorted(range(len(chosen)), key=chosen.__getitem__)
    student = tuple(select_heads(state, order, len(chosen)) for state in s.relations)
    return student, tuple(select_heads(state, sorted(chosen), len(taught)) for state in t.relations), len(chosen)


def _check_last_layer(s: Outputs, what: str) -> None:
    """Raise ValueError if the student, as a slice of a one-shot supernet may, has no heads in its last layer."""
    if s.heads:
        check_any(s.heads[-1], "student", len(s.heads), what)


def _channels(config: Any, heads: int) -> int:
    return int(config.hidden_size * heads // config.num_attention_heads)


def _taught(layer: int, teacher: Any) -> tuple[frozenset[str], int, Heads]:
    """The names of the needed teacher outputs, the relations of this layer, or of the last one if `layer` is 0; the
    number of that layer; and its heads.
    """
    layers = teacher.num_hidden_layers
    if not 0 <= layer <= layers:
        raise ValueError(f"teacher_layer={layer}: the teacher has {layers} layers: 1 to {layers}, or 0, the last")
    needs = frozenset({RELATIONS}) if layer in (0, layers) else of_layers(RELATIONS, [layer])
    return needs, layer or layers, heads_of(teacher)[(layer or layers) - 1]


def _check_relation_heads(relation_heads: int, student_channels: int, teacher_channels: int) -> None:
    if relation_heads < 1 or student_channels % relation_heads or teacher_channels % relation_heads:
        common = math.gcd(student_channels, teacher_channels)
        fitting = ", ".join(str(number) for number in range(1, common + 1) if common % number == 0)
        raise ValueError(
            f"relation_heads={relation_heads} must divide the student's {student_channels} channels and the teacher's "
            f"{teacher_channels}: choose one of {fitting}"
        )

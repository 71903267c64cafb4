"""Real parameter counts against the closed form, and supernets that compute what their teachers compute."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from distill.encoders.student.expert_linear import ExpertLinear, RoutedLinear
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, run
from distill.training.teacher import TeacherError
from search_spaces import PUBLISHED, Architecture, Attention, Experts, Layer, cost
from supernet.build import ACTIVATIONS, base_of_teacher, build, config_of, from_teacher, layer_output_statistics
from tests.search_spaces import strategies
from tests.tiny import BASE, architectures, bases, batch, bert

EVERYTHING = frozenset({HIDDEN_STATES, ATTENTION_SCORES})


def drawn(count: int) -> Iterator[Architecture]:
    for seed, base in enumerate(islice(bases(), count)):
        yield next(architectures(1, base, seed))


ORDERS = [[2, 0, 3, 1], [0, 1, 2, 3], [3, 1, 0, 2]]
FEW, MANY = [[1], [], [0, 3]], [[2, 1, 0], [3, 0], [0, 3, 1]]


@pytest.mark.parametrize(
    ("template", "counts", "expected"),
    [
        # Of a teacher, or of a supernet that does not say so, the leading ones in the teacher's order.
        ("teacher", (4, 4, 4), None),
        ("teacher", (2, 0, 4), [[0, 1], [], [0, 1, 2, 3]]),
        ("supernet", (2, 0, 4), [[0, 1], [], [0, 1, 2, 3]]),
        # Of a supernet with sorted heads the leading ones of its order.
        (ORDERS, (4, 4, 4), ORDERS),
        (ORDERS, (2, 0, 3), [[2, 0], [], [3, 1, 0]]),
        ([ORDERS[1]] * 3, (4, 4, 4), None),
        # Of a pruned student those that it has.
        (FEW, (1, 0, 2), FEW),
        (MANY, (1, 2, 3), [[2], [3, 0], [0, 3, 1]]),
        # What the template does not have, or does not say, is unknown.
        (FEW, (4, 4, 4), None),
        (FEW, (2, 0, 2), None),
        ("old", (1, 0, 2), None),
        ("none", (1, 0, 2), None),
        ("other heads", (1, 0, 2), None),
        # Layers of a shallower supernet are repeated, as their weights are.
        ([[2, 0, 3, 1]], (4, 2, 1), [[2, 0, 3, 1], [2, 0], [2]]),
        (ORDERS[:2], (4, 2, 1), None),
        ([*ORDERS, *ORDERS], (4, 2, 1), None),
    ],
)
def test_the_heads_of_a_student(template: object, counts: tuple[int, ...], expected: object) -> None:
    architecture = Architecture.uniform(BASE)
    config = {
        "none": lambda: None,
        "other heads": lambda: bert(num_attention_heads=8).config,
        "teacher": lambda: bert(num_hidden_layers=3).config,
    }.get(template if isinstance(template, str) else "", lambda: config_of(architecture))()
    if template == "old":
        config.attention_heads = [1, 0, 2]
    elif isinstance(template, list):
        config.num_hidden_layers, config.kept_heads = len(template), template
        config.attention_heads = list(map(len, template))
    layers = (Layer(Attention(count), ffn) for count, ffn in zip(counts, architecture.ffns, strict=True))
    student = build(Architecture(BASE, tuple(layers)), template=config)
    assert student.config.kept_heads == expected
    assert student.config.attention_heads == (None if counts == (4, 4, 4) else list(counts))


def test_each_layer_of_a_deeper_student_has_the_heads_of_the_one_that_it_repeats() -> None:
    config = config_of(Architecture.uniform(BASE))
    config.kept_heads = ORDERS
    deeper = config_of(Architecture.uniform(replace(BASE, depth=6)), template=config)
    assert deeper.kept_heads == [order for order in ORDERS for _ in range(2)]


@settings(max_examples=60, deadline=None)
@given(strategies.architectures())
def test_parameters_of_experts(architecture: Architecture) -> None:
    with torch.device("meta"):
        model = build(architecture, num_labels=3)
    idle = 0
    for layer, own in zip(model.bert.encoder.layer, architecture.layers, strict=True):
        for module in layer.modules():
            if isinstance(module, ExpertLinear):
                count, taken = own.ffn.experts.count, own.ffn.experts.top_k
                if isinstance(module, RoutedLinear):  # attention's
                    count, taken = own.attention.experts, 1
                stored = sum(parameter.numel() for parameter in module.parameters())
                assert stored % count == 0
                idle += stored // count * (count - taken)
    if architecture.head.experts > 1:
        stored = sum(
            parameter.numel() for name, parameter in model.classifier.named_parameters() if "router" not in name
        )
        idle += stored // architecture.head.experts * (architecture.head.experts - 1)
    every = sum(parameter.numel() for parameter in model.parameters())
    assert every == cost.params(architecture, 3), architecture
    assert every - idle == cost.params_active(architecture, 3), architecture
    tables = {name: buffer.shape for name, buffer in model.named_buffers() if name.endswith("router.table")}
    prefix = "bert.encoder.layer."
    assert tables == {
        f"{prefix}{layer}.router.table": (architecture.base.vocabulary,)
        for layer, ffn in enumerate(architecture.ffns)
        if ffn.experts.count > 1 and not ffn.experts.gated
    }
    assert tables.keys() <= model.state_dict().keys()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_the_published_architectures(name: str) -> None:
    with torch.device("meta"):
        model = build(PUBLISHED[name], num_labels=3)
    assert sum(parameter.numel() for parameter in model.parameters()) == cost.params(PUBLISHED[name], 3)


def test_configuration_survives_json() -> None:
    mixtures = [
        Architecture.uniform(BASE, experts=Experts(4, Fraction(1), *more), attention_experts=2)
        for more in (("token_gate", 2, Fraction(5, 4)), ("hash",))
    ]
    for architecture in [*drawn(20), *mixtures]:
        config = config_of(architecture, num_labels=4)
        again = type(config).from_dict(config.to_dict())
        assert again.to_dict() == config.to_dict()
        assert [entry["formula"] for entry in again.ffn] == [str(ffn.graph) for ffn in architecture.ffns]


def test_configuration_takes_over_what_no_architecture_says() -> None:
    teacher = bert(labels=5, layer_norm_eps=1e-3, hidden_dropout_prob=0.3, pad_token_id=4).config
    teacher.id2label = dict(enumerate("abcde"))
    config = config_of(next(architectures(1)), template=teacher)
    assert (config.num_labels, config.layer_norm_eps, config.hidden_dropout_prob) == (5, 1e-3, 0.3)
    assert (config.pad_token_id, config.id2label) == (4, teacher.id2label)


def same(
    teacher: torch.nn.Module, student: torch.nn.Module, given: dict[str, Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    with torch.no_grad():
        expected, actual = run(teacher, given, EVERYTHING), run(student.eval(), given, EVERYTHING)
    yield expected.logits, actual.logits
    yield from zip(expected.hidden_states, actual.hidden_states, strict=True)
    yield from zip(expected.attention_scores, actual.attention_scores, strict=True)


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_one_block_is_the_teacher_exactly(act: str) -> None:
    teacher = bert(hidden_act=act, layer_norm_eps=1e-3)
    # The library writes gelu_new out in single operations; the fused one rounds differently.
    tolerance = {"rtol": 1e-4, "atol": 1e-5} if act == "gelu_new" else {"rtol": 0, "atol": 0}
    for expected, actual in same(teacher, from_teacher(teacher, stack=1), batch()):
        torch.testing.assert_close(expected, actual, **tolerance)


def test_the_supernet_shares_no_memory_with_its_teacher() -> None:
    teacher = bert()
    places = {parameter.untyped_storage().data_ptr() for parameter in teacher.parameters()}
    student = from_teacher(teacher, stack=1)
    assert places.isdisjoint(parameter.untyped_storage().data_ptr() for parameter in student.parameters())


def test_further_blocks_are_the_identity_where_all_tokens_have_the_same_statistics() -> None:
    teacher = bert()
    for name, parameter in teacher.named_parameters():
        if name.endswith(".output.LayerNorm.weight"):
            torch.nn.init.constant_(parameter, 0.7)
        if name.endswith(".output.LayerNorm.bias"):
            torch.nn.init.constant_(parameter, 0.1)
    batches = [batch(6, 12, seed=seed) for seed in range(3)]
    student = from_teacher(teacher, 4, layer_output_statistics(teacher, batches)).eval()
    with torch.no_grad():
        states = [run(model, batches[0], EVERYTHING).hidden_states for model in (student, teacher)]
    valid_BT = batches[0]["attention_mask"].bool()
    for actual, expected in zip(*states, strict=True):
        torch.testing.assert_close(actual[valid_BT], expected[valid_BT], rtol=1e-4, atol=1e-4)


def test_layer_output_statistics() -> None:
    teacher, given = bert(), [batch(4, 9, seed=1), batch(2, 5, seed=2)]
    statistics = layer_output_statistics(teacher, given)
    for layer, (deviation, mean) in enumerate(statistics, start=1):
        deviations, means = [], []
        for one in given:
            states = run(teacher, one, EVERYTHING).hidden_states[layer].detach().double().numpy()
            for row, length in enumerate(one["attention_mask"].sum(dim=1).tolist()):
                deviations += [states[row, token].std() for token in range(length)]
                means += [states[row, token].mean() for token in range(length)]
        assert deviation == pytest.approx(sum(deviations) / len(deviations), rel=1e-6)
        assert mean == pytest.approx(sum(means) / len(means), rel=1e-5, abs=1e-7)


def test_several_blocks_need_statistics() -> None:
    with pytest.raises(ValueError, match="needs block_inputs"):
        from_teacher(bert(), stack=2)


def test_unsupported_activation() -> None:
    with pytest.raises(TeacherError, match="hidden_act is 'quick_gelu'; supported are gelu, gelu_new"):
        from_teacher(bert(hidden_act="quick_gelu"), stack=1)


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_base_of_teacher(act: str) -> None:
    base, graph = base_of_teacher(bert(hidden_act=act).config)
    assert replace(base, gelu="tanh") == replace(BASE, depth=2)
    assert base.gelu == ("erf" if act == "gelu" else "tanh")
    assert str(graph) == f"project({ACTIVATIONS[act][0]}(expand(x)))"

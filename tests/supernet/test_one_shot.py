"""The one-shot supernet: a slice of it is the candidate, and training reaches just that slice."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from distill.encoders.parts import output_layer
from distill.objectives import efficientbert
from distill.objectives.outputs import ATTENTION_SCORES, HIDDEN_STATES, LOGITS, RELATIONS, ROUTINGS, run
from distill.tasks.types import (
    CLASSIFICATION,
    QUESTION_ANSWERING,
    REGRESSION,
    TASK_TYPES,
    TOKEN_CLASSIFICATION,
    get_task_type,
)
from distill.training.recipe import Recipe
from distill.training.teacher import set_head
from distill.training.teacher_outputs import LiveTeacher
from search_spaces import FFN, Architecture, Attention, Experts, FFNGraph, Layer, Space
from search_spaces.spaces import SIZES
from supernet.build import build, config_of
from supernet.experts.routers import routing_table
from supernet.inherit import inherit
from supernet.one_shot import DRAWN_IN_SANDWICH, OneShotSupernet, interleaved, train_one_shot
from tests.tiny import BASE, batch, bert, inputs, shaken

GRAPHS = [
    FFNGraph.parse(text)
    for text in ("project(gelu(expand(x)))", "tanh(project(mul(expand(x),x)))", "project(mul(relu(expand(x)),gate(x)))")
]
EXPANSIONS = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
TASKS = {"first": 3, "second": 2}


def sized(*sizes: tuple[int, Fraction]) -> Architecture:
    return Architecture.of_ffns(BASE, tuple(FFN(graph, *size) for graph, size in zip(GRAPHS, sizes, strict=True)))


LARGEST = sized(*3 * [(2, Fraction(1))])
SMALLEST = sized(*3 * [(1, Fraction(1, 4))])
EMPTY = sized(*3 * [(0, Fraction(1))])
FEW = sized((0, Fraction(1)), (2, Fraction(1, 2)), (0, Fraction(1)))
MIXED = sized((2, Fraction(1, 2)), (1, Fraction(1, 4)), (2, Fraction(1)))
FEWER_HEADS = Architecture(
    BASE, tuple(Layer(Attention(heads), ffn) for heads, ffn in zip((1, 0, 4), MIXED.ffns, strict=True))
)
LEFT_OUT = Architecture(BASE, (MIXED.layers[0], Layer(Attention(0), FFN(stack=0)), *FEWER_HEADS.layers[2:]))
SPACE = Space(BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, 1, 10**9, start=LARGEST, vary=frozenset({SIZES}))


def supernet() -> OneShotSupernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = shaken(build(LARGEST, num_labels=3, template=bert(num_hidden_layers=3).config))
        heads = {task: nn.Linear(BASE.width, labels) for task, labels in TASKS.items()}
    return OneShotSupernet(model, heads).eval()


@pytest.mark.parametrize("architecture", [None, SMALLEST, MIXED, EMPTY, FEW, FEWER_HEADS, LEFT_OUT])
@pytest.mark.parametrize(
    "kinds",
    [
        {"one": (QUESTION_ANSWERING, 2), "two": (QUESTION_ANSWERING, 2)},
        {"one": (TOKEN_CLASSIFICATION, 5), "two": (TOKEN_CLASSIFICATION, 3)},
        {"one": (CLASSIFICATION, 3), "two": (REGRESSION, 1)},
        {"one": (REGRESSION, 1), "two": (CLASSIFICATION, 2)},
    ],
)
def test_a_slice_is_the_model_that_inherits(
    kinds: dict[str, tuple[str, int]], architecture: Architecture | None
) -> None:
    """What a slice computes, and of what kind it is said to be, is what the model that inherits does."""
    first, labels = kinds["one"]
    like = config_of(LARGEST, labels, template=bert(num_hidden_layers=3).config)
    set_head(like, [f"{number}" for number in range(labels)], first)
    model = shaken(build(LARGEST, TASK_TYPES[first], labels, like))
    heads = {task: shaken(nn.Linear(BASE.width, size), seed=size) for task, (_, size) in kinds.items()}
    problem_types = {task: get_task_type(kind).problem_type for task, (kind, _) in kinds.items()}
    shared = OneShotSupernet(model, heads, problem_types=problem_types).eval()  # type: ignore[arg-type]
    place = output_layer(model)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith(place)}
    needs = frozenset({LOGITS, HIDDEN_STATES, ATTENTION_SCORES, RELATIONS})
    for task in (*kinds, *kinds):  # to each and back
        kind, size = kinds[task]
        own = config_of(LARGEST, size, template=like)
        set_head(own, [f"{number}" for number in range(size)], kind)
        alone = build(architecture or LARGEST, TASK_TYPES[kind], template=own).eval()
        head = {f"{place}.{name}": value for name, value in shared.heads[task].state_dict().items()}
        alone.load_state_dict(inherit(weights, architecture or LARGEST) | head)
        shared.activate(architecture, task)
        with torch.no_grad():
            actual, expected = run(shared, batch(), needs), run(alone, batch(), needs)
        assert actual.task_type == expected.task_type == kind
        for name in ("hidden_states", "attention_scores", "relations"):
            for ours, theirs in zip(getattr(actual, name), getattr(expected, name), strict=True):
                torch.testing.assert_close(ours, theirs)
        assert actual.logits.shape == {QUESTION_ANSWERING: (4, 2, 9), TOKEN_CLASSIFICATION: (4, 9, size)}.get(
            kind, (4, size)
        )
        torch.testing.assert_close(actual.logits, expected.logits)


def test_gradients_reach_the_slice_alone() -> None:
    shared = supernet()
    shared.activate(MIXED, "second")
    shared(**inputs(batch())).logits.square().sum().backward()
    for name, parameter in shared.named_parameters():
        if name.startswith(("heads.first", "model.classifier")) or ".layer.1.ffn.1." in name:
            assert parameter.grad is None
        else:
            assert parameter.grad is not None, name
    block = shared.model.bert.encoder.layer[0].ffn[1]
    assert block.expand.weight.grad[:24].abs().min() > 0
    assert block.expand.weight.grad[24:].abs().max() == 0
    assert block.project.weight.grad[:, 24:].abs().max() == 0


def test_a_pass_leaves_the_supernet_whole() -> None:
    shared = supernet()
    before = {name: value.clone() for name, value in shared.state_dict().items()}
    shared.activate(SMALLEST, "first")
    shared(**inputs(batch()))
    assert shared.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in shared.state_dict().items())
    with pytest.raises(IndexError):  # a fault inside the pass
        shared(input_ids=torch.tensor([[BASE.vocabulary]]))
    assert shared.state_dict().keys() == before.keys()


def test_a_slice_drops_out_in_training_alone() -> None:
    shared = supernet()
    shared.activate(SMALLEST, "first")
    for mode in (False, True, False):
        one, other = (shared.train(mode)(**inputs(batch())).logits for _ in range(2))
        assert torch.equal(one, other) != mode


def trained(
    accelerator: Accelerator,
    steps: int,
    shared: OneShotSupernet | None = None,
    freeze: bool = False,
    accumulated: int = 1,
    **options: object,
) -> tuple[OneShotSupernet, list[float]]:
    shared = shared or supernet()
    teachers = {
        task: LiveTeacher(bert(place, labels, num_hidden_layers=3), frozenset({"logits", "hidden_states"}), accelerator)
        for place, (task, labels) in enumerate(TASKS.items())
    }
    objective = efficientbert(shared.config, shared.config, attention=0.0, hidden=0.1)

    def batches(place: int) -> Iterator[dict[str, Tensor]]:
        return (batch(8, 10, seed=seed % 3) for seed in range(place, steps))

    losses = train_one_shot(
        shared,
        options.pop("space", SPACE),  # type: ignore[arg-type]
        interleaved(dict.fromkeys(TASKS, -(-steps // len(TASKS))), 0)[:steps],
        {task: batches(0) for task in TASKS},
        objective,
        Recipe(steps=steps, learning_rate=6e-3, freeze_embeddings=freeze, gradient_accumulation_steps=accumulated),
        teachers=teachers,
        accelerator=accelerator,
        **options,  # type: ignore[arg-type]
    )
    return shared, losses


def test_turns_are_evenly_spread_in_random_order() -> None:
    turns = {"a": 30, "b": 10}
    drawn = interleaved(turns, 0)
    fours = [drawn[place : place + 4] for place in range(0, 40, 4)]
    assert all(sorted(four) == ["a", "a", "a", "b"] for four in fours)
    assert len({four.index("b") for four in fours}) > 2
    assert drawn == interleaved(turns, 0) != interleaved(turns, 1)


def test_training_lowers_the_loss_and_repeats_itself(accelerator: Accelerator) -> None:
    space = replace(SPACE, genes={**SPACE.genes, "stack": (0, 1, 2)})
    shared, losses = trained(accelerator, 60, space=space)
    assert len(losses) == 60
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    again, _ = trained(accelerator, 60, space=space)
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in shared.state_dict().items())


def test_embeddings_are_frozen_in_a_second_training_too(accelerator: Accelerator) -> None:
    """Also where a slice was the last to compute."""
    shared, _ = trained(accelerator, 1)
    shared.activate(SMALLEST, next(iter(TASKS)))
    before = shared.model.get_input_embeddings().weight.clone()
    trained(accelerator, 2, shared, freeze=True)
    assert torch.equal(shared.model.get_input_embeddings().weight, before)
    trained(accelerator, 2, shared)
    assert not torch.equal(shared.model.get_input_embeddings().weight, before)


def test_every_step_draws_inside_the_budget_and_tasks_take_turns(accelerator: Accelerator) -> None:
    tight = replace(SPACE, max_params=14_500)
    recorded: list[tuple[Architecture | None, str]] = []
    original = OneShotSupernet.activate

    def spy(self: OneShotSupernet, architecture: Architecture | None, task: str) -> None:
        if architecture is not None:
            recorded.append((architecture, task))
        original(self, architecture, task)

    OneShotSupernet.activate = spy  # type: ignore[method-assign]
    try:
        trained(accelerator, 20, space=tight)
        drawn = list(recorded)
        recorded.clear()
        trained(accelerator, 4, space=tight, seed=1)
        of_another_seed = list(recorded)
        recorded.clear()
        trained(accelerator, 2, space=tight, accumulated=2)
        twice = [architecture for architecture, _ in recorded]
        recorded.clear()
        trained(accelerator, 4, space=tight, fixed=(LARGEST, SMALLEST), drawn=DRAWN_IN_SANDWICH)
        sandwich = list(recorded)
        recorded.clear()
        trained(accelerator, 2, space=tight, fixed=(LARGEST, MIXED, SMALLEST), drawn=0)
    finally:
        OneShotSupernet.activate = original  # type: ignore[method-assign]
    assert len(drawn) == 20
    assert all(architecture in tight for architecture, _ in drawn)
    assert len({architecture for architecture, _ in drawn}) > 5
    for place in range(0, 20, 2):
        assert {task for _, task in drawn[place : place + 2]} == set(TASKS)
    assert [architecture for architecture, _ in of_another_seed] != [architecture for architecture, _ in drawn[:4]]
    assert twice == [architecture for architecture, _ in drawn[:2] for _ in range(2)]
    # The sandwich: largest, smallest and two drawn ones on one batch of one task.
    for place in range(0, len(sandwich), 2 + DRAWN_IN_SANDWICH):
        step = sandwich[place : place + 2 + DRAWN_IN_SANDWICH]
        assert [architecture for architecture, _ in step[:2]] == [LARGEST, SMALLEST]
        assert all(architecture in tight for architecture, _ in step[2:])
        assert len({task for _, task in step}) == 1
    assert len(sandwich) == 4 * (2 + DRAWN_IN_SANDWICH)
    assert [architecture for architecture, _ in recorded] == 2 * [LARGEST, MIXED, SMALLEST]


GENES = FFN(GRAPHS[0], expansion=Fraction(1, 4))
EXPERTS = (
    Experts(2, Fraction(1, 2), "token_gate"),
    Experts(4, Fraction(1, 2)),
    Experts(4, Fraction(1), "sentence_gate"),
)


def test_experts_are_slices_with_gates_of_their_own() -> None:
    # Experts of the second graph are made out of channels that the graph itself would leave out.
    stored = LARGEST.with_ffns((LARGEST.ffns[0], LARGEST.ffns[0], LARGEST.ffns[2]))
    model = shaken(build(stored, num_labels=3, template=bert(num_hidden_layers=3).config))
    shared = OneShotSupernet(model, {"first": nn.Linear(BASE.width, 3)}, EXPERTS).eval()
    layers = (
        replace(GENES, graph=graph, stack=stack, experts=experts)
        for graph, stack, experts in zip(GRAPHS, (2, 1, 2), EXPERTS, strict=True)
    )
    architecture = Architecture.of_ffns(BASE, tuple(layers))
    gates = {place.replace("/", "."): weight.detach() for place, weight in shared.gates.items()}
    weights = {name: value for name, value in shared.model.state_dict().items() if "classifier" not in name}
    head = {f"classifier.{name}": value for name, value in shared.heads["first"].state_dict().items()}
    inherited = inherit(weights | gates, architecture) | head
    alone = build(architecture, num_labels=3, template=shared.config, weights=inherited).eval()
    features = inputs(batch())
    shared.activate(architecture, "first")
    actual = shared(**features).logits
    torch.testing.assert_close(actual, alone(**features).logits)
    shared.zero_grad()
    actual.square().sum().backward()
    name = "bert/encoder/layer/0/ffn/1/router/weight"
    assert shared.gates[name].shape == (4, BASE.width)
    assert shared.gates[name].grad[:2].abs().sum() > 0 and shared.gates[name].grad[2:].abs().sum() == 0
    assert all(parameter.grad is None for place, parameter in shared.gates.items() if "/layer/1/" in place)
    routings = run(shared, batch(), frozenset({ROUTINGS})).routings
    assert [probabilities.shape[1] for probabilities, _ in routings] == [2, 2, 4, 4]


@pytest.mark.parametrize("counts", [(1, 1, 1), (2, 2, 2), (3, 3, 3), (1, 3, 2)])
def test_an_attention_with_fewer_experts_has_the_first_ones(counts: tuple[int, ...]) -> None:
    """Compared with a model whose weights are cut by hand; gradients reach these experts alone."""
    model = shaken(build(Architecture.of_ffns(BASE, LARGEST.ffns, attention_experts=3), num_labels=3))
    shared = OneShotSupernet(model, {"first": nn.Linear(BASE.width, 3)}).eval()
    attentions = (Attention(BASE.heads, count) for count in counts)
    architecture = Architecture(BASE, tuple(map(Layer, attentions, MIXED.ffns)))
    alone = build(architecture, num_labels=3, template=shared.config).eval()
    state = inherit({name: value for name, value in model.state_dict().items() if ".ffn." in name}, MIXED)
    for name, value in model.state_dict().items():
        if (".attention." in name and value.dim() == (3 if name.endswith("weight") else 2)) or "router" in name:
            count = counts[int(name.split(".layer.")[1][0])]
            value = value[:count].squeeze(0)
            if "router" in name and count == 1:
                continue
        if ".ffn." not in name:
            state[name] = value
    state |= {f"classifier.{name}": value for name, value in shared.heads["first"].state_dict().items()}
    alone.load_state_dict(state)
    shared.activate(architecture, "first")
    logits = shared(**inputs(batch())).logits
    torch.testing.assert_close(logits, alone(**inputs(batch())).logits)
    logits.square().sum().backward()
    for count, layer in zip(counts, model.bert.encoder.layer, strict=True):
        reached = layer.attention.output.dense.weight.grad.abs().sum(dim=(1, 2)) > 0
        assert reached[:count].any() and not reached[count:].any()
    # And back to all of them.
    shared.activate(None, "first")
    assert shared.state_dict()["model.bert.encoder.layer.0.attention.router.weight"].shape == (3, BASE.width)


def test_tables_and_gates_depend_on_the_seed() -> None:
    balanced = Experts(4, Fraction(1, 2), "balanced_hash")
    architecture = LARGEST.with_ffns([replace(GENES, experts=experts) for experts in (*2 * EXPERTS[1:2], balanced)])
    frequencies = torch.arange(BASE.vocabulary)
    largest = LARGEST.with_ffns(LARGEST.ffns[:1] * 3)
    recorded: dict[int, tuple[Tensor, Tensor]] = {}
    for seed in (0, 3):
        model = build(largest, num_labels=3, template=bert(num_hidden_layers=3).config)
        heads = {"first": nn.Linear(BASE.width, 3)}
        assert not OneShotSupernet(model, heads, (EXPERTS[1], balanced)).gates  # no gate is learned
        shared = OneShotSupernet(model, heads, EXPERTS, frequencies, seed=seed)
        assert len({gate.sum().item() for gate in shared.gates.values()}) == 3 * 2  # one for each block
        shared.activate(architecture, "first")
        state = shared.state()
        table = routing_table(EXPERTS[1], BASE.vocabulary, layer=1, seed=seed)
        assert torch.equal(state["bert.encoder.layer.1.router.table"], table)
        by_frequency = routing_table(balanced, BASE.vocabulary, 2, frequencies, seed)
        assert torch.equal(state["bert.encoder.layer.2.router.table"], by_frequency)
        recorded[seed] = table, shared.gates["bert/encoder/layer/1/ffn/0/router/weight"]
    assert not any(torch.equal(one, other) for one, other in zip(*recorded.values(), strict=True))

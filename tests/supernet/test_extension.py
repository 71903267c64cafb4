"""An operation and routers added from outside the package: one entry in each table, and everything knows them."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Generator, Tensor, nn

from distill.encoders.student import ffn
from distill.encoders.student.routing import ROUTERS, GateRouter, TableRouter
from search_spaces import Architecture, Base, Experts, FFNGraph, cost
from search_spaces.operations import UNARY, Operation
from search_spaces.routing import ROUTINGS, RoutingKind
from supernet.build import ExportError, build, check_exportable
from supernet.experts.routers import TABLES
from supernet.inherit import inherit
from supernet.one_shot import OneShotSupernet
from tests.tiny import BASE, batch, inputs

LABELS, HALF = 3, Fraction(1, 2)


class FirstTokenGate(GateRouter):
    """Sentences are sent by the hidden state of their first token."""

    by_sentence = True

    def gate_inputs(self, hidden_BTD: Tensor, valid_BT: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return hidden_BTD[:, 0], None if valid_BT is None else valid_BT.any(dim=1)


def modulo_table(count: int, vocabulary: int, generator: Generator, frequencies: Tensor | None) -> Tensor:
    return torch.arange(vocabulary) % count


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(UNARY, "square", Operation("a**2", lambda x: x * x))
    monkeypatch.setitem(ffn.UNARY, "square", torch.square)
    monkeypatch.setitem(ROUTINGS, "first_token_gate", RoutingKind(learned=True, by_sentence=True))
    monkeypatch.setitem(ROUTERS, "first_token_gate", FirstTokenGate)
    monkeypatch.setitem(ROUTINGS, "modulo", RoutingKind(learned=False))
    monkeypatch.setitem(ROUTERS, "modulo", TableRouter)
    monkeypatch.setitem(TABLES, "modulo", modulo_table)


def candidate(architecture: Architecture) -> nn.Module:
    """A candidate that has inherited from a random supernet."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        supernet = build(Architecture.uniform(BASE, stack=architecture.ffns[0].stack), num_labels=LABELS)
    model = build(architecture, num_labels=LABELS, weights=inherit(supernet.state_dict(), architecture))
    return model


def squared(base: Base = BASE) -> Architecture:
    return Architecture.uniform(base, FFNGraph.parse("project(square(expand(x)))"), expansion=HALF)


def routed(routing: str) -> Architecture:
    return Architecture.uniform(BASE, stack=2, expansion=Fraction(1, 4), experts=Experts(4, HALF, routing, 1))


@pytest.mark.usefixtures("added")
def test_an_operation_is_computed() -> None:
    model = candidate(squared()).eval()  # without dropout
    block = model.bert.encoder.layer[0].ffn[0]
    x_ND = torch.randn(5, BASE.width, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(block.f(x_ND), block.project(block.expand(x_ND) ** 2))


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("routing", ["first_token_gate", "modulo"])
def test_a_router_is_read_costed_inherited_and_trained(routing: str) -> None:
    architecture = routed(routing)
    assert Architecture.from_json(json.loads(json.dumps(architecture.to_json()))) == architecture
    model = candidate(architecture).eval()  # without dropout and jitter
    assert cost.params(architecture, LABELS) == sum(parameter.numel() for parameter in model.parameters())
    gate_macs = cost.macs(architecture) - cost.macs(routed("hash"))
    learned = ROUTINGS[routing].learned
    # One decision for each sentence, in every block.
    assert gate_macs == (BASE.depth * 2 * BASE.width * 4 if learned else 0)
    model(**batch()).loss.backward()
    layer = model.bert.encoder.layer[0]
    if learned:
        assert all(block.router.weight.grad.abs().sum() > 0 for block in layer.ffn)
    else:
        assert layer.router.table.tolist() == [number % 4 for number in range(BASE.vocabulary)]


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("routing", ["first_token_gate", "modulo"])
def test_a_router_works_in_the_one_shot_supernet(routing: str) -> None:
    largest = Architecture.uniform(BASE, stack=2)
    shared = OneShotSupernet(
        build(largest, num_labels=LABELS), {"task": nn.Linear(BASE.width, LABELS)}, [Experts(4, HALF, routing)]
    ).eval()
    shared.activate(routed(routing), "task")
    assert torch.isfinite(shared(**inputs(batch())).logits).all()
    assert bool(shared.gates) == ROUTINGS[routing].learned


@pytest.mark.usefixtures("added")
def test_a_capacity_is_refused_for_whatever_routes_sentences() -> None:
    with pytest.raises(
        ValueError, match="'first_token_gate' routes whole sentences, which have no capacity; leave it out"
    ):
        Experts(4, HALF, "first_token_gate", capacity=Fraction(1))


@pytest.mark.usefixtures("added")
def test_what_a_checkpoint_would_lack_is_refused_at_export(tmp_path: Path) -> None:
    for what, architecture in (
        ("operation 'square'", squared()),
        ("router 'first_token_gate'", routed("first_token_gate")),
        ("router 'modulo'", routed("modulo")),
    ):
        message = f"layer 0 has the {what}, which was added at run time"
        with pytest.raises(ValueError, match=message):
            build(architecture).save_pretrained(tmp_path / "model")
        with pytest.raises(ExportError, match=message):
            check_exportable(architecture)
    assert not (tmp_path / "model").exists()
    check_exportable(routed("balanced_hash"))


def test_both_sides_know_the_same_routers_and_operations() -> None:
    """The tables of the search space, which imports no torch, and those of the model, which imports nothing else."""
    assert ROUTERS.keys() == ROUTINGS.keys()
    assert TABLES.keys() == {name for name, kind in ROUTINGS.items() if not kind.learned}
    for name, kind in ROUTINGS.items():
        assert ROUTERS[name].reads_hidden_states == kind.learned
        assert getattr(ROUTERS[name], "by_sentence", False) == kind.by_sentence
    assert ffn.UNARY.keys() == UNARY.keys()


@pytest.mark.parametrize(
    "wrong", [{"learned": False, "by_sentence": True}, {"learned": True, "needs_frequencies": True}]
)
def test_properties_that_contradict_each_other(wrong: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        RoutingKind(**wrong)


def test_unknown_names_in_a_configuration_are_named() -> None:
    model = build(Architecture.uniform(BASE, experts=Experts(2, Fraction(1))))
    config = model.config
    config.ffn[0]["experts"]["routing"] = "nowhere"
    with pytest.raises(ValueError, match="no router is called 'nowhere'; known are hash"):
        type(model)(config)
    config.ffn[0]["experts"]["routing"], config.ffn[0]["program"][1][0] = "hash", "cube"
    with pytest.raises(ValueError, match="no operation is called 'cube'; known are expand"):
        type(model)(config)

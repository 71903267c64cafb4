"""The parameters, constraints and metric names of trials, by which Optuna and its dashboard compare them."""

import random
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import optuna
import pytest
from optuna.distributions import IntDistribution
from optuna.trial import FixedTrial

from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.description import OTHER_EXPERTS, Parameters, choices_of, constraints, formula, formulas
from nas.study.storage import sqlite_url
from search_spaces import DENSE, FFN, Architecture, Attention, Experts, FFNGraph, Layer, Space, cost
from search_spaces.limits import Limit
from search_spaces.spaces import GRAPHS, SIZES
from tests.search_spaces.small_spaces import of_genes
from tests.tiny import BASE

HALF = Architecture.uniform(BASE, expansion=Fraction(1, 2))
MIDDLE = cost.params(HALF, 3)
EXPANSIONS = (Fraction(1), Fraction(1, 2), Fraction(1, 4))
SPACE = Space(BASE, {"stack": (1, 2), "expansion": EXPANSIONS}, MIDDLE - 2000, MIDDLE, mutation_rate=0.5)
SPLIT = Experts(4, Fraction(2, 3))
EDITED = Architecture.of_ffns(BASE, (FFN(FFNGraph.parse("tanh(project(gelu(expand(x))))"), 2, Fraction(1, 4)),) * 3)
SPACES = {
    "stage 1": SPACE,
    "stage 2": replace(SPACE, start=EDITED, vary=frozenset({GRAPHS}), min_params=1, max_params=10**9),
    "stage 3": replace(SPACE, start=HALF, vary=frozenset({SIZES})),
    "experts": of_genes(SPACE, experts=(DENSE, SPLIT)),
    "attention and head": replace(of_genes(SPACE, attention_experts=(1, 4), head_experts=(1, 2)), max_params=10**9),
    "one stack": of_genes(SPACE, stack=(1,)),
    "gated": replace(SPACE, gated=True),
    "nested": replace(SPACE, max_height=7),
    "no FFN": of_genes(replace(SPACE, min_params=1), stack=(0, 1)),
    # The base model has more heads.
    "heads": of_genes(replace(SPACE, min_params=1), stack=(0, 1), heads=(0, 1, 2)),
    "limit": replace(SPACE, limits=(Limit("macs", 7, cost.layer_macs, 3 * cost.layer_macs(BASE, HALF.layers[0]) + 7),)),
}
SIZE_NAMES = {"inner width", "stack"}
OPERATION_NAMES = {"operation before expand", "operation between", "operation after project"}
NAMES = {
    "stage 2": OPERATION_NAMES,
    "stage 3": SIZE_NAMES,
    "experts": SIZE_NAMES | OPERATION_NAMES | {"experts"},
    "heads": SIZE_NAMES | OPERATION_NAMES | {"heads"},
    "one stack": OPERATION_NAMES | {"inner width"},
}


def searched(space: Space, url: str, count: int = 12) -> optuna.Study:
    """A study of the base model, which scores best, a uniform slice and proposals."""
    study = ledger.open_study(url, "stage-1", SAMPLERS["random"](space, 0))
    baselines = [(Architecture.uniform(BASE), "base model", None), (HALF, "uniform slice", None)]
    ledger.enqueue_missing(study, space, baselines)
    rng = random.Random(0)
    while len(study.trials) < count or ledger.waiting(study):
        number = ledger.ask(study, space, "random")[0].number
        if ledger.resolve_duplicate(study, number):
            continue
        if number % 5 == 4:
            ledger.prune(study, number, 3, {})
        elif number % 7 == 5:
            ledger.fail(study, number, "diverged")
        else:
            ledger.complete(study, number, rng.random() if number else 2.0, {"standard_error": 0.01})
    return study


@pytest.mark.parametrize("kind", SPACES)
def test_all_trials_have_the_same_parameters(kind: str, tmp_path: Path) -> None:
    """This includes waiting baselines: a dashboard that is opened early never shows the parameters that they lack."""
    space, url = SPACES[kind], sqlite_url(tmp_path / "study.db")
    names = NAMES.get(kind, SIZE_NAMES | OPERATION_NAMES)
    expected = {f"layer {layer}/{name}" for layer in (1, 2, 3) for name in names}
    if kind == "attention and head":
        expected |= {"experts in head", *(f"layer {layer}/experts in attention" for layer in (1, 2, 3))}
    study = ledger.open_study(url, "waiting")
    ledger.enqueue(study, space, Architecture.uniform(BASE), "base model")
    assert study.trials[0].params.keys() == expected
    study = searched(space, url)
    distributions = study.trials[0].distributions
    assert distributions.keys() == expected
    for trial in study.trials:
        assert trial.distributions == distributions
        optuna.create_trial(value=0.0, params=trial.params, distributions=distributions)  # checks the values
    # Optuna refuses to copy a study whose distributions change.
    optuna.copy_study(from_study_name="stage-1", from_storage=url, to_storage=sqlite_url(tmp_path / "copy.db"))


@pytest.mark.parametrize("gated", [False, True])
def test_values_are_those_of_the_architecture(gated: bool) -> None:
    """Sizes follow their definition, and operations the grammar's segments."""
    space = of_genes(replace(SPACE, gated=gated, mutation_rate=0.9), experts=(DENSE, SPLIT))
    parameters = Parameters.of(space)
    rng = random.Random(0)
    seen = set()
    for _ in range(300):
        architecture = space.sample(rng)
        values, choices = parameters.values(architecture), space.choices(architecture)
        for layer, ffn in enumerate(architecture.ffns, 1):
            assert values[f"layer {layer}/inner width"] == int(ffn.expansion * 48)
            assert values[f"layer {layer}/stack"] == ffn.stack
            assert values[f"layer {layer}/experts"] == ("4 hash, shared 2/3" if ffn.experts == SPLIT else "dense")
            operations = [
                values[f"layer {layer}/operation {place}"] for place in ("before expand", "between", "after project")
            ]
            assert operations == [choices[f"layer{layer}/{segment}/op"] for segment in ("pre", "mid", "post")]
            seen |= set(operations)
    assert len(seen) == 11


def test_values_of_what_no_space_has() -> None:
    """A graph that the grammar cannot produce, and experts that only the architecture to refine has."""
    graph = FFNGraph.parse("relu(tanh(project(tanh(sigmoid(expand(gelu(mul(x,tanh(x)))))))))")
    strange = Architecture.of_ffns(BASE, (FFN(graph, 1, Fraction(1, 48), Experts(2)),) * 3)
    parameters = Parameters.of(of_genes(SPACE, experts=(DENSE, SPLIT)))
    assert {name.partition("/")[2]: value for name, value in parameters.values(strange).items()} == {
        "inner width": 1,
        "stack": 1,
        "experts": OTHER_EXPERTS,
        "operation before expand": "mul",
        "operation between": "tanh",
        "operation after project": "relu",
    }


def test_the_experts_of_attention_and_head() -> None:
    wide = Architecture.of_ffns(BASE, HALF.ffns, attention_experts=4, head_experts=2)
    space = SPACES["attention and head"]
    whole = {f"layer {number}/experts in attention": 4 for number in (1, 2, 3)} | {"experts in head": 2}
    assert whole.items() <= Parameters.of(space).values(wide).items()
    # Stage 2 keeps them, and so does a space with one number each.
    kept = replace(space, start=wide, vary=frozenset({GRAPHS}))
    for other in (kept, of_genes(space, attention_experts=(1,), head_experts=(1,))):
        assert not whole.keys() & Parameters.of(other).distributions.keys()
    # The confirmation of its winner has them again.
    assert whole.items() <= Parameters.of(kept, frozenset({GRAPHS, SIZES})).values(wide).items()
    assert formula(wide) == f"{formula(HALF)} [4 experts in attention, 2 experts in head]"


def test_an_enqueued_trial_has_no_choices(tmp_path: Path) -> None:
    """The number of the head's experts is no choice of the space, though it does not belong to a layer."""
    space, url = SPACES["attention and head"], sqlite_url(tmp_path / "study.db")
    study = searched(space, url)
    assert choices_of(study.trials[0]) == {}
    proposed = study.trials[3]
    assert {"layer1/size", "head/size"} <= choices_of(proposed).keys()
    assert space.suggest(FixedTrial(choices_of(proposed))) == ledger.architecture_of(proposed)


def test_values_without_an_ffn() -> None:
    architecture = Architecture.of_ffns(BASE, (EDITED.ffns[0], FFN(stack=0), EDITED.ffns[0]))
    starts = replace(SPACE, start=architecture, vary=frozenset({SIZES}))
    for space in (replace(SPACE, genes={**SPACE.genes, "stack": (0, 2)}), starts):
        parameters = Parameters.of(space, frozenset({GRAPHS, SIZES}))
        values = parameters.values(architecture)
        of_layer = {name.partition("/")[2]: value for name, value in values.items() if name.startswith("layer 2/")}
        assert of_layer == {"inner width": 0, "stack": 0} | dict.fromkeys(OPERATION_NAMES, "none")
        assert values["layer 1/operation after project"] == "tanh"
        optuna.create_trial(value=0.0, params=values, distributions=parameters.distributions)  # checks the values
    assert formula(architecture).split("; ")[1] == "no FFN"
    # The distributions of studies without such layers stay as they are stored.
    assert Parameters.of(SPACE).distributions["layer 1/inner width"] == IntDistribution(1, 48)


def test_heads_and_layers_left_out() -> None:
    half = Fraction(1, 2)
    layers = (
        Layer(Attention(2), FFN(stack=2, expansion=half, experts=Experts(2))),
        Layer(Attention(0), FFN(stack=0)),
        Layer(Attention(1), FFN(stack=0)),
    )
    architecture = Architecture(BASE, layers)
    graph = "project(gelu(expand(x)))"
    assert formulas(architecture) == [f"2 heads, 2×24 (2 hash, shared 0) {graph}", "left out", "1 head, no FFN"]
    # Heads are named only where not all layers have all.
    others = tuple(Layer(Attention(heads), FFN(expansion=half)) for heads in (4, 0, 4))
    whole = Architecture(BASE, others)
    assert formula(whole) == f"4 heads, 1×24 {graph}; 0 heads, 1×24 {graph}; 4 heads, 1×24 {graph}"
    assert formula(HALF) == "; ".join([f"1×24 {graph}"] * 3)
    values = Parameters.of(SPACES["heads"]).values(architecture)
    assert [values[f"layer {number}/heads"] for number in (1, 2, 3)] == [2, 0, 1]
    assert values["layer 2/inner width"] == values["layer 2/stack"] == 0
    assert "layer 1/heads" not in Parameters.of(SPACES["no FFN"]).distributions


def test_layers_of_deep_models_are_in_order() -> None:
    names = list(
        Parameters(replace(BASE, depth=12), of_genes(SPACE, stack=(1,)).genes, frozenset({SIZES})).distributions
    )
    assert names == sorted(names)
    assert names[0] == "layer 01/inner width" and names[-1] == "layer 12/inner width"


def test_the_best_trial_keeps_the_budget(tmp_path: Path) -> None:
    study = searched(SPACE, sqlite_url(tmp_path / "study.db"))
    assert study.trials[0].value == 2.0 == max(trial.value or 0 for trial in study.trials)
    assert study.best_trial.number == ledger.ranked(study)[0].number != 0
    assert study.best_trials == [study.best_trial]


@pytest.mark.parametrize("kind", SPACES)
def test_constraints_hold_where_the_budget_is_kept(kind: str) -> None:
    space = SPACES[kind]
    rng = random.Random(1)
    kept = []
    for _ in range(300):
        layers = (FFN(space.graph, rng.choice((1, 2)), Fraction(rng.randint(1, 48), 48)) for _ in range(3))
        architecture = Architecture.of_ffns(BASE, tuple(layers))
        kept.append(space.within_budget(architecture))
        assert kept[-1] == all(value <= 0 for value in constraints(architecture, space))
    assert any(kept) and (kind == "stage 2" or not all(kept))


@pytest.mark.parametrize("goals", [("score",), ("score", "params")])
def test_metrics_have_names(goals: tuple[str, ...], tmp_path: Path) -> None:
    url = sqlite_url(tmp_path / "study.db")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        study = ledger.open_study(url, "stage-1", goals=goals)
    assert study.metric_names == list(goals)


def test_importances_find_what_decides_the_score(tmp_path: Path) -> None:
    """Only the inner width of layer 2 decides it."""
    study = ledger.open_study(sqlite_url(tmp_path / "study.db"), "stage-1", SAMPLERS["random"](SPACE, 0))
    for _ in range(40):
        trial, architecture = ledger.ask(study, SPACE, "random")
        ledger.complete(study, trial.number, architecture.ffns[1].inner(BASE), {"standard_error": 0.01})
    importances = optuna.importance.get_param_importances(study)
    assert len(importances) == 15
    assert max(importances, key=lambda name: importances[name]) == "layer 2/inner width"

"""The notes of trials: what they say, and that the dashboard finds them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import optuna
import pytest
from optuna_dashboard import get_note

from nas.report.notes import WIDTH, add_missing_notes, add_note
from nas.samplers import SAMPLERS
from nas.study import ledger
from nas.study.attributes import EXPERT_LOAD, TEACHER, score_attribute
from nas.study.storage import sqlite_url, trial_id
from search_spaces import FFN, Architecture, Experts, FFNGraph, cost
from search_spaces.formula import layers_latex
from tests.nas.study import test_ledger
from tests.nas.study.test_ledger import BASE

SPACE = replace(test_ledger.SPACE, genes={**test_ledger.SPACE.genes, "stack": (0, 1, 2)})
SCORED = {"standard_error": 0.0123, "seconds": 2.34}


@pytest.fixture
def study(tmp_path: Path) -> Iterator[optuna.Study]:
    study = ledger.open_study(sqlite_url(tmp_path / "study.db"), "stage-1", SAMPLERS["random"](SPACE, 0))
    yield study


def note_of(study: optuna.Study, number: int) -> str:
    """The note of a trial as the dashboard reads it."""
    add_note(study, number)
    return stored(study, number)


def stored(study: optuna.Study, number: int) -> str:
    """The same of the note that is there; empty if there is none."""
    return get_note(optuna.trial.Trial(study, trial_id(study, number)))


def ask(study: optuna.Study, architecture: Architecture | None = None, origin: str = "base model") -> int:
    if architecture is not None:
        ledger.enqueue(study, SPACE, architecture, origin)
    trial, _ = ledger.ask(study, SPACE, "random")
    return trial.number


def test_a_trial_with_a_score(study: optuna.Study) -> None:
    layers = (
        FFN(FFNGraph.parse("relu(max(project(gelu(expand(x))),x))"), 2, Fraction(1, 4)),
        FFN(expansion=Fraction(1, 2), experts=Experts(count=2, routing="hash")),
        FFN(stack=0),
    )
    architecture = Architecture.of_ffns(BASE, layers)
    number = ask(study, architecture, "uniform slice")
    loads = [{"layer": 1, "part": "ffn", "shares": [0.26, 0.74]}]
    ledger.complete(study, number, 0.51234, SCORED | {EXPERT_LOAD: loads})
    assert stored(study, number) == ""
    lines = note_of(study, number).splitlines()
    facts = study.get_trials()[number].user_attrs
    assert lines[0] == "### Trial 0: uniform slice"
    assert "**score 0.5123** ± 0.0123" in lines
    costs = f"{facts['params']:,} parameters, {facts['params_active']:,} active for a token, {facts['macs']:,} MACs"
    assert f"{costs}, evaluated in 2.3 s" in lines
    table = lines[lines.index("| layer | blocks | expansion | inner width | parameters | experts | FFN |") :][:5]
    params = [f"{cost.ffn_params(BASE, genes):,}" for genes in layers]
    assert table[2:] == [
        f"| 1 | 2 | 1/4 | 12 | {params[0]} |  | `{layers[0].graph}` |",
        f"| 2 | 1 | 1/2 | 24 | {params[1]} | {layers[1].experts} | `project(gelu(expand(x)))` |",
        "| 3 | 0 | 0 | 0 | 0 |  | `no FFN` |",
    ]
    assert all(line.count("|") == 8 for line in table)
    assert "- layer 2 ffn: 26% 74%" in lines
    start = lines.index("```latex")
    formulas = lines[start + 1 : lines.index("```", start + 1)]
    assert " ".join(map(str.strip, formulas)) == " ".join(layers_latex(architecture))
    assert max(map(len, [*formulas, *lines[lines.index("```json") :]])) <= WIDTH
    file = "\n".join(lines[lines.index("```json") + 1 : -1])
    assert Architecture.from_json(json.loads(file)) == architecture
    assert max(map(len, lines)) < 200


def test_experts_of_attention_and_head_are_named(study: optuna.Study) -> None:
    plain = Architecture.uniform(BASE, expansion=Fraction(1, 2))
    wide = Architecture.of_ffns(BASE, plain.ffns, attention_experts=4, head_experts=2)
    for architecture in (plain, wide):
        ledger.complete(study, ask(study, architecture), 0.5, SCORED)
    line = "It has 4 experts in attention, 2 experts in head."
    assert [line in note_of(study, number).splitlines() for number in (0, 1)] == [False, True]


def test_trials_are_shown_beside_the_baselines(study: optuna.Study) -> None:
    baseline = ask(study, Architecture.uniform(BASE))
    ledger.complete(study, baseline, 0.5, SCORED)
    lost = ask(study, Architecture.uniform(BASE, expansion=Fraction(1, 4)), "global importance")
    ledger.fail(study, lost, "diverged: the loss is not finite")
    drawn = ask(study)
    study.set_user_attr(TEACHER, {"task": "t", "score": 0.9})
    ledger.complete(study, drawn, 0.61, SCORED | {score_attribute("t"): 0.61})
    params = study.get_trials()[baseline].user_attrs["params"]
    note = note_of(study, drawn)
    assert "**score 0.6100** ± 0.0123; the teacher's score is 0.9000" in note
    assert f"| base model | 0.5000 | {params:,} |" in note
    assert "| global importance | fail | " in note
    assert "experts in" not in note and "each expert" not in note
    assert "**Failed:** diverged: the loss is not finite" in note_of(study, lost)
    assert "base model |" not in note_of(study, baseline)


def test_fidelities_and_latencies(tmp_path: Path) -> None:
    study = ledger.open_study(sqlite_url(tmp_path / "study.db"), "stage-1", goals=("fidelity", "latency"))
    study.set_user_attr(TEACHER, {"task": "t", "score": 0.9})
    number = ask(study, Architecture.uniform(BASE))
    ledger._set(study, number, {"latency": 8_830.0})
    ledger.complete(study, number, 0.95, SCORED | {score_attribute("t"): 0.8})
    note = note_of(study, number)
    assert "**fidelity 0.9500** ± 0.0123; score 0.8000; the teacher's score is 0.9000" in note
    assert "8.83 ms" in note


def test_pruned_trials(study: optuna.Study) -> None:
    number = ask(study, Architecture.uniform(BASE))
    ledger.report(study, number, 30, 0.4)
    ledger.prune(study, number, 30, {})
    assert "**Pruned** after 30 steps with score 0.4000: its score was among the lowest there" in note_of(study, number)


def test_missing_notes_are_added(study: optuna.Study) -> None:
    numbers = [ask(study) for _ in range(3)]
    for number in numbers[:2]:
        ledger.complete(study, number, 0.5, SCORED)
    add_note(study, 0)
    study.set_user_attr(TEACHER, {"task": "t", "score": 0.9})
    add_missing_notes(study)
    assert "teacher" not in stored(study, 0) and "teacher" in stored(study, 1)
    assert stored(study, 2) == ""


def test_duplicates_took_no_time(study: optuna.Study) -> None:
    first = ask(study, Architecture.uniform(BASE))
    ledger.complete(study, first, 0.5, SCORED)
    twin = ask(study, Architecture.uniform(BASE), "uniform slice")
    assert ledger.resolve_duplicate(study, twin)
    note = note_of(study, twin)
    assert "### Trial 1: uniform slice" in note and "It computes the same function as trial 0" in note
    assert "**score 0.5000**" in note and "evaluated in" not in note
    assert "evaluated in" in note_of(study, first)


def test_confirmations_have_no_baselines(study: optuna.Study) -> None:
    for seed in (1, 2):
        ledger.enqueue(study, SPACE, Architecture.uniform(BASE), "stage-1 trial 3", seed)
        ledger.complete(study, ask(study), 0.5, SCORED)
    assert "### Trial 1: stage-1 trial 3, seed 2" in note_of(study, 1)
    assert "baseline" not in note_of(study, 1)


def test_long_notes_are_stored_in_parts(study: optuna.Study) -> None:
    graph = FFNGraph.parse("relu(max(leaky_relu(project(gelu(expand(x)))),sigmoid(tanh(elu(swish(x))))))")
    number = ask(study, Architecture.of_ffns(BASE, (FFN(graph, 2, Fraction(1, 4)),) * 3))
    ledger.fail(study, number, "reason " * 600)
    note = note_of(study, number)
    assert len(note) > 2 * 2045
    assert note.count("reason ") == 600 and note.endswith("```\n")

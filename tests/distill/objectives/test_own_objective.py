"""An objective from outside the package, with all that an `ObjectiveSpec` can say, in every place that takes a name."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from distill.__main__ import main
from distill.objectives import OBJECTIVES, Objective, ObjectivePhase, ObjectiveSpec, Settings, layer_maps, terms
from distill.objectives.outputs import Batch, of_layers
from distill.training.recipe import Recipe
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.preparation import data
from nas.preparation.phases import settings_of
from nas.preparation.workspace import objectives
from tests.tiny import bert, saved


def staged(student: Any, teacher: Any, *, hidden: float = 1.0, states: str = "all") -> Objective:
    """All hidden states, or the last one."""
    pairs = layer_maps.pairs(student.num_hidden_layers, teacher.num_hidden_layers, states)
    maps = terms.transforms(student, teacher, [state for state, _ in pairs])
    return Objective([terms.hidden("hidden", hidden, pairs, maps)], maps)


def two_phases(settings: Settings) -> tuple[ObjectivePhase, ...]:
    return ObjectivePhase(settings, 0.75), ObjectivePhase({**settings, "states": "last"}, 0.25, learning_rate=0.5)


class FrozenEmbeddings:
    """A training context: leaves the student's embeddings as they are, and takes down what it saw."""

    def __init__(self) -> None:
        self.entered: list[tuple[dict[str, Any], int]] = []
        self.batches: list[set[str]] = []

    @contextlib.contextmanager
    def __call__(
        self, student: PreTrainedModel, teacher: PreTrainedModel, *, settings: Settings, steps: int, seed: int
    ) -> Iterator[Callable[[Iterable[Batch]], Iterable[Batch]]]:
        self.entered.append((dict(settings), steps))

        def watched(batches: Iterable[Batch]) -> Iterator[Batch]:
            for batch in batches:
                self.batches.append(set(batch))
                yield batch

        student.base_model.embeddings.requires_grad_(False)
        yield watched
        student.base_model.embeddings.requires_grad_(True)


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> FrozenEmbeddings:
    context = FrozenEmbeddings()
    spec = ObjectiveSpec(staged, without_labels={}, phases=two_phases, training_context=context)
    monkeypatch.setitem(OBJECTIVES, "staged", spec)
    return context


def test_by_the_command(context: FrozenEmbeddings, tmp_path: Path) -> None:
    saved(bert(1, labels=2, num_hidden_layers=4), tmp_path / "teacher")
    (tmp_path / "text.txt").write_text("\n".join(f"w{n} w{n + 1} w{n + 2}" for n in range(40)))
    arguments = ["--objective", "staged", "--teacher", tmp_path / "teacher", "--student", "first:2"]
    arguments += ["--corpus", tmp_path / "text.txt", "--steps", 8, "--max-length", 16, "--set", "hidden=2"]
    assert main([*map(str, arguments), "--device", "cpu", "--out", str(tmp_path / "out")]) == 0
    assert context.entered == [({"hidden": 2.0, "states": "all"}, 6), ({"hidden": 2.0, "states": "last"}, 2)]
    assert len(context.batches) == 8
    assert not any("labels" in names for names in context.batches)
    before, after = load_file(tmp_path / "teacher" / "model.safetensors"), load_file(tmp_path / "out/model.safetensors")
    same = {name for name in after if torch.equal(before[f"bert.{name}"], after[name])}
    assert {name for name in after if name.startswith("embeddings")} <= same
    assert "encoder.layer.0.output.dense.weight" not in same


def test_in_a_study(context: FrozenEmbeddings) -> None:
    config = load_config("demo-ffn", {"objective": {"name": "staged"}, "warmup.source": "text", "tasks": ["library"]})
    config.objective.check()
    assert settings_of(config, "warmup") == {}
    student, teacher = bert().config, bert(num_hidden_layers=4).config
    pairs = objectives(config, {}, Recipe(steps=100, learning_rate=1e-3), student, teacher)
    assert [(recipe.steps, recipe.learning_rate) for _, recipe in pairs] == [(75, 1e-3), (25, 5e-4)]
    needs = [of_layers("hidden_states", layers) for layers in ([0, 2, 4], [4])]
    assert [objective.teacher_needs for objective, _ in pairs] == needs


def test_rows_of_its_own_rule_out_several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = ObjectiveSpec(staged, row_arguments=lambda rows: {})
    monkeypatch.setitem(OBJECTIVES, "staged", spec)
    config = load_config("demo-ffn", {"objective": {"name": "staged"}, "tasks": ["library", "neighbours"]})
    with pytest.raises(ConfigError, match="tasks: staged works with the rows of a single task"):
        data.check_tasks(config)

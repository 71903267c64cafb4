"""MiniLM, MiniLMv2 and MiniMoE, against references of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from distill.objectives import minilm, minilmv2, minimoe
from distill.objectives.outputs import RELATIONS, run
from distill.training.teacher_outputs import LiveTeacher, SavedTeacher, save_outputs
from tests.distill.objectives import references
from tests.distill.objectives.cases import Case, array, case, exactly, mapped
from tests.tiny import batch, bert

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4).filter(any).map(tuple)
SEEDS = st.integers(0, 999)


def sides(given: Case, *parts: int) -> list[list[object]]:
    return [[array(side.relations[part]) for part in parts] for side in (given.student, given.teacher)]


@settings(max_examples=25)
@drawn(LENGTHS, st.sampled_from([1, 2, 3]), st.sampled_from([12, 6]), SEEDS)
def test_minilm(lengths: tuple[int, ...], heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "heads": (heads, heads), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minilm(*given.configs, attention=0.5, values=2.0)
    expected = 0.5 * references.relations(*sides(given, 0, 1), lengths, heads)
    expected += 2 * references.relations(*sides(given, 2), lengths, heads)
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)
    assert objective.needs == objective.teacher_needs == {RELATIONS}
    assert not list(objective.parameters())


@settings(max_examples=25)
@drawn(LENGTHS, st.sampled_from([1, 2, 6]), st.sampled_from([12, 6]), SEEDS)
def test_minilmv2(lengths: tuple[int, ...], relation_heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "heads": (1, 2), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minilmv2(*given.configs, relation=0.5, relation_heads=relation_heads)
    expected = 0.5 * sum(references.relations(*sides(given, part), lengths, relation_heads) for part in range(3))
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)
    assert objective.needs == objective.teacher_needs == {RELATIONS}
    assert not list(objective.parameters())


@settings(max_examples=25)
@drawn(LENGTHS, st.sampled_from([1, 2, 6]), st.sampled_from([12, 6]), SEEDS)
def test_minimoe(lengths: tuple[int, ...], relation_heads: int, width: int, seed: int) -> None:
    shape = {"lengths": lengths, "widths": (width, 12), "depths": (3, 4), "seed": seed}
    given = case(**shape)
    objective = minimoe(*given.configs, relation=0.5, relation_heads=relation_heads)
    last = given.student.hidden_states[-1]
    own = [mapped(last, objective.projections[name]) for name in ("query", "key", "value")]
    teacher = [array(part) for part in given.teacher.relations]
    pairs = zip(own, teacher, strict=True)
    expected = 0.5 * sum(references.relations([a], [b], lengths, relation_heads) for a, b in pairs) / 3
    assert objective(*given.given).item() == exactly(expected)
    assert objective(*case(**shape, extra=3).given).item() == exactly(expected)


BY_NAME: dict[Any, dict[str, Any]] = {minilm: {}, minilmv2: {"relation_heads": 6}, minimoe: {"relation_heads": 6}}


@torch.no_grad()
@pytest.mark.parametrize("layer", [1, 2, 3])
@pytest.mark.parametrize("make", BY_NAME)
def test_any_layer_of_the_teacher(make: Any, layer: int, tmp_path: Path, accelerator: Accelerator) -> None:
    """As if the teacher ended there; and no other layer's relations are kept on disk."""
    student, teacher, given = bert(1), bert(2, num_hidden_layers=3), batch()
    torch.manual_seed(0)
    objective = make(student.config, teacher.config, teacher_layer=layer, **BY_NAME[make])
    short = bert(3, num_hidden_layers=layer)
    short.load_state_dict({name: teacher.state_dict()[name] for name in short.state_dict()})
    torch.manual_seed(0)
    expected = make(student.config, short.config, **BY_NAME[make])
    own = run(student, given, objective.needs)
    live = LiveTeacher(teacher, objective.teacher_needs, accelerator)
    loss = objective(own, live(0, given), given)
    torch.testing.assert_close(loss, expected(own, run(short, given, expected.teacher_needs), given))

    save_outputs(live, [given], tmp_path / "outputs")
    saved = SavedTeacher(tmp_path / "outputs")
    assert saved.names == [{"0.logits", "0.relations.0", "0.relations.1", "0.relations.2"}]
    torch.testing.assert_close(objective(own, saved(0, given), given), loss, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("make", BY_NAME)
def test_the_last_layer_of_the_teacher(make: Any) -> None:
    """Counted or by default: what is kept of the one serves the other, of another layer it does not."""
    configs = case().configs
    asked = [make(*configs, teacher_layer=layer, **BY_NAME[make]).teacher_needs for layer in (0, 4, 3, 2)]
    assert asked[:2] == [{RELATIONS}] * 2
    assert len(set(asked)) == 3

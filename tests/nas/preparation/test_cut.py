"""A supernet that is cut from another one: which one, what it has of it, and what is refused."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.trained import TrainedEvaluator
from nas.preparation.context import preparation_context
from nas.preparation.prepare import prepare
from nas.preparation.supernet import context_of_source, encoder_path, supernet_path
from nas.preparation.workspace import IMPORTANCE, PROJECTIONS, Workspace, projections
from search_spaces import Architecture
from tests.nas.tiny_study import TinyStudy

WIDE = """\
extends = "tiny.toml"
base = {depth = 1, width = 24, heads = 4, inner = 24, embedding = 8}

[supernet]
order = "unsorted"
"""
NARROW = """\
extends = "wide.toml"
base = {depth = 2, width = 16, heads = 4, inner = 20, embedding = 8}

[supernet]
cut_from = {depth = 1, width = 24, heads = 4, inner = 24, embedding = 8}
"""
ON_TEXT = {"text_teacher": "raw", "warmup.source": "text"}
LAYER = "bert.encoder.layer.{}.ffn.1.expand.weight"


@pytest.fixture
def presets(tiny_study: TinyStudy) -> tuple[str, str]:
    wide, narrow = (tiny_study.root / f"{name}.toml" for name in ("wide", "narrow"))
    wide.write_text(WIDE)
    narrow.write_text(NARROW)
    return str(wide), str(narrow)


def supernets(cache: Path) -> set[Path]:
    return {path for kind in ("supernets", "encoders") for path in (cache / kind).glob("[!.]*")}


def weights(workspace: Workspace) -> dict[str, torch.Tensor]:
    return load_file(workspace.supernet / "model.safetensors")


@pytest.mark.parametrize("places", [{}, ON_TEXT], ids=["on the task", "on text"])
def test_it_is_cut_from_the_very_same_supernet(
    tiny_study: TinyStudy, presets: tuple[str, str], places: dict[str, str]
) -> None:
    wide = prepare(load_config(presets[0], places), "cpu", outputs=False)
    said: list[str] = []
    before = supernets(tiny_study.cache)
    narrow = prepare(load_config(presets[1], places), "cpu", lambda what, fraction: said.append(what), outputs=False)
    assert len(supernets(tiny_study.cache) - before) == 1 + bool(places)  # with its encoder
    assert "supernet: warm-up" not in said and "supernet: order of its channels" in said
    of_wide, of_narrow = weights(wide), weights(narrow)
    for layer in range(2):
        assert torch.equal(of_narrow[LAYER.format(layer)], of_wide[LAYER.format(0)][:20, :16])
    name = "bert.embeddings.position_embeddings.weight"
    assert torch.equal(of_narrow[name], of_wide[name][:, :16])
    if not places:  # otherwise each has a new head
        assert torch.equal(of_narrow["classifier.weight"], of_wide["classifier.weight"][:, :16])
    # The student's side of the objective's projections to the teacher's width of 32.
    learned = projections(wide.supernet)
    assert {name: tuple(tensor.shape) for name, tensor in projections(narrow.supernet).items()} == {
        f"projections.{part}.{kind}": (32, 16)[: 2 if kind == "weight" else 1]
        for part in ("hidden", "embedding")
        for kind in ("weight", "bias")
    }
    for name, tensor in projections(narrow.supernet).items():
        assert torch.equal(tensor, learned[name][..., :16] if name.endswith("weight") else learned[name])
    # The importance is that of the cut supernet's own channels.
    assert [len(scores) for scores in narrow.importance()] == [20, 20]
    assert not torch.equal(*narrow.importance())
    evaluator = TrainedEvaluator(narrow, "cpu")
    base, graph = narrow.base()
    student = evaluator.student(Architecture.uniform(base, graph=graph, stack=2)).state_dict()
    assert all(torch.equal(student[name], tensor) for name, tensor in of_narrow.items())


def test_the_source_is_made_if_it_is_not_there(tiny_study: TinyStudy, presets: tuple[str, str]) -> None:
    before = supernets(tiny_study.cache)
    narrow = prepare(load_config(presets[1], {"seed": 5}), "cpu", outputs=False)
    assert len(supernets(tiny_study.cache) - before) == 2
    after = supernets(tiny_study.cache)
    wide = prepare(load_config(presets[0], {"seed": 5}), "cpu", outputs=False)
    assert supernets(tiny_study.cache) == after and wide.supernet != narrow.supernet
    assert (narrow.supernet / PROJECTIONS).exists() and (narrow.supernet / IMPORTANCE).exists()


def test_a_wider_student_without_projections(presets: tuple[str, str]) -> None:
    """The wide student is as wide as its teacher, so that it has no projections; those of the narrow one are new."""
    places = {
        "supernet.cut_from": {"depth": 1, "width": 32, "heads": 4, "inner": 24, "embedding": 8},
        "supernet.order": "importance",
    }
    narrow = prepare(load_config(presets[1], places), "cpu", outputs=False)
    found = projections(narrow.supernet)["projections.hidden.weight"]
    assert found.shape == (32, 16) and found.abs().min() > 0


@pytest.mark.parametrize("preset", ["efficientbert-tiny", "efficientbert++"])
def test_the_presets_cut_from_the_supernet_of_efficientbert(tiny_study: TinyStudy, preset: str) -> None:
    """With a teacher and rows that are on this machine."""
    places = {"teacher": str(tiny_study.teacher), "tasks": ["library"], "corpus": None}
    contexts = [preparation_context(load_config(name, places), "cpu") for name in ("efficientbert", preset)]
    source = context_of_source(contexts[1])
    assert source is not None and source.config.cut_from is None
    assert encoder_path(source) == encoder_path(contexts[0]) != encoder_path(contexts[1])
    assert supernet_path(source) == supernet_path(contexts[0]) != supernet_path(contexts[1])


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"base": "teacher"}, "supernet.cut_from is for a base that is a table of dimensions, not 'teacher'"),
        ({"base.width": 32}, "supernet.cut_from and base: width is 32, more than the 24 channels"),
        ({"base.heads": 2}, "supernet.cut_from and base: heads is 2, and 4 where it is cut from"),
        ({"supernet.cut_from.depth": 2, "base.depth": 1}, "supernet.cut_from and base: depth is 1, which is not a mul"),
        ({"supernet.cut_from.heads": 5}, "base.heads: 5 heads do not divide the width 24"),
        ({"supernet.cut_from.width": "a"}, "supernet.cut_from.width: Input should be a valid integer"),
    ],
)
def test_what_is_refused(presets: tuple[str, str], places: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(load_config(presets[1], places), "cpu")

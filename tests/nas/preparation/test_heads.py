"""Studies in which layers may have fewer heads: what is prepared for them, and what no study can have."""

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.evaluation.one_shot import OneShotEvaluator
from nas.evaluation.trained import TrainedEvaluator
from nas.planning.stages import plan
from nas.preparation.checks import check_experts, check_heads
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from search_spaces import FFN, Architecture, Attention, Experts, Layer
from search_spaces.operations import UNARY
from supernet.build import base_of_teacher, config_of
from supernet.compensation.calibration import Calibration
from supernet.inherit import inherit
from tests.nas.preparation.test_calibration import COMPENSATED, ROUNDING, files_of, prepared
from tests.nas.tiny_study import TinyStudy, uniform
from tests.renamed import of_every_kind
from tests.tiny import batch, bert, inputs

HEADS = {"space.heads": [0, 1, 2, 4], "space.stacks": [0, 1], "objective.attention": 0.0}
PLAIN = {name: value for name, value in HEADS.items() if name != "space.heads"}


@pytest.fixture
def with_heads(tiny_study: TinyStudy) -> Workspace:
    return prepared(tiny_study, **COMPENSATED, **HEADS)


def values(workspace: Workspace, layer: int) -> torch.Tensor:
    """The biases of the value map, a row for each head."""
    name = f"bert.encoder.layer.{layer}.attention.self.value.bias"
    return load_file(workspace.supernet / "model.safetensors")[name].unflatten(0, (4, -1))


def test_heads_are_sorted_and_their_importance_is_kept(tiny_study: TinyStudy, with_heads: Workspace) -> None:
    """The supernet is otherwise that of the study in which the number of heads does not vary."""
    plain = prepared(tiny_study, **COMPENSATED, **PLAIN)
    assert plain.supernet != with_heads.supernet and plain.head_importance() == []
    moved = 0
    for layer in range(2):
        before, after = values(plain, layer), values(with_heads, layer)
        places = torch.cdist(after, before).argmin(dim=1)
        assert places.sort().values.tolist() == [0, 1, 2, 3]
        torch.testing.assert_close(after, before[places], **ROUNDING)
        moved += places.tolist() != [0, 1, 2, 3]
    assert moved
    scores = with_heads.head_importance()
    assert [len(layer) for layer in scores] == [4, 4] and all(bool((layer > 0).all()) for layer in scores)
    assert all(torch.equal(layer, layer.sort(descending=True).values) for layer in scores)
    for of_plain, of_heads in zip(plain.importance(), with_heads.importance(), strict=True):
        torch.testing.assert_close(of_plain, of_heads, **ROUNDING)
    logits = []
    for workspace in (plain, with_heads):
        model = TrainedEvaluator(workspace, "cpu").student(Architecture.uniform(*workspace.base())).eval()
        with torch.no_grad():
            logits.append(model(**inputs(batch())).logits)
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-3)


def test_losses_of_heads_are_predicted(tiny_study: TinyStudy, with_heads: Workspace) -> None:
    stored = load_file(files_of(with_heads).predictions)
    assert stored.keys() == {f"{name}/{layer}" for name in (*UNARY, "heads") for layer in range(2)}
    for layer in range(2):
        losses = stored[f"heads/{layer}"]
        assert losses.shape == (5,) and bool((losses[1:].diff() <= 1e-12).all())
        assert float(losses[0]) > 0 and float(losses[-1]) < 1e-3 * float(losses[0])
    plain = prepared(tiny_study, **COMPENSATED, **PLAIN)
    assert files_of(plain).predictions != files_of(with_heads).predictions
    assert files_of(plain).calibration != files_of(with_heads).calibration
    sums = [Calibration.load(files_of(each).calibration).attention_sums for each in (plain, with_heads)]
    assert [len(each) for each in sums] == [0, 2]


def test_other_heads_need_nothing_new(tiny_study: TinyStudy, with_heads: Workspace) -> None:
    """Everything is for all numbers of heads."""
    fewer = prepared(tiny_study, **COMPENSATED, **HEADS | {"space.heads": [1, 3]})
    assert (fewer.supernet, fewer.compensation) == (with_heads.supernet, with_heads.compensation)


def test_candidates_with_fewer_heads_are_compensated_and_scored(with_heads: Workspace) -> None:
    evaluator = TrainedEvaluator(with_heads, "cpu")
    base, graph = with_heads.base()
    ffn = uniform(with_heads, "1/4").ffns[0]
    left_out = Architecture(base, (Layer(Attention(0), FFN(stack=0)), Layer(Attention(1), ffn)))
    fewer = Architecture(base, (Layer(Attention(2), ffn), Layer(Attention(0), FFN(graph))))
    for architecture, solved in ((left_out, {"embeddings.LayerNorm"}), (fewer, {"attention.output.LayerNorm"})):
        student, sliced = (
            evaluator.student(architecture),
            inherit(evaluator.weights, architecture, evaluator.frequencies),
        )
        changed = {name for name, tensor in student.state_dict().items() if not torch.equal(tensor, sliced[name])}
        found = {part for part in (*solved, "output.dense", "project") if any(part in name for name in changed)}
        assert found == {*solved, "output.dense", "project"}
        assert 0 <= evaluator.evaluate(architecture, seed=0).value <= 1


@pytest.mark.parametrize("inheritance", ["sliced", "compensated"])
def test_slices_of_the_one_shot_supernet_have_fewer_heads(inheritance: str, tiny_study: TinyStudy) -> None:
    """Of any number up to that of the start, which may be none of the choices."""
    fewer = {"space.heads": [0, 2], "one_shot.inheritance": inheritance}
    study = prepared(tiny_study, **COMPENSATED, **HEADS | fewer)
    base, graph = study.base()
    start = Architecture(base, (Layer(Attention(0), FFN(stack=0)), Layer(Attention(3), FFN(graph))))
    space = plan(study.config, study, "3", start, ()).space
    workspace = prepare_one_shot(study, space, "cpu")
    assert (workspace.calibration is None) == (inheritance == "sliced")
    evaluator = OneShotEvaluator(workspace, "cpu")
    for architecture in (start, space.sample(random.Random(0))):
        assert 0 <= evaluator.evaluate(architecture).value <= 1
    student = evaluator.student(start)
    assert student.bert.encoder.layer[1].attention.self.query.weight.shape == (24, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"space.heads": [0, 5]}, "space.heads: 5 is more than the base's 4 heads per layer"),
        (
            {"space.heads": [0, 4], "space.attention_experts": [2, 3]},
            "space.heads: attention with experts keeps all 4 heads: remove space.heads, or add 1 to "
            "space.attention_experts",
        ),
    ],
)
def test_heads_that_no_layer_can_have(changes: dict[str, Any], message: str, tiny_study: TinyStudy) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(load_config(str(tiny_study.preset), changes), "cpu")
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("changes", "heads"),
    [({}, 4), ({"heads": [4], "attention_experts": [2]}, 4), ({"heads": [0, 4]}, 4), ({"heads": [0, 8]}, 8)],
)
def test_heads_that_layers_can_have(
    changes: dict[str, Any], heads: int, tiny_study: TinyStudy, workspace: Workspace
) -> None:
    given = {f"space.{name}": value for name, value in changes.items()}
    check_heads(load_config(str(tiny_study.preset), given), replace(workspace.base()[0], heads=heads))


@pytest.mark.parametrize(
    ("name", "value", "kinds"),
    [
        ("experts", [Experts(2, Fraction(1, 2))], ("mpnet", "deberta-v2", "gte")),
        ("attention_experts", [1, 2], ("mpnet", "distilbert", "jina", "pre-norm", "modernbert")),
        ("head_experts", [2], ("roberta", "electra")),
    ],
)
def test_experts_that_students_of_some_types_cannot_have(name: str, value: Any, kinds: tuple[str, ...]) -> None:
    teachers = of_every_kind(bert())
    config = load_config("demo").with_table("space", **{name: value})
    for kind in ("bert", *kinds):
        base, graph = base_of_teacher(teachers[kind].config)
        student = config_of(Architecture.uniform(base, graph), template=teachers[kind].config)
        if kind == "bert":
            check_experts(config, student)
            continue
        with pytest.raises(ConfigError, match=rf"^space\.{name}: students of encoders of the type '.*' cannot have"):
            check_experts(config, student)

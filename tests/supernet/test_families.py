"""Students of other families: what they share with those of a BERT with the same weights, and what is theirs."""

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import mean
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification
from transformers.dynamic_module_utils import get_relative_imports

from distill.encoders.family import family_of
from distill.encoders.parts import encoder_layers, model_inputs
from distill.encoders.student import modeling_nas, modeling_nas_bert
from distill.encoders.student.families import FAMILIES
from distill.encoders.students import CLASSES as STUDENTS
from distill.objectives.outputs import Batch
from distill.tasks.types import TASK_TYPES, task_type_of
from distill.training.students import some_layers
from distill.training.teacher import TeacherError, load_config, load_model
from nas.export.ordinary import ordinary_form
from search_spaces import FFN, Architecture, Attention, Embedding, Experts, Layer, cost
from search_spaces.graph import FFNGraph
from supernet.build import (
    BuildError,
    base_of_teacher,
    build,
    config_of,
    from_teacher,
    layer_output_statistics,
    set_dropout,
)
from supernet.compensation.calibration import calibrate
from supernet.compensation.compensate import compensate
from supernet.inherit import inherit
from supernet.order.importance import neuron_importance, sort_channels, summed_loss
from supernet.pruning import Kept, prune
from tests.renamed import PAIRS, comparable, of_every_kind, same, sentences, twins
from tests.tiny import BASE, SIZES, bert, inputs, shaken

HALF = Fraction(1, 2)
# Types that differ in more than their names.
KINDS = ("roberta", "electra", "distilbert", "mpnet")
EVERY_KIND = of_every_kind(bert())
GRAPHS = ("project(gelu(expand(x)))", "project(mul(gelu(expand(x)),gate(x)))", "tanh(project(relu(expand(x))))")


def pair(cls: type = BertForSequenceClassification, depth: int = 3, other: str = "roberta") -> list[Any]:
    """A BERT, and a model of another type with its weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(**{**SIZES, "num_labels": 2, "num_hidden_layers": depth})
        bert = shaken(cls(config)).eval()
    return list(twins(bert, other))  # type: ignore[arg-type]


@torch.no_grad()
def logits(model: Any, given: Batch) -> list[Tensor]:
    """Those of the tokens that are no padding."""
    outputs = model.eval()(**inputs(given))
    mask_BT = given["attention_mask"].bool()
    tensors = [outputs[name] for name in ("logits", "start_logits", "end_logits") if name in outputs]
    return [tensor[mask_BT] if tensor.shape[:2] == mask_BT.shape else tensor for tensor in tensors]


def equal(models: Sequence[Any]) -> None:
    """Check that two models have the same logits."""
    model_type = str(family_of(models[1]).students_of or models[1].config.model_type)
    for given in (sentences(), sentences(5, 12, seed=1)):
        for mine, theirs in zip(*(logits(model, given) for model in models), strict=True):
            assert same(mine, theirs, model_type)


@pytest.mark.parametrize(("other", "cls"), PAIRS)
def test_supernets_compute_what_their_teachers_do(cls: type, other: str) -> None:
    teachers = pair(cls, other=other)
    students = [from_teacher(teacher, stack=1) for teacher in teachers]
    assert [student.config.model_type for student in students] == ["nas_bert", f"nas_{other}"]
    assert [task_type_of(student) for student in students] == [task_type_of(teacher) for teacher in teachers]
    equal([students[1], teachers[1]])
    if comparable(cls, other):
        equal(students)


def test_classes_are_found_by_their_names() -> None:
    """`pickle` and transformers look them up in their module."""
    for classes in STUDENTS.values():
        for cls in classes.values():
            assert pickle.loads(pickle.dumps(cls)) is cls
    for teacher in pair():
        model = from_teacher(teacher, stack=1)
        copied = pickle.loads(pickle.dumps(model))
        equal([model, copied])
    with pytest.raises(AttributeError, match="NasGPT2"):
        modeling_nas.NasGPT2Decoder  # noqa: B018


def candidates(models: Sequence[Any], accelerator: Accelerator, layers: Sequence[FFN]) -> list[Any]:
    """A compensated candidate of each teacher, whose channels are sorted by importance."""
    result = []
    for teacher in models:
        supernet = from_teacher(teacher, stack=1)
        given = sentences(6, labels=2)
        tags = {**given, "labels": torch.where(given["attention_mask"].bool(), given["input_ids"] % 2, -100)}
        scores = neuron_importance(supernet, [tags], summed_loss)
        supernet.load_state_dict(sort_channels(supernet.state_dict(), scores, supernet.config))
        base, _ = base_of_teacher(teacher.config)
        architecture = Architecture.of_ffns(base, tuple(layers)).with_heads(HEADS)
        weights = inherit(supernet.state_dict(), architecture)
        student = build(architecture, task_type_of(teacher), template=teacher.config, weights=weights)
        seen = [sentences(8, seed=2), sentences(8, seed=3)]
        compensate(student, calibrate(supernet, seen, accelerator, attentions=True), accelerator)
        result.append(student)
    return result


HEADS = (2, 0, 4)
LAYERS = [
    [FFN(FFNGraph.parse(text), expansion=HALF) for text in GRAPHS],
    [FFN(expansion=HALF), FFN(stack=0), FFN(expansion=Fraction(1, 4))],
    [FFN(expansion=HALF, experts=Experts(2, HALF, routing)) for routing in ("hash", "token_gate", "sentence_gate")],
]


@pytest.mark.parametrize(
    ("layers", "other"),
    # Students of some types cannot have experts.
    [(layers, other) for other in KINDS for layers in LAYERS[: 2 + FAMILIES[other].attention_interface]],
)
def test_compensated_candidates_are_equal(layers: list[FFN], other: str, accelerator: Accelerator) -> None:
    equal(candidates(pair(BertForTokenClassification, other=other), accelerator, layers))


@pytest.mark.parametrize("name", ["pre-norm", "modernbert"])
def test_whole_candidates_with_their_norms_first_stay_as_they_are(name: str, accelerator: Accelerator) -> None:
    """With two blocks, the sums of which are inputs of different modules."""
    teacher, batches = EVERY_KIND[name], [sentences(8, seed=2)]
    statistics = layer_output_statistics(teacher, batches)
    supernet = shaken(from_teacher(teacher, stack=2, block_inputs=statistics)).eval()
    base, graph = base_of_teacher(teacher.config)
    architecture = Architecture.uniform(base, graph, stack=2)
    weights = inherit(supernet.state_dict(), architecture)
    student = build(architecture, num_labels=3, template=teacher.config, weights=weights).eval()
    compensate(student, calibrate(supernet, batches, accelerator, attentions=True), accelerator)
    assert all(torch.equal(tensor, weights[key]) for key, tensor in student.state_dict().items() if key in weights)


@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_dropout_is_set_wherever_it_is(name: str) -> None:
    config, given = copy.deepcopy(EVERY_KIND[name].config), model_inputs(EVERY_KIND[name], sentences())
    for key in filter(None, family_of(config).dropouts):
        setattr(config, key, 0.5)
    student = from_teacher(type(EVERY_KIND[name])(config), stack=1)
    set_dropout(student, 0.0)
    assert torch.equal(student.train()(**given).logits, student.eval()(**given).logits)
    set_dropout(student, 0.3)
    probabilities = dropouts(student)
    assert {*probabilities.values()} == {0.3} and dropouts(type(student)(student.config)) == probabilities


def dropouts(model: nn.Module) -> dict[str, float]:
    """The probability of every dropout, which is a number in the attention of some families."""
    result = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            result[name] = module.p
        elif "attention_dropout" in vars(module):
            result[name] = module.attention_dropout
    return result


@pytest.mark.parametrize("name", ["modernbert", "eurobert"])
def test_dropout_is_where_the_family_has_it(name: str) -> None:
    """A student has no more kinds of it than its teacher, but one after each FFN if these have any."""
    config = copy.deepcopy(EVERY_KIND[name].config)
    for key in filter(None, family_of(config).dropouts):
        setattr(config, key, 0.5)
    teacher = type(EVERY_KIND[name])(config)
    own, mine = (dropouts(model) for model in (teacher, from_teacher(teacher, stack=1)))
    in_ffns = {place for place in own if "mlp" in place}
    assert {place for place in own if place not in in_ffns} == {place for place in mine if ".ffn." not in place}
    assert len([place for place in mine if ".ffn." in place]) == len(in_ffns)


def test_no_gate_starts_without_a_bias() -> None:
    """It would be 0 instead of 1, and with it the FFN."""
    config = EVERY_KIND["nomic"].config
    base, gated = base_of_teacher(config)
    supernet = build(Architecture.uniform(base), template=config)
    with pytest.raises(ValueError, match=r"layers\[0\].ffn.graph: the supernet has no gate, nor biases"):
        inherit(supernet.state_dict(), Architecture.uniform(base, gated))


@pytest.mark.parametrize(
    ("name", "head", "tied"),
    [("eurobert", "classification", True), *((name, "masked_lm", name == "eurobert") for name in ("eurobert", "bert"))],
)
@torch.no_grad()
def test_words_of_lower_rank(name: str, head: str, tied: bool) -> None:
    """In families with the same paths in layers and words elsewhere, and where the output embedding has no bias, or is
    another one.
    """
    config = copy.deepcopy(EVERY_KIND[name].config)
    config.tie_word_embeddings = tied
    whole = from_teacher(shaken(TASK_TYPES[head].model.from_config(config)).eval(), stack=1).eval()
    base, graph = base_of_teacher(config)
    architecture = replace(Architecture.uniform(base, graph), embedding=Embedding(8))
    weights = inherit(whole.state_dict(), architecture, torch.arange(base.vocabulary))
    candidate = build(architecture, TASK_TYPES[head], 3, config, weights).eval()
    words, given = whole.get_input_embeddings().weight, model_inputs(whole, sentences())
    inherited = candidate.get_input_embeddings()(torch.arange(base.vocabulary))
    assert not torch.allclose(words, inherited)
    words.copy_(inherited)
    torch.testing.assert_close(candidate(**given).logits, whole(**given).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("other", KINDS)
def test_pruned_and_shortened_models_are_equal(other: str) -> None:
    kept = Kept(((0, 2), (), (0, 1, 2, 3)), ((1, 5, 7), (0,), tuple(range(48))))
    teachers = pair(BertForTokenClassification, other=other)
    pruned = [prune(teacher, kept) for teacher in teachers]
    equal(pruned)
    equal([some_layers(model, [2, 0]) for model in pruned])
    equal([some_layers(model, [0, 2]) for model in teachers])


def test_experts_of_attention() -> None:
    students = []
    for teacher in pair():
        base, graph = base_of_teacher(teacher.config)
        architecture = Architecture.uniform(base, graph=graph, attention_experts=2)
        weights = inherit(from_teacher(teacher, stack=1).state_dict(), architecture)
        students.append(build(architecture, template=teacher.config, weights=weights))
        outputs = students[-1](**inputs(sentences()), output_attentions=True, output_hidden_states=True)
        assert len(outputs.attentions or ()) in (0, 3) and len(outputs.hidden_states) == 4
    equal(students)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        (Architecture.uniform(replace(BASE, embedding=7)), "base.embedding"),
        (Architecture.uniform(BASE, head_experts=2), "head.experts"),
    ],
)
def test_what_only_students_of_bert_have(architecture: Architecture, name: str) -> None:
    template = pair()[1].config
    with pytest.raises(BuildError, match=rf"^{name} is \d: students of encoders of the type 'roberta' cannot have it$"):
        config_of(architecture, template=template)
    config_of(architecture)


def test_checkpoints_are_read_back(tmp_path: Path) -> None:
    student = shaken(from_teacher(pair()[1], stack=1)).eval()
    student.save_pretrained(tmp_path)
    with pytest.raises(TeacherError, match="is a student itself, of type 'nas_roberta'"):
        load_config(str(tmp_path))
    loaded = load_model(str(tmp_path), ["a", "b"], new_head=False).eval()
    equal([student, loaded])
    assert len(encoder_layers(loaded)) == 3 and type(loaded) is type(student)


@pytest.mark.parametrize("module", [modeling_nas, modeling_nas_bert])
def test_all_modules_are_named(module: ModuleType) -> None:
    """Older versions of transformers copy the modules that the model's own one names, and no others."""
    file = Path(str(module.__file__))
    others = {path.stem for path in file.parent.glob("*.py") if not path.stem.startswith(("__", "modeling_"))}
    assert set(get_relative_imports(file)) - {"modeling_nas"} == others


@pytest.mark.parametrize("name", EVERY_KIND)
@torch.no_grad()
def test_students_of_every_kind(name: str, accelerator: Accelerator) -> None:
    """A supernet computes what its teacher does, and so do all of its channels and heads, compensated; a candidate with
    fewer is closer to the teacher if compensated, and has an ordinary form.
    """
    teacher = EVERY_KIND[name]
    base, graph = base_of_teacher(teacher.config)
    batches = [sentences(16, seed=seed) for seed in range(2, 12)]
    statistics = layer_output_statistics(teacher, batches)
    twice = from_teacher(teacher, stack=2, block_inputs=statistics).eval()
    supernet = from_teacher(teacher, stack=1).eval()
    expected = teacher(**model_inputs(teacher, sentences())).logits
    torch.testing.assert_close(supernet(**model_inputs(teacher, sentences())).logits, expected, rtol=0, atol=1e-6)
    if base.pre_norm:  # then a second block adds nothing at all
        torch.testing.assert_close(twice(**model_inputs(teacher, sentences())).logits, expected, rtol=0, atol=1e-6)
    calibration = calibrate(supernet, batches, accelerator, attentions=True)
    unseen = [model_inputs(teacher, sentences(16, seed=seed)) for seed in range(20, 30)]

    def error(layers: tuple[Layer, ...], compensated: bool) -> float:
        architecture = Architecture(base, layers)
        weights = inherit(supernet.state_dict(), architecture)
        student = build(architecture, num_labels=3, template=teacher.config, weights=weights).eval()
        assert sum(p.numel() for p in student.parameters()) == cost.params(architecture, 3)
        if compensated:
            compensate(student, calibration, accelerator)
        if layers[1].ffn.stack:
            ordinary_form(student, teacher.config.model_type)
        return mean(float((student(**batch).logits - teacher(**batch).logits).square().mean()) for batch in unseen)

    assert error((Layer(Attention(4), FFN(graph)),) * 2, True) < 1e-10
    for layers in (
        (Layer(Attention(2), FFN(graph, expansion=HALF)), Layer(Attention(1), FFN(graph, expansion=HALF))),
        (Layer(Attention(0), FFN(graph, expansion=HALF)), Layer(Attention(3), FFN(stack=0))),
        (Layer(Attention(0), FFN(stack=0)), Layer(Attention(3), FFN(graph, expansion=HALF))),
    ):
        assert error(layers, True) < error(layers, False)

"""The Hugging Face model: heads, padding, files that stand on their own."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from pathlib import Path

import pytest
import torch
from accelerate import FullyShardedDataParallelPlugin, infer_auto_device_map
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertModel

from distill.encoders import student as model_package
from distill.encoders.student.modeling_nas_bert import NasBertConfig, NasBertModel
from distill.tasks.types import TASK_TYPES
from search_spaces import FFN, Architecture, Attention, Experts, FFNGraph, Layer
from supernet.build import build, config_of
from tests.tiny import BASE, architectures, batch, inputs, shaken

LABELS = 3
# The modules that travel in a checkpoint: all of distill/encoders/student but for those of other families.
FILES = {path.stem for path in Path(model_package.__file__).parent.glob("*.py")} - {"__init__"}
EXPORTED = sorted(name for name in FILES if not name.startswith("modeling_") or name == "modeling_nas_bert")
CLASSES = {
    "none": "AutoModel",
    "masked_lm": "AutoModelForMaskedLM",
    "classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
}
# Reads the checkpoints as a stranger would: this project cannot be imported.
STRANGER = """
import json, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("foundation", "supernet", "search_spaces", "distill", "nas"):
            raise ImportError("the checkpoint wants to import " + name)

sys.meta_path.insert(0, Blocked())
import torch, transformers
from safetensors.torch import load_file

expected = load_file("expected.safetensors")
batch = {name[6:]: expected.pop(name) for name in list(expected) if name.startswith("input.")}
equal = {}
for folder, auto in json.load(open("checkpoints.json")).items():
    model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
    with torch.no_grad():
        outputs = model(**batch)
    equal[folder] = all(
        torch.equal(tensor, outputs[name.partition("/")[2]])
        for name, tensor in expected.items()
        if name.partition("/")[0] == folder
    )
    assert type(model).__module__.startswith("transformers_modules."), type(model)
print(json.dumps(equal))
"""


def make(head: str = "classification", embedding: int | None = None, seed: int = 0) -> torch.nn.Module:
    base = replace(BASE, embedding=embedding, mismatch="wide" if seed % 2 else "narrow")
    architecture = next(architectures(1, base, seed))
    torch.manual_seed(seed)
    labels = 2 if head == "question_answering" else LABELS
    return shaken(build(architecture, TASK_TYPES.get(head), labels), seed).eval()


@torch.no_grad()
def results(model: torch.nn.Module, features: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in model(**inputs(features)).items() if isinstance(tensor, Tensor)}


@pytest.mark.parametrize("embedding", [None, 7])
@pytest.mark.parametrize("head", ["none", *TASK_TYPES])
def test_shapes(head: str, embedding: int | None) -> None:
    actual = {name: tuple(tensor.shape) for name, tensor in results(make(head, embedding), batch(4, 9)).items()}
    assert (
        actual
        == {
            "none": {"last_hidden_state": (4, 9, BASE.width), "pooler_output": (4, BASE.width)},
            "masked_lm": {"logits": (4, 9, BASE.vocabulary)},
            "classification": {"logits": (4, LABELS)},
            "regression": {"logits": (4, LABELS)},
            "token_classification": {"logits": (4, 9, LABELS)},
            "question_answering": {"start_logits": (4, 9), "end_logits": (4, 9)},
        }[head]
    )


@pytest.mark.parametrize("embedding", [None, 7])
@pytest.mark.parametrize("head", ["none", *TASK_TYPES])
def test_padding_changes_nothing(head: str, embedding: int | None) -> None:
    model = make(head, embedding)
    features = batch(5, 9)
    padded = results(model, features)
    for row, length in enumerate(features["attention_mask"].sum(dim=1).tolist()):
        alone = results(model, {name: tensor[row : row + 1, :length] for name, tensor in inputs(features).items()})
        for name, tensor in alone.items():
            together = padded[name][row : row + 1]
            if tensor.ndim > 1 and tensor.shape[1] == length and tensor.shape != together.shape:
                together = together[:, :length]
            torch.testing.assert_close(together, tensor, rtol=1e-4, atol=1e-5)


def test_with_identical_ffns_it_is_bert() -> None:
    """One block, GELU, expansion 1: the library's own BERT with renamed parameters."""
    config = config_of(next(architectures(1)), LABELS)
    config.ffn = [
        {
            "formula": "project(gelu(expand(x)))",
            "program": [["expand", [0]], ["gelu", [1]], ["project", [2]]],
            "widths": [24, 48, 48, 24],
            "stack": 1,
            "inner": 48,
        }
    ] * BASE.depth
    model = shaken(NasBertModel(config)).eval()
    names = {"ffn.0.expand": "intermediate.dense", "ffn.0.project": "output.dense", "ffn.0.Lay": "output.Lay"}
    weights = {}
    for name, tensor in model.state_dict().items():
        for own, theirs in names.items():
            name = name.replace(own, theirs)
        weights[name] = tensor
    fields = {name: value for name, value in config.to_dict().items() if name in BertConfig().to_dict()}
    stock = BertModel(BertConfig(**{**fields, "model_type": "bert"})).eval()
    stock.load_state_dict(weights)
    for name, tensor in results(stock, batch()).items():
        assert torch.equal(tensor, results(model, batch())[name])


@pytest.mark.parametrize("attention_experts", [1, 2])
def test_without_an_ffn_a_layer_ends_with_its_attention(attention_experts: int) -> None:
    ffns = (FFN(), FFN(stack=0), FFN(stack=0))
    model = shaken(build(Architecture.of_ffns(BASE, ffns, attention_experts), None)).eval()
    attended = []
    for layer in model.encoder.layer:
        layer.attention.register_forward_hook(lambda module, given, output: attended.append(output[0]))
    states = model(**inputs(batch()), output_hidden_states=True).hidden_states
    assert not torch.equal(states[1], attended[0])
    assert torch.equal(states[2], attended[1]) and torch.equal(states[3], attended[2])
    assert [len(layer.ffn) for layer in model.encoder.layer] == [1, 0, 0]
    assert model.config.ffn[1] | {"program": []} == {
        "formula": "no FFN",
        "program": [],
        "widths": [24, 0, 0, 24],
        "stack": 0,
        "inner": 0,
    }


def test_factorized_embedding() -> None:
    """Next, this and previous word, zero beyond the ends of the sentence, as MobileBERT orders them."""
    embeddings = make("none", 7).embeddings
    ids = torch.tensor([[5, 9, 3, 2]])
    words = F.pad(embeddings.word_embeddings(ids), (0, 0, 1, 1))
    trigrams = torch.cat([words[:, 2:], words[:, 1:-1], words[:, :-2]], dim=-1)
    mapped = embeddings.embedding_transformation(trigrams)
    mapped = mapped + embeddings.position_embeddings.weight[:4] + embeddings.token_type_embeddings.weight[0]
    torch.testing.assert_close(embeddings(ids), embeddings.LayerNorm(mapped))
    assert embeddings.position_ids.tolist() == [list(range(BASE.positions))]


@pytest.mark.parametrize("embedding", [None, 7])
def test_masked_lm_head_is_tied(embedding: int | None) -> None:
    model = make("masked_lm", embedding)
    decoder = model.cls.predictions.decoder
    assert decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert decoder.bias is model.cls.predictions.bias


def test_labels_give_a_loss() -> None:
    model, features = make(), batch()
    expected = F.cross_entropy(model(**inputs(features)).logits, features["labels"])
    torch.testing.assert_close(model(**features).loss, expected)


def test_both_forms_of_attention_agree() -> None:
    model, features = make(), batch()
    reference = results(model, features)["logits"]
    model.set_attn_implementation("eager")
    torch.testing.assert_close(results(model, features)["logits"], reference)


def test_a_configuration_without_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"config.ffn describes 0 layers but num_hidden_layers is 12"):
        NasBertModel(NasBertConfig())


def test_checkpoints_load_where_the_project_is_not_installed(tmp_path: Path) -> None:
    expected = {f"input.{name}": tensor for name, tensor in inputs(batch()).items()}
    checkpoints = {}
    for number, (head, auto) in enumerate(CLASSES.items()):
        for embedding in (None, 7):
            folder = f"{head}-{embedding}"
            model = make(head, embedding, seed=number)
            model.save_pretrained(tmp_path / folder)
            checkpoints[folder] = auto
            expected |= {f"{folder}/{name}": tensor for name, tensor in results(model, batch()).items()}
    mids = ("mul(gelu(expand(x)),gate(x))", "gelu(expand(x))", "mul(swish(expand(x)),gate(x))")
    graphs = [FFNGraph.parse(f"project({mid})") for mid in mids]
    half = Fraction(1, 2)
    kinds: dict[str, tuple[int, list[Experts]]] = {
        "gated": (1, [Experts()] * 3),
        "hash": (1, [Experts(2), Experts(4, half, "balanced_hash", 2), Experts(4, half, capacity=Fraction(1))]),
        "gates": (1, [Experts(4, half, "token_gate", 2, Fraction(5, 4)), Experts(2, half, "sentence_gate"), Experts()]),
        "attention": (3, [Experts(), Experts(4, half, "token_gate"), Experts(2)]),
    }
    for folder, (attentions, experts) in kinds.items():
        layers = tuple(FFN(graph, 2, half / 2, some) for graph, some in zip(graphs, experts, strict=True))
        model = shaken(build(Architecture.of_ffns(BASE, layers, attentions), labels=LABELS)).eval()
        model.save_pretrained(tmp_path / folder)
        checkpoints[folder] = CLASSES["classification"]
        expected |= {f"{folder}/{name}": tensor for name, tensor in results(model, batch()).items()}
        assert sorted(path.stem for path in (tmp_path / folder).glob("*.py")) == EXPORTED
    few = Architecture.of_ffns(BASE, (FFN(), FFN(stack=0), FFN(experts=Experts(2, half * 2))), attention_experts=2)
    # Of the attentions one has experts, one a single head, and one none.
    mixed = replace(few, layers=(few.layers[0], Layer(Attention(1), FFN()), Layer(Attention(0), FFN())))
    for folder, architecture in {"few": few, "mixed": mixed, "none": Architecture.uniform(BASE, stack=0)}.items():
        model = shaken(build(architecture, labels=LABELS)).eval()
        model.save_pretrained(tmp_path / folder)
        checkpoints[folder] = CLASSES["classification"]
        expected |= {f"{folder}/{name}": tensor for name, tensor in results(model, batch()).items()}
    save_file(expected, tmp_path / "expected.safetensors")
    (tmp_path / "checkpoints.json").write_text(json.dumps(checkpoints))
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        "HF_MODULES_CACHE": str(tmp_path / "modules"),
        "HF_HUB_OFFLINE": "1",
    }
    process = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout) == dict.fromkeys(checkpoints, True)


def test_arguments_by_place_are_those_of_bert() -> None:
    """Tools look for the names, and BERT's users give the third argument by its place."""
    ours = list(signature(NasBertModel.forward).parameters)
    theirs = list(signature(BertModel.forward).parameters)
    assert ours[:-1] == theirs[: len(ours) - 1] and len(ours) > 5
    model, features = make("none"), inputs(batch(4, 9))
    named = model(**features).last_hidden_state
    ids, mask, types = (features[name] for name in ("input_ids", "attention_mask", "token_type_ids"))
    assert torch.equal(model(ids, mask, types).last_hidden_state, named)
    places = torch.arange(9).expand(4, -1)
    embedded = model.embeddings.word_embeddings(ids)
    assert torch.equal(model(None, mask, types, places, embedded).last_hidden_state, named)


@pytest.mark.parametrize("embedding", [None, 7])
def test_layers_stay_on_one_device(embedding: int | None) -> None:
    """A device map is cut between these modules, never inside them."""
    model = make("classification", embedding)
    whole = set(model._no_split_modules)
    kinds = {type(module).__name__ for module in model.modules()}
    assert whole == {"NasBertLayer", "BertEmbeddings" if embedding is None else "NasBertEmbeddings"} and whole <= kinds
    placed = infer_auto_device_map(model, {"cpu": "40KB", "disk": "1GB"}, no_split_module_classes=list(whole))
    for name in placed:
        assert ".ffn" not in name and ".attention" not in name and "word_embeddings" not in name, name
    assert len(set(placed.values())) == 2


@pytest.mark.parametrize("embedding", [None, 7])
def test_fsdp_wraps_layers(embedding: int | None) -> None:
    """accelerate's transformer_based_wrap takes the classes from the model."""
    model = make("classification", embedding)
    plugin = FullyShardedDataParallelPlugin(auto_wrap_policy="transformer_based_wrap")
    plugin.set_auto_wrap_policy(model)
    policy = plugin.auto_wrap_policy
    wrapped = {name for name, module in model.named_modules() if policy(module, recurse=False, nonwrapped_numel=1)}
    layers = {f"bert.encoder.layer.{layer}" for layer in range(model.config.num_hidden_layers)}
    assert wrapped == {"bert.embeddings", *layers}

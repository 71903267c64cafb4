"""Damaged and hostile checkpoints: what commands load is refused in one line, or loaded as the files say."""

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from distill.training.teacher import TeacherError, check_vocabulary, load_model, load_tokenizer
from foundation.errors import UserError
from nas.config.load import load_config
from nas.export.checkpoint import load_checkpoint
from nas.final.evaluation import folder_of
from nas.inspect import main as inspect
from nas.report.singular_values import spectra
from search_spaces import Architecture, Experts
from supernet.build import build
from tests.tiny import BASE, bert, saved
from tests.trust.checkpoints import changed
from tests.trust.mutations import bounded, case, damaged
from tests.trust_counts import Cases

IDS = torch.tensor([[2, 6, 7, 3]])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    yield
    transformers_logging.set_verbosity(verbosity)


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return saved(bert(labels=2), tmp_path / "teacher")


@pytest.fixture
def student(tmp_path: Path) -> Path:
    """A mixture with the files that `train_final.py` writes beside it."""
    architecture = Architecture.uniform(
        BASE, expansion=Fraction(1, 4), experts=Experts(4, routing="token_gate", capacity=Fraction(5, 4))
    )
    folder = saved(build(architecture, num_labels=2), tmp_path / "student")
    architecture.save(folder / "architecture.json")
    (folder / "config.toml").write_text(load_config("demo-ffn").to_toml())
    (folder / "metrics.json").write_text(json.dumps({"task": "swap", "metrics": ["accuracy"], "models": {}}))
    return folder


def as_teacher(folder: Path) -> None:
    """What `--teacher`, `supernet.experts` and `train_final.py --evaluate` load."""
    load_tokenizer(str(folder))(["w1 w2"])
    if (folder / "config.json").exists():
        assert folder_of(folder, "swap") == folder
    models = [load_model(str(folder), ("LABEL_0", "LABEL_1"), new_head=new_head) for new_head in (True, False)]
    for model in models:
        with torch.inference_mode():
            assert model.eval()(input_ids=IDS).logits.shape == (1, 2)
    stored = load_file(folder / "model.safetensors")
    for name, tensor in models[-1].state_dict().items():
        torch.testing.assert_close(tensor, stored[name].float())


def as_student(folder: Path) -> None:
    """What `nas.export` and `nas.inspect` load."""
    checkpoint = load_checkpoint(folder)
    with torch.inference_mode():
        assert len(checkpoint.model(input_ids=IDS).logits) == 1
    stored = load_file(folder / "model.safetensors")
    for name, tensor in checkpoint.model.state_dict().items():
        torch.testing.assert_close(tensor, stored[name].to(tensor.dtype))
    assert spectra(folder)
    if checkpoint.architecture is not None:
        assert inspect([str(folder), "--json", "--tokens", "1"]) == 0


@pytest.mark.trust
@pytest.mark.parametrize("kind", ["teacher", "student"])
def test_damaged_checkpoints(
    kind: str, teacher: Path, student: Path, tmp_path: Path, cases: Callable[..., Cases]
) -> None:
    """A damaged checkpoint is refused, or read as it was."""
    counts = cases(sample=25, full=3_000)
    load, whole = {"teacher": (as_teacher, teacher), "student": (as_student, student)}[kind]
    load(whole)  # what the first load takes once is not what a case takes
    folder = tmp_path / "copy"
    for done in damaged(counts, kind, whole, folder):
        with case(counts, done, folder):
            load(folder)
    assert counts["refused"] and counts["read"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"intermediate_size": 47}, "is missing, or of another shape than config.json says"),
        ({"hidden_size": 60_000, "intermediate_size": 60_000}, "config.json describes .* weights, and the files have"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 256, not 10"),
        ({"hidden_dropout_prob": 2}, "hidden_dropout_prob must be from 0 to 1, not 2"),
        ({"pad_token_id": 50}, "pad_token_id must be a whole number from 0 to 49, not 50"),
        ({"num_attention_heads": 5}, "hidden_size 24 must be a multiple of num_attention_heads 5"),
        ({"id2label": {"0": "a", "5": "b"}}, r"id2label must name the classes 0 to 1, not \[0, 5\]"),
        ({"architectures": "BertModel"}, "architectures must be a list of strings, not 'BertModel'"),
    ],
)
def test_configurations_that_are_not_those_of_the_weights(
    settings: dict[str, object], message: str, teacher: Path
) -> None:
    """Nothing of the encoder is silently drawn at random, and no memory is allocated for what is not in the files."""
    changed(teacher / "config.json", **settings)
    with bounded(), pytest.raises(TeacherError, match=message):
        load_model(str(teacher), ("a", "b"))


def test_missing_and_infinite_weights(teacher: Path) -> None:
    file, name = teacher / "model.safetensors", "bert.encoder.layer.1.output.dense.weight"
    weights = load_file(file)
    save_file({key: tensor for key, tensor in weights.items() if key != name}, file, metadata={"format": "pt"})
    with pytest.raises(TeacherError, match=r"describes .* weights"):
        load_model(str(teacher), ("a", "b"))
    for value in (float("nan"), float("inf")):
        weights[name][0, 0] = value
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(TeacherError, match=rf"{name} has values that are not finite"):
            load_model(str(teacher), ("a", "b"))


@pytest.mark.parametrize(
    ("token_id", "message"),
    [(2**31, "tokenizer.json has the token id 2147483648; ids must be below"), (50, "its tokenizer has ids up to 50")],
)
def test_token_ids_beyond_the_vocabulary(token_id: int, message: str, teacher: Path) -> None:
    """They are refused before memory is allocated for all ids up to the largest, and before the model is run."""
    file = teacher / "tokenizer.json"
    stored = json.loads(file.read_text())
    stored["model"]["vocab"]["w1"] = token_id
    file.write_text(json.dumps(stored))
    with bounded(), pytest.raises(UserError, match=message):
        check_vocabulary("it", load_model(str(teacher), ("a", "b")).config, load_tokenizer(str(teacher)))


def test_an_index_that_leaves_the_folder(teacher: Path, tmp_path: Path) -> None:
    (teacher / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    names = load_file(tmp_path / "elsewhere.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}
    (teacher / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(TeacherError, match=r"names '../elsewhere.safetensors', which is not a file of this folder"):
        load_model(str(teacher), ("a", "b"))

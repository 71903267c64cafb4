"""The commands with teachers of other families: the results of a BERT with the same weights, and their own ways."""

import json
from pathlib import Path

import onnxruntime
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    RobertaTokenizerFast,
)

from nas.study.description import formula
from nas.study.ledger import architecture_of
from tests.nas.tiny_study import TinyStudy, corpus, trials_of
from tests.renamed import as_roberta, of_every_kind

ROWS = 72  # of the dev split
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def succeeded(study: TinyStudy, *arguments: object) -> str:
    result = study.run(*arguments)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    return result.stdout


def metrics(folder: Path) -> dict[str, float]:
    models = json.loads((folder / "metrics.json").read_text())["models"]
    return {name: row["accuracy"]["value"] for name, row in models.items()}


@pytest.mark.slow
@pytest.mark.parametrize("preset", [{}, {"untrained": True}])
def test_equal_weights_have_equal_scores(shared_study: TinyStudy, preset: dict[str, bool], tmp_path: Path) -> None:
    """Search, final training and ONNX of a teacher, and of the same with the names of RoBERTa."""
    logs, scores = [], []
    bert = BertForSequenceClassification.from_pretrained(shared_study.teacher, **WITHOUT_DROPOUT)
    for teacher in (bert, as_roberta(bert)):
        name = teacher.config.model_type
        folder = tmp_path / name
        teacher.save_pretrained(folder)
        AutoTokenizer.from_pretrained(shared_study.teacher).save_pretrained(folder)
        changes = [(f'teacher = "{shared_study.teacher}"', f'teacher = "{folder}"')]
        if preset:
            changes.append(("[stage1]\n", '[stage1]\nevaluation = "untrained"\n'))
        file = shared_study.variant(tmp_path / f"{name}.toml", *changes)
        succeeded(shared_study, *shared_study.search(tmp_path, "--study", f"study-{name}", preset=file))
        trials = trials_of(tmp_path / f"study-{name}")
        logs.append([(trial.state.name, formula(architecture_of(trial)), trial.values) for trial in trials])
        final = tmp_path / f"final-{name}"
        architecture = tmp_path / f"study-{name}" / "architecture.json"
        succeeded(shared_study, "train_final.py", architecture, "--out", final, "--device", "cpu")
        assert json.loads((final / "config.json").read_text())["model_type"] == f"nas_{name}"
        succeeded(shared_study, "-m", "nas.export", final, "--onnx", "--skip-latency")
        scores.append(metrics(final))
    assert len(logs[0]) > 3 and logs[0] == logs[1]
    assert scores[0]["teacher"] == scores[1]["teacher"]
    # Norms of gradients sum the table of positions, which has one more row, in another order.
    assert scores[0]["student"] == pytest.approx(scores[1]["student"], abs=2.5 / ROWS)


@pytest.fixture
def roberta(tmp_path: Path) -> Path:
    """A teacher like the published ones: byte-level tokens, one segment type, the padding token 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(corpus().texts, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    folder = tmp_path / "roberta"
    names = dict(zip(("bos", "pad", "eos", "unk", "mask"), special, strict=True))
    own: PreTrainedTokenizerFast = RobertaTokenizerFast(
        tokenizer_object=tokenizer, **{f"{name}_token": token for name, token in names.items()}
    )
    own.save_pretrained(folder)
    config = RobertaConfig(
        vocab_size=len(own),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=34,
        type_vocab_size=1,
        initializer_range=0.1,
    )
    RobertaForSequenceClassification(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_roberta_from_the_search_to_onnx(shared_study: TinyStudy, roberta: Path, tmp_path: Path) -> None:
    words = ("--teacher", roberta, "--study", "s", "--max-latency", "3x")
    succeeded(shared_study, *shared_study.search(tmp_path, *words))
    final = tmp_path / "final"
    succeeded(shared_study, "train_final.py", tmp_path / "s" / "architecture.json", "--out", final, "--device", "cpu")
    out = tmp_path / "out"
    said = succeeded(shared_study, "-m", "nas.export", final, "--int8", "--out", out, "--rounds", 2, "--batches", 1)
    assert "logits within" in said
    sources = {path.stem for path in out.glob("*.py")}
    assert "modeling_nas" in sources and "modeling_nas_bert" not in sources
    names = [node.name for node in onnxruntime.InferenceSession(out / "onnx/model.onnx").get_inputs()]
    assert names == ["input_ids", "attention_mask"]
    config = json.loads((out / "config.json").read_text())
    assert set(config["auto_map"]) >= {"AutoConfig", "AutoModel", "AutoModelForSequenceClassification"}
    assert all(place.startswith("modeling_nas.NasRoberta") for place in config["auto_map"].values())
    assert "roberta" in (out / "README.md").read_text().split("---")[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runtime"),
    [
        ("small electra", "torch"),
        ("distilbert", "onnx"),
        ("mpnet", "torch"),
        ("deberta-v2", "torch"),
        ("pre-norm", "onnx"),
        ("gte", "torch"),
        ("megatron-bert", "torch"),
        ("modernbert", "onnx"),
        ("eurobert", "onnx"),
        ("albert", "onnx"),
        ("nomic", "onnx"),
        ("jina", "torch"),
    ],
)
def test_families_from_the_search_to_ordinary_checkpoints(
    name: str, runtime: str, shared_study: TinyStudy, tmp_path: Path
) -> None:
    """With heads and graphs among the genes, and with a gate once with allocations by their predicted losses."""
    bert = BertForSequenceClassification.from_pretrained(shared_study.teacher)
    teacher = of_every_kind(bert)[name]
    teacher.save_pretrained(tmp_path / "teacher")
    AutoTokenizer.from_pretrained(shared_study.teacher).save_pretrained(tmp_path / "teacher")
    changes = [
        (f'teacher = "{shared_study.teacher}"', f'teacher = "{tmp_path / "teacher"}"'),
        ("[space]\n", "[space]\nheads = [0, 2, 4]\n"),
        ("[stage1]\n", '[stage1]\nevaluation = "untrained"\n'),
    ]
    if name == "modernbert":
        changes.append(("[stage1]\n", '[supernet]\ninheritance = "compensated"\n\n[stage1]\n'))
    file = shared_study.variant(tmp_path / "preset.toml", *changes)
    words = ("--study", "s", "--max-latency", "2x", "--runtime", runtime)
    succeeded(shared_study, *shared_study.search(tmp_path, *words, preset=file))
    final, out = tmp_path / "final", tmp_path / "out"
    succeeded(shared_study, "train_final.py", tmp_path / "s" / "architecture.json", "--out", final, "--device", "cpu")
    said = succeeded(shared_study, "-m", "nas.export", final, "--int8", "--out", out, "--rounds", 2, "--batches", 1)
    assert "logits within" in said
    assert {path.stem for path in out.glob("modeling*.py")} == {"modeling_nas"}
    form = teacher.config.model_type
    ordinary = shared_study.run("-m", "nas.export", final, "--skip-latency", "--out", tmp_path / "plain", "--as", form)
    if ordinary.returncode == 0:
        assert type(AutoModelForSequenceClassification.from_pretrained(tmp_path / "plain")) is type(teacher)
    else:
        assert "cannot be an ordinary checkpoint" in ordinary.stderr


@pytest.mark.slow
def test_an_ordinary_roberta(shared_study: TinyStudy, roberta: Path, tmp_path: Path) -> None:
    student = tmp_path / "student"
    file = tmp_path / "architecture.json"
    from fractions import Fraction

    from search_spaces import FFN, Architecture
    from supernet.build import base_of_teacher

    base, graph = base_of_teacher(RobertaConfig.from_pretrained(roberta))
    Architecture.of_ffns(base, (FFN(graph, expansion=Fraction(1, 2)), FFN(graph, expansion=Fraction(1, 4)))).save(file)
    succeeded(shared_study, "-m", "supernet.student", file, "--like", roberta, "--out", student)
    out = tmp_path / "ordinary"
    words = ("-m", "nas.export", student, "--skip-latency", "--out", out, "--as")
    refused = shared_study.run(*words, "bert")
    assert refused.returncode == 2 and "of the family 'roberta': give --as roberta" in refused.stderr
    succeeded(shared_study, *words, "roberta")
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert type(model) is RobertaForSequenceClassification and not list(out.glob("*.py"))

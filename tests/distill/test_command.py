"""`python -m distill`, as a user runs it."""

import functools
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from tensorboardX.proto.event_pb2 import Event
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForTokenClassification,
    BertTokenizerFast,
)

from distill.__main__ import main, parser
from distill.objectives import OBJECTIVES
from distill.tasks.types import REGRESSION
from distill.training.checkpoint import Checkpoint
from distill.training.progress import Progress
from tests.tiny import SIZES, bert, shaken

ROOT = Path(__file__).parents[2]
WORDS = [f"w{number}" for number in range(45)]
CLASSES = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
TAGS = {0: "O", 1: "B-X", 2: "I-X"}
FOUR = {"num_hidden_layers": 4, "max_position_embeddings": 40}


def with_tokenizer(model: Any, folder: Path, words: list[str] = WORDS) -> None:
    model.save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Teachers of four layers for each kind of task, and rows for each."""
    folder = tmp_path_factory.mktemp("fixtures")
    config = BertConfig(**{**SIZES, **FOUR})
    with_tokenizer(bert(1, labels=2, **FOUR, **CLASSES), folder / "teacher")
    with_tokenizer(bert(1, labels=1, **FOUR, problem_type=REGRESSION), folder / "number")
    with_tokenizer(shaken(BertForMaskedLM(config), 2), folder / "words")
    with_tokenizer(shaken(BertForQuestionAnswering(config), 3), folder / "questions")
    tagger = BertConfig(**{**SIZES, **FOUR, "num_labels": 3, "id2label": TAGS})
    with_tokenizer(shaken(BertForTokenClassification(tagger), 4), folder / "tagger")
    with_tokenizer(bert(1, labels=2, **FOUR).base_model, folder / "headless")
    with_tokenizer(bert(1, labels=2, **FOUR, id2label={0: "yes", 1: "no"}), folder / "swapped")
    with_tokenizer(bert(5, labels=2, **CLASSES), folder / "small")
    with_tokenizer(bert(5, labels=2, **CLASSES), folder / "foreign", WORDS[::-1])

    texts = [" ".join(WORDS[(7 * row + 3 * word) % 45] for word in range(2 + row % 6)) for row in range(48)]
    labels = ["no" if row % 3 else "yes" for row in range(48)]

    def tsv(name: str, rows: range, label: Callable[[int], object]) -> None:
        lines = [f"{texts[row]}\t{texts[-row]}\t{label(row)}" for row in rows]
        (folder / name).write_text("\n".join(["sentence\tother\tlabel", *lines]) + "\n", encoding="utf-8")

    for name, rows in (("train", range(48)), ("dev", range(20))):
        tsv(f"{name}.tsv", rows, lambda row: labels[row])
        tsv(f"{name}-numbers.tsv", rows, lambda row: row % 7 / 2)
        tagged = "\n".join(
            "".join(f"{word} {TAGS[int(word[1:]) % 2]}\n" for word in text.split()) for text in texts[: len(rows)]
        )
        (folder / f"{name}.conll").write_text(tagged, encoding="utf-8")
        paragraphs = [
            {
                "context": text,
                "qas": [{"id": str(row), "question": "w1 w2", "answers": [{"text": text[:2], "answer_start": 0}]}],
            }
            for row, text in enumerate(texts[: len(rows)])
        ]
        (folder / f"{name}.json").write_text(json.dumps({"data": [{"title": "a", "paragraphs": paragraphs}]}))
    (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "empty.txt").write_text("")
    (folder / "header.tsv").write_text("sentence\tother\tlabel\n")
    (folder / "three.tsv").write_text("sentence\tlabel\nw1\tno\nw2\tyes\nw3\tmaybe\n")
    return folder


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """The library keeps the precision for the whole process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


Distil = Callable[..., dict[str, Any]]


@pytest.fixture
def command(fixtures: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """A function that returns the arguments of a short run on these rows, with `changes`; None leaves out an option."""

    def arguments(*flags: str, **changes: object) -> list[str]:
        usual: dict[str, object] = {
            "teacher": fixtures / "teacher",
            "student": "first:2",
            "train": fixtures / "train.tsv",
            "dev": fixtures / "dev.tsv",
            "out": tmp_path / "out",
            "steps": 3,
            "batch_size": 8,
            "max_length": 16,
            "device": "cpu",
        }
        if changes.keys() & {"task", "corpus"}:
            usual |= {"train": None, "dev": None}
        given = {name: value for name, value in {**usual, **changes}.items() if value is not None}
        return [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value))] + [
            *flags
        ]

    return arguments


@pytest.fixture
def distil(command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> Distil:
    """Runs in this process; returns what was measured."""

    def run(*flags: str, **changes: object) -> dict[str, Any]:
        arguments = command(*flags, **changes)
        assert main(arguments) == 0, capsys.readouterr().err
        assert capsys.readouterr().err == ""
        AcceleratorState._reset_state(reset_partial_state=True)
        out = Path(arguments[arguments.index("--out") + 1])
        assert not [file.name for file in out.iterdir() if file.name in ("state", ".unfinished")]
        found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
        return found

    return run


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def test_as_a_program(command: Callable[..., list[str]], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "distill", *command()], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"student, before +0\.01 M +0\.\d{4} ± 0\.\d{4}", done.stdout)
    assert done.stdout.endswith(f"wrote {tmp_path / 'out'}\n")
    files = {file.name for file in (tmp_path / "out").iterdir()}
    own = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert files == own | {"metrics.json", "options.json"}
    student = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert (student.config.num_hidden_layers, student.config.id2label) == (2, {0: "no", 1: "yes"})


def test_what_is_reported(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil("--set", "temperature=3", "--set", "alpha=0.25", student="uniform:2")
    assert (found["dev_rows"], found["processes"], found["settings"]) == (20, 1, {"temperature": 3.0, "alpha": 0.25})
    assert list(found["models"]) == ["teacher", "student, before", "student"]
    assert found["models"]["student"].keys() == {"params", "accuracy"}
    assert found["options"]["student"] == "uniform:2"
    assert found["options"] == json.loads((tmp_path / "out" / "options.json").read_text())
    assert sum(tensor.numel() for tensor in weights(tmp_path / "out").values()) == found["models"]["student"]["params"]
    assert not torch.equal(
        weights(tmp_path / "out")["bert.encoder.layer.0.output.dense.weight"],
        weights(fixtures / "teacher")["bert.encoder.layer.1.output.dense.weight"],
    )


def test_json_and_quiet(command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command("--json", steps=2)) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert "student: kd" in printed.err
    assert main(command("--quiet", steps=2, out=tmp_path / "other")) == 0
    printed = capsys.readouterr()
    assert "accuracy" in printed.out and "student: kd" not in printed.out + printed.err


@pytest.mark.parametrize("objective", ["codir", "microbert", "theseus", "tinybert"])
def test_the_same_seed_gives_the_same_student(objective: str, distil: Distil, tmp_path: Path) -> None:
    for out, seed in (("a", 1), ("b", 1), ("c", 2)):
        distil(objective=objective, out=tmp_path / out, seed=seed)
    first, again, other = (weights(tmp_path / out) for out in "abc")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_pairs_and_another_checkpoint(distil: Distil, fixtures: Path) -> None:
    found = distil("--pair", "other", student=fixtures / "small", objective="tinybert")
    assert found["models"]["student"]["accuracy"]["value"] > 0


def test_without_a_teacher(distil: Distil, fixtures: Path) -> None:
    found = distil(teacher=None, student=fixtures / "headless", objective="none")
    assert list(found["models"]) == ["student, before", "student"]


def test_regression(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(
        "--regression",
        teacher=fixtures / "number",
        train=fixtures / "train-numbers.tsv",
        dev=fixtures / "dev-numbers.tsv",
    )
    assert found["models"]["student"].keys() == {"params", "spearmanr", "pearson"}
    assert AutoConfig.from_pretrained(tmp_path / "out").problem_type == REGRESSION


def test_tagging(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for split in ("train", "dev"):
        (tmp_path / "data" / f"{split}.conll").write_text((fixtures / f"{split}.conll").read_text())
    found = distil(task="conll", data=tmp_path / "data", teacher=fixtures / "headless", finetune_teacher=2)
    assert found["models"]["student"].keys() == {"params", "f1", "accuracy"}
    assert AutoModelForTokenClassification.from_pretrained(tmp_path / "out").config.id2label == {0: "O", 1: "B-X"}


def test_questions(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(task="squad", data=fixtures, teacher=fixtures / "questions", objective="distilbert")
    assert found["models"]["student"].keys() == {"params", "f1", "exact_match"}
    assert AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out").config.num_hidden_layers == 2


def test_text(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    """The student has no head, since nothing taught one."""
    for out in ("a", "b"):
        found = distil(corpus=fixtures / "text.txt", objective="minilm", out=tmp_path / out)
        assert found["models"]["student"].keys() == {"params"}
    first, again = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not [name for name in first if "classifier" in name]
    assert sum(tensor.numel() for tensor in first.values()) == found["models"]["student"]["params"]
    assert AutoModel.from_pretrained(tmp_path / "a").config.num_hidden_layers == 2
    assert list(distil(student=tmp_path / "a")["models"]) == ["teacher", "student, before", "student"]


def test_masked_words(distil: Distil, fixtures: Path, tmp_path: Path) -> None:
    found = distil(
        "--masked-lm",
        corpus=fixtures / "text.txt",
        teacher=fixtures / "words",
        objective="distilbert",
        finetune_teacher=2,
    )
    assert found["models"]["student"].keys() == {"params"}
    student = AutoModelForMaskedLM.from_pretrained(tmp_path / "out")
    assert student.cls.predictions.decoder.weight is student.bert.embeddings.word_embeddings.weight
    fine, coarse = weights(tmp_path / "out" / "teacher"), weights(fixtures / "words")
    assert not torch.equal(fine["cls.predictions.bias"], coarse["cls.predictions.bias"])


def test_assistants_and_tensorboard(distil: Distil, tmp_path: Path) -> None:
    found = distil(
        "--assistant", "first:3", "--assistant", "first:2", student="first:1", tensorboard=tmp_path / "logs", steps=2
    )
    assert list(found["models"]) == [
        "teacher",
        *(f"assistant {n}{when}" for n in (1, 2) for when in (", before", "")),
        "student, before",
        "student",
    ]
    layers = [AutoConfig.from_pretrained(tmp_path / "out" / f"assistant-{n}").num_hidden_layers for n in (1, 2)]
    assert layers == [3, 2]
    logs = {file.parent.name for file in (tmp_path / "logs").rglob("events.out.*") if file.stat().st_size}
    assert logs == {"assistant-1", "assistant-2", "student"}


class Interrupted(Exception):
    pass


CHAIN = {"student": "first:1", "objective": "tinybert", "steps": 20, "finetune_teacher": 3}


@pytest.mark.parametrize("where", ["teacher: measuring", "assistant 1: tinybert", "student, before", "student: tiny"])
def test_interrupted_and_resumed_is_the_same_run(
    where: str,
    distil: Distil,
    command: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """While the teacher, an assistant or the student is made."""
    monkeypatch.setattr("distill.training.distillation.Checkpoint", functools.partial(Checkpoint, every=4))
    flags = ("--assistant", "first:2")
    expected = distil(*flags, **CHAIN, out=tmp_path / "whole")
    prepare = Progress.update

    def stop(self: Progress, what: str, share: float | None) -> None:
        prepare(self, what, share)
        if what.startswith(where) and (share is None or share > 0.5):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "update", stop)
        assert main(command(*flags, **CHAIN)) == 130
    assert capsys.readouterr().err == "distill: interrupted; add --resume to go on\n"
    AcceleratorState._reset_state(reset_partial_state=True)
    found = distil(*flags, "--resume", **CHAIN)
    assert found["models"] == expected["models"]
    for part in ("teacher", "assistant-1", "."):
        whole, resumed = weights(tmp_path / "whole" / part), weights(tmp_path / "out" / part)
        assert whole.keys() == resumed.keys()
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert distil(*flags, "--resume", **CHAIN)["models"] == expected["models"]  # of a run that is done


def test_what_takes_long_to_import_is_imported_where_an_interruption_is_caught(tmp_path: Path) -> None:
    code = "import sys, distill.__main__; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not {"networkx", "numpy", "sympy", "torch"} & set(done.stdout.split())


def logged_steps(folder: Path) -> list[int]:
    """The numbers of the steps in TensorBoard's logs there."""
    found = []
    for file in folder.rglob("events.out.*"):
        content = file.read_bytes()
        while content:  # length, its check sum, the event, its check sum
            length = struct.unpack_from("<Q", content)[0]
            event = Event.FromString(content[12 : 12 + length])
            found += [event.step] if event.summary.value else []
            content = content[16 + length :]
    return found


@pytest.mark.slow
def test_killed_and_resumed(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """Twice and without a chance to clean up: as soon as there is a state of the teacher, and then of the student."""

    def started(*flags: str, **changes: object) -> subprocess.Popen[bytes]:
        given = command(*flags, student="first:1", finetune_teacher=260, steps=160, batch_size=2, **changes)
        program = [sys.executable, "-m", "distill", *given]
        return subprocess.Popen(program, stdout=subprocess.DEVNULL, env=environment(), cwd=tmp_path)

    def killed_at(state: Path, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + 120
        while not state.exists():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()

    out, whole = tmp_path / "out", started(out=tmp_path / "whole")
    state = out / "teacher" / "state" / "finetuning.pt"
    killed_at(state, started())
    assert not (out / "teacher" / "config.json").exists()
    done = len(torch.load(state, weights_only=True)["history"])
    assert done in (100, 200)
    killed_at(out / "state" / "phase-1.pt", started("--resume", tensorboard=tmp_path / "logs"))
    assert logged_steps(tmp_path / "logs" / "teacher") == list(range(done + 1, 261))
    assert (out / "teacher" / "config.json").exists() and not (out / "config.json").exists()
    assert started("--resume").wait() == whole.wait() == 0
    measured = [json.loads((folder / "metrics.json").read_text())["models"] for folder in (out, tmp_path / "whole")]
    assert measured[0] == measured[1]
    for part in ("teacher", "."):
        expected, resumed = weights(tmp_path / "whole" / part), weights(out / part)
        assert expected.keys() == resumed.keys()
        assert all(torch.equal(expected[name], resumed[name]) for name in expected)
    assert not list(tmp_path.rglob("state"))


# In full precision, in which shares of a batch add up to what the whole gives.
LAUNCHED = """
import sys
from accelerate import Accelerator
from distill import __main__
from distill.command import chain
chain.make_accelerator = lambda device, mixed_precision=True: Accelerator(cpu=True, mixed_precision="no")
sys.exit(__main__.main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_processes(command: Callable[..., list[str]], tmp_path: Path) -> None:
    """They share the batches out and learn what one learns, by an objective that does not reach all parameters."""
    (tmp_path / "launched.py").write_text(LAUNCHED)
    without_dropout = bert(1, labels=2, **FOUR, **CLASSES, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    with_tokenizer(without_dropout, tmp_path / "teacher")

    def launched(processes: int) -> subprocess.Popen[str]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        changes = {"teacher": tmp_path / "teacher", "objective": "minilm", "steps": 10, "learning_rate": 1e-3}
        return subprocess.Popen(
            [*launch, str(tmp_path / "launched.py"), *command(out=tmp_path / f"out-{processes}", **changes)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=tmp_path,
        )

    found: dict[int, tuple[Any, dict[str, Tensor]]] = {}
    for processes, started in {processes: launched(processes) for processes in (1, 2)}.items():
        out = tmp_path / f"out-{processes}"
        shown, error = started.communicate()
        assert started.returncode == 0, error
        assert shown.count(f"wrote {out}") == shown.count("student: measuring") == 1
        found[processes] = json.loads((out / "metrics.json").read_text()), weights(out)
    (one, alone), (two, shared) = found[1], found[2]
    assert (one["processes"], two["processes"]) == (1, 2)
    start = weights(tmp_path / "teacher")
    for name, weight in alone.items():
        torch.testing.assert_close(shared[name], weight, rtol=1e-3, atol=1e-4)
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.allclose(alone[name], start[name], rtol=1e-3, atol=1e-3)


def filled(changes: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    """Options with the names of places in them replaced by what they stand for."""

    def fill(value: Any) -> Any:
        return functools.reduce(lambda text, place: text.replace(*place), places.items(), value)

    return {name: fill(value) if isinstance(value, str) else value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("flags", "changes", "reason"),
    [
        ([], {"objective": "moeberd"}, "unknown objective 'moeberd'; did you mean 'moebert'.*objectives: efficientb"),
        (["--set", "alfa=1"], {}, "--set alfa=1: kd has alpha=0.5, temperature=2.0, balance=0.0; did you mean 'alpha'"),
        (["--set", "alpha=half"], {}, "--set alpha=half: alpha is a number"),
        (["--set", "alpha"], {}, "--set alpha: kd has"),
        (["--set", "negatives=1.5"], {"objective": "codir"}, "negatives is a whole number"),
        (
            ["--set", "relation_heads=4", "--set", "teacher_layer=5"],
            {"objective": "minilmv2"},
            "--objective minilmv2: teacher_layer=5: the teacher has 4 layers: 1 to 4, or 0, the last",
        ),
        (["--set", "negatives=99999999999"], {"objective": "codir"}, "negatives=99999999999: from 1 to 65,536"),
        (["--set", "until=nan"], {"objective": "theseus"}, "--objective theseus: until=nan: must be between 0 and 1"),
        (["--set", "temperature=0", "--set", "prediction=0"], {"objective": "tinybert"}, "temperature=0.0"),
        (["--set", "prediction=0"], {"objective": "tinybert"}, "tinybert has nothing to learn from"),
        (["--set", "paper_compatible=1"], {"objective": "pkd"}, "paper_compatible is true or false"),
        (["--set", "alpha=3"], {}, "--objective kd: alpha=3.0: must be between 0 and 1"),
        (
            [],
            {"teacher": None, "student": "FIXTURES/small"},
            "--objective kd needs a --teacher; these objectives do not: none",
        ),
        (
            [],
            {"teacher": None, "objective": "none"},
            "--student first:2 takes its layers from the teacher: add --teacher",
        ),
        (["--assistant", "first:1"], {"teacher": None, "student": "FIXTURES/small"}, "--assistant needs a --teacher"),
        ([], {"teacher": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ([], {"student": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ([], {"teacher": "FIXTURES/headless"}, "has no trained head for this task: fine-tune it first"),
        ([], {"teacher": "FIXTURES/tagger"}, "has no trained head for this task: fine-tune it first"),
        ([], {"teacher": "FIXTURES/swapped"}, "has the classes yes, no; the task's are no, yes, in this order"),
        ([], {"student": "FIXTURES/foreign"}, "a vocabulary of 50 tokens that is not the teacher's of 50: choose one"),
        ([], {"student": "first:5"}, "student first:5: the teacher has 4 layers; choose 1 to 4"),
        ([], {"student": "last:2"}, "student last:2: for layers of the teacher give first:N or uniform:N"),
        ([], {"student": "first:0"}, "student first:0: the teacher has 4 layers; choose 1 to 4"),
        ([], {"student": "uniform:3"}, "student uniform:3: 4 teacher layers cannot be shared out evenly to 3"),
        ([], {"student": "first:3", "objective": "moebert"}, "--objective moebert: 4 teacher layers cannot be shared"),
        ([], {"max_length": 64, "train": "LONG"}, "--max-length 64: rows have up to 52 tokens; the model .*40"),
        ([], {"task": "sst3"}, "unknown task 'sst3'; did you mean 'sst2'"),
        ([], {"task": "sst2", "data": "FIXTURES/nowhere"}, "nowhere"),
        ([], {"train": None}, "give the rows by one of --task NAME, --train FILE with --dev FILE, or --corpus TEXT"),
        ([], {"dev": None}, "--dev: give another file than --train"),
        ([], {"dev": "FIXTURES/train.tsv"}, "train.tsv: this is the file of the training rows"),
        ([], {"text": "label"}, "train.tsv: the column 'label' is named twice"),
        ([], {"train": "FIXTURES/three.tsv"}, "has a head for 2 classes .no, yes.; the task has 3: maybe, no, yes"),
        ([], {"train": "FIXTURES/header.tsv"}, "header.tsv: no rows"),
        ([], {"train": "FIXTURES/nowhere.tsv"}, "nowhere.tsv"),
        ([], {"text": "sentense"}, "no column 'sentense'; did you mean 'sentence'"),
        (["--regression"], {"teacher": "FIXTURES/number"}, "row 1 has the label 'yes', which is not a finite number"),
        (["--regression"], {"task": "stsb"}, "--regression describes the rows of --train FILE"),
        ([], {"corpus": "FIXTURES/empty.txt", "objective": "minilm"}, "empty.txt: no text"),
        ([], {"corpus": "FIXTURES/text.txt"}, "--objective kd learns from labels and predictions.*or add --masked-lm"),
        (
            ["--masked-lm"],
            {},
            "--masked-lm: masked words are learned from text; add --corpus TEXT, or leave out --masked-lm",
        ),
        (["--masked-lm"], {"corpus": "FIXTURES/text.txt"}, "has no trained head for this task"),
        (
            [],
            {"corpus": "FIXTURES/text.txt", "finetune_teacher": 1, "objective": "minilm"},
            "text has no labels to learn",
        ),
        (
            [],
            {"data": "FIXTURES"},
            "--data: only a --task has a folder of official files; add --task, or leave out --data",
        ),
        ([], {"out": "FIXTURES"}, "is not empty: choose another folder, or add --resume"),
        (["--resume"], {"out": "FIXTURES"}, "has nothing to resume"),
        ([], {"out": "FIXTURES/text.txt"}, "text.txt is not a folder"),
        ([], {"out": "FIXTURES/text.txt/deeper"}, "--out .*: Not a directory"),
        ([], {"tensorboard": "FIXTURES/text.txt"}, "--tensorboard .*text.txt: File exists"),
        ([], {"tensorboard": "FIXTURES/text.txt/deeper"}, "--tensorboard .*text.txt/deeper: Not a directory"),
        ([], {"batch_size": 0}, "--batch-size: must be at least 1, not 0"),
        ([], {"seed": 2**32}, "--seed: must be below 4,294,967,296"),
        ([], {"max_length": 10**30}, "--max-length: must be below 2,147,483,648"),
        ([], {"learning_rate": "nan"}, "--learning-rate: must be above 0, not nan"),
        ([], {"weight_decay": -1}, "--weight-decay: must be at least 0"),
        ([], {"warmup": 2}, "--warmup: must be a share of the steps"),
        ([], {"learning_rate": "1e30", "steps": 20, "warmup": 0}, "the loss is nan at step .*; a lower"),
    ],
)
def test_mistakes_are_one_line(
    flags: list[str],
    changes: dict[str, Any],
    reason: str,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = tmp_path / "long.tsv"
    long.write_text("sentence\tlabel\n" + "w1 " * 50 + "\tno\nw2\tyes\nw3\tyes\n")
    given = filled(changes, {"FIXTURES": str(fixtures), "LONG": str(long)})
    assert main(command(*flags, **given)) == 2
    error = capsys.readouterr().err
    assert error.startswith("distill: ") and len(error.splitlines()) == 1, error
    assert re.search(reason, error), error


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"student": "first:3", "objective": "pkd"}, "--objective pkd: 4 teacher layers cannot be shared out evenly"),
        ({"student": "NARROW", "objective": "theseus"}, "--objective theseus: .* 16 wide, not 24: take a student"),
        ({"student": "FIXTURES/foreign"}, "has a vocabulary of 50 tokens that is not the teacher's"),
        ({"student": "FIXTURES/nowhere"}, "no model at '.*nowhere'"),
        ({"objective": "tinybert", "set": "prediction=0"}, "tinybert has nothing to learn from"),
    ],
)
def test_a_chain_that_does_not_fit_is_refused_before_any_of_it_is_trained(
    changes: dict[str, str],
    reason: str,
    command: Callable[..., list[str]],
    fixtures: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with_tokenizer(bert(5, labels=2, **CLASSES, hidden_size=16), tmp_path / "narrow")
    given = filled(changes, {"FIXTURES": str(fixtures), "NARROW": str(tmp_path / "narrow")})
    assert main(command("--assistant", "first:4", finetune_teacher=2, **given)) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and re.search(reason, error), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("missing", ["--student", "--out"])
def test_what_must_be_said(missing: str, command: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = command()
    place = arguments.index(missing)
    with pytest.raises(SystemExit) as stopped:
        main(arguments[:place] + arguments[place + 2 :])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"distill: the following arguments are required: {missing} (see --help)\n"


def test_resumed_with_other_options(
    distil: Distil, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distil()
    for changes, reason in (
        ({"batch_size": 4}, "--resume: --batch-size was 8, not 4"),
        ({"objective": "none"}, "--resume: --objective was 'kd', not 'none'"),
    ):
        assert main(command("--resume", **changes)) == 2
        assert capsys.readouterr().err == f"distill: {reason}\n"
    (tmp_path / "out").rename(tmp_path / "moved")
    distil("--resume", out=tmp_path / "moved")


@pytest.mark.parametrize("content", [b"{", b"3", b"[1]", b"\xff"])
def test_resumed_with_options_that_cannot_be_read(
    content: bytes, command: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "options.json").write_bytes(content)
    assert main(command("--resume")) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"distill: --resume: .*options.json cannot be read \(.*\); choose another --out\n", error)


@pytest.mark.parametrize(("steps", "state"), [(2, False), (100, True)])
def test_a_full_disk(
    steps: int, state: bool, distil: Distil, command: Callable[..., list[str]], tmp_path: Path
) -> None:
    """While the student is saved, or before that the state of its training; with room it goes on."""
    room = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, room))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-m", "distill", *command(steps=steps)],
        capture_output=True,
        text=True,
        env=environment(),
        cwd=tmp_path,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    error = done.stderr
    assert re.fullmatch(r"distill: --out .*out: .*; free some space there and add --resume\n", error), error
    assert ("phase-1.pt cannot be written" in error) == state
    distil("--resume", steps=steps)


def test_help_says_all() -> None:
    text = parser().format_help()
    assert all(len(line) <= 120 for line in text.splitlines())
    assert not [action.dest for action in parser()._actions if not action.help]
    assert len(OBJECTIVES) == 13

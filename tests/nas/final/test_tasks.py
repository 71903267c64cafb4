"""Final trainings on several tasks of GLUE, their evaluation without training, and the submission of test splits."""

import json
import random
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from distill.tasks.readers.glue import TASKS
from distill.tasks.readers.glue_submission import SUBMISSIONS
from distill.tasks.types import REGRESSION
from nas.config.load import load_config
from nas.final.command import main
from nas.final.training import curve
from nas.study.folder import Folder
from search_spaces import PUBLISHED, Architecture
from tests.commands import Refused
from tests.nas.rows import half_width
from tests.nas.tiny_study import TinyStudy

pytestmark = pytest.mark.usefixtures("study_cache")
CHOSEN = ("rte", "mnli", "mnli_mismatched", "stsb")
TRAINED = ("rte", "mnli", "stsb")
WORDS = ["Bado", "kule", "moni", "nipa", "rufi", "sebo", "dole", "paru", "fi"]
FOLDERS = {"rte": "RTE", "mnli": "MNLI", "stsb": "STS-B", "cola": "CoLA"}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(2, 6)))


def write_rows(path: Path, task: str, count: int, rng: random.Random, labelled: bool = True) -> None:
    source = TASKS[task]
    header = ["index", *source.texts, *([source.label] if labelled else [])]
    lines = ["\t".join(header)]
    for index in range(count):
        label = (
            f"{rng.random() * 5:.2f}"
            if source.task.task_type == REGRESSION
            else rng.choice(source.task.labels or ("0",))
        )
        lines.append("\t".join([str(index), *(sentence(rng) for _ in source.texts), *([label] if labelled else [])]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data, rng = tmp_path_factory.mktemp("glue"), random.Random(0)
    for task in CHOSEN:
        folder = data / FOLDERS.get(task, "MNLI")
        write_rows(folder / "train.tsv", "mnli" if task == "mnli_mismatched" else task, 60, rng)
        write_rows(folder / TASKS[task].dev_file, task, 20, rng)
        write_rows(folder / SUBMISSIONS[task][1], task, 9, rng, labelled=False)
    return data


@pytest.fixture(scope="module")
def given(shared_study: TinyStudy, glue: Path) -> list[str]:
    """The options that all commands share."""
    steps = (
        ("[finetune]\nsteps = 60\n", "[finetune]\nsteps = 4\n"),
        ("[pretrain]\nsteps = 3\n", "[pretrain]\nsteps = 0\n"),
    )
    preset = shared_study.variant(shared_study.root / "glue.toml", *steps)
    return ["--preset", str(preset), "--data", str(glue), "--device", "cpu"]


@pytest.fixture(scope="module")
def architecture(given: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(half_width(Path(given[1]), tmp_path_factory.mktemp("searched")))


@pytest.fixture(scope="module")
def trained(given: list[str], architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("several") / "out"
    arguments = [architecture, *given, "--tasks", ",".join(CHOSEN), "--steps", "4", "--out", str(out), "--quiet"]
    assert main(arguments) == 0
    return out


def metrics(folder: Path) -> Any:
    return json.loads((folder / "metrics.json").read_text())


def test_one_student_for_each_task(trained: Path) -> None:
    assert {folder.name for folder in trained.iterdir() if folder.is_dir()} == set(TRAINED)
    found = metrics(trained)
    assert list(found["tasks"]) == list(CHOSEN)
    for task in TRAINED:
        own = metrics(trained / task)
        assert own["task"] == task and found["tasks"][task] == {key: own[key] for key in ("metrics", "models")}
    # One training of MNLI is scored on both dev splits.
    mismatched = found["tasks"]["mnli_mismatched"]
    assert mismatched == metrics(trained / "mnli")["also"]["mnli_mismatched"]
    assert mismatched["models"].keys() == {"teacher", "student", "base model"}
    for model in ("teacher", "student", "base model"):
        first = [row["models"][model][row["metrics"][0]]["value"] for row in found["tasks"].values()]
        assert found["mean"][model] == pytest.approx(fmean(first))


def test_resuming_what_is_finished_trains_nothing(
    trained: Path, given: list[str], architecture: str, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    arguments = [architecture, *given, "--tasks", ",".join(CHOSEN), "--steps", "4", "--out", str(trained)]
    assert "exists and is not empty" in refused(main, *arguments)
    before = {path: path.stat().st_mtime_ns for path in trained.glob("*/*")}
    assert main([*arguments, "--resume"]) == 0
    printed = capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in trained.glob("*/*")} == before
    found = metrics(trained)
    for name, row in found["tasks"].items():
        score = row["models"]["student"][row["metrics"][0]]
        (line,) = (line for line in printed.splitlines() if line.split()[:1] == [name])
        assert f"{score['value']:.4f} ± {score['standard_error']:.4f}" in line
    assert f"{found['mean']['student']:.4f}" in printed


def test_what_is_finished_is_not_mixed_with_other_settings(
    trained: Path, given: list[str], architecture: str, tmp_path: Path, refused: Refused
) -> None:
    other = tmp_path / "other.json"
    Architecture.uniform(Architecture.load(architecture).base).save(other)
    resumed = [*given, "--tasks", ",".join(CHOSEN), "--out", trained, "--resume", "--steps"]
    for words, what in (
        ([architecture, *resumed, "5"], "another configuration"),
        ([other, *resumed, "4"], "another architecture"),
        ([architecture, *resumed, "4", "--seed", "9"], "another seed"),
        ([architecture, *resumed, "4", "--skip-base"], "another --skip-base"),
    ):
        assert f"{trained / 'rte'} is finished, with {what}: choose another --out" in refused(main, *words)
    copied = shutil.copytree(trained, tmp_path / "copied")
    without = {name: value for name, value in metrics(copied / "mnli").items() if name != "also"}
    (copied / "mnli" / "metrics.json").write_text(json.dumps(without))
    words = [copied if word is trained else word for word in resumed]
    assert "is finished, without scores of mnli_mismatched" in refused(main, architecture, *words, "4")


def test_evaluation_gives_the_same_scores(trained: Path, given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--evaluate", str(trained), *given[2:], "--tasks", ",".join(CHOSEN), "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    stored = metrics(trained)["tasks"]
    for task in CHOSEN:
        for metric in stored[task]["metrics"]:
            for part in ("value", "standard_error"):
                expected = stored[task]["models"]["student"][metric][part]
                assert found["tasks"][task][metric][part] == pytest.approx(expected, nan_ok=True), task
    # One checkpoint and the task that it was trained on.
    assert main(["--evaluate", str(trained / "rte"), *given[2:]]) == 0
    printed = capsys.readouterr().out
    assert f"{found['tasks']['rte']['accuracy']['value']:.4f}" in printed and "mean" not in printed


def test_submissions(trained: Path, given: list[str], glue: Path, tmp_path: Path) -> None:
    arguments = ["--evaluate", str(trained), *given[2:], "--tasks", ",".join(CHOSEN), "--predict", str(tmp_path)]
    assert main(arguments) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"RTE.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "STS-B.tsv"}
    for task in CHOSEN:
        file, test_file, _ = SUBMISSIONS[task]
        header, *lines = (tmp_path / file).read_text().splitlines()
        assert header == "index\tprediction"
        folder = trained / ("mnli" if task == "mnli_mismatched" else task)
        model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True).eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        _, *rows = (glue / FOLDERS.get(task, "MNLI") / test_file).read_text().splitlines()
        for line, row in zip(lines, rows, strict=True):
            index, *texts = row.split("\t")
            with torch.inference_mode():
                logits = model(**tokenizer(*texts, return_tensors="pt", truncation=True, max_length=24)).logits[0]
            found_index, value = line.split("\t")
            assert found_index == index
            if task == "stsb":
                assert float(value) == pytest.approx(min(5, max(0, float(logits))), abs=0.02)
            elif logits.sort(descending=True).values[0] - logits.sort(descending=True).values[1] > 0.02:
                assert value == TASKS[task].task.labels[int(logits.argmax())]


def test_mistakes(
    trained: Path, given: list[str], architecture: str, glue: Path, tmp_path: Path, refused: Refused
) -> None:
    data, train = given[2:], [architecture, *given, "--out", tmp_path / "out"]
    for words, message in (
        ([*train, "--tasks", "rte,rte"], "--tasks: a task is named twice"),
        ([*train, "--tasks", "rte,mnlii"], "unknown task 'mnlii'; did you mean 'mnli'"),
        ([*train, "--tasks", "rte,cola"], "there is no train.tsv and dev.tsv of the task 'cola'"),
        ([*train, "--evaluate", "x"], "leave out architecture"),
        (["--evaluate", tmp_path, *data], "neither a checkpoint nor a folder with one"),
        (["--evaluate", trained, "--tasks", "cola", *data], "there is no train.tsv"),
        (["--evaluate", trained / "rte", "--task", "stsb", *data], "head"),
        (["--evaluate", trained, "--steps", "3", *data], "--evaluate trains nothing: leave out --steps"),
        (["--evaluate", trained, "--seed", "0", *data], "--evaluate trains nothing: leave out --seed"),
        (["--evaluate", trained, "--skip-base", *data], "--evaluate trains nothing: leave out --skip-base"),
        (["--predict", tmp_path, *data], "--predict: give the trained student by --evaluate"),
    ):
        assert message in refused(main, *words)
    test = glue / "RTE" / "test.tsv"
    whole = test.read_text()
    arguments = ["--evaluate", str(trained), *given[2:], "--task", "rte", "--predict", str(tmp_path)]
    for content, message in (
        ("index\tsentence1\n0\ta\n", "no column 'sentence2'"),
        ("index\tsentence1\tsentence2\n", "no rows"),
        ("index\tsentence1\tsentence2\n0\ta\n", "test.tsv:2: 2 tab-separated cells; the header has 3"),
        ("", "the file is empty"),
        (None, "there is no test.tsv of the task 'rte'"),
    ):
        test.unlink(missing_ok=True)
        if content is not None:
            test.write_text(content)
        assert message in refused(main, *arguments)
    test.write_text(whole)
    assert not list(tmp_path.glob("*.tsv"))


def test_a_lone_architecture_says_what_is_missing(tmp_path: Path, refused: Refused) -> None:
    file = tmp_path / "architecture.json"
    folder = Folder(tmp_path / "s")
    PUBLISHED["base"].save(file, folder.searched(load_config("demo"), "mine.toml"))
    assert Architecture.load(file) == PUBLISHED["base"]
    said = refused(main, file)
    assert "there is no config.toml beside it" in said and "study s, teacher sentence-transformers/" in said
    assert "preset mine.toml" in said and "--transfer" not in said
    PUBLISHED["base"].save(file)
    assert "which says what to train it with: copy it there" in refused(main, file)


def test_a_curve_has_at_most_so_many_points() -> None:
    losses = [float(step) for step in range(1, 251)]
    points = curve(losses, 100)
    assert len(points) == 84 and points[:2] == [(3, 2.0), (6, 5.0)] and points[-1] == (250, 250.0)
    assert sum(loss * min(3, 250 - 3 * number) for number, (_, loss) in enumerate(points)) == pytest.approx(sum(losses))
    assert curve(losses[:7]) == [(step, float(step)) for step in range(1, 8)] and curve([]) == []

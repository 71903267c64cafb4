"""`load_study`: what it gives is what the commands show and write."""

import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import nas
from foundation.errors import UserError, naming_arguments
from nas import pick
from nas.config.load import load_config
from nas.report import command
from nas.report.drawing import svg
from nas.report.outcome import results_of
from nas.studies import Study, load_study, run_search
from search_spaces import Architecture
from tests.nas.report import synthetic
from tests.nas.tiny_study import TinyStudy, states, trials_of, wait


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with two goals, whose candidates are compared by fidelity."""
    path = tmp_path_factory.mktemp("studies") / "demo"
    synthetic.write(path, trials=16, goals=("fidelity", "params"))
    return path


@pytest.fixture(scope="module")
def study(folder: Path) -> Study:
    return load_study(folder)


def test_the_trials(study: Study, folder: Path) -> None:
    frame, trials = study.trials_dataframe(), trials_of(folder)
    assert list(frame.trial) == [trial.number for trial in trials] and set(frame.stage) == {"1"}
    for (_, row), trial in zip(frame.iterrows(), trials, strict=True):
        assert row.origin == trial.user_attrs["origin"]
        if row.state == "complete":
            assert (row.value, row.params) == (trial.values[0], trial.user_attrs["params"])
            assert row.metric == trial.user_attrs["score/word_order"] != row.value
        assert {name: row[name] for name in trial.params} == trial.params
    assert frame.confirmed.notna().sum() >= 2
    (entry,) = (model for model in results_of(study)["models"] if model["name"] == "winner of stage 1")
    winner = frame[frame.trial == entry["trial"]].iloc[0]
    assert (winner.confirmed, winner.formula) == (entry["confirmed"], entry["formula"])


def test_the_best_and_the_front(study: Study, folder: Path) -> None:
    assert study.best is not None
    assert study.best.architecture == Architecture.load(folder / "architecture.json")
    front = study.front()
    prices, scores = zip(*((one.costs["params"], one.score) for one in front), strict=True)
    assert list(prices) == sorted(prices) and list(scores) == sorted(scores) and len(front) > 2
    frame = study.trials_dataframe().query("state == 'complete' and within_budget")
    for price, score in zip(prices, scores, strict=True):
        assert not ((frame.params <= price) & (frame.value > score)).any()
    assert study.front("macs")[0].costs["macs"] == frame.macs.min()
    with pytest.raises(UserError, match=r"^cost: the trials of .* have no latency; they have params, macs"):
        study.front("latency")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, []),
        ({"trial": 3}, ["--trial", "3"]),
        ({"keep": 0.5}, ["--keep", "50%"]),
        ({"max_params": "1M"}, ["--max-params", "1M"]),
        ({"max_params": 10**6, "max_macs": "1G"}, ["--max-params", "1M", "--max-macs", "1G"]),
    ],
)
def test_what_is_picked_is_what_the_command_picks(
    study: Study, folder: Path, tmp_path: Path, arguments: dict[str, object], words: list[str]
) -> None:
    assert pick.main([str(folder), "--out", str(tmp_path / "picked.json"), *words]) == 0
    assert study.pick(**arguments).architecture == Architecture.load(tmp_path / "picked.json")  # type: ignore[arg-type]


def test_the_report_is_that_of_the_command(study: Study, folder: Path, tmp_path: Path) -> None:
    page = study.report(tmp_path / "one.html")
    assert command.main([str(folder), "--out", str(tmp_path / "two.html")]) == 0
    assert page.read_text() == (tmp_path / "two.html").read_text().replace("folder two", "folder one")
    figures = study.figures()
    assert set(figures) == {file.stem for file in (tmp_path / "one").iterdir()}
    assert study.best is not None
    assert figures["architecture-stage-1-winner"] == svg(study.best.architecture)


def test_arguments_of_other_types(study: Study) -> None:
    for call, message in (
        (lambda: load_study(None), r"^folder: must be a text or a Path, not None"),  # type: ignore[arg-type]
        (lambda: run_search("demo", None), r"^folder: must be a text or a Path, not None"),  # type: ignore[arg-type]
        (lambda: run_search(None, "x"), r"^name: must be the name of a preset or a .toml file, not None"),  # type: ignore[arg-type]
        (lambda: study.report(3), r"^out: must be a text or a Path, not 3"),  # type: ignore[arg-type]
        (lambda: study.pick("3"), r"^trial: must be the number of a trial, not '3'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(UserError, match=message):
            call()


def test_how_it_is_shown(study: Study, folder: Path) -> None:
    assert study.best is not None
    shown = study._repr_html_()
    assert f"1/{study.best.number}" in shown and "global importance" in shown and svg(study.best.architecture) in shown
    begun = replace(study, stages=(study.stages[0], replace(study.stages[0], name="2", best=None)))
    (strong,) = re.findall('<tr class="strong"><th scope="row">(.*?)</th>', begun._repr_html_())
    assert begun.best is study.best and strong == "winner of stage 1"
    assert str(folder) in repr(study) and len(repr(study)) < 400
    assert repr(study.best) == f"<Candidate 1/{study.best.number}: {study.best.score:.4f}>"


def test_a_study_that_has_not_ended(tmp_path: Path) -> None:
    synthetic.write(tmp_path / "s", trials=6, unfinished=True)
    study = load_study(str(tmp_path / "s"))
    frame = study.trials_dataframe()
    assert "unfinished" in set(frame.state)
    best = max(frame[frame.state.eq("complete") & frame.within_budget.eq(True)].value)
    assert study.best is not None and study.best.score == best and study.pick().score == best
    assert "has not ended" in repr(study) and "<svg" in study._repr_html_()
    synthetic.write(tmp_path / "begun", trials=0, unfinished=True)
    begun = load_study(tmp_path / "begun")
    assert begun.best is None and begun.front() == [] and "<svg" not in begun._repr_html_()
    with pytest.raises(UserError, match="has no trial with a score yet"):
        begun.pick()
    with pytest.raises(UserError, match="has no trial with a score within its budget yet"):
        begun.train()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"trial": 99}, "^trial: stage-1 has trials 0 to "),
        ({"trial": 1, "keep": "99%"}, "^trial names the trial: leave out keep$"),
        ({"keep": "many"}, "^keep: must be a fraction"),
        ({"stage": "2"}, "^stage: .* has the stages '1', not '2'"),
    ],
)
def test_mistakes_name_the_arguments(study: Study, arguments: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        study.pick(**arguments)  # type: ignore[arg-type]


def test_what_is_no_study(study: Study, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none is not a study's folder: it has no config.toml"):
        load_study(tmp_path / "none")
    with pytest.raises(UserError, match=r"^checkpoint: .* is not a finished checkpoint of train_final.py"):
        study.report(tmp_path / "page.html", checkpoint=tmp_path)
    with pytest.raises(UserError, match=r"^out: give .* an ending such as .html"):
        study.report(tmp_path / "page")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"^out .* exists and is not empty"):
        study.train(out=tmp_path)


def test_errors_keep_their_types() -> None:
    class Special(UserError, ValueError):
        pass

    with (
        pytest.raises(Special, match=r"^max_params: 3 is too much; see https://a--b and max_macs$"),
        naming_arguments(),
    ):
        raise Special("--max-params: 3 is too much; see https://a--b and --max-macs")


PROGRAM = """
import sys, time
begin = time.perf_counter()
import nas
seconds = time.perf_counter() - begin
assert not {"torch", "transformers", "optuna", "ray", "numpy", "pandas"} & set(sys.modules)
assert set(nas.__all__) <= set(dir(nas))
"""


def test_importing_is_cheap() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_every_name_is_there() -> None:
    assert sorted(nas.__all__) == sorted([*nas._MODULE_OF, "UserError"])
    for name in nas.__all__:
        assert getattr(nas, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nas.Nothing


SEARCH = """
import sys
from nas import load_config, load_study, run_search
preset, folder, workers, resume = sys.argv[1:]
config = load_config(preset)
try:
    study = run_search(config, folder, stage="1", workers=int(workers), resume=bool(resume), quiet=True)
    print(study.best, study.trials_dataframe().state.eq("complete").sum())
except KeyboardInterrupt:
    study = load_study(folder)
    print("interrupted", study.trials_dataframe().state.eq("complete").sum())
"""


@pytest.mark.slow
def test_a_search_from_python(tiny_study: TinyStudy, searched: Path, tmp_path: Path) -> None:
    """It finds what the command finds, and after Ctrl-C the study can be read and resumed."""
    result = tiny_study.run("-c", SEARCH, tiny_study.preset, tmp_path / "s", "1", "")
    assert (result.returncode, result.stderr) == (0, "")
    one, two = (load_study(path).trials_dataframe().drop(columns="seconds") for path in (tmp_path / "s", searched))
    assert one.equals(two)
    with tiny_study.running("-c", SEARCH, tiny_study.preset, tmp_path / "t", "1", "") as process:
        wait(process, lambda: states(tmp_path / "t")["COMPLETE"] >= 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    state, count = out.split()[-2:]
    assert state == "interrupted" and 2 <= int(count) < len(two)
    assert tiny_study.run("-c", SEARCH, tiny_study.preset, tmp_path / "t", "1", "yes").returncode == 0
    again = load_study(tmp_path / "t").trials_dataframe().drop(columns="seconds")
    assert again.equals(two)


@pytest.mark.slow
def test_the_student_is_that_of_train_final(tiny_study: TinyStudy, copied: Path, tmp_path: Path) -> None:
    result = load_study(copied).train(out=tmp_path / "one", device="cpu")
    words = (copied / "architecture.json", "--out", tmp_path / "two", "--device", "cpu", "--quiet")
    assert tiny_study.run("train_final.py", *words).returncode == 0
    expected = load_file(tmp_path / "two" / "model.safetensors")
    stored = result.student.state_dict()
    assert all(torch.equal(stored[name], tensor) for name, tensor in expected.items())
    assert result.architecture == Architecture.load(copied / "architecture.json")
    assert {"teacher", "student", "base model"} == set(result.metrics["models"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": "demi"}, "^unknown preset 'demi'; did you mean 'demo'"),
        ({"folder": "a study"}, "^study 'a study': use only letters"),
        ({"stage": "4"}, "^stage: must be one of 1, 2, 3, all, not '4'"),
        ({"workers": 0}, "^workers: must be a whole number of at least 1, not 0"),
        ({"workers": "2"}, "^workers: must be a whole number of at least 1, not '2'"),
        ({"start": Architecture.uniform(synthetic.BASE)}, "^from: only stages 2 and 3 refine"),
        ({"resume": True}, "^nothing to resume: "),
    ],
)
def test_searches_that_cannot_be_run(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    given = {"config": "demo-ffn", "folder": tmp_path / "s", "stage": "1", "quiet": True}
    with pytest.raises(UserError, match=said):
        run_search(**(given | changes))  # type: ignore[arg-type]


def test_files_of_rows_are_those_of_the_working_directory(tmp_path: Path) -> None:
    rows = {"train": "a.tsv", "dev": tmp_path / "b.tsv", "text": "one", "label": "two"}
    config = load_config("minilm", {"tasks": ["mine"], "rows.mine": rows})
    assert (config.rows["mine"].train, config.rows["mine"].dev) == (
        str(Path("a.tsv").resolve()),
        str(tmp_path / "b.tsv"),
    )

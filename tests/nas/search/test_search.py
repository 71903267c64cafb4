"""`python -m nas.search` from the command line to its files."""

import json
from pathlib import Path

import numpy as np
import pytest
from optuna.trial import Trial, TrialState
from optuna_dashboard import get_note
from transformers import BertConfig

from distill.tasks.encoding import load_encoded
from distill.tasks.metrics import standard_error
from nas.config.load import load_config
from nas.planning.budget import budgeted_space
from nas.planning.finalists import lead_line
from nas.preparation.workspace import Workspace
from nas.search.command import main
from nas.study import ledger
from nas.study.attributes import ROWS, attribute, score_attribute
from nas.study.contributions import decode
from nas.study.folder import Folder
from nas.study.names import existing_studies
from nas.study.storage import trial_id
from search_spaces import Architecture, cost
from tests.commands import Refused
from tests.nas.tiny_study import TinyStudy, trials_of


def test_trials(searched: Path, tiny_study: TinyStudy, workspace: Workspace) -> None:
    """The base model, which exceeds the budget, is in a study of its own, because the dashboard's "Best Trial" of a
    study is the one with the best score, whatever its constraints.
    """
    base, graph = workspace.base()
    space = budgeted_space(tiny_study.config, base, graph, workspace.num_labels)
    rows = len(load_encoded(workspace.folders.data / "search.npz"))
    references, candidates = (trials_of(searched, study) for study in ("reference", "stage-1"))
    trials = [*references, *candidates]
    origins = [trial.user_attrs[ledger.ORIGIN] for trial in trials]
    assert origins == ["base model", "uniform slice", "global importance", *3 * ["random"]]
    assert [trial.user_attrs[ledger.WITHIN_BUDGET] for trial in trials] == [False, *5 * [True]]
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    for trial in trials:
        architecture = ledger.architecture_of(trial)
        facts = trial.user_attrs
        assert facts["params"] == cost.params(architecture, workspace.num_labels)
        assert facts["params_active"] == cost.params_active(architecture, workspace.num_labels)
        assert facts["macs"] == cost.macs(architecture, num_labels=workspace.num_labels)
        assert facts["standard_error"] == standard_error(trial.value or 0.0, rows)
        assert sorted(trial.intermediate_values) == [0, 3]
        assert trial.intermediate_values[0] == facts[score_attribute("inherited")]
        assert facts["seconds"] > 0
    for trial in candidates:
        assert space.min_params <= trial.user_attrs["params"] <= space.max_params
    assert ledger.architecture_of(references[0]) == Architecture.uniform(base, graph=graph)


def test_studies_have_the_name_of_the_search_and_notes(copied: Path) -> None:
    studies = existing_studies(Folder(copied))
    assert [study.study_name for study in studies.values()] == ["s/stage-1", "s/reference", "s/confirmation"]
    for study in studies.values():
        for trial in study.get_trials():
            assert get_note(Trial(study, trial_id(study, trial.number))).startswith(f"### Trial {trial.number}: ")


def test_winner(searched: Path, tiny_study: TinyStudy, workspace: Workspace) -> None:
    best = json.loads((searched / "stage-1" / "best.json").read_text())
    finalists = best["finalists"]
    trials = {trial.number: trial for trial in trials_of(searched)}
    assert finalists[0]["score"] == max(trial.value or 0.0 for trial in trials.values())
    # The best candidates, the better one of the two baselines within the budget, and global importance.
    best_baseline = max(trials[0], trials[1], key=lambda trial: trial.value or 0.0)
    count = tiny_study.config.stage1.confirm
    chosen = [row["trial"] for row in finalists]
    assert set(chosen[count:]) == {best_baseline.number, 1} - set(chosen[:count])
    assert best["winner"] in finalists
    assert best["winner"]["confirmed_mean"] == max(row["confirmed_mean"] for row in finalists)
    winner = Architecture.load(searched / "architecture.json")
    assert Architecture.from_json(best["winner"]["architecture"]) == winner
    space = budgeted_space(tiny_study.config, *workspace.base(), workspace.num_labels)
    assert space.min_params <= cost.params(winner, workspace.num_labels) <= space.max_params
    confirmed = trials_of(searched, "confirmation")
    assert [trial.user_attrs[ledger.SEED] for trial in confirmed] == [1] * len(finalists) + [2] * len(finalists)
    assert load_config(str(searched / "config.toml")) == tiny_study.config


def test_confirmations_keep_their_rows_and_give_leads(searched: Path, workspace: Workspace) -> None:
    best = json.loads((searched / "stage-1" / "best.json").read_text())
    assert all(attribute(trial, ROWS) is None for trial in trials_of(searched))
    rows: dict[Architecture, list[np.ndarray]] = {}
    for trial in trials_of(searched, "confirmation"):
        kept = decode(attribute(trial, ROWS))
        assert (kept.shape, kept.mean()) == ((len(load_encoded(workspace.folders.data / "search.npz")),), trial.value)
        rows.setdefault(ledger.architecture_of(trial), []).append(kept)
    found = {
        row["trial"]: (row["lead"], rows[Architecture.from_json(row["architecture"])]) for row in best["finalists"]
    }
    (reference,) = {lead["over_trial"] for lead, _ in found.values()}
    baselines = [row for row in best["finalists"] if row["origin"] in ("uniform slice", "global importance")]
    assert reference == max(baselines, key=lambda row: row["confirmed_mean"])["trial"]
    for lead, own in found.values():
        differences = np.subtract(own, found[reference][1])
        assert lead["value"] == pytest.approx(differences.mean())
        assert lead["standard_error"] ** 2 >= 0.999 * differences.mean(axis=0).var() / differences.shape[1]
        assert lead["seeds"] == [1, 2]


def test_resuming_a_finished_study_repeats_nothing(copied: Path, tiny_study: TinyStudy) -> None:
    (copied / "architecture.json").unlink()
    best = (copied / "stage-1" / "best.json").read_text()
    (copied / "stage-1" / "best.json").unlink()
    before = trials_of(copied), trials_of(copied, "confirmation")
    result = tiny_study.run(*tiny_study.search(copied.parent, "--study", "s", "--resume"))
    assert (result.returncode, result.stderr) == (0, "")
    assert (trials_of(copied), trials_of(copied, "confirmation")) == before
    assert (copied / "stage-1" / "best.json").read_text() == best
    assert f"\n{lead_line(json.loads(best)['winner'])}\n" in result.stdout
    assert (copied / "architecture.json").exists()
    assert (copied / "stage-1" / "best.json").exists()


@pytest.mark.slow
def test_a_study_in_which_everything_fails(tiny_study: TinyStudy, tmp_path: Path) -> None:
    preset = tiny_study.variant(
        tmp_path / "tiny.toml",
        ("steps = 6\nbatch_size = 8\nlearning_rate = 1e-3\n\n[pretrain]",
         "steps = 6\nbatch_size = 8\nlearning_rate = 1e30\n\n[pretrain]"),
        ("trials = 6", "trials = 4"),
    )  # fmt: skip
    result = tiny_study.run(*tiny_study.search(tmp_path, "--sampler", "tpe", preset=preset))
    assert result.returncode == 2
    assert result.stderr.startswith("nas.search: no candidate within the budget has a score")
    assert result.stderr.count("\n") == 1
    trials = trials_of(tmp_path / "tiny")
    assert {trial.state for trial in trials} == {TrialState.FAIL}
    assert [trial.value for trial in trials] == 3 * [None]  # the base model is in a study of its own
    assert all(trial.user_attrs[ledger.FAILURE].startswith("diverged: the loss is ") for trial in trials)
    assert not (tmp_path / "tiny" / "architecture.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stage", "4"], "invalid choice: '4'"),
        ([], "the following arguments are required: --stage"),
        (["--stage", "1", "--presets", "demo"], "unrecognized arguments: --presets demo"),
        (["--stage", "1", "--preset", "demon"], "unknown preset 'demon'; did you mean 'demo'?"),
        (["--stage", "1", "--preset", "no/such.toml"], "no/such.toml: No such file or directory"),
        (["--stage", "1", "--sampler", "genetic"], "--sampler: there is no sampler 'genetic' (samplers: lanas, "),
        (
            ["--stage", "all", "--trials", "0"],
            "nas.search: --trials: Input should be greater than or equal to 1, not 0\n",
        ),
        (["--stage", "all", "--trials", "0", "--seed", "-1"], " (and 1 more)\n"),
        (["--stage", "1", "--trials", "many"], "invalid int value: 'many'"),
        (["--stage", "1", "--max-params", "abc"], "--max-params: 'abc' is not a number such as 15M"),
        (["--stage", "1", "--study", "a/b"], "--study 'a/b': use only letters, digits"),
        (["--stage", "1", "--study", ""], "--study '': "),
        (["--stage", "1", "--workers", "0"], "--workers: must be a whole number of at least 1, not 0"),
        (["--stage", "1", "--max-latency", "fast"], "--max-latency: "),
        (["--stage", "1", "--objective", "speed"], "--goals: 'speed' is not one of score; score,params; "),
        (["--stage", "1", "--goals", "speed"], "--goals: 'speed' is not one of score; score,params; "),
        (["--stage", "1", "--goals", "score,params", "--sampler", "lanas"], "two goals need one of random"),
        (["--stage", "1", "--from", "a.json"], "--from: only stages 2 and 3 refine an architecture"),
        (["--stage", "2", "--from", "no.json", "--out", "nowhere"], "no.json: no such file"),
        (["--stage", "2", "--out", "nowhere"], "stage 2 refines the winner of stage 1, which nowhere/demo does not"),
        (["--stage", "3", "--out", "nowhere"], "run --stage 2 first, or give --from ARCH.json"),
        (["--stage", "1", "--tasks", "word_order,wordorder"], "unknown task 'wordorder'; did you mean 'word_order'?"),
        (["--stage", "1", "--device", "tpu"], "invalid choice: 'tpu'"),
        (["--stage", "1", "--runtime", "tflite"], "--runtime: Input should be 'torch', 'onnx' or 'onnx-int8'"),
        (["--stage", "1", "--threads", "0"], "--threads: Input should be greater than or equal to 1"),
        (["--stage", "1", "--batch", "-1"], "--batch: Input should be greater than or equal to 1"),
    ],
)
def test_options_that_cannot_be(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused(main, *arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([("trials = 6", "trails = 6")], "stage1.trails: unknown key; did you mean 'trials'? (and 1 more)"),
        ([('"1/8"', '"1/100"')], "leaves no channel"),
        ([('uniform = "1/2"', 'uniform = "1/100"')], "leaves no channel"),
        ([("slack = 0.3", 'slack = 0.3\nmin_params = "1G"\nmax_params = "2G"')], "this space reaches from"),
        ([('"library"', '"libary"')], "unknown task 'libary'"),
        ([("max_length = 24", "max_length = 512")], "max_length"),
    ],
)
def test_presets_that_cannot_be(
    changes: list[tuple[str, str]], message: str, tiny_study: TinyStudy, tmp_path: Path, refused: Refused
) -> None:
    preset = tiny_study.variant(tmp_path / "tiny.toml", *changes)
    out = tmp_path / "results"
    assert message in refused(main, "--stage", "1", "--preset", preset, "--out", out)
    # A mistake leaves nothing that would be in the way of the corrected command.
    assert not (out / "tiny").exists()


def test_teachers_that_cannot_be(tiny_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    always = ["--stage", "1", "--preset", str(tiny_study.preset), "--out", str(tmp_path / "results")]
    assert "no model at" in refused(main, *always, "--teacher", str(tmp_path / "missing"))
    BertConfig(hidden_act="tanh").save_pretrained(tmp_path / "other")
    assert "hidden_act is 'tanh'; supported are" in refused(main, *always, "--teacher", str(tmp_path / "other"))


def test_folders_in_the_way(searched: Path, tiny_study: TinyStudy, tmp_path: Path, refused: Refused) -> None:
    always = ["--stage", "1", "--preset", str(tiny_study.preset), "--study", "s"]
    there = [*always, "--out", str(searched.parent)]
    before = trials_of(searched)
    assert "already has stage 1: continue it with --resume" in refused(main, *there)
    assert "unknown task 'libary'" in refused(main, *there, "--tasks", "libary")
    other = refused(main, *there, "--seed", "9", "--resume")
    assert "was created with another configuration (seed is 0 there and 9 here)" in other
    other = refused(main, *there, "--runtime", "onnx", "--resume")
    assert "another configuration (deployment.runtime is 'torch' there and 'onnx' here)" in other
    assert trials_of(searched) == before
    assert "nothing to resume" in refused(main, *always, "--out", str(tmp_path), "--resume")
    (tmp_path / "s").touch()
    assert "is not a study's folder" in refused(main, *always, "--out", str(tmp_path))
    assert "ot a directory" in refused(main, *always, "--out", str(tmp_path / "s"))

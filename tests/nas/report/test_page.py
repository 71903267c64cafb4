"""The pages of `python -m nas.report` for several kinds of studies, and its figures."""

import json
import re
import shutil
import warnings
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import optuna
import pytest
from matplotlib.image import imread
from optuna.trial import TrialState

from distill.table import Table
from nas.report import command, figures, sections
from nas.report.outcome import entry, models_table
from nas.report.page import Picture, Text
from nas.report.study import FAILED, Candidate, Study, read
from nas.study.attributes import ARCHITECTURE, FUNCTION, attribute
from nas.study.description import formula
from nas.study.folder import Folder
from search_spaces import Architecture, FFNGraph
from tests.commands import Refused
from tests.nas.report import synthetic
from tests.nas.tiny_study import trials_of

FIRST = {"result", "search"}
SCORED = {"front", "architectures", "nonlinearity"}
# Kinds of studies: how they are written, and the sections that their pages have beside `FIRST`.
KINDS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "just begun": ({"trials": 0, "unfinished": True}, set()),
    "one goal": ({"trials": 28}, SCORED),
    "two goals": ({"trials": 24, "goals": ("score", "params"), "experts": True}, SCORED),
    "unfinished": ({"trials": 10, "unfinished": True, "goals": ("fidelity",)}, SCORED),
    "three stages": ({"trials": 12, "stages": ("1", "2", "3"), "goals": ("fidelity",)}, SCORED),
}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("two goals", "unfinished", "three stages")]


class Elements(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


Reports = Callable[[str], tuple[Path, Study, Elements]]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The folder of a study of a kind with its report, what was read from it, and the page's elements."""
    # Once for every user it lists all fonts, which would count as the processor time of the first test.
    import_module("matplotlib.font_manager")

    @cache
    def report(kind: str) -> tuple[Path, Study, Elements]:
        path = tmp_path_factory.mktemp("studies") / "demo"
        synthetic.write(path, **KINDS[kind][0])
        assert command.main([str(path)]) == 0
        page = (path / "report.html").read_text(encoding="utf-8")
        return path, read(Folder(path)), Elements(page)

    return report


@pytest.mark.parametrize("kind", ["just begun", "one goal", *SLOW])
def test_the_sections(kind: str, reports: Reports) -> None:
    _, study, page = reports(kind)
    sections = {attributes["id"] for tag, attributes in page.found if tag == "section"}
    assert sections == FIRST | KINDS[kind][1]
    if study.last.best is None:
        assert "It is not known yet whether searching paid off" in page.text
    else:
        lead = study.last.best["winner"]["lead"]
        assert lead["over_trial"] == study.last.best["winner"]["trial"] or f"{lead['value']:+.4f}" in page.text


@pytest.mark.parametrize("kind", ["one goal", *SLOW])
def test_the_page_is_self_contained_and_accessible(kind: str, reports: Reports) -> None:
    path, _, page = reports(kind)
    ids = {attributes.get("id") for _, attributes in page.found}
    for tag, attributes in page.found:
        assert tag not in ("script", "link", "iframe")
        if tag == "img":
            assert re.match(r"data:image/(png|svg\+xml);base64,", str(attributes["src"]))
            assert len(str(attributes["alt"])) > 30
        assert str(attributes.get("href", "#result")).removeprefix("#") in ids
    text = (path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|url\(", text)
    assert "prefers-color-scheme" in text
    assert len(text) < 5e6
    tables = sum(tag == "table" for tag, _ in page.found)
    heads = sum(tag == "th" and attributes.get("scope") == "col" for tag, attributes in page.found)
    assert tables and heads > tables


@pytest.mark.parametrize("kind", ["one goal", *SLOW])
def test_the_figures(kind: str, reports: Reports) -> None:
    """Every figure is on the page and in the folder, as SVG and (but for drawings of architectures) PNG, and is not
    blank.
    """
    path, _, page = reports(kind)
    names = {attributes["id"] for tag, attributes in page.found if tag == "figure"}
    files = {file.name for file in (path / "report").iterdir()}
    drawings = {name for name in names if str(name).startswith("architecture-")}
    assert drawings and files == {f"{name}.svg" for name in names} | {f"{name}.png" for name in names - drawings}
    for name in names - drawings:
        image = imread(path / "report" / f"{name}.png")[..., :3]
        assert 0.01 < (image.min(axis=2) < 0.9).mean() < 0.9, name
        # In grey, too, it has several shades.
        assert len(np.unique(np.round(image.mean(axis=2), 1))) > 5, name
    for name in names:
        assert ElementTree.parse(path / "report" / f"{name}.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize("kind", ["one goal", *SLOW])
def test_the_numbers_are_the_ledgers(kind: str, reports: Reports) -> None:
    path, study, page = reports(kind)
    for stage in study.stages:
        trials = trials_of(path, f"stage-{stage.name}")
        own = [trial for trial in trials if "duplicate_of" not in trial.user_attrs]
        counts = {name: sum(trial.state.name == name for trial in own) for name in ("COMPLETE", "PRUNED", "FAIL")}
        expected = f"{counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed"
        assert f"{len(own)} trials: {expected}" in page.text
        assert ("diverged: the loss is <nan> at step 3" in page.text) == bool(counts["FAIL"])
    trials = trials_of(path, f"stage-{study.last.name}")
    within = [trial for trial in trials if trial.state.name == "COMPLETE" and trial.user_attrs["within_budget"]]
    best = study.last.best
    leader = trials[best["winner"]["trial"]] if best else max(within, key=lambda trial: trial.values[0])
    for trial in (leader, *(trial for trial in trials if trial.user_attrs["origin"] == "uniform slice")):
        assert f"{trial.values[0]:.4f} ± 0.0100" in page.text
        assert f"{trial.user_attrs['params'] / 1e6:.4f} M" in page.text
    if best is not None:
        confirmations = trials_of(path, "confirmation")
        for row in best["finalists"]:
            function = attribute(trials[row["trial"]], FUNCTION)
            own = [
                t for t in confirmations if attribute(t, FUNCTION) == function and "duplicate_of" not in t.user_attrs
            ]
            scores = [trial.values[0] for trial in own]
            assert f"{np.mean(scores):.4f} ± 0.0200 ({len(scores)} seeds)" in page.text
    if len(study.last.goals) > 1:
        front = [t for t in within if not any(_dominates(other.values, t.values) for other in within)]
        chosen = study.last.knee("params")
        assert chosen is not None
        assert [c.number for c in study.last.front("params")] == [
            t.number for t in sorted(front, key=lambda t: (t.values[1], t.number)) if "duplicate_of" not in t.user_attrs
        ]
        assert f"trial {chosen.number}" in page.text
    assert "0.8750" in page.text  # the teacher's score


def _dominates(one: list[float], other: list[float]) -> bool:
    return one[0] >= other[0] and one[1] <= other[1] and one != other


def test_bad_input(reports: Reports, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "demo"
    shutil.copytree(reports("one goal")[0], path)
    assert "has no config.toml" in refused(command.main, tmp_path / "missing")
    assert "an ending such as .html" in refused(command.main, path, "--out", tmp_path / "report")
    assert "--checkpoint" in refused(command.main, path, "--checkpoint", tmp_path)
    (tmp_path / "file").touch()
    assert "--out: " in refused(command.main, path, "--out", tmp_path / "file" / "report.html")
    other = tmp_path / "other.db"
    assert f"there is no file {other}" in refused(command.main, path, "--storage", f"sqlite:///{other}")
    optuna.create_study(storage=f"sqlite:///{other}", study_name="other")
    assert "there is no study demo/stage-1" in refused(command.main, path, "--storage", f"sqlite:///{other}")
    best = json.loads((path / "stage-1" / "best.json").read_text())
    best["winner"]["trial"] = 99
    (path / "stage-1" / "best.json").write_text(json.dumps(best))
    message = refused(command.main, path)
    assert "best.json names trial 99, and stage-1 has " in message and "of another storage" in message
    (path / "stage-1" / "best.json").write_text("{")
    assert "best.json: not JSON" in refused(command.main, path)
    (path / "study.db").unlink()
    assert "has no study.db" in refused(command.main, path)
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "install the extra plots" in refused(command.main, path)


def test_figures_of_an_earlier_report_are_removed(reports: Reports, tmp_path: Path) -> None:
    """Such as the losses of a final training that was removed; other files stay."""
    path = tmp_path / "demo"
    shutil.copytree(reports("just begun")[0], path)
    final = path / "final"
    final.mkdir()
    shutil.copy(path / "config.toml", final)
    losses = {"student": {"fine-tuning": [[1, 0.5], [2, 0.4]]}}
    (final / "metrics.json").write_text(json.dumps({"metrics": [], "models": {}, "dev_rows": 0, "losses": losses}))
    (path / "report" / "notes.png").touch()
    assert command.main([str(path)]) == 0
    files = {file.name for file in (path / "report").iterdir()}
    assert {"losses.png", "losses.svg", "notes.png"} <= files
    shutil.rmtree(final)
    assert command.main([str(path)]) == 0
    assert {file.name for file in (path / "report").iterdir()} == files - {"losses.png", "losses.svg"}


def test_a_final_training_on_several_tasks_of_which_one_is_unfinished(
    reports: Reports, tmp_path: Path, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    path = tmp_path / "demo"
    shutil.copytree(reports("just begun")[0], path)
    final = path / "final"
    for task in ("rte", "stsb"):
        (final / task).mkdir(parents=True)
        (final / task / "config.toml").touch()
    (final / "stsb" / "metrics.json").write_text("{}")
    capsys.readouterr()
    assert command.main([str(path)]) == 0
    line = f"{final} has a checkpoint for each task; show one with --checkpoint {final / 'stsb'}\n"
    assert capsys.readouterr().out.endswith(f"without the final training: {line}")
    for chosen, message in (
        (final, line),
        (final / "rte", f"{final / 'rte'} is not a finished checkpoint of train_final.py: it has no metrics.json\n"),
    ):
        error = refused(command.main, path, "--checkpoint", chosen)
        assert error == f"nas.report: --checkpoint: {message}"


def changed(candidate: Candidate, **attributes: Any) -> Candidate:
    """The candidate with other attributes of its trial: `score`, or user attributes."""
    trial = copy(candidate.trial)
    if "score" in attributes:
        trial.values = [attributes.pop("score")]
    trial.user_attrs = trial.user_attrs | attributes
    return replace(candidate, trial=trial)


def with_stage(study: Study, *candidates: Candidate) -> Study:
    """The study with only these candidates, of a stage that has not ended."""
    return replace(study, stages=(replace(study.stages[0], candidates=candidates, best=None),))


def labels(figure: Any) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_reference_models_without_a_score_are_not_drawn(reports: Reports) -> None:
    """They failed, or wait to be evaluated again, when they have no costs yet."""
    study = reports("one goal")[1]
    (reference,) = study.references
    trial = copy(reference.trial)
    trial.state, trial.values, trial.user_attrs = TrialState.WAITING, None, {}
    stage, references = study.stages[0], (replace(reference, trial=trial),)
    for draw in (figures.progress, figures.fronts):
        assert any("base model" in label for label in labels(draw(stage, study.references)))
        assert not any("base model" in label for label in labels(draw(stage, references)))


def test_baselines_beyond_the_ends_of_the_axes(reports: Reports) -> None:
    """A budget has a lower bound, too."""
    study = reports("one goal")[1]
    stage = study.stages[0]
    slice_ = next(c for c in stage.baselines if c.origin == "uniform slice")
    cheap = changed(slice_, score=0.1, within_budget=False, params=1000)
    small = with_stage(study, *(cheap if c is slice_ else c for c in stage.candidates)).stages[0]
    drawn = figures.fronts(small, study.references)
    assert "uniform slice, outside the budget, 0.1000 (below the axis)" in labels(drawn)
    axis = drawn.axes[small.costs.index("params")]
    texts = {text.get_text(): text.xy for text in axis.texts}
    assert texts["← 0.001"][0] == axis.get_xlim()[0] and texts["0.1993 →"][0] == axis.get_xlim()[1]
    low, high = axis.get_ylim()
    assert all(low < height < high for _, height in texts.values())


def test_stages_that_compare_by_different_measures(reports: Reports) -> None:
    """Each row of the table has what its own stage compares by."""
    study = reports("one goal")[1]
    stage = study.stages[0]
    assert stage.leader is not None
    by_fidelity = replace(stage, name="2", goals=("fidelity",))
    rows = [entry(study, of.name, stage.leader, of) for of in (stage, by_fidelity)]
    columns, cells = models_table(rows, None).texts()
    places = [[column.head for column in columns].index(name) for name in ("fidelity", "score")]
    with_error = f"{stage.leader.score:.4f} ± 0.0100"
    metric = f"{stage.leader.trial.user_attrs['score/word_order']:.4f}"
    assert [[row[place] for place in places] for row in cells] == [["", with_error], [with_error, metric]]


def test_duplicates_are_not_among_the_reasons_for_missing_scores(reports: Reports) -> None:
    study = reports("one goal")[1]
    candidates = study.stages[0].candidates
    failed = next(c for c in candidates if c.state == FAILED)
    section = sections.search(with_stage(study, *candidates, changed(failed, duplicate_of=failed.number)))
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert ("failed: diverged: the loss is <nan> at step 3", 1) in table.rows


def test_candidates_outside_the_budget_are_no_empty_figure(reports: Reports) -> None:
    study = reports("one goal")[1]
    outside = changed(study.stages[0].scored[0], within_budget=False)
    parts = sections.search(with_stage(study, outside)).parts
    assert "No candidate with a score is within the budget." in parts
    assert not any(isinstance(part, Picture) for part in parts)


def test_surfaces_whose_values_overflow(reports: Reports) -> None:
    """Products of products: they are named instead of drawn with holes."""
    study = reports("one goal")[1]
    graph = FFNGraph.parse("project(mul(expand(x),x))")
    deep = Architecture.uniform(replace(synthetic.BASE, depth=12), graph=graph)
    scored = changed(study.stages[0].within_budget[0])
    scored.trial.system_attrs = scored.trial.system_attrs | {ARCHITECTURE: json.dumps(deep.to_json())}
    # Without reference models the graph of the base model is not known.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        section = sections.nonlinearity(replace(with_stage(study, scored), references=()))
    assert section is not None
    picture, note = section.parts
    assert isinstance(picture, Picture) and isinstance(note, Text)
    assert "base model" not in picture.alt and "whole best" not in picture.alt and str(graph) in picture.alt
    assert note.text.endswith("exceed all numbers in float32: whole best candidate so far.")


def test_a_final_training_of_another_architecture(reports: Reports) -> None:
    study = reports("one goal")[1]
    assert study.last.leader is not None
    final = {"metrics": [], "models": {}, "dev_rows": 0}
    other = Architecture.uniform(synthetic.BASE)
    told = f"The final training is not of the winner, but of: {formula(other)}."
    assert told in sections.result(study, final, other).parts
    own = sections.result(study, final, study.last.leader.architecture).parts
    assert not any("final training is not" in str(part) for part in own)


def test_losses_of_the_final_training() -> None:
    """A line per model in a panel per phase; the last losses are in the text."""
    points = [[step, 2.0 / step] for step in range(1, 30)]
    losses = {
        "student": {"pre-training": points, "fine-tuning": points[:7]},
        "base model": {"pre-training": points, "fine-tuning": [[step, 2 * loss] for step, loss in points[:7]]},
    }
    section = sections.losses({"losses": losses})
    assert section is not None
    (picture,) = section.parts
    assert isinstance(picture, Picture)
    assert "pre-training: student 0.069, base model 0.069; fine-tuning: student 0.286, base model 0.571" in picture.alt
    assert not isinstance(picture.drawn, str)
    axes = picture.drawn.axes
    assert [axis.get_title() for axis in axes] == ["pre-training", "fine-tuning"]
    for axis, phase in zip(axes, ("pre-training", "fine-tuning"), strict=True):
        assert [line.get_xydata().tolist() for line in axis.lines] == [losses[name][phase] for name in losses]
    assert len({line.get_linestyle() for line in axes[0].lines}) == 2
    losses["student"]["warm-up"] = []  # no steps
    again = sections.losses({"losses": losses})
    assert again is not None and again.parts[0].alt == picture.alt  # type: ignore[union-attr]
    below = figures.over_steps({"fine-tuning": {"student": [(1, -0.5), (2, -0.7)]}}).axes[0]
    assert below.get_ylim()[0] < -0.7
    for nothing in ({"models": {}}, {"losses": {"student": {}}}, {"losses": {"student": {"warm-up": []}}}):
        assert sections.losses(nothing) is None

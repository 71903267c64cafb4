"""`--dry-run` says what a search would do, and neither trains nor writes anything."""

import re
from pathlib import Path

import pytest

from nas.config.load import load_config
from nas.planning.finalists import ALLOCATED, GLOBAL
from nas.planning.stages import plan
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from nas.search.command import main
from search_spaces import cost
from tests.nas.tiny_study import TinyStudy

COMPENSATED = '[supernet]\ninheritance = "compensated"\ncalibration_rows = 40\n\n[candidate]'


def files(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def dry_run(tiny_study: TinyStudy, out: Path, *arguments: str) -> int:
    always = ("--preset", str(tiny_study.preset), "--out", str(out), "--device", "cpu", "--dry-run")
    return main(["--stage", "all", *always, *arguments])


def test_with_a_full_cache(
    tiny_study: TinyStudy, workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(tiny_study.cache)
    assert dry_run(tiny_study, tmp_path / "out") == 0
    assert files(tiny_study.cache) == before and not (tmp_path / "out").exists()
    printed = capsys.readouterr().out
    stage = plan(tiny_study.config, workspace, "1", None, ())
    assert f"{stage.space.min_params:,} to {stage.space.max_params:,}" in printed
    assert f"{stage.space.size_count():,} of these" in printed
    for architecture, origin, _ in stage.baselines:
        costs = f"{cost.params(architecture, 3):,} +{cost.macs(architecture, num_labels=3):,}"
        assert re.search(f"{origin} +{costs} +(yes|no)", printed)
    assert "will be made" not in printed and printed.count("is there") == 4
    # Trials and, at most, confirmations: (candidates + best baseline, in the first stage + global importance) * seeds.
    for line in ("(6 trials", "(up to 8 trainings", "(4 trials", "(up to 4 trainings", "(8 trials"):
        assert line in printed
    assert "fine-tuning" not in printed and "in all about" in printed and "one-shot supernet: training" in printed


def test_with_an_empty_cache(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path / "cache"))
    variant = tiny_study.variant(tmp_path / "tiny.toml", ("[candidate]", COMPENSATED))
    assert dry_run(tiny_study, tmp_path / "out", "--preset", str(variant)) == 0
    assert not (tmp_path / "cache").exists() and not (tmp_path / "out").exists()
    printed = capsys.readouterr().out
    assert f"{GLOBAL}, {', '.join(ALLOCATED)}: after the supernet has been made" in printed
    assert "is there" not in printed and "teacher: fine-tuning" in printed
    assert "within the budget but for the latency" not in printed
    assert dry_run(tiny_study, tmp_path / "out", "--preset", str(variant), "--max-latency", "0.5x") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "are within the budget but for the latency with base graphs" in printed


def test_a_supernet_that_is_cut_from_another_one(
    tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the other one is warmed up, and it is in the cache for both."""
    source, cut = "{depth = 1, width = 16, heads = 4, inner = 16}", "{depth = 2, width = 8, heads = 4, inner = 16}"
    (tmp_path / "wide.toml").write_text(f'extends = "{tiny_study.preset}"\nseed = 77\nbase = {source}\n')
    (tmp_path / "cut.toml").write_text(
        f'extends = "wide.toml"\nbase = {cut}\nspace.mismatch = "narrow"\nsupernet.cut_from = {source}\n'
    )
    preset = str(tmp_path / "cut.toml")
    states = []
    for _ in range(2):
        assert dry_run(tiny_study, tmp_path / "out", "--preset", preset) == 0
        printed = capsys.readouterr().out
        states.append([re.findall(rf" {part} +(is there|will be made)", printed)[0] for part in ("from", "supernet")])
        states[-1].append("supernet: warm-up" in printed)
        prepare(load_config(str(tmp_path / "wide.toml")), "cpu", outputs=False)
    assert states == [["will be made", "will be made", True], ["is there", "will be made", False]]


def test_mistakes_are_found(tiny_study: TinyStudy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dry_run(tiny_study, tmp_path / "out", "--max-params", "3") == 2
    assert "no architecture" in capsys.readouterr().err

"""Damaged entries of the cache: refused in one line or made anew, never used."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig

import nas.latency.steps
from distill.tasks.corpora import load_corpus, save_corpus
from distill.training.checkpoint import Checkpoint
from nas.latency.measure import latency_table
from nas.latency.settings import TableSettings
from nas.latency.whole import TooBusy
from nas.preparation.prepare import prepare
from search_spaces import Architecture
from tests.nas.records import content
from tests.nas.tiny_study import TinyStudy, corpus
from tests.tiny import BASE, SIZES
from tests.trust.mutations import case, damage, damaged, fresh
from tests.trust_counts import Cases


@pytest.mark.trust
def test_damaged_entries(
    tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Callable[..., Cases]
) -> None:
    """Damaged entries of the cache, of all kinds but text, are refused, or made anew."""
    counts = cases(sample=20, full=2_000)
    whole, cache = tmp_path / "whole", tmp_path / "cache"
    # The cache of all tests has entries of other studies, too, which this one would not look at.
    fresh(tiny_study.cache / "corpora", whole / "corpora")
    monkeypatch.setenv("FFN_NAS_CACHE", str(whole))
    prepare(tiny_study.config, "cpu")
    monkeypatch.setenv("FFN_NAS_CACHE", str(cache))
    entries = {path.parent.name for path in whole.glob("*/[!.]*")}
    assert {"corpora", "data", "outputs", "supernets", "teachers"} <= entries
    rng, expected = random.Random(0), content(whole)
    for number in range(counts.wanted):
        fresh(whole, cache)
        # A damaged text is collected anew, which takes long; see `test_damaged_texts`.
        done = damage(rng, rng.choice(sorted(set(cache.iterdir()) - {cache / "corpora"})))
        with case(counts, f"case {number}: {done}", cache, well="unchanged or made anew"):
            prepare(tiny_study.config, "cpu")
            assert content(cache) == expected
    assert counts["refused"]


@pytest.mark.trust
def test_damaged_latency_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cases: Callable[..., Cases]) -> None:
    """A damaged latency table in the cache is refused, or read unchanged; one that is gone is measured anew."""
    counts = cases(sample=50, full=2_000)
    monkeypatch.setattr(nas.latency.steps, "STEP_ROUNDS", 5)
    whole, copy = tmp_path / "whole", tmp_path / "copy"

    settings = TableSettings(
        base_model=Architecture.uniform(BASE),
        teacher=BertConfig(**SIZES),
        inner_widths=[12, 24, 48],
        heads=[4],
        batch=1,
        tokens=6,
        device="cpu",
    )
    expected = latency_table(settings, whole)
    for done in damaged(counts, 3, whole, copy):
        gone = not any(path.exists() for path in (copy / "latencies").glob("[!.]*"))
        with case(counts, done, copy, well="measured anew" if gone else "read"):
            try:
                assert (latency_table(settings, copy) == expected) != gone
            except TooBusy:  # other work on this machine, at the moment of the measurement
                assert gone
    assert counts["refused"]


@pytest.mark.trust
def test_damaged_texts(tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """A damaged collection of text in the cache is refused."""
    counts = cases(sample=100, full=2_000)
    whole, path, expected = tmp_path / "whole" / "text.jsonl", tmp_path / "copy" / "text.jsonl", corpus()
    save_corpus(expected, whole)
    for done in damaged(counts, 1, whole.parent, path.parent):
        with case(counts, done, path, refusal=ValueError):  # `embedded_corpus` then collects it anew
            assert load_corpus(path) == expected
    assert counts["refused"]


@pytest.mark.trust
def test_damaged_states(tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """The state of an interrupted training is resumed from as it was saved, or refused."""
    counts = cases(sample=100, full=2_000)
    whole, path = tmp_path / "whole" / "state.pt", tmp_path / "copy" / "state.pt"
    expected = parts(trained=True)
    Checkpoint(whole).save(expected, [0.5, 0.25])
    for done in damaged(counts, 2, whole.parent, path.parent):
        restored, gone = parts(), not path.exists()
        with case(counts, done, path, well="begun anew" if gone else "read"):
            assert Checkpoint(path).restore(restored) == ([] if gone else [0.5, 0.25])
            for name, part in restored.items() if not gone else ():
                torch.testing.assert_close(part.state_dict(), expected[name].state_dict(), rtol=0, atol=0)
    assert counts["refused"]


def parts(trained: bool = False) -> dict[str, Any]:
    """What a training saves."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    if trained:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer, "objective": nn.BatchNorm1d(3)}

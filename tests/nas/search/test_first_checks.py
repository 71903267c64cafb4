"""Mistakes that can be found without rows or weights end a search before anything is prepared."""

import sys
import tomllib
from fractions import Fraction
from pathlib import Path

import pytest
import tomli_w

from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.planning.budget import check_deployment
from nas.preparation.workspace import base_of_study
from nas.search.command import main
from search_spaces import Architecture, Base
from tests.commands import Refused
from tests.nas.tiny_study import TinyStudy


@pytest.fixture
def refused_first(tiny_study: TinyStudy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused) -> Refused:
    """Runs a search with an empty cache that must fail and leave no files behind; returns the error message."""
    cache, results = tmp_path / "cache", tmp_path / "results"
    monkeypatch.setenv("FFN_NAS_CACHE", str(cache))

    def run(*words: object) -> str:
        message = refused(main, "--preset", tiny_study.preset, "--out", results, "--device", "cpu", *words)
        assert not cache.exists() and not results.exists()
        return message

    return run


@pytest.mark.parametrize("limit", [("--max-params", "3"), ("--max-macs", "100")])
@pytest.mark.parametrize("stage", ["1", "all"])
def test_a_budget_that_nothing_keeps(refused_first: Refused, stage: str, limit: tuple[str, str]) -> None:
    assert "no architecture" in refused_first("--stage", stage, *limit)


@pytest.mark.parametrize("stage", ["3", "all"])
def test_sentence_vectors_have_no_one_shot_supernet(
    tiny_study: TinyStudy, tmp_path: Path, refused_first: Refused, stage: str
) -> None:
    preset = tomllib.loads(tiny_study.preset.read_text())
    of_rows = {"train": "train.tsv", "dev": "dev.tsv", "text": "one", "embeddings": True}
    path = tmp_path / "vectors.toml"
    path.write_text(tomli_w.dumps(preset | {"tasks": ["mine"], "rows": {"mine": of_rows}}))
    message = refused_first("--stage", stage, "--preset", path)
    assert "mine predicts sentence vectors" in message and 'stage3.evaluation = "untrained"' in message


@pytest.mark.parametrize("runtime", ["torch", "onnx-int8"])
def test_a_file_smaller_than_its_embeddings(refused_first: Refused, runtime: str) -> None:
    message = refused_first("--stage", "1", "--max-size", "2KB", "--runtime", runtime)
    assert "space.max_size: the embeddings alone take " in message and "supernet.cut_vocabulary" in message
    assert ("or use --runtime onnx-int8" in message) == (runtime == "torch")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ('min_params = "1G"\nmax_params = "2G"', "no architecture has 1,000,000,000 to 2,000,000,000 parameters"),
        (
            'min_params = "2G"\nmax_params = "1G"',
            "min_params = 2,000,000,000 must be at most max_params = 1,000,000,000",
        ),
    ],
)
def test_a_lower_bound_that_nothing_reaches(
    refused_first: Refused, tiny_study: TinyStudy, tmp_path: Path, bounds: str, message: str
) -> None:
    preset = tiny_study.variant(tmp_path / "tiny.toml", ('uniform = "1/2"', bounds))
    assert message in refused_first("--stage", "1", "--preset", preset)


def test_a_budget_that_nothing_around_the_start_keeps(
    refused_first: Refused, tiny_study: TinyStudy, tmp_path: Path
) -> None:
    base, graph = base_of_study(tiny_study.config)
    Architecture.uniform(base, graph=graph).save(tmp_path / "full.json")
    smaller = ("--from", tmp_path / "full.json", "--max-params", "1000")
    assert "no architecture" in refused_first("--stage", "2", *smaller)


def test_a_start_on_another_base(refused_first: Refused, tmp_path: Path) -> None:
    other = Base(depth=3, width=24, heads=4, inner=48, vocabulary=50, positions=20)
    Architecture.uniform(other, expansion=Fraction(1, 2)).save(tmp_path / "other.json")
    message = refused_first("--stage", "3", "--from", tmp_path / "other.json")
    assert "the architecture to refine is on another base than this study's: they differ in " in message


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--address", "nonsense", "--address 'nonsense': give HOST:PORT"),
        ("--storage", "nonsense", "cannot open the storage 'nonsense'"),
        ("--storage", "postgresql+psycopg://u@127.0.0.1:1/d", "cannot open the storage 'postgresql+psycopg://u@127."),
    ],
)
def test_servers_that_do_not_answer(refused_first: Refused, option: str, value: str, message: str) -> None:
    assert message in refused_first("--stage", "1", option, value)


IN_ONNX = ("--stage", "1", "--max-latency", "0.5x", "--runtime", "onnx")


def test_sentences_that_are_too_long_for_latencies(refused_first: Refused) -> None:
    message = refused_first("--stage", "1", "--tokens", "33")
    assert "deployment.tokens: 33 tokens are more than the teacher's 32 positions" in message


def test_experts_whose_latency_is_not_measured(refused_first: Refused, tiny_study: TinyStudy, tmp_path: Path) -> None:
    experts = "[space]", '[space]\nexperts = [{ count = 2, shared = "1/2" }]'
    preset = tiny_study.variant(tmp_path / "tiny.toml", experts)
    message = refused_first(*IN_ONNX, "--preset", preset)
    assert (
        'space.experts: the latency of experts is only measured in torch: set deployment.runtime = "torch"' in message
    )


@pytest.mark.parametrize("name", ["attention_experts", "head_experts"])
def test_experts_of_which_some_are_not_measured(name: str) -> None:
    plain = load_config("demo-ffn", {"space.max_latency": "0.5x", "deployment.runtime": "onnx"})
    config = plain.with_table("space", **{name: (1, 2)})
    with pytest.raises(ConfigError, match=rf"^space\.{name}: the latency of experts is only measured in torch"):
        check_deployment(config, "cpu")


def test_onnx_that_is_not_installed(refused_first: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    message = refused_first(*IN_ONNX)
    assert message.startswith("nas.search: deployment.runtime: ") and "pip install 'ffn-nas[onnx]'" in message


def test_threads_of_a_gpu() -> None:
    changes = {"space.max_latency": "0.5x", "deployment.threads": 2}
    check_deployment(load_config("demo-ffn", changes), "cpu")
    check_deployment(load_config("demo-ffn", {"deployment.threads": 2}), "cuda")  # nothing asks for latencies
    check_deployment(load_config("demo-ffn", changes | {"deployment.threads": None}), "cuda")
    with pytest.raises(ConfigError, match=r"deployment\.threads: no model on a GPU needs 2 threads: leave it out"):
        check_deployment(load_config("demo-ffn", changes), "cuda")

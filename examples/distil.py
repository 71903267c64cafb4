"""Distill a teacher into a student with half of its layers, without a search.

    python examples/distil.py [--out FOLDER]

The teacher is fine-tuned on the rows first; the student starts from three of its six layers and learns from the labels
and from the teacher's predictions (the objective `kd`). Takes about a minute on two cores.
"""

import json
import sys

from tickets import LABEL, TEXT, prepare

from distill.__main__ import main as distill


def main() -> int:
    out = prepare(__doc__, "results/example-distil")
    options = {
        "--teacher": "sentence-transformers/all-MiniLM-L6-v2",
        "--finetune-teacher": 60,
        "--student": "uniform:3",
        "--objective": "kd",
        "--set": "temperature=2",
        "--steps": 60,
        "--train": out / "train.tsv",
        "--dev": out / "dev.tsv",
        "--text": TEXT,
        "--label": LABEL,
        "--max-length": 32,
        "--batch-size": 16,
        "--learning-rate": 1e-4,
        "--out": out / "student",
    }
    # The same as `ffn-distill --teacher ...` in a shell.
    status = distill([str(word) for option in options.items() for word in option])
    if status:
        return status
    models = json.loads((out / "student" / "metrics.json").read_text(encoding="utf-8"))["models"]
    lost = models["teacher"]["accuracy"]["value"] - models["student"]["accuracy"]["value"]
    print(
        f"the student has {models['student']['params'] / models['teacher']['params']:.0%} of the teacher's parameters"
    )
    print(f"and loses {lost:.3f} of its accuracy")
    return 0


if __name__ == "__main__":
    sys.exit(main())

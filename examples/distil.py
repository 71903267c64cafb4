"""Distill a teacher into a student with half of its layers, without a search.

    python examples/distil.py [--out FOLDER]

The teacher is fine-tuned on the rows first; the student starts from three of its six layers and learns from the labels
and from the teacher's predictions (the objective `kd`). Takes about a minute on two cores.
"""

from tickets import LABEL, TEXT, folder_of, rows

from distill import distil
from distill.training.progress import Progress


def main() -> None:
    out = folder_of(__doc__, "results/example-distil")
    train, dev = rows()
    # The same as `ffn-distill --teacher ...` in a shell.
    with Progress() as progress:
        result = distil(
            "uniform:3",
            train,
            dev,
            teacher="sentence-transformers/all-MiniLM-L6-v2",
            text=TEXT,
            label=LABEL,
            objective="kd",
            settings={"temperature": 2.0},
            finetune_teacher=60,
            steps=60,
            batch_size=16,
            learning_rate=1e-4,
            max_length=48,
            on_progress=progress.update,
        )
    result.save(out / "student")
    print(result.table())
    models = result.metrics["models"]
    lost = models["teacher"]["accuracy"]["value"] - models["student"]["accuracy"]["value"]
    print(
        f"the student has {models['student']['params'] / models['teacher']['params']:.0%} of the teacher's parameters"
    )
    print(f"and loses {lost:.3f} of its accuracy")


if __name__ == "__main__":
    main()

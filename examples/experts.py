"""Turn a fine-tuned BERT into a mixture of experts, as MoEBERT does.

    python examples/experts.py [--out FOLDER]

First a classifier is fine-tuned on the rows. Then every feed-forward network is split into four experts by the
importance of its neurons, a hash of the token chooses the expert, and the mixture learns from the dense model for some
steps. Takes about a minute on two cores.
"""

import sys
from typing import Any

from tickets import LABEL, TEXT, folder_of, rows, write_rows

from distill import distil
from distill.training.progress import Progress
from supernet.experts.command import main as split_into_experts


def main() -> int:
    out = folder_of(__doc__, "results/example-experts")
    write_rows(out)
    recipe: dict[str, Any] = {"max_length": 48, "batch_size": 16, "learning_rate": 1e-4}
    # Without a teacher and with the objective `none`, distillation is ordinary fine-tuning.
    with Progress() as progress:
        dense = distil(
            "sentence-transformers/all-MiniLM-L6-v2",
            *rows(),
            text=TEXT,
            label=LABEL,
            objective="none",
            steps=60,
            on_progress=progress.update,
            **recipe,
        )
    dense.save(out / "dense")
    # The same as: python -m supernet.experts results/example-experts/dense --experts 4 ...
    files = ["--train", str(out / "train.csv"), "--dev", str(out / "dev.csv"), "--text", TEXT, "--label", LABEL]
    training = [word for name, value in recipe.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    experts = ["--experts", "4", "--routing", "hash", "--steps", "30", "--importance-batches", "4"]
    return split_into_experts([str(out / "dense"), *experts, *files, *training, "--out", str(out / "mixture")])


if __name__ == "__main__":
    sys.exit(main())

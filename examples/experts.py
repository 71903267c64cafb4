"""Turn a fine-tuned BERT into a mixture of experts, as MoEBERT does.

    python examples/experts.py [--out FOLDER]

First a classifier is fine-tuned on the rows. Then every feed-forward network is split into four experts by the
importance of its neurons, a hash of the token chooses the expert, and the mixture learns from the dense model for some
steps. Takes about a minute on two cores.
"""

import sys

from tickets import LABEL, TEXT, prepare

from distill.__main__ import main as distill
from supernet.experts.command import main as split_into_experts


def main() -> int:
    out = prepare(__doc__, "results/example-experts")
    rows = ["--train", str(out / "train.tsv"), "--dev", str(out / "dev.tsv"), "--text", TEXT, "--label", LABEL]
    training = ["--max-length", "32", "--batch-size", "16", "--learning-rate", "1e-4"]
    # Without a teacher and with the objective `none`, distillation is ordinary fine-tuning.
    start = ["--student", "sentence-transformers/all-MiniLM-L6-v2", "--objective", "none", "--steps", "60"]
    status = distill([*start, *rows, *training, "--out", str(out / "dense")])
    if status:
        return status
    # The same as: python -m supernet.experts results/example-experts/dense --experts 4 ...
    experts = ["--experts", "4", "--routing", "hash", "--steps", "30", "--importance-batches", "4"]
    return split_into_experts([str(out / "dense"), *experts, *rows, *training, "--out", str(out / "mixture")])


if __name__ == "__main__":
    sys.exit(main())

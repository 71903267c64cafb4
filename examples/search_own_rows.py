"""Search for a student on rows of your own, train the winner, and classify a message with it.

    python examples/search_own_rows.py [--out FOLDER]

The rows are all that a task of your own needs. The budgets below are tiny, so that everything takes about a minute on
two cores; leave them out to get those of the preset `minilm`.
"""

import argparse
from pathlib import Path

from tickets import LABEL, TEXT, write_rows

from distill.training.progress import Progress
from nas import load_config, run_search
from nas.config.schema import StudyConfig


def configuration(folder: Path) -> StudyConfig:
    """The preset `minilm` with the rows in a folder, and tiny budgets."""
    files = {"train": folder / "train.csv", "dev": folder / "dev.csv"}
    return load_config(
        "minilm",
        {
            "tasks": ["tickets"],
            "rows.tickets": files | {"text": TEXT, "label": LABEL},
            "max_length": 48,
            # Text without labels for the final training; by default the embedded documentation.
            "corpus": str(folder.resolve() / "messages.txt"),
            "finetune": {"steps": 60, "batch_size": 16},  # of the teacher
            "warmup": {"importance_batches": 4, "steps": 4},  # of the supernet
            "candidate": {"steps": 10, "batch_size": 16},  # of every candidate
            "stage1": {"trials": 4, "confirm": 1, "confirm_seeds": 0},
            "pretrain.steps": 10,  # of the winner, on text
            "final": {"steps": 60, "batch_size": 16},  # of the winner, on the rows
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/example-search"), help="an empty or new folder (default: %(default)s)"
    )
    out: Path = parser.parse_args().out
    write_rows(out)
    # The same as: ffn-nas --stage 1 --preset tickets.toml --out results
    study = run_search(configuration(out), out / "tickets", stage="1")
    # The same as: ffn-train-final results/tickets/architecture.json --skip-base
    with Progress() as progress:
        result = study.train(skip_base=True, on_progress=progress.update)
    print(result.table())

    # Nothing of this project is needed from here on.
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    checkpoint = out / "tickets" / "final"
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    message = "Hello, the courier brought order 4711 to my neighbor."
    logits = model(**tokenizer(message, return_tensors="pt")).logits
    print(f"{message!r} is answered by {model.config.id2label[int(logits.argmax())]}")


if __name__ == "__main__":
    main()

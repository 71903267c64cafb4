"""Search a student on rows of your own, train the winner, and classify a message with it.

    python examples/search_own_rows.py [--out FOLDER]

A preset's table [rows.NAME] is all that a task of your own needs. The budgets below are tiny, so that everything takes
about a minute on two cores; leave them out to get those of the preset `minilm`.
"""

import sys

from tickets import prepare

from nas.final.command import main as train_final
from nas.search.command import main as search

PRESET = """\
extends = "minilm"
tasks = ["tickets"]
max_length = 32
corpus = "{corpus}"         # text without labels for the final training; by default the embedded documentation

[rows.tickets]              # the files lie beside the preset
train = "train.tsv"
dev = "dev.tsv"
text = "message"
label = "team"

[finetune]                  # of the teacher
steps = 60
batch_size = 16

[warmup]                    # of the supernet
importance_batches = 4
steps = 4

[candidate]                 # of every candidate
steps = 10
batch_size = 16

[stage1]
trials = 4
confirm = 1
confirm_seeds = 0

[pretrain]                  # of the winner, on text
steps = 10

[final]                     # of the winner, on the rows
steps = 60
batch_size = 16
"""


def main() -> int:
    out = prepare(__doc__, "results/example-search")
    preset = out / "tickets.toml"
    preset.write_text(PRESET.format(corpus=out.resolve() / "messages.txt"), encoding="utf-8")
    # The same as: ffn-nas --stage 1 --preset tickets.toml --out results
    status = search(["--stage", "1", "--preset", str(preset), "--out", str(out)])
    if status:
        return status
    # The same as: ffn-train-final results/tickets/architecture.json --skip-base
    status = train_final([str(out / "tickets" / "architecture.json"), "--skip-base"])
    if status:
        return status

    # Nothing of this project is needed from here on.
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    checkpoint = out / "tickets" / "final"
    model = AutoModelForSequenceClassification.from_pretrained(checkpoint, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=True)
    message = "Hello, the courier brought order 4711 to my neighbor."
    logits = model(**tokenizer(message, return_tensors="pt")).logits
    print(f"{message!r} is answered by {model.config.id2label[int(logits.argmax())]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

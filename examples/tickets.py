"""Labeled rows for the example: short messages to a shop, each with the team that answers it."""

import random
from pathlib import Path

from pandas import DataFrame

TEXT, LABEL = "message", "team"
_OPENINGS = ("Hello,", "Good morning,", "Please help:", "Hi there,", "Dear team,", "Quick question:")
_CLOSINGS = ("Thank you.", "Please reply soon.", "This is urgent.", "I look forward to your answer.", "Best regards.")
_BODIES = {
    "billing": (
        "I was charged twice for order {number}.",
        "the invoice for order {number} shows the wrong amount.",
        "when will the refund of order {number} arrive?",
        "my card was declined although I paid for order {number}.",
    ),
    "delivery": (
        "the parcel with order {number} has not arrived.",
        "the courier left order {number} at the wrong door.",
        "can you ship order {number} to another address?",
        "order {number} arrived with a broken box.",
    ),
    "account": (
        "I cannot log in since order {number}.",
        "please change the email of my profile, last order {number}.",
        "the password reset link does not work, my order was {number}.",
        "how do I close my account after order {number}?",
    ),
}


def rows(train: int = 600, dev: int = 120, seed: int = 0) -> tuple[DataFrame, DataFrame]:
    """Training and dev rows with the columns `message` and `team`."""
    rng = random.Random(seed)
    drawn = []
    for _ in range(train + dev):
        # Many messages mention two concerns; the label is the team of the first one.
        team, other = rng.sample(sorted(_BODIES), 2)
        message = f"{rng.choice(_OPENINGS)} {rng.choice(_BODIES[team])}"
        message += f" Also, {rng.choice(_BODIES[other])}" if rng.random() < 0.6 else f" {rng.choice(_CLOSINGS)}"
        drawn.append((message.format(number=rng.randrange(1000, 10_000)), team))
    frame = DataFrame(drawn, columns=[TEXT, LABEL])
    return frame[:train], frame[train:]


def write_rows(folder: Path) -> None:
    """Write the rows to `train.csv` and `dev.csv`, and `messages.txt` without labels."""
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = rows()
    train.to_csv(folder / "train.csv", index=False)
    dev.to_csv(folder / "dev.csv", index=False)
    (folder / "messages.txt").write_text("\n".join(train[TEXT]) + "\n", encoding="utf-8")

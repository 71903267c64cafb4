"""Rows of a hand-written file: which sentences are relevant, and which others stand beside them."""

import json
from pathlib import Path

from benchmarks.__main__ import main


def test_the_sentence_of_the_answer_is_relevant(tmp_path: Path) -> None:
    # "Yes." is in both sentences; the answer is the later one.
    texts = ["One? Yes. Two? Yes. Three.", "Four.", "Five. Six.", "Seven."]
    question = {"question": " Which? ", "answers": [{"answer_start": texts[0].rindex("Yes"), "text": "Yes"}]}
    paragraphs = [{"context": text, "qas": [question] if text == texts[0] else []} for text in texts]
    for name in ("train-1.json", "dev-1.json"):
        (tmp_path / name).write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    command = ["reranking_rows", "--squad", str(tmp_path), "--out", str(tmp_path), "--json", str(tmp_path / "raw.json")]
    assert main(command) == 0
    rows = {
        name: [*map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())]
        for name in ("train", "dev", "ranked")
    }
    assert {row["query"] for of in rows.values() for row in of} == {"Which?"} and not rows["dev"]
    assert [row["passage"] for row in rows["train"]] == ["Yes.", "One?", "Yes.", "Two?"]
    assert [row["passage"] for row in rows["ranked"]][4:] == ["Three.", "Four.", "Five.", "Six."]
    assert [row["relevant"] for row in rows["train"]] == [1, 0, 1, 0]

    assert main([*command, "--others", "1"]) == 0
    for name in ("train", "ranked"):
        rows[name] = [*map(json.loads, (tmp_path / f"{name}.jsonl").read_text().splitlines())]
        assert [(row["passage"], row["relevant"]) for row in rows[name]] == [("Yes.", 1), ("Two?", 0)]

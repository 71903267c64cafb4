import sys

import numpy as np
import pytest

from benchmarks.__main__ import main
from benchmarks.static_vectors import retrieved
from nas.compress.retrieval import METRICS, pairs_of


def test_each_encoder_searches_with_its_own_vectors() -> None:
    pairs = pairs_of([{"query": "a", "passage": "A"}, {"query": "b", "passage": "B"}])
    places = {"a": 0, "A": 0, "b": 1, "B": 1}

    def right(texts: list[str]) -> np.ndarray:
        return np.eye(2)[[places[text] for text in texts]]

    def wrong(texts: list[str]) -> np.ndarray:
        return np.eye(2)[[places[text] ^ text.islower() for text in texts]]

    found = retrieved(pairs, {"right": right, "wrong": wrong})
    ranks = {name: rows_Q3[:, METRICS.index("mrr@10")].tolist() for name, rows_Q3 in found.items()}
    assert ranks == {"right": [1, 1], "wrong": [0.5, 0.5]}


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "model2vec.distill", None)
    assert main(["static_vectors", "--squad", "squad", "--json", "unwritten.json"]) == 2
    assert "pip install 'model2vec[distill]'" in capsys.readouterr().err

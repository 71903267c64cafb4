"""Times passes of ONNX models. Run as a program, it reads the arguments of `passes` from standard input and writes the
result, both as JSON.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from nas.latency.steps import bounded
from nas.latency.whole import example
from nas.onnx.model import OnnxModel


def passes(
    models: Mapping[str, str], batch: int, tokens: int, rounds: int, threads: int, profiles: str | None
) -> dict[str, list[list[float]]]:
    """For each model and each of at most `rounds` rounds, the seconds of a pass, and those that the processor spent on
    it with one thread (with several, the seconds again).

    In each round a model runs twice and the second pass is timed: the first one refills the processor's caches, which
    the other models have used in the meantime.

    Args:
        models: the file of each model.
        batch, tokens: the number of sentences, without padding, and the number of tokens of each.
        profiles: a folder for profiles of the models, which run twice more in each round; None: there are none.
    """
    torch.set_num_threads(threads)
    sentences = example(1, batch, tokens, "cpu")
    sessions = {name: OnnxModel(Path(path)) for name, path in models.items()}
    recorded = (
        {} if profiles is None else {name: OnnxModel(Path(path), Path(profiles)) for name, path in models.items()}
    )
    clocks: tuple[Callable[[], float], ...] = (
        time.perf_counter,
        time.thread_time if threads == 1 else time.perf_counter,
    )
    result: dict[str, list[list[float]]] = {name: [] for name in models}
    for _ in bounded(rounds):
        for name, session in sessions.items():
            session.run(sentences)
            begun = [clock() for clock in clocks]
            session.run(sentences)
            result[name].append([clock() - start for clock, start in zip(clocks, begun, strict=True)])
            if recorded:
                recorded[name].run(sentences)
                recorded[name].run(sentences)
    for model in recorded.values():
        model.session.end_profiling()
    return result


if __name__ == "__main__":
    print(json.dumps(passes(**json.load(sys.stdin))))

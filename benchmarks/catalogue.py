"""All benchmarks by name. This module imports none of them, so that listing them takes no time."""

from typing import NamedTuple


class Benchmark(NamedTuple):
    """A module of this package that measures something when it is run by its name.

    Attributes:
        summary: what it answers, in one line.
        duration: how long it takes with its default options on two processor cores.
    """

    summary: str
    duration: str


CATALOGUE = {
    "throughput": Benchmark("training throughput against the published protocol", "30 minutes"),
    "inference": Benchmark("speed of whole mixtures against their number of experts (MoEBERT, figure 4)", "5 minutes"),
    "latency": Benchmark("predicted against measured latency of whole models", "2 minutes"),
    "memory": Benchmark("memory of a worker", "10 minutes"),
    "orchestration": Benchmark("time of a trial and memory of the driver besides training", "5 minutes"),
    "samplers": Benchmark("evaluations that each sampler needs on the tabulated space", "10 minutes"),
    "tabulate": Benchmark("makes the tabulated space", "3 hours"),
    "leads": Benchmark("winners of searches against baselines, over seeds and budgets", "4 hours"),
    "alternatives": Benchmark("a task's students against what else a user could take, in three forms", "4 hours"),
    "evidence": Benchmark("signals that predict the score after full training", "4 hours"),
    "inheritance": Benchmark("orders of channels, and slices against compensation", "20 minutes"),
    "pruning": Benchmark("compensated allocations against Kwon et al. and K-prune", "6 hours"),
    "recipes": Benchmark("every distillation objective on the same student, and ablations of mixtures", "2 hours"),
    "capacity_gap": Benchmark("one student of teachers of several sizes, with and without experts", "30 minutes"),
    "family_teachers": Benchmark("makes small encoders of types that have no weights here, from MiniLM", "40 minutes"),
    "warmup": Benchmark("what the supernet's warm-up brings", "30 minutes"),
}

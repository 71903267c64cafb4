"""All benchmarks by name. This module imports none of them, so that listing them takes no time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Benchmark:
    """One measurement that can be run by its name.

    Attributes:
        module: the module that measures, relative to this package.
        summary: what it answers, in one line.
        duration: how long it takes with its default options on two processor cores.
    """

    module: str
    summary: str
    duration: str


CATALOGUE = {
    "throughput": Benchmark("speed.throughput", "training throughput against the published protocol", "30 minutes"),
    "ffn_graph": Benchmark("speed.ffn_graph", "the cost of running a graph in place of a hand-written FFN", "1 minute"),
    "experts": Benchmark("speed.experts", "the cost of a layer of experts", "2 minutes"),
    "inference": Benchmark(
        "speed.inference", "speed of whole mixtures against their number of experts (MoEBERT, figure 4)", "5 minutes"
    ),
    "latency": Benchmark("speed.latency", "predicted against measured latency of whole models", "2 minutes"),
    "memory": Benchmark("memory.memory", "memory of a worker and of the driver", "20 minutes"),
    "scaling": Benchmark("scaling.scaling", "how the cost of a candidate grows with its size", "10 minutes"),
    "plan": Benchmark("scaling.plan", "the cost of the published search, from measured rates", "1 minute"),
    "samplers": Benchmark(
        "search.samplers", "evaluations that each sampler needs on the tabulated space", "10 minutes"
    ),
    "tabulate": Benchmark("search.tabulate", "makes the tabulated space", "1 hour"),
    "coarse_to_fine": Benchmark("search.coarse_to_fine", "three stages against a single one", "1 hour"),
    "winner": Benchmark("search.winner", "winners of a search against baselines of their size", "15 minutes"),
    "leads": Benchmark("search.leads", "winners of searches against baselines, over seeds and budgets", "4 hours"),
    "orchestration": Benchmark("search.orchestration", "the cost of a trial beside its training", "3 minutes"),
    "duplicates": Benchmark("search.duplicates", "mistakes of the fingerprints of functions", "5 minutes"),
    "evidence": Benchmark("signals.evidence", "signals that predict the score after full training", "3 hours"),
    "inheritance": Benchmark(
        "signals.inheritance", "orders of channels, and slices against compensation", "20 minutes"
    ),
    "pruning": Benchmark("signals.pruning", "compensated inheritance against Kwon et al. and K-prune", "1 hour"),
    "selection": Benchmark(
        "signals.selection", "forward selection against backward elimination and swaps", "5 minutes"
    ),
    "operations": Benchmark("signals.operations", "graphs that reconstruct the supernet's FFNs", "5 minutes"),
    "agreement": Benchmark("signals.agreement", "whether saved outputs and bfloat16 change scores", "30 minutes"),
    "recipes": Benchmark("training.recipes", "every distillation objective on the same student", "2 hours"),
    "mixtures": Benchmark("training.mixtures", "ablations of mixtures of experts", "1 hour"),
    "capacity_gap": Benchmark(
        "training.capacity_gap", "one student of teachers of several sizes, with and without experts", "30 minutes"
    ),
    "teachers": Benchmark("training.teachers", "the demo's teachers against a bag of words", "10 minutes"),
    "warmup": Benchmark("training.warmup", "what the supernet's warm-up brings", "30 minutes"),
}

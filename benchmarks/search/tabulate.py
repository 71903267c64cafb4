"""Makes the tabulated space: scores every architecture of a small space on the demo, for comparing samplers.

The space is the demo's stage 3 from the base model: one block a layer, six expansions, parameters at most 5 % (of what
the FFNs have above the smallest) below the uniform slice at 1/8. A score is stage 3's: the accuracy of the slice of the
trained one-shot supernet, without training, as the mean of both tasks on the first rows of their search splits. The
importance of the supernet's neurons, from which samplers get their zero-cost proxy, is kept beside the scores.
Architectures that agree in their lower layers share the computation of those, so the table costs a hundredth of as many
single evaluations.

It writes benchmarks/search/tabulated.npz; its raw numbers are the accuracies of all members on each task.
"""

import itertools
import json
import random
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.report import Report
from benchmarks.search.table import TABLE
from distill.objectives.outputs import INPUTS
from distill.tasks.encoding import collate, eval_batches
from distill.training.evaluation import EVALUATION_BATCH
from distill.training.progress import ignore_progress
from nas.budget import budgeted_space
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.evaluation.one_shot import OneShotEvaluator
from nas.preparation.one_shot import prepare_one_shot
from nas.preparation.prepare import prepare
from nas.preparation.workspace import Workspace
from search_spaces.architecture import Architecture, Genes
from search_spaces.spaces import SIZES, Space
from supernet.inherit import inherit

EXPANSIONS = ["1/64", "1/32", "1/16", "1/8", "3/16", "3/8"]
# Architectures that are also evaluated alone, whose scores must agree with the table.
CHECKED = 8


def demo() -> tuple[StudyConfig, Workspace, Space]:
    """The demo's configuration with one block a layer, its prepared workspace, and the space of the table."""
    config = load_config("demo", {"space.stacks": [1], "space.expansions": EXPANSIONS})
    workspace = prepare(config, "cpu", ignore_progress)
    base, graph = workspace.base()
    start = Architecture.uniform(base, graph=graph)
    space = budgeted_space(config, base, graph, workspace.labels, start=start, vary=frozenset({SIZES}))
    return config, workspace, space


def members(space: Space) -> list[tuple[int, ...]]:
    """The places of the expansions of every architecture inside the space's budget."""
    options = [Genes(space.graph, 1, expansion) for expansion in space.expansions]
    rows = itertools.product(range(len(options)), repeat=space.base.depth)
    return [row for row in rows if space.keeps_budget(architecture(space, row))]


def architecture(space: Space, row: tuple[int, ...]) -> Architecture:
    """The architecture of one row of the table."""
    return Architecture(space.base, tuple(Genes(space.graph, 1, space.expansions[place]) for place in row))


class Tree:
    """Scores all members by a walk over their common lower layers."""

    def __init__(self, evaluator: OneShotEvaluator, space: Space, rows: list[tuple[int, ...]]) -> None:
        self.evaluator, self.space = evaluator, space
        self.supernet = evaluator.supernet.eval()
        self.layers: list[Any] = list(self.supernet.base_model.encoder.layer)
        named = {name: value for name, value in self.supernet.model.named_parameters() if ".ffn." in name}
        uniform = [(place,) * space.base.depth for place in range(len(space.expansions))]
        self.ffn = [inherit(named, architecture(space, row)) for row in uniform]
        self.prefixes = {row[:depth] for row in rows for depth in range(len(row) + 1)}

    @torch.inference_mode()
    def scores(self) -> Iterator[tuple[tuple[int, ...], list[float]]]:
        """Each member's row and its accuracy on every task."""
        states, masks, expected, tasks = [], [], [], []
        for task, (_, data, _) in self.evaluator.tasks.items():
            first = self.evaluator.rows_per_task or len(data)
            order = [chosen[chosen < first] for chosen in eval_batches(data, EVALUATION_BATCH)]
            for chosen in (chosen for chosen in order if len(chosen)):
                batch = collate(data, chosen, self.evaluator.pad_id)
                states.append(self.embedded(batch))
                masks.append(self.mask)
                expected.append(batch["labels"])
                tasks.append(task)
        self.masks, self.expected, self.tasks = masks, expected, tasks
        yield from self.walk((), states)

    def embedded(self, batch: dict[str, Tensor]) -> Tensor:
        """The input of the lowest layer; its mask is kept in `self.mask`."""
        inputs: dict[str, Any] = {}

        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            inputs["arguments"], inputs["named"] = arguments, named

        handle = self.layers[0].register_forward_pre_hook(hook, with_kwargs=True)
        self.supernet.activate(None, next(iter(self.evaluator.tasks)))
        with self.evaluator.accelerator.autocast():
            self.supernet(**{name: batch[name] for name in INPUTS})
        handle.remove()
        arguments = inputs["arguments"]
        self.mask = arguments[1] if len(arguments) > 1 else inputs["named"].get("attention_mask")
        return arguments[0]

    def walk(self, prefix: tuple[int, ...], states: list[Tensor]) -> Iterator[tuple[tuple[int, ...], list[float]]]:
        depth = len(prefix)
        layer = self.layers[depth]
        last = depth == len(self.layers) - 1
        with self.evaluator.accelerator.autocast():
            attend = first_token if last else lambda attention, state, mask: attention(state, mask)[0]
            attended = [attend(layer.attention, state, mask) for state, mask in zip(states, self.masks, strict=True)]
        for option in range(len(self.ffn)):
            row = (*prefix, option)
            if row not in self.prefixes:
                continue
            name = f"bert.encoder.layer.{depth}.ffn.0."
            weights = {key.removeprefix(name): value for key, value in self.ffn[option].items() if key.startswith(name)}
            with self.evaluator.accelerator.autocast():
                above = [torch.func.functional_call(layer.ffn[0], weights, (state,)) for state in attended]
                if not last:
                    yield from self.walk(row, above)
                    continue
                pooled = [self.supernet.base_model.pooler(state) for state in above]
                correct: dict[str, list[Tensor]] = {task: [] for task in self.evaluator.tasks}
                for task, state, labels in zip(self.tasks, pooled, self.expected, strict=True):
                    correct[task].append(self.supernet.heads[task](state).argmax(dim=-1) == labels)
            yield row, [float(torch.cat(hits).double().mean()) for hits in correct.values()]


def first_token(attention: Any, state_BTD: Tensor, mask: Tensor | None) -> Tensor:
    """The attention's output (B, 1, D) for the first token, which is all that the classifiers see of the last layer."""
    inner, batch = attention.self, len(state_BTD)
    query, key, value = (
        linear(state).view(batch, -1, inner.num_attention_heads, inner.attention_head_size).transpose(1, 2)
        for linear, state in ((inner.query, state_BTD[:, :1]), (inner.key, state_BTD), (inner.value, state_BTD))
    )
    mask = None if mask is None else mask[..., :1, :]
    context = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return attention.output(context.transpose(1, 2).reshape(batch, 1, -1), state_BTD[:, :1])


def write(table: Mapping[str, np.ndarray], workspace: Workspace) -> None:
    """Write the table with the importance of the supernet's inner neurons, (layers, inner neurons)."""
    importance = torch.stack(workspace.importance()).numpy()
    np.savez_compressed(TABLE, allow_pickle=False, **dict(table) | {"importance": importance})


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--importance", action="store_true", help="renew only the importance in the table")


def run(options: Namespace, report: Report) -> None:
    torch.set_num_threads(options.threads)
    config, workspace, space = demo()
    if options.importance:
        with np.load(TABLE) as table:
            write(table, workspace)
        report.note(f"renewed the importance in {TABLE.name}")
        return
    shared = prepare_one_shot(workspace, space, "cpu", ignore_progress)
    evaluator = OneShotEvaluator(shared, "cpu")
    rows = members(space)
    report.note(f"{len(rows):,} architectures of {space.min_params:,} to {space.max_params:,} parameters")
    started = time.monotonic()
    accuracies: dict[tuple[int, ...], list[float]] = {}
    for row, of_tasks in Tree(evaluator, space, rows).scores():
        accuracies[row] = of_tasks
        if len(accuracies) % 250 == 0:
            report.progress(f"{len(accuracies)} after {time.monotonic() - started:.0f} s")
    facts = {
        "tasks": list(config.tasks),
        "rows": config.sharing.rows,
        "steps": config.sharing.steps,
        "seed": config.seed,
        "expansions": [str(expansion) for expansion in space.expansions],
        "depth": space.base.depth,
        "width": space.base.width,
        "heads": space.base.heads,
        "inner": space.base.inner,
        "min_params": space.min_params,
        "max_params": space.max_params,
        "torch": torch.__version__,
    }
    in_order = [accuracies[row] for row in rows]
    table = {
        "rows": np.array(rows, dtype=np.uint8),
        "accuracies": np.array(in_order, dtype=np.float32),
        "facts": np.array(json.dumps(facts)),
    }
    write(table, workspace)
    report.save({"facts": facts, "places of expansions": rows, "accuracies": in_order}, seeds=[config.seed])
    means = np.mean(in_order, axis=1)
    report.note(f"scores from {means.min():.4f} to {means.max():.4f}, deviation {means.std():.4f}")
    checks = [
        (f"{row}", f"{np.mean(accuracies[row]):.4f}", f"{evaluator.evaluate(architecture(space, row)).value:.4f}")
        for row in random.Random(0).sample(rows, CHECKED)
    ]
    report.table(("expansions", "in the table", "evaluated alone"), checks)

"""Runs a final training: prepares, trains and evaluates the models, and saves and prints the results."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from distill.cli import DONE, is_first_process
from distill.files import save_pretrained, write_text
from distill.tasks.types import task_type
from distill.training.evaluation import Load
from distill.training.progress import Progress
from nas.config.schema import ConfigError, StudyConfig
from nas.evaluation.trained import TrainedEvaluator
from nas.final.evaluation import dev_contributions
from nas.final.folder import METRICS, STATE
from nas.final.measurements import Measurements, compared, measure, table
from nas.final.training import curve, final_phases, starting_point, train
from nas.preparation.phases import FINAL
from nas.preparation.prepare import prepare
from nas.preparation.workspace import base_of_study
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from supernet.build import check_exportable

TEACHER, STUDENT, BASE_MODEL = "teacher", "student", "base model"
# The loss of every step by the name of the phase.
LossesByPhase = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class FinalRun:
    """What to train, and where to save it.

    Attributes:
        out: the folder of the checkpoint.
        seed: the seed of the order of batches and of dropout.
        transfer: apply the layers of `architecture` to the configuration's base.
        skip_base: do not train and evaluate the base model.
        tensorboard: the folder for logged losses.
        also: tasks with the same training rows, on whose dev splits the models are scored too.
        one_of_several: do not print the results, because the table of several tasks is printed.
        quiet: print only the results.
        as_json: print the results as JSON on stdout, and progress on stderr.
    """

    config: StudyConfig
    architecture: Architecture
    out: Path
    seed: int
    device: str = "auto"
    transfer: bool = False
    skip_base: bool = False
    tensorboard: Path | None = None
    also: tuple[str, ...] = ()
    one_of_several: bool = False
    quiet: bool = False
    as_json: bool = False

    @property
    def state(self) -> Path:
        """The folder in which unfinished trainings keep their state."""
        return self.out / STATE

    def identity(self) -> str:
        """As JSON, what must be the same when a training is resumed: configuration, architecture and seed."""
        return json.dumps(
            {"config": self.config.to_toml(), "architecture": self.architecture.to_json(), "seed": self.seed}
        )


def run(final: FinalRun) -> int:
    """Train the student and, unless it is skipped, the base model; evaluate both and the teacher; write the checkpoint.

    Returns:
        The exit status.

    Raises:
        UserError: the configuration, the architecture and the output folder do not fit together, or a training
            diverged.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    check_resumed(final)
    check_exportable(final.architecture)
    console = Console(highlight=False, soft_wrap=True, quiet=not is_first_process(), stderr=final.as_json)
    with Progress(console, final.quiet) as progress:
        base, graph = base_of_study(final.config)
        architecture = final.architecture.transferred(base) if final.transfer else final.architecture
        check_architecture(architecture, base, final.config)
        workspace = prepare(final.config, final.device, progress.update, outputs=False, texts=("warmup", *FINAL))
        check_head(architecture, workspace.folders.task.kind)
        evaluator = TrainedEvaluator(workspace, final.device)
        if is_first_process():
            write_text(final.state / "training.json", final.identity())
        architectures = {STUDENT: architecture}
        if not final.skip_base:
            architectures[BASE_MODEL] = Architecture.uniform(base, graph=graph)
        phases = final_phases(evaluator, progress.warn)
        # The one-shot supernet has not learned the base model's sizes, so only the student may start from it.
        build = {STUDENT: starting_point(evaluator, architecture, final.device, progress.update)}
        if final.config.final.start == "random":
            build[BASE_MODEL] = build[STUDENT]
        models: dict[str, PreTrainedModel] = {TEACHER: evaluator.teacher().eval()}
        losses: dict[str, LossesByPhase] = {}
        for name, genes in architectures.items():
            model = build.get(name, evaluator.student)(genes)
            state = final.state / name.replace(" ", "-")
            losses[name] = train(evaluator, model, phases, final.seed, name, state, final.tensorboard, progress.update)
            models[name] = model.eval()
        if not evaluator.accelerator.is_main_process:
            return DONE
        progress.update("measuring", None)
        of_teacher = {TEACHER: Architecture.uniform(base, graph=graph)} if final.config.base == "teacher" else {}
        measurements = measure(evaluator, models, of_teacher | architectures, loads_of=STUDENT, reference=TEACHER)
        also = {name: _scores(final.config, name, models, evaluator) for name in final.also}
    metrics = metrics_of(final, evaluator, measurements, losses) | ({"also": also} if also else {})
    save(final, architecture, models[STUDENT], evaluator, metrics)
    if final.one_of_several:
        return DONE
    if final.as_json:
        print(json.dumps(metrics, indent=2))
    else:
        print_results(final, evaluator, measurements, console)
    return DONE


def _scores(
    config: StudyConfig, name: str, models: dict[str, PreTrainedModel], evaluator: TrainedEvaluator
) -> dict[str, Any]:
    """The metrics of the models on the dev split of another task."""
    task, rows = dev_contributions(config, name, evaluator.tokenizer, models, evaluator.accelerator)
    return {"metrics": task.metrics, "models": compared(task, rows, TEACHER)}


def check_resumed(final: FinalRun) -> None:
    """Raise ConfigError if the output folder holds the state of a training of something else."""
    note = final.state / "training.json"
    if note.exists() and note.read_text(encoding="utf-8") != final.identity():
        raise ConfigError(f"--resume: {final.out} holds a training with another configuration, architecture or seed")


def check_architecture(architecture: Architecture, base: Base, config: StudyConfig) -> None:
    """Refuse an architecture that cannot inherit from the supernet of this configuration.

    Raises:
        ConfigError: it is on another base, or its stacks are too large.
    """
    if differences := architecture.base.differences(base.with_gates_of(architecture.base)):
        raise ConfigError(
            f"the architecture's base differs from the configuration's in {differences}: add --transfer to apply the "
            "architecture's layers to the configuration's base"
        )
    stack, largest = max(genes.stack for genes in architecture.ffns), max(config.space.stacks)
    if stack > largest:
        raise ConfigError(
            f"the architecture has a stack of {stack} blocks; the supernet has {largest}: add {stack} to space.stacks"
        )


def check_head(architecture: Architecture, kind: str) -> None:
    """Raise ConfigError if the architecture has experts in its head and heads of this kind of task cannot have any."""
    if architecture.head.experts > 1 and not task_type(kind).head.pooled:
        raise ConfigError(f"the architecture has experts in its head, which a model for {kind} cannot have")


def metrics_of(
    final: FinalRun, evaluator: TrainedEvaluator, measurements: Measurements, losses: dict[str, LossesByPhase]
) -> dict[str, Any]:
    """The content of metrics.json."""
    return {
        "task": final.config.task,
        "metrics": evaluator.task.metrics,
        "dev_rows": measurements.dev_rows,
        "seed": final.seed,
        "tokens": measurements.tokens,
        "batch": 1,
        "device": str(evaluator.accelerator.device),
        "precision": evaluator.accelerator.mixed_precision,
        "processes": evaluator.accelerator.num_processes,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "models": measurements.models,
        "losses": {name: {phase: curve(values) for phase, values in phases.items()} for name, phases in losses.items()},
        "expert_load": [load.to_json() for load in measurements.loads],
    }


def save(
    final: FinalRun,
    architecture: Architecture,
    student: PreTrainedModel,
    evaluator: TrainedEvaluator,
    metrics: dict[str, Any],
) -> None:
    """Write the checkpoint with tokenizer, architecture, configuration and metrics, and remove the training state."""
    save_pretrained(final.out, student, evaluator.tokenizer)
    architecture.save(final.out / "architecture.json")
    write_text(final.out / "config.toml", final.config.to_toml())
    # The last, as a folder with this file is taken for a finished training.
    write_text(final.out / METRICS, json.dumps(metrics, indent=2) + "\n")
    shutil.rmtree(final.state, ignore_errors=True)


def print_results(final: FinalRun, evaluator: TrainedEvaluator, measurements: Measurements, console: Console) -> None:
    """Print the measurements, and how to load the checkpoint."""
    task = evaluator.task
    console.print(
        f"{final.config.task}: {measurements.dev_rows} dev rows; MACs and latency of one sentence of "
        f"{measurements.tokens} tokens",
        soft_wrap=True,
    )
    console.width = max(console.width, 200)  # otherwise a narrow terminal cuts figures off
    console.print(table(measurements.models, task.metrics, reference=TEACHER))
    loads: tuple[Load, ...] = measurements.loads
    for load in loads:
        console.print(f"experts of {load}", soft_wrap=True)
    console.print(f"wrote {final.out}: {task.type.model.__name__}.from_pretrained(..., trust_remote_code=True)")

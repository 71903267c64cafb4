"""Runs a final training: prepares, trains and evaluates the models, and saves and prints the results."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from distill.cli import DONE, is_first_process
from distill.command.folder import CONTENTS, check_contents
from distill.command.report import show_measurements, write_metrics
from distill.tasks.classes import with_classes_of
from distill.tasks.corpora import embedded_corpus
from distill.tasks.types import get_task_type
from distill.training.evaluation import EvalSet
from distill.training.layout import ARCHITECTURE_FILE, METRICS_FILE, STATE
from distill.training.measure import environment, measure, scores
from distill.training.progress import Progress, ProgressCallback, silence_transformers, terminal
from distill.training.reranker import make_reranker
from distill.training.run import TEACHER, write_into
from distill.training.sentences import copy_modules
from distill.training.teacher import load_tokenizer, locate, outputs_of
from foundation.files import read_json, save_pretrained, write_text
from nas.config.schema import ConfigError, StudyConfig
from nas.evaluation.trained import TrainedEvaluator
from nas.final.evaluation import encoded_split
from nas.final.training import curve, final_phases, starting_point, train
from nas.latency.measure import latencies_in
from nas.latency.settings import TORCH
from nas.onnx.model import check_installed
from nas.preparation.data import contents_of, read, reranks
from nas.preparation.phases import FINAL
from nas.preparation.prepare import prepare
from nas.preparation.workspace import base_of_study
from search_spaces.architecture import Architecture
from search_spaces.base import Base
from supernet.build import check_exportable

STUDENT, BASE_MODEL = "student", "base model"


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

    def identity(self) -> dict[str, Any]:
        """What must be the same when a training is resumed: configuration, architecture and seed, and the files."""
        own = {"config": self.config.to_toml(), "architecture": self.architecture.to_json(), "seed": self.seed}
        return own | {CONTENTS: contents_of(self.config)}


def run(final: FinalRun) -> int:
    """`train_final`, with its progress and results on the terminal; returns the exit status."""
    console = terminal(quiet=not is_first_process(), stderr=final.as_json)
    with Progress(console, final.quiet) as progress:
        metrics = train_final(final, progress.update, progress.result)
    if metrics is None or final.one_of_several:
        return DONE
    if final.as_json:
        print(json.dumps(metrics, indent=2))
    else:
        show_measurements(console, metrics, f"{final.config.task}: ")
        task_type = get_task_type(metrics["task_type"])
        loader = f"{task_type.model.__name__}.from_pretrained" if task_type.pool is None else "SentenceTransformer"
        if reranks(final.config):
            loader = "CrossEncoder"
        console.print(f"wrote {final.out}: {loader}(..., trust_remote_code=True)")
    return DONE


def train_final(final: FinalRun, on_progress: ProgressCallback, note: Callable[[str], None]) -> dict[str, Any] | None:
    """Train the student and, unless it is skipped, the base model; evaluate both and the teacher; write the checkpoint.
    Returns the content of metrics.json; None in all processes but the first.

    Args:
        note: called with each line that is more than progress.

    Raises:
        UserError: the configuration, the architecture and the output folder do not fit together, packages for the
            runtime are missing, or a training diverged.
    """
    silence_transformers()
    check_resumed(final)
    if final.config.deployment.runtime != TORCH:
        check_installed()
    check_exportable(final.architecture)
    base, graph = base_of_study(final.config)
    architecture = final.architecture.transferred(base) if final.transfer else final.architecture
    check_architecture(architecture, base, final.config)
    texts = ("warmup", *FINAL)
    prepared = final.config
    if prepared.final.start == "random":  # its models need no warm-up
        prepared = prepared.with_table("warmup", steps=0)
    workspace = prepare(prepared, final.device, on_progress, outputs=False, texts=texts, activations=())
    check_head(architecture, workspace.folders.task.task_type)
    evaluator = TrainedEvaluator(workspace, final.device)
    if is_first_process():
        write_text(final.state / "training.json", json.dumps(final.identity()))
    architectures = {STUDENT: architecture}
    if not final.skip_base:
        architectures[BASE_MODEL] = Architecture.uniform(base, graph=graph)
    phases = final_phases(evaluator, note)
    # The one-shot supernet has not learned the base model's sizes, so only the student may start from it.
    build = {STUDENT: starting_point(evaluator, architecture, final.device, on_progress)}
    if final.config.final.start == "random":
        build[BASE_MODEL] = build[STUDENT]
    models: dict[str, PreTrainedModel] = {TEACHER: evaluator.teacher().eval()}
    losses: dict[str, dict[str, list[float]]] = {}
    for name, each in architectures.items():
        model = build.get(name, evaluator.student)(each)
        state = final.state / name.replace(" ", "-")
        losses[name] = train(evaluator, model, phases, final.seed, name, state, final.tensorboard, on_progress)
        models[name] = model.eval()
    if not evaluator.accelerator.is_main_process:
        return None
    on_progress("measuring", None)
    of_teacher = {TEACHER: Architecture.uniform(base, graph=graph)} if final.config.base == "teacher" else {}
    metrics = measured(final, evaluator, models, of_teacher | architectures)
    metrics["losses"] = {name: {phase: curve(of) for phase, of in phases.items()} for name, phases in losses.items()}

    def write(folder: Path) -> None:
        if reranks(final.config):
            make_reranker(models[STUDENT].config)
        save_pretrained(folder, models[STUDENT], evaluator.tokenizer)
        if evaluator.task.type.pool is not None:
            copy_modules(locate(final.config.teacher), folder)
        architecture.save(folder / ARCHITECTURE_FILE)
        write_text(folder / "config.toml", final.config.to_toml())
        write_metrics(folder, metrics)

    write_into(final.out, METRICS_FILE, write)
    shutil.rmtree(final.state, ignore_errors=True)
    return metrics


def check_resumed(final: FinalRun) -> None:
    """Raise UserError if the output folder holds the state of a training of something else, or on other rows."""
    note = final.state / "training.json"
    if not note.exists():
        return
    stored, now = read_json(note), final.identity()
    check_contents(f"the training in {final.out}", stored.pop(CONTENTS, {}), now.pop(CONTENTS))
    if stored != now:
        raise ConfigError(f"--resume: {final.out} holds a training with another configuration, architecture or seed")


def check_architecture(architecture: Architecture, base: Base, config: StudyConfig) -> None:
    """Raise ConfigError if an architecture cannot inherit from the supernet of this configuration. How gates and
    capacities work belongs to the architecture and not to the study.
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


def check_head(architecture: Architecture, name: str) -> None:
    """Raise ConfigError if the architecture has experts in its head and heads of this task type cannot have any."""
    if architecture.head.experts > 1 and not get_task_type(name).head.may_have_experts:
        raise ConfigError(f"the architecture has experts in its head, which a model for {name} cannot have")


def measured(
    final: FinalRun,
    evaluator: TrainedEvaluator,
    models: Mapping[str, PreTrainedModel],
    architectures: Mapping[str, Architecture],
) -> dict[str, Any]:
    """The content of metrics.json, without the losses: scores on the whole dev split, costs and latencies of all
    models, and the scores on the tasks `also`. Latencies are measured as `deployment` says, on sentences of the dev
    split's median length unless it gives another one: an estimate without other load (`Latency.quiet`), and the
    quartiles of whole passes.

    Args:
        architectures: those of models, from which their costs follow; a teacher may have none.
    """
    accelerator, task, folders = evaluator.accelerator, evaluator.task, evaluator.workspace.folders
    dev, pad_id = folders.rows("dev"), evaluator.supernet_config.pad_token_id
    eval_set = EvalSet(task, folders.split("dev"), dev, pad_id)
    form = final.config.deployment
    tokens = form.tokens or dev.median_length
    rows = measure(models, eval_set, accelerator, architectures=architectures, reference=TEACHER, tokens=tokens)
    device = str(accelerator.device)
    for name, latency in latencies_in(form.runtime, models, form.batch, tokens, form.threads, device).items():
        # What limits bound, too; the median of whole passes is up to a third higher on a machine that others share.
        rows[name]["latency_ms"] = 1e3 * latency.quiet
        rows[name]["latency_quartiles_ms"] = [1e3 * latency.lower, 1e3 * latency.median, 1e3 * latency.upper]
    also = {}
    for name in final.also:
        of_task = final.config.model_copy(update={"tasks": (name,)})
        data = read(of_task, cache(embedded_corpus))
        student = models[STUDENT]
        data = with_classes_of(data, outputs_of(student.config), all_of_them=True)
        tokenizer = load_tokenizer(final.config.teacher, data.task.task_type)
        other = encoded_split(of_task, data.task, data.dev, tokenizer, student, str(final.out), accelerator)
        contributions = {model: other.contributions(trained, accelerator) for model, trained in models.items()}
        also[name] = {"metrics": data.task.metrics, "models": scores(data.task, contributions, TEACHER)}
    return {
        "task": final.config.task,
        "task_type": task.task_type,
        "metrics": task.metrics,
        "dev_rows": len(eval_set.split),
        "seed": final.seed,
        "tokens": tokens,
        "runtime": form.runtime,
        "batch": form.batch,
        **environment(accelerator),
        **({"threads": form.threads} if form.threads else {}),
        "models": rows,
        "expert_load": rows[STUDENT].get("expert_load", []),
    } | ({"also": also} if also else {})

"""Runs an export: writes the folder, checks what is in it, measures it, and describes it in the model card."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from transformers import PretrainedConfig, PreTrainedModel

from distill.cli import DONE
from distill.encoders.family import family_of
from distill.table import difference, with_error
from distill.tasks.corpora import embedded_corpus
from distill.tasks.types.embeddings import POOLING
from distill.training.evaluation import EvalSet
from distill.training.kept_teacher import check_kept
from distill.training.loop import make_accelerator
from distill.training.progress import Progress, silence_transformers, terminal
from distill.training.sentences import copy_modules
from distill.training.teacher import TeacherError, load_config, set_head
from foundation.files import ordinary_modes, save_pretrained, scratch_folder, write_atomically, write_text
from nas.config.schema import StudyConfig
from nas.export.card import Card
from nas.export.checkpoint import ARCHITECTURE, CONFIG, METRICS, Checkpoint, ExportError, load_checkpoint
from nas.export.hub import Publication, hub_name
from nas.export.latency import BASE_MODEL, INT8, ONNX, STUDENT, TEACHER, TORCH, Forward, LatencyReport, timings
from nas.export.ordinary import ordinary_architecture, ordinary_form
from nas.final.evaluation import model_and_dev_set
from nas.latency.settings import device_name
from nas.latency.whole import torch_threads
from nas.onnx.int8 import quantize, scores_of_models
from nas.onnx.model import OnnxModel, check_installed, export_onnx, verify, version
from nas.preparation.context import preparation_context
from nas.preparation.data import read
from nas.preparation.teacher import dev_set
from nas.preparation.workspace import student_base
from search_spaces import cost
from search_spaces.architecture import Architecture
from supernet.build import base_of_teacher, build

ONNX_FILE, INT8_FILE, LATENCY_FILE = "onnx/model.onnx", "onnx/model_int8.onnx", "latency.json"
TOKENS = 32  # the length of sentences where metrics.json does not say another


@dataclass(frozen=True, kw_only=True)
class Export:
    """The options of `nas.export.command.parser`.

    Attributes:
        form: the family of which it becomes an ordinary checkpoint; None: a student's, with the code.
        command: the words of the command line, for the model card.
        publication: whether the folder is published, and what its card says for that.
        rows: names the rows on which the cost of int8 is measured; None: the configuration beside a student does.
    """

    checkpoint: Path
    out: Path
    onnx: bool
    int8: bool
    form: str | None
    labels: tuple[str, ...]
    tokens: int | None
    threads: int | None
    batches: tuple[int, ...]
    rounds: int | None
    skip_latency: bool
    skip_scores: bool
    quiet: bool
    json: bool
    command: tuple[str, ...]
    publication: Publication
    rows: StudyConfig | None = None


def run(export: Export) -> int:
    """Write the folder, or nothing if something fails. Returns the exit status.

    Raises:
        UserError: the checkpoint cannot be exported like this.
    """
    silence_transformers()
    if export.onnx:
        check_installed()
    checkpoint = load_checkpoint(export.checkpoint, export.labels)
    export.publication.check(None if checkpoint.config is None else hub_name(checkpoint.config.teacher))
    longest = family_of(checkpoint.model).positions(checkpoint.model.config)
    if export.tokens is not None and export.tokens > longest:
        raise ExportError(f"--tokens: the model reads at most {longest} tokens, not {export.tokens}")
    console = terminal(stderr=export.json)
    results: dict[str, Any] = {}
    with torch_threads(export.threads or torch.get_num_threads()), Progress(console, export.quiet) as progress:
        write = partial(_write, export, checkpoint, progress, console)
        write_atomically(export.out, lambda folder: results.update(write(folder)))
        if export.publication.repo:
            progress.update("uploading", None)
            results["url"] = export.publication.push(export.out)
    if export.json:
        print(json.dumps({"folder": str(export.out), **results}, indent=2))
    else:
        console.print(", and ".join([f"wrote {export.out}", *filter(None, [results.get("url")])]))
    return DONE


def _write(
    export: Export, checkpoint: Checkpoint, progress: Progress, console: Console, folder: Path
) -> dict[str, Any]:
    """Write everything into a new folder; returns the scores of the ONNX files, and the latencies."""
    folder.mkdir()
    dev = dev_rows(export, checkpoint, progress)
    model, cost_of_form = checkpoint.model, ""
    form = export.form if checkpoint.is_student else model.config.model_type
    if export.form:
        converted = ordinary_form(model, export.form)
        model, cost_of_form = converted.model, str(converted)
        progress.say(f"as an ordinary {export.form} model: {cost_of_form}")
    save_pretrained(folder, model, checkpoint.tokenizer)
    if checkpoint.type.pool is not None:
        copy_modules(str(checkpoint.folder), folder)
    for name in (ARCHITECTURE, CONFIG, METRICS):
        if (checkpoint.folder / name).exists():
            shutil.copyfile(checkpoint.folder / name, folder / name)
    forwards: dict[tuple[str, str], Forward] = {(checkpoint.name, TORCH): partial(_forward, model)}
    forms: dict[str, dict[str, Any] | None] = {}
    if export.onnx:
        progress.update("ONNX", None)
        onnx = write_onnx(model, folder / ONNX_FILE)
        largest = verify(model, onnx)
        progress.finish()
        progress.say(f"ONNX: logits within {largest:.1e} of torch's, on batches of 1 to 8 sentences with padding")
        forwards[checkpoint.name, ONNX] = onnx.run
        forms[ONNX_FILE] = None
    if export.int8:
        progress.update("int8", None)
        quantize(folder / ONNX_FILE, folder / INT8_FILE)
        int8 = OnnxModel(folder / INT8_FILE)
        progress.finish()
        sizes = ((folder / file).stat().st_size / 1e6 for file in (INT8_FILE, ONNX_FILE))
        progress.say("int8: {:.1f} MB, float32: {:.1f} MB".format(*sizes))
        forwards[checkpoint.name, INT8] = int8.run
        forms[INT8_FILE] = None
        if dev is not None:
            forms |= scores(dev, {ONNX_FILE: onnx, INT8_FILE: int8}, progress)
    report = None
    if not export.skip_latency:
        report = measure(export, checkpoint, model, forwards, progress)
        (folder / LATENCY_FILE).write_text(json.dumps(report.to_json(), indent=2) + "\n", encoding="utf-8")
        console.print(f"latency: {report.conditions()}")
        report.table().print(console)
        console.print("\n".join(report.sentences()))
    name = export.publication.repo or export.out.name
    card = Card(name, checkpoint, form, cost_of_form, forms, report, export.command, export.publication)
    (folder / "README.md").write_text(card.text(), encoding="utf-8")
    ordinary_modes(folder)
    return {"scores": forms, "latency": report and report.to_json()}


def publish(folder: Path, publication: Publication, command: Sequence[str] = ()) -> str:
    """Upload the folder of a student with a model card; returns its address.

    Args:
        command: the words of the command line that wrote the folder.

    Raises:
        UserError: it is no such folder, or the hub does not take it.
    """
    name = publication.repo or folder.name
    card = Card(name, load_checkpoint(folder), None, "", {}, None, command, publication)
    write_text(folder / "README.md", card.text())
    return publication.push(folder)


def write_onnx(model: PreTrainedModel, path: Path) -> OnnxModel:
    """Export a model to an ONNX file and load that."""
    path.parent.mkdir(parents=True, exist_ok=True)
    export_onnx(model, path)
    return OnnxModel(path)


def dev_rows(export: Export, checkpoint: Checkpoint, progress: Progress) -> EvalSet | None:
    """The dev split on which ONNX models are scored; None if they are not, with a line if that is for lack of rows.

    Raises:
        UserError: the rows cannot be read, or are not those that the model was trained for.
    """
    if export.skip_scores or not export.int8:
        return None
    if export.rows is not None:
        progress.update("reading the rows", None)
        source, accelerator = str(checkpoint.folder), make_accelerator("cpu", export.rows.mixed_precision)
        data = read(export.rows, cache(embedded_corpus))
        model, _, dev = model_and_dev_set(export.rows, data, source, accelerator)
        check_kept(source, model, dev, accelerator)
        return dev
    if checkpoint.config is None:
        progress.result(
            f"no scores: {export.checkpoint} has no {CONFIG}, which says where the rows are: give --task or --preset"
        )
        return None
    try:
        dev = dev_set(preparation_context(checkpoint.config, "cpu", progress.update))
    except TeacherError as error:
        progress.result(f"no scores, as the rows are encoded for the teacher: {error}; give --task or --preset")
        return None
    count = len(dev.split)
    trained_with = (checkpoint.metrics or {}).get("dev_rows", count)
    if trained_with != count:
        progress.result(f"the dev split has {count} rows here; after the training it had {trained_with}")
    return dev


def scores(dev: EvalSet, models: dict[str, OnnxModel], progress: Progress) -> dict[str, dict[str, Any]]:
    """The scores of ONNX models by file name."""
    progress.update("scores", None)
    by_file = scores_of_models(dev, models, ONNX_FILE)
    progress.finish()
    for name, of_metrics in by_file.items():
        for metric, row in of_metrics.items():
            line = f"{name}: {metric} {with_error((row['value'], row['standard_error']))}"
            if pair := row.get("difference"):
                line += f", {difference((pair['value'], pair['standard_error']))} against float32 (paired)"
            progress.result(f"{line}; {len(dev.split)} dev rows")
    return by_file


def measure(
    export: Export,
    checkpoint: Checkpoint,
    model: PreTrainedModel,
    forwards: dict[tuple[str, str], Forward],
    progress: Progress,
) -> LatencyReport:
    """Measure the latencies of the student in every runtime, and of the teacher and the base model in the same ones.

    Args:
        forwards: forward passes of the student.
    """
    longest = family_of(model).positions(model.config)
    tokens = export.tokens or min(longest, (checkpoint.metrics or {}).get("tokens", TOKENS))
    task_type, num_labels = checkpoint.type, model.config.num_labels
    macs = {}
    others: dict[str, PreTrainedModel] = {}
    if checkpoint.architecture is not None:
        head = task_type.head
        own = checkpoint.architecture
        measured_as = ordinary_architecture(own, model.config) if export.form else own
        macs[STUDENT] = cost.macs(measured_as, tokens, num_labels, head)
        teacher = teacher_config(checkpoint, progress)
        if teacher is not None and checkpoint.config is not None:
            base, graph = base_of_teacher(teacher)
            macs[TEACHER] = cost.macs(Architecture.uniform(base, graph), tokens, num_labels, head)
            others[TEACHER] = task_type.model.from_config(teacher).eval()
            whole = None if checkpoint.config.base == "teacher" else base_model(checkpoint.config, teacher, progress)
            if whole is not None:
                macs[BASE_MODEL] = cost.macs(whole, tokens, num_labels, head)
                others[BASE_MODEL] = build(whole, task_type, num_labels, checkpoint.model.config).eval()
    measured: dict[tuple[str, str], Forward] = {}
    with scratch_folder() as folder:
        for name, other in others.items():
            measured[name, TORCH] = partial(_forward, other)
            if export.onnx:
                progress.update(f"{name}: ONNX", None)
                path = folder / f"{name}.onnx"
                measured[name, ONNX] = write_onnx(other, path).run
                if export.int8:
                    quantize(path, folder / f"{name}-int8.onnx")
                    measured[name, INT8] = OnnxModel(folder / f"{name}-int8.onnx").run
        progress.update("latency", None)
        measurements = timings(measured | forwards, model.config.vocab_size, tokens, export.batches, export.rounds)
        progress.finish()
    machine = {
        "processor": device_name("cpu"),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **({"onnxruntime": version()} if export.onnx else {}),
    }
    return LatencyReport(tokens, measurements, macs, machine)


def _forward(model: PreTrainedModel, batch: Any) -> object:
    return model(**batch)


def teacher_config(checkpoint: Checkpoint, progress: Progress) -> PretrainedConfig | None:
    """The configuration of the teacher with the student's head; None, with a line that says so, if it is not found."""
    if checkpoint.config is None:
        return None
    try:
        config: PretrainedConfig = load_config(checkpoint.config.teacher)
    except TeacherError as error:
        both = "teacher" if checkpoint.config.base == "teacher" else "teacher and the base model"
        progress.result(f"the latency table lacks the {both}: {error}")
        return None
    own = checkpoint.model.config
    set_head(config, [own.id2label[number] for number in range(own.num_labels)], checkpoint.type.name)
    if checkpoint.type.pool is not None:
        setattr(config, POOLING, getattr(own, POOLING))
    return config


def base_model(config: StudyConfig, teacher: PretrainedConfig, progress: Progress) -> Architecture | None:
    """The base model of the student; None, with a line that says so, if it is not found."""
    try:
        base, graph = student_base(config, teacher)
    except TeacherError as error:
        progress.result(f"the latency table lacks the base model: {error}")
        return None
    return Architecture.uniform(base, graph=graph)

"""The model card of an exported model: README.md with the metadata that the Hugging Face hub reads."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from distill.command.report import measurement_table
from distill.encoders.family import family_of
from distill.encoders.student.configuration import attention_experts
from distill.table import Column, Table, difference, plural, with_error
from distill.tasks.readers import embedded, glue
from distill.training.reranker import is_reranker
from nas.config.schema import StudyConfig
from nas.export.checkpoint import ARCHITECTURE, CONFIG, Checkpoint
from nas.export.hub import NOT_THERE, Publication, hub_name
from nas.export.latency import STUDENT, LatencyReport
from nas.export.ordinary import remaining_layers
from nas.onnx.model import output_names

# The version of transformers with which exported students may no longer load.
NEXT = "6"
USE = """\
```python
from transformers import {auto}, AutoTokenizer, pipeline

model = {auto}.from_pretrained({name}{trust})
tokenizer = AutoTokenizer.from_pretrained({name}{trust})
predict = pipeline("{pipeline}", model={name}{all_classes}{trust})
```
"""
USE_OF_RERANKERS = """\
```python
from sentence_transformers import CrossEncoder

model = CrossEncoder({name}{trust})
scores = model.predict([("a query", "a passage"), ("a query", "another one")])
```
"""
USE_OF_SENTENCES = """\
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer({name}{trust})
vectors = model.encode(["a sentence", "another one"])
```
"""


@dataclass(frozen=True)
class Card:
    """What a model card states.

    Attributes:
        name: the name of the exported folder.
        form: the family of which the model is an ordinary checkpoint, which needs no code of its own; None if it is a
            student.
        cost_of_form: what this costs; "" without a form.
        forms: by the names of ONNX files, the scores as `nas.onnx.int8.scores_of_models` returns them, or None.
        latency: None if it was not measured.
        command: the words of the command line; empty if it was made in Python.
        publication: has the license and the base model, as far as they were given.
    """

    name: str
    checkpoint: Checkpoint
    form: str | None
    cost_of_form: str
    forms: Mapping[str, Mapping[str, Any] | None]
    latency: LatencyReport | None
    command: Sequence[str]
    publication: Publication

    def text(self) -> str:
        sections = [self._introduction(), self._use(), self._results(), self._files(), self._latency()]
        sections += [self._architecture(), self._making()]
        body = "\n\n".join(filter(None, sections))
        return f"---\n{self.metadata().to_yaml()}\n---\n\n{body}\n"

    def metadata(self) -> ModelCardData:
        """The header that the hub reads. What is not known, such as a license that was not given, is left out."""
        config = self.checkpoint.config
        family = family_of(self.checkpoint.model)
        searched = ["knowledge-distillation", "neural-architecture-search"] if self.checkpoint.is_student else []
        results = self._eval_results()
        given = self.publication.base_model
        base_model = given if given or config is None else hub_name(config.teacher)
        return ModelCardData(
            language="en" if config is not None and config.task in {*glue.TASKS, *embedded.TASKS} else None,
            library_name="transformers" if self._use_of() is USE else "sentence-transformers",
            pipeline_tag=self._pipeline(),
            license=self.publication.license,
            base_model=None if base_model == NOT_THERE else base_model,
            tags=[family.students_of or family.model_type, *searched, "ffn-nas"],
            model_name=self.name if results else None,
            eval_results=results or None,
        )

    def _eval_results(self) -> list[EvalResult]:
        """The scores of the student on the dev split; empty if they are not known."""
        metrics = self.checkpoint.metrics
        if metrics is None:
            return []
        task = metrics["task"]
        # The data set on the hub and its configuration; the task's own name if it is not there.
        dataset, dataset_config = glue.TASKS[task].hub if task in glue.TASKS else (task, None)
        return [
            EvalResult(
                task_type=self._pipeline(),
                dataset_type=dataset,
                dataset_name=task,
                dataset_config=dataset_config,
                dataset_split="dev",
                metric_type=metric,
                metric_value=round(metrics["models"][STUDENT][metric]["value"], 4),
                metric_name=metric,
            )
            for metric in metrics["metrics"]
        ]

    def _pipeline(self) -> str:
        return "text-ranking" if is_reranker(self.checkpoint.model.config) else self.checkpoint.type.pipeline

    def _use_of(self) -> str:
        if is_reranker(self.checkpoint.model.config):
            return USE_OF_RERANKERS
        return USE if self.checkpoint.type.pool is None else USE_OF_SENTENCES

    def _introduction(self) -> str:
        config, name = self.checkpoint.model.config, " ".join(self.name.split())
        if not self.checkpoint.is_student:
            return f"# {name}"
        heads = "" if config.attention_heads is None else "attention heads and "
        layers = plural(len(remaining_layers(config)), "layer")
        return (
            f"# {name}\n\nAn encoder of {layers}, {config.hidden_size} wide, whose {heads}feed-forward networks (FFNs) "
            "were designed layer by layer by a neural architecture search (ffn-nas), and which learned from a teacher "
            "by knowledge distillation."
        )

    def _use(self) -> str:
        task_type = self.checkpoint.type
        auto, pipeline = task_type.model.__name__, task_type.pipeline
        trust = "" if self.form else ", trust_remote_code=True"
        why = (
            f"The model is an ordinary checkpoint of the type `{self.form}`."
            if self.form
            else "The folder contains the model's code (PyTorch and transformers only), which `trust_remote_code=True` "
            "allows to run; ffn-nas itself is not needed."
        )
        labels = self.checkpoint.model.config.id2label
        outputs = ", ".join(f"`{labels[number]}`" for number in range(len(labels)))
        classes = f" Its outputs are {outputs}." if len(labels) <= 50 and task_type.pool is None else ""
        more = {"all_classes": ", top_k=None" if task_type.multi_label else ""}
        code = self._use_of().format(auto=auto, name=json.dumps(self.name), trust=trust, pipeline=pipeline, **more)
        oldest = ".".join(map(str, family_of(self.checkpoint.model).since))
        return f"## Use\n\n{code}\n{why}{classes} It loads with transformers >={oldest},<{NEXT}."

    def _results(self) -> str:
        metrics, config = self.checkpoint.metrics, self.checkpoint.config
        if metrics is None:
            return ""
        own = None if config is None else config.rows.get(config.task)
        threshold = (
            own and own.multi_label and f" Classes count as predicted from the probability {own.threshold:g} on."
        )
        return (
            f"## Results\n\nTask `{metrics['task']}`, {metrics['dev_rows']:,} rows of the dev split, with standard "
            "errors (those of differences are paired, on the same rows). MACs (multiply-accumulate operations) and "
            f"latency are of one sentence of {metrics['tokens']} tokens, in PyTorch {metrics['torch']} on "
            f"{plural(metrics['threads'], 'thread')} of {metrics['device']}, as measured after the training."
            f"{threshold or ''}\n\n"
            f"{measurement_table(metrics).markdown()}"
        )

    def _files(self) -> str:
        if not self.forms:
            return ""
        family, config = family_of(self.checkpoint.model), self.checkpoint.model.config
        inputs, longest = family.inputs(config), family.positions(config)
        outputs = output_names(self.checkpoint.type)
        lines = []
        for file, scores in self.forms.items():
            texts = []
            for metric, row in (scores or {}).items():
                text = f"{metric} {with_error((row['value'], row['standard_error']))}"
                if pair := row.get("difference"):
                    text += f" ({difference((pair['value'], pair['standard_error']))} against float32 ONNX, paired)"
                texts.append(text)
            lines.append(f"- `{file}`" + (f": {'; '.join(texts)}" if texts else ""))
        return (
            f"## ONNX\n\nInputs {', '.join(f'`{name}`' for name in inputs)} of any number of sentences of up to "
            f"{longest:,} tokens; outputs {', '.join(f'`{name}`' for name in outputs)}.\n\n" + "\n".join(lines)
        )

    def _latency(self) -> str:
        if self.latency is None:
            return ""
        sentences = "\n".join(f"- {sentence}" for sentence in self.latency.sentences())
        others = " Teacher and base model are measured with random weights." if self.checkpoint.is_student else ""
        return f"## Latency\n\n{self.latency.conditions()}{others}\n\n{self.latency.table().markdown()}\n\n{sentences}"

    def _architecture(self) -> str:
        if not self.checkpoint.is_student:
            return ""
        config, remaining = self.checkpoint.model.config, remaining_layers(self.checkpoint.model.config)
        # The column is shown if heads differ or are fewer than in the base.
        heads = config.attention_heads or [None] * len(config.ffn)
        columns = (
            *map(Column, ("layer", "heads", "blocks", "inner width")),
            Column("experts", lambda experts: "{count}, {routing}, top {top_k}".format(**experts), is_text=True),
            Column("FFN", is_text=True, is_code=True),
        )
        rows = [
            (number + 1, heads[number], ffn["stack"], ffn["inner"], ffn.get("experts"), ffn["formula"])
            if number in remaining
            else (number + 1, None, None, None, None, "left out")
            for number, ffn in enumerate(config.ffn)
        ]
        text = f"## Architecture\n\n{Table(columns, rows).markdown()}"
        extra = []
        counts = {attention_experts(config, layer) for layer in range(config.num_hidden_layers)}
        if max(counts) > 1:
            number = " to ".join(map(str, sorted({min(counts), max(counts)})))
            extra.append(f"Every layer has {number} attention experts, of which a gate chooses one a token.")
        if (heads := getattr(config, "head_experts", 1)) > 1:
            extra.append(f"The head has {heads} experts, of which a gate chooses one a sentence.")
        if (rank := config.embedding_rank) is not None:
            extra.append(f"The word embedding has rank {rank}: a projection takes its rows to the width of the model.")
        if self.form:
            extra.append(f"As an ordinary {self.form} model: {self.cost_of_form}.")
        return "\n\n".join([text, *extra])

    def _making(self) -> str:
        config, metrics = self.checkpoint.config, self.checkpoint.metrics
        if not self.command:
            return ""
        exported = f"```\n{shlex.join(self.command)}\n```"
        if config is None or metrics is None or self.publication.repo:  # which has no configuration
            return f"## Export\n\n{exported}"
        trained = f"ffn-train-final {ARCHITECTURE} --preset {CONFIG} --seed {metrics['seed']} --out final"
        return (
            "## Training\n\n"
            f"- Teacher: {hub_name(config.teacher) or Path(config.teacher).name}, fine-tuned on the task.\n"
            f"- Data: {_described(config)}.\n"
            f"- Objective: {config.objective.name}; all settings are in `{CONFIG}`.\n\n"
            f"The student was trained by\n\n```\n{trained}\n```\n\nand exported by\n\n{exported}"
        )


def _described(config: StudyConfig) -> str:
    """The data of the task, without the names of local files."""
    task = config.task
    if task in config.rows:
        return f"the rows of the task `{task}`, which are in files of its makers"
    if task in glue.TASKS:
        return f"the task `{task}` ({', '.join(filter(None, glue.TASKS[task].hub))} on the hub)"
    if task in embedded.TASKS:
        return f"the task `{task}` on the documentation of Python and of installed packages"
    return f"the task `{task}`"

"""The evaluation of a candidate in stage 3 as a slice of the trained one-shot supernet, on all tasks or the first."""

from collections.abc import Iterator

import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, PreTrainedModel

from distill.encoders.parts import output_layer
from distill.training.evaluation import EvalSet, expert_load, split_batches
from distill.training.loop import make_accelerator
from nas.evaluation.score import INTERMEDIATE_ROWS, Score, mean_score
from nas.preparation.one_shot import WEIGHTS, problem_types
from nas.preparation.workspace import OneShotWorkspace
from search_spaces.architecture import Architecture
from supernet.build import build
from supernet.compensation.calibration import Calibration
from supernet.compensation.compensate import compensate
from supernet.one_shot import OneShotSupernet


class OneShotEvaluator:
    """Scores slices of the trained one-shot supernet; each worker process creates one evaluator and keeps it."""

    def __init__(self, workspace: OneShotWorkspace, device: str = "auto") -> None:
        study, config = workspace.study, workspace.study.config
        self.accelerator = make_accelerator(device, config.mixed_precision)
        self.supernet_config = AutoConfig.from_pretrained(study.supernet)
        self.tasks = {
            name: (folders.task, folders.rows("search"), folders.split("search"))
            for name, folders in workspace.by_task.items()
            if name in config.scored_tasks("3")
        }
        self.task_type = workspace.tasks[0].task.type
        stored = Architecture.load(workspace.one_shot / "architecture.json")
        heads = {
            name: nn.Linear(self.supernet_config.hidden_size, AutoConfig.from_pretrained(folders.teacher).num_labels)
            for name, folders in workspace.by_task.items()
        }
        weights = load_file(workspace.one_shot / WEIGHTS)
        model_config = AutoConfig.from_pretrained(study.supernet)
        # Its own head is that of the task with which the training began, which may be another one.
        with torch.device("meta"):
            own_head = output_layer(build(stored, self.task_type, template=model_config))
        model_config.num_labels = len(weights[f"model.{own_head}.bias"])
        self.supernet = OneShotSupernet(
            build(stored, self.task_type, template=model_config),
            heads,
            config.space.experts,
            study.frequencies(),
            problem_types(workspace.by_task),
            config.seed,
        )
        self.supernet.load_state_dict(weights)
        self.pad_id = self.supernet_config.pad_token_id
        self.first_task = config.task
        self.rows_per_task = config.one_shot.rows
        self.calibration = None if workspace.calibration is None else Calibration.load(workspace.calibration)

    def evaluate(self, architecture: Architecture) -> Score:
        """Score a candidate by the mean, over all tasks or the first one alone (`stage3.scored_on`), of each task's
        first metric on its search split.

        Raises:
            distill.training.loop.Diverged, supernet.compensation.ridge.CompensationError: as for trained candidates.
        """
        scores = {}
        loads = []
        for name, model in self._models(architecture):
            task, rows, split = self.tasks[name]
            scores[name] = EvalSet(task, split, rows, self.pad_id).score(model, self.accelerator, self.rows_per_task)
            batches = split_batches(rows, self.pad_id, INTERMEDIATE_ROWS)
            loads.append(expert_load(model, batches, accelerator=self.accelerator))
        return mean_score(scores, loads)

    def _models(self, architecture: Architecture) -> Iterator[tuple[str, nn.Module]]:
        """Each task with the candidate's model for it."""
        if self.calibration is None:
            for name in self.tasks:
                self.supernet.activate(architecture, name)
                yield name, self.supernet
            return
        student = self.student(architecture)
        for name in self.tasks:
            student.set_submodule(output_layer(student), self.supernet.heads[name])
            student.config.problem_type = self.supernet.problem_types[name]
            yield name, student

    def student(self, architecture: Architecture) -> PreTrainedModel:
        """A model of this architecture for the first task, with a copy of its slice of the supernet's weights,
        compensated if `one_shot.inheritance` says so.
        """
        self.supernet.activate(architecture, self.first_task)
        model = build(architecture, self.task_type, template=self.supernet_config)
        with torch.no_grad():
            state = self.supernet.state()
            model.load_state_dict({name: state[name].clone() for name in model.state_dict()})
        if self.calibration is not None:
            compensate(model, self.calibration, self.accelerator)
        return model

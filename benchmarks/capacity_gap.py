"""The capacity gap (MiniMoE, tables 1 and 4): is one student worse after a larger teacher, and do experts change that?

The student has the lowest layers of the preset's encoder as it was before fine-tuning. It learns from every teacher,
once with these FFNs, and once with a mixture of experts in each place, of which a gate chooses one for each token; all
experts start as copies of the FFN. All students of one seed start from the same weights and see the same batches in the
same order. Differences are between scores of one seed on the whole dev split. What the file of raw numbers has already
is not measured again, so that an interrupted run goes on, and seeds can be added.

--teachers takes checkpoints that were fine-tuned on the task, such as a BERT-base and a BERT-large. By default the
teachers are the lowest third, the lowest two thirds and all of the layers of the preset's encoder, fine-tuned with the
preset's recipe. They stand in for encoders of several sizes, of which an installation has only one: they are equally
wide and come from one pre-training, and the shallower ones were cut off, not pre-trained at their depth. This shows
what a teacher's depth does; it can neither confirm nor refute what the paper says about base and large.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from transformers import PreTrainedModel

from benchmarks.common import BenchmarkError, Kept, Report, difference, summarise, take_turns
from distill.objectives import OBJECTIVES
from distill.tasks.types import task_type_of
from distill.training.distillation import distil
from distill.training.evaluation import EvalSet
from distill.training.recipe import Recipe
from distill.training.students import some_layers
from distill.training.teacher import load_config as load_model_config
from distill.training.teacher import load_model, load_tokenizer
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.preparation.checks import check
from nas.preparation.context import preparation_context
from nas.preparation.data import TaskFolders
from nas.preparation.teacher import prepare_data, prepare_task
from supernet.build import build, from_teacher, set_dropout
from supernet.experts.split import mixture_architecture
from supernet.inherit import inherit

BATCH = 32
BALANCE = 0.01
ROUTING = "token_gate"
# A teacher's name and the student's number of experts.
Side = tuple[str, int]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--preset", default="demo-ffn", help="preset or .toml file; default: %(default)s")
    parser.add_argument("--teachers", nargs="+", metavar="DIR", help="fine-tuned on the task, the smallest first")
    parser.add_argument("--task", help="default: the preset's first one")
    parser.add_argument("--data", type=Path, metavar="DIR", help="the task's official files (default: from the hub)")
    parser.add_argument("--layers", type=int, default=2, help="of the student; default: %(default)s")
    parser.add_argument("--experts", type=int, default=4, help="default: %(default)s")
    parser.add_argument(
        "--objective",
        default="kd",
        choices=[name for name, spec in OBJECTIVES.items() if spec.needs_teacher],
        help="default: %(default)s",
    )
    parser.add_argument("--steps", type=int, default=300, help="default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-4, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")


class Trainings:
    """What all trainings have in common: the preset, the rows of its task, and the options of the command.

    Raises:
        UserError: an option or the preset is invalid, or the rows cannot be read.
    """

    def __init__(self, options: Namespace) -> None:
        if options.experts < 2:
            raise BenchmarkError(
                f"--experts {options.experts}: at least 2, to compare with the student without experts"
            )
        given = {"tasks": options.task and [options.task], "data": options.data and str(options.data)}
        self.options = options
        self.config = load_config(options.preset, {key: value for key, value in given.items() if value})
        check(self.config)
        layers = load_model_config(self.config.teacher).num_hidden_layers
        if not 1 <= options.layers <= layers:
            raise BenchmarkError(
                f"--layers {options.layers}: {self.config.teacher} has {layers} layers; choose 1 to {layers}"
            )
        self.depths = dict.fromkeys(max(1, layers * third // 3) for third in (1, 2, 3))
        self.context = preparation_context(self.config)
        self.folders = TaskFolders(prepare_data(self.context), Path())
        # The gates are balanced.
        self.settings = {"balance": BALANCE} if "balance" in OBJECTIVES[options.objective].defaults else {}

    def teachers(self) -> dict[str, PreTrainedModel]:
        """The teachers by name, in eval mode.

        Raises:
            BenchmarkError: one has another vocabulary than the student.
        """
        task = self.folders.task
        if self.options.teachers:
            vocabulary = self.context.tokenizer.get_vocab()
            folders = {path: path for path in self.options.teachers}
            for path in folders:
                if load_tokenizer(path).get_vocab() != vocabulary:
                    raise BenchmarkError(f"--teachers {path}: its vocabulary is not that of {self.config.teacher}")
        else:
            folders = {
                f"{depth} layer{'s'[: depth - 1]}": str(lowest_layers(self.config, depth)) for depth in self.depths
            }
        return {
            name: load_model(path, task.labels, task.task_type, new_head=False).eval() for name, path in folders.items()
        }

    def student(self, experts: int, seed: int) -> PreTrainedModel:
        """The untrained student; the same for every teacher, and with one expert the encoder's lowest layers."""
        torch.manual_seed(seed)  # of the head, which is new
        encoder = load_model(self.config.teacher, self.folders.task.labels, self.folders.task.task_type)
        dense = some_layers(encoder, range(self.options.layers))
        architecture = mixture_architecture(dense.config, experts, copy=True, routing=ROUTING)
        weights = inherit(from_teacher(dense, stack=1).state_dict(), architecture, seed=seed)
        student = build(architecture, task_type_of(dense), dense.config.num_labels, dense.config, weights)
        set_dropout(student, self.config.dropout)
        return student

    def score(self, model: PreTrainedModel) -> float:
        """The task's main metric on the whole dev split."""
        folders, pad_id = self.folders, self.context.tokenizer.pad_token_id
        dev = EvalSet(folders.task, folders.split("dev"), folders.rows("dev"), pad_id)
        return dev.score(model, self.context.accelerator).value

    def train(self, teacher: PreTrainedModel, experts: int, seed: int) -> float:
        """The score of a student that has learned from a teacher.

        Raises:
            BenchmarkError: the objective cannot be used with these models.
        """
        options = self.options
        recipe = Recipe(
            steps=options.steps, batch_size=BATCH, learning_rate=options.learning_rate, freeze_embeddings=True
        )
        student, rows = self.student(experts, seed), self.folders.rows("train")
        torch.manual_seed(seed)
        try:
            distil(
                student,
                teacher,
                rows,
                options.objective,
                self.settings,
                recipe,
                accelerator=self.context.accelerator,
                tokenizer=self.context.tokenizer,
                seed=seed,
            )
        except ValueError as error:
            raise BenchmarkError(f"--objective {options.objective}: {error}") from error
        return self.score(student)


def lowest_layers(config: StudyConfig, depth: int) -> Path:
    """The folder of the preset's encoder with so many of its layers, fine-tuned; made only if the cache lacks it."""
    if depth == load_model_config(config.teacher).num_hidden_layers:
        return prepare_task(preparation_context(config)).teacher
    with TemporaryDirectory() as folder:
        encoder = load_model(config.teacher, ("0", "1"))
        # Without the head, which is random until the fine-tuning.
        some_layers(encoder, range(depth)).base_model.save_pretrained(folder)
        load_tokenizer(config.teacher).save_pretrained(folder)
        return prepare_task(preparation_context(config.model_copy(update={"teacher": folder}))).teacher


def run(options: Namespace, report: Report) -> None:
    trainings = Trainings(options)
    teachers = trainings.teachers()
    untrained = {experts: trainings.student(experts, options.seeds[0]) for experts in (1, options.experts)}
    scores = {name: trainings.score(model) for name, model in teachers.items()}
    sizes = {name: model.num_parameters() for name, model in teachers.items()}
    task = trainings.folders.task
    report.note(f"{task.metrics[0]} on {len(trainings.folders.split('dev')):,} dev rows of {task.name}; parameters of")
    report.note(f"teachers: {', '.join(f'{name} {size / 1e6:.2f} M' for name, size in sizes.items())}")
    report.note(f"students: {', '.join(f'{label(n)} {m.num_parameters() / 1e6:.2f} M' for n, m in untrained.items())}")
    fixed = {name: value for name, value in report.options.items() if name not in ("seeds", "teachers", "json")}
    facts = {name: {"score": scores[name], "parameters": sizes[name]} for name in teachers}
    kept = Kept(report, {**fixed, "teachers": facts}, options.seeds)

    def measured(name: str, experts: int, seed: int) -> float:
        key = f"{name}, {label(experts)}, seed {seed}"
        score: float = kept(key, lambda: trainings.train(teachers[name], experts, seed))
        return score

    sides = {(name, experts): partial(measured, name, experts) for name in teachers for experts in untrained}
    after = take_turns(sides, options.seeds)
    report.table(("", *teachers, "last minus first"), table(after, scores))


def table(after: Mapping[Side, Sequence[float]], scores: Mapping[str, float]) -> list[list[str]]:
    """The lines of the table: the teachers, the student with each number of experts, and what the experts bring.

    Args:
        after: the student's scores, one for each seed.
        scores: the teachers'.
    """
    names = list(scores)
    numbers = sorted({experts for _, experts in after})
    few, many = numbers
    first, last = names[0], names[-1]
    lines = [["teacher", *(f"{scores[name]:.4f}" for name in names), f"{scores[last] - scores[first]:+.4f}"]]
    for experts in numbers:
        cells = [summarise(after[name, experts]).with_error(4) for name in names]
        lines.append(
            [label(experts), *cells, difference(after[last, experts], after[first, experts]).with_error(4, "+")]
        )
    gains = {name: [b - a for a, b in zip(after[name, few], after[name, many], strict=True)] for name in names}
    cells = [summarise(gains[name]).with_error(4, "+") for name in names]
    lines.append(["gain of the experts", *cells, difference(gains[last], gains[first]).with_error(4, "+")])
    return lines


def label(experts: int) -> str:
    """The name of the student with so many experts."""
    return "1 expert" if experts == 1 else f"{experts} experts"

"""The schema of a study's configuration as pydantic models; `nas.config.load` loads presets and TOML files."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from distill.training.recipe import Recipe
from search_spaces.architecture import DENSE, ArchitectureError, Base, Experts
from search_spaces.errors import UserError, did_you_mean, shortened
from search_spaces.numbers import fraction


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used; the message names the key or option and says what would be right."""


def _share(value: Any) -> Fraction:
    share = fraction(value)
    if not 0 < share <= 1:
        raise ValueError(f"{value} is not above 0 and at most 1")
    return share


_SUFFIXES = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def count(value: Any) -> int:
    """Parse a positive whole number, which may be written as "15M", "15.4M", "900K" or "1G"."""
    text = str(value).strip().upper()
    suffix = text[-1:] if text[-1:] in _SUFFIXES else ""
    try:
        number = fraction(text.removesuffix(suffix)) * _SUFFIXES[suffix]
    except ValueError:
        raise ValueError(f"{shortened(value)} is not a number such as 15M or 15400000") from None
    if number <= 0 or number.denominator != 1:
        raise ValueError(f"{value!r} is not a positive whole number")
    return int(number)


def size(value: Any) -> int:
    """Parse a number of bytes, which may be 0 or written as "20G"."""
    return 0 if value == 0 and not isinstance(value, bool) else count(value)


def _latency(value: str) -> str:
    from nas.latency.table import parse_latency  # imports torch, which takes seconds

    parse_latency(value)
    return value


def _experts(value: Any) -> Experts:
    try:
        return Experts.from_json(value)
    except ArchitectureError as error:
        raise ValueError(re.sub("^experts[.:] ?", "", str(error))) from None


def _sampler(value: str) -> str:
    from nas.samplers import SAMPLERS  # imports scikit-learn, which takes a second

    if value not in SAMPLERS:
        meant = did_you_mean(value, SAMPLERS)
        raise ValueError(f"there is no sampler {value!r}{meant} (samplers: {', '.join(SAMPLERS)})")
    return value


Expansion = Annotated[Fraction, BeforeValidator(_share), PlainSerializer(str)]
ExpertsTable = Annotated[Experts, PlainValidator(_experts), PlainSerializer(Experts.to_json)]
Latency = Annotated[str, AfterValidator(_latency)]
Count = Annotated[int, BeforeValidator(count)]
Steps = Annotated[int, Field(ge=0, le=10_000_000)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


SamplerName = Annotated[str, AfterValidator(_sampler)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RowsTable(Table):
    """A task on the user's own files (.tsv, .csv, .jsonl or .parquet).

    Attributes:
        train, dev: paths, in a preset relative to its folder.
        text: the column of the sentence, or of the first one of a pair.
        pair: the column of the second sentence, if there is one.
        label: the column of the class or, with `regression`, of the number.
        regression: whether the task is to predict a number.
    """

    train: str
    dev: str
    text: str = "sentence"
    pair: str | None = None
    label: str = "label"
    regression: bool = False


class BaseTable(Table):
    """The base of students that start from random weights, with fields of `search_spaces.architecture.Base`."""

    depth: int
    width: int
    heads: int
    inner: int
    embedding: int | None = None

    def build(self, vocabulary: int) -> Base:
        return Base(vocabulary=vocabulary, **self.model_dump())


class SpaceTable(Table):
    stacks: Annotated[tuple[Annotated[int, Field(ge=1, le=16)], ...], Field(min_length=1)]
    expansions: Annotated[tuple[Expansion, ...], Field(min_length=1)]
    experts: Annotated[tuple[ExpertsTable, ...], Field(min_length=1)] = (DENSE,)
    uniform: Expansion | None = None
    slack: Share = 0.05
    min_params: Count | None = None
    max_params: Count | None = None
    max_macs: Count | None = None
    max_latency: Latency | None = None
    edit_rate: Share = 0.1
    gated: bool = False
    mismatch: Literal["narrow", "wide"] = "narrow"

    @model_validator(mode="after")
    def _a_box(self) -> "SpaceTable":
        if self.uniform is None and self.max_params is None:
            raise ValueError("give the parameter box: max_params, or uniform (the expansion of a uniform slice)")
        if self.min_params is not None and self.max_params is not None and self.min_params > self.max_params:
            raise ValueError(f"min_params {self.min_params:,} is above max_params {self.max_params:,}")
        return self


class ObjectiveTable(BaseModel):
    """The name of an objective in `distill.objectives`, and those of its settings that differ from the defaults."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "efficientbert"

    def check(self) -> None:
        """Check that the objective exists and has these settings. Loading a configuration does not check this, because
        the check imports torch, which takes seconds.

        Raises:
            ConfigError: there is no such objective, or it has no such setting, or the setting is of another type.
        """
        from distill.objectives import OBJECTIVES

        if self.name not in OBJECTIVES:
            meant = did_you_mean(self.name, OBJECTIVES)
            raise ConfigError(f"objective.name: there is no {self.name!r}{meant} (objectives: {', '.join(OBJECTIVES)})")
        defaults = OBJECTIVES[self.name].defaults
        for key, value in self.settings().items():
            if key not in defaults:
                meant = did_you_mean(key, defaults)
                raise ConfigError(
                    f"objective: {self.name} has no {key!r}{meant}; its settings are {', '.join(defaults)}"
                )
            _check_setting(f"objective.{key}", value, defaults[key])

    def settings(self) -> dict[str, Any]:
        """The settings of the objective that differ from its defaults."""
        return dict(self.model_extra or {})


def _check_setting(place: str, value: Any, default: Any) -> None:
    kinds: dict[type, tuple[tuple[type, ...], str]] = {
        bool: ((bool,), "true or false"),
        int: ((int,), "a whole number"),
        float: ((float, int), "a number"),
        str: ((str,), "a text"),
    }
    kind, expected = kinds[type(default)]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind != (bool,)):
        raise ConfigError(f"{place}: is {expected}, not {value!r}")


class RecipeTable(Table):
    """The recipe of a training, with the fields of `distill.training.recipe.Recipe`; its length is given in steps or in
    epochs.

    Attributes:
        share: the share of the rows that are trained on; they are drawn once.
    """

    # These fields are omitted from the dump if they have their defaults: caches and config.toml files that were written
    # before they existed then keep their keys and their text.
    OMITTED_DEFAULTS: ClassVar[tuple[str, ...]] = (
        "gradient_accumulation_steps",
        "weight_decay",
        "max_grad_norm",
        "early_stopping_patience",
    )

    steps: Steps | None = None
    epochs: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] = 1
    warmup: Share = 0.1
    weight_decay: Weight = 0.01
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    freeze_embeddings: bool = False

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        tables: dict[str, Any] = serialize(self)
        return {
            name: value
            for name, value in tables.items()
            if name not in self.OMITTED_DEFAULTS or getattr(self, name) != fields[name].default
        }

    @model_validator(mode="after")
    def _so_long(self) -> "RecipeTable":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give steps or epochs" + ("" if self.steps is None else ", not both"))
        return self

    def build(self, rows: int) -> Recipe:
        """The recipe for training on this many rows."""
        steps = self.steps
        if steps is None:
            assert self.epochs is not None
            steps = math.ceil(self.epochs * rows / (self.batch_size * self.gradient_accumulation_steps))
        others = (
            "batch_size",
            "gradient_accumulation_steps",
            "learning_rate",
            "warmup",
            "weight_decay",
            "max_grad_norm",
            "freeze_embeddings",
        )
        return Recipe(steps=steps, **{name: getattr(self, name) for name in others})


class EarlyStoppingTable(RecipeTable):
    """The recipe of a training that may stop early, by its score on the search split after every epoch.

    Attributes:
        early_stopping_patience: after this many epochs without a better score the training stops, and the model gets
            the weights of its best epoch. None: all steps are trained.
    """

    early_stopping_patience: Annotated[int, Field(ge=1)] | None = None

    def build(self, rows: int) -> Recipe:
        recipe = super().build(rows)
        if self.early_stopping_patience is None:
            return recipe
        epoch = math.ceil(rows / (self.batch_size * self.gradient_accumulation_steps))
        return replace(recipe, early_stopping_patience=self.early_stopping_patience, eval_steps=epoch)


class WarmupTable(RecipeTable):
    """The warm-up of the supernet.

    Attributes:
        source: whether it learns from the task's rows or from the text without labels.
        graphs: whether all layers have the base graph, or graphs that are drawn from the space in every step.
        importance_batches: how many batches the importance of the neurons is measured on.
    """

    source: Literal["task", "text"] = "task"
    graphs: Literal["gelu", "sampled"] = "gelu"
    importance_batches: Annotated[int, Field(ge=1)] = 16


class SharingTable(RecipeTable):
    """The training of the one-shot supernet of stage 3.

    Attributes:
        sandwich: train the largest, the smallest and two random architectures in every step instead of one random one.
        rows: the number of rows of each task's search split on which candidates are scored. None: all of them.
    """

    sandwich: bool = False
    rows: Annotated[int, Field(ge=1)] | None = None


class FinalTable(EarlyStoppingTable):
    """The training of the searched architecture on the task.

    Attributes:
        start: whether the student inherits from the warmed-up supernet ("supernet") or from the one-shot supernet of
            stage 3 ("shared").
    """

    start: Literal["supernet", "shared"] = "supernet"


class StageTable(Table):
    """What a stage may spend, and how it searches.

    Attributes:
        trials: how many candidates are evaluated, baselines included.
        sampler: a key of `nas.samplers.SAMPLERS`.
        confirm: how many of the best candidates are confirmed.
        confirm_seeds: how many fresh seeds each of them is trained with.
        edit_rate: replaces that of the space.
        rungs: the shares of a candidate's training steps after which it may be pruned.
        stop: at every rung, a candidate whose score is among the lowest `stop` of all that reached the rung is pruned.
    """

    trials: Annotated[int, Field(ge=1, le=1_000_000)]
    sampler: SamplerName = "lanas"
    confirm: Annotated[int, Field(ge=1)] = 3
    confirm_seeds: Annotated[int, Field(ge=0)] = 2
    edit_rate: Share | None = None
    rungs: tuple[Annotated[Fraction, BeforeValidator(_share), PlainSerializer(str)], ...] = ()
    stop: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] = 0.0


Goal = Literal["score", "params", "macs", "latency"]


def _goals(value: Any) -> Any:
    goals = tuple(value.split(",")) if isinstance(value, str) else tuple(value)
    if goals not in (("score",), *(("score", name) for name in ("params", "macs", "latency"))):
        raise ValueError(f"{','.join(map(str, goals))!r} is none of score; score,params; score,macs; score,latency")
    return goals


class StudyConfig(Table):
    """Everything that determines the results of a study; saved as `config.toml` in the study's folder.

    Attributes:
        teacher: name on the hub or folder of a checkpoint.
        base: what students start from: "teacher", another checkpoint, or a table of dimensions (with random weights).
        tasks: names that `distill.tasks.readers.load_task` knows, or keys of `rows`.
        data: the folder of the tasks' official files; None: they are downloaded from the hub.
        corpus: text without labels, see `distill.tasks.readers.texts.read_text`; None: that of this installation.
        rows: tasks on the user's own files.
        text_teacher: which teacher teaches on text: the one fine-tuned on the task, or the raw one before fine-tuning.
        teacher_cache: the teacher's outputs for the candidates are kept on disk if they take at most this many bytes;
            otherwise the teacher runs in every step.
        finetune: the fine-tuning of the teacher.
        warmup: the warm-up of the supernet.
        candidate_pretrain, candidate: the training of every candidate, on text and then on the task.
        sharing_pretrain, sharing: the training of the one-shot supernet of stage 3, on text and then on all tasks.
        pretrain, final: the final training of the searched architecture, on text and then on the task.
        single_trials: the trials of a single-stage search; None: those of stages 1 and 2 together.
    """

    teacher: str
    base: str | BaseTable = "teacher"
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    data: str | None = None
    corpus: str | None = None
    rows: dict[str, RowsTable] = {}
    goals: Annotated[tuple[Goal, ...], BeforeValidator(_goals)] = ("score",)
    max_length: Annotated[int, Field(ge=8, le=512)] = 128
    dropout: Share = 0.1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    space: SpaceTable
    objective: ObjectiveTable = ObjectiveTable()
    text_teacher: Literal["task", "raw"] = "task"
    teacher_cache: Annotated[int, BeforeValidator(size)] = 20 * 10**9
    finetune: EarlyStoppingTable
    warmup: WarmupTable
    candidate_pretrain: RecipeTable | None = None
    candidate: RecipeTable
    sharing_pretrain: RecipeTable | None = None
    sharing: SharingTable
    pretrain: RecipeTable
    final: FinalTable
    stage1: StageTable
    stage2: StageTable
    stage3: StageTable
    single_trials: Annotated[int, Field(ge=1, le=1_000_000)] | None = None

    @property
    def task(self) -> str:
        """The task that stages 1 and 2 search on."""
        return self.tasks[0]

    @model_validator(mode="after")
    def _samplers_suit_goals(self) -> "StudyConfig":
        from nas.samplers import SAMPLERS

        for name in ("stage1", "stage2", "stage3"):
            sampler = getattr(self, name).sampler
            if len(self.goals) not in SAMPLERS[sampler].n_objectives:
                for_two = [known for known, kind in SAMPLERS.items() if 2 in kind.n_objectives]
                wanted = f"two goals need one of {', '.join(for_two)}"
                if len(self.goals) == 1:
                    wanted = f"{sampler} is for two goals"
                raise ValueError(f"{name}.sampler is {sampler} and goals are {','.join(self.goals)}: {wanted}")
        return self

    @field_validator("tasks")
    @classmethod
    def _different(cls, tasks: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(tasks)) < len(tasks):
            raise ValueError("a task is named twice")
        return tasks

    def __hash__(self) -> int:
        return hash(self.to_toml())

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

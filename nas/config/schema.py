"""The schema of a study's configuration as pydantic models; `nas.config.load` loads presets and TOML files."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from distill.defaults import MAX_LENGTH
from distill.tasks.splits import CUT, LongTexts
from distill.training.recipe import MixedPrecision
from foundation.errors import UserError, did_you_mean, shortened
from nas.config.recipes import (
    EarlyStoppingTable,
    FinalTable,
    OneShotTable,
    PretrainTable,
    RecipeTable,
    TextRecipeTable,
    WarmupTable,
)
from nas.config.rows import RowsTable
from nas.config.space import DeploymentTable, KeepTable, SpaceTable
from nas.config.stages import Stage3Table, StageTable
from nas.config.values import Corpora, Goals, Length, Table, Tasks, UnitFloat, size
from search_spaces.base import Base

# The names of the tables of stages.
STAGES = ("stage1", "stage2", "stage3")


class ConfigError(UserError, ValueError):
    """A configuration that cannot be used; the message names the key or option and says what would be right."""


@contextmanager
def reporting(place: str, *errors: type[Exception]) -> Iterator[None]:
    """In this block, report errors of these types as mistakes in the configuration.

    Args:
        place: the key or option that the message begins with; "": none.

    Raises:
        ConfigError: one of them was raised.
    """
    try:
        yield
    except errors as error:
        raise ConfigError(f"{place}: {error}" if place else str(error)) from None


class BaseTable(Table):
    """The base of students that start from random weights, with fields of `search_spaces.architecture.Base`.

    Attributes:
        depth, heads: the numbers of layers and of attention heads.
        width, inner: the width of the hidden states, and the inner width of the FFNs at expansion 1.
        embedding: the width of a factorized embedding: of trigrams, as in MobileBERT, for students of BERT, and of
            words for students of ELECTRA and ALBERT; None: an ordinary embedding.
        gate_scale, capacity_per, attention_capacity: of gates and experts; None: the defaults of `Base`.
    """

    depth: int
    width: int
    heads: int
    inner: int
    embedding: int | None = None
    gate_scale: Literal["relative", "probability"] | None = None
    capacity_per: Literal["sentence", "batch"] | None = None
    attention_capacity: str | None = None

    def build(self, vocabulary: int) -> Base:
        return Base(vocabulary=vocabulary, **self.model_dump(exclude_none=True))


class ObjectiveTable(BaseModel):
    """The name of an objective in `distill.objectives`, and those of its settings that differ from the defaults.

    Attributes:
        name: a key of `distill.objectives.OBJECTIVES`; all other keys are settings of this objective.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "efficientbert"

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        for key, value in self.settings().items():
            if not isinstance(value, bool | int | str) and not (isinstance(value, float) and math.isfinite(value)):
                raise ValueError(f"{key} must be true or false, a finite number or a text, not {shortened(value)}")
        return self

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
        self.check_settings("objective", self.settings())

    def check_settings(self, place: str, settings: dict[str, Any]) -> None:
        """Check settings of the objective, which exists, in the table of this name.

        Raises:
            ConfigError: the objective has no such setting, or the setting is of another type.
        """
        from distill.objectives import OBJECTIVES

        defaults = OBJECTIVES[self.name].defaults
        for key, value in settings.items():
            if key not in defaults:
                meant = did_you_mean(key, defaults)
                raise ConfigError(
                    f"{place}: {self.name} has no setting {key!r}{meant}; its settings are {', '.join(defaults)}"
                )
            expected = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
            if type(value) is not (kind := type(defaults[key])) and (type(value), kind) != (int, float):
                raise ConfigError(f"{place}.{key}: must be {expected[kind]}, not {value!r}")

    def settings(self) -> dict[str, Any]:
        """The settings of the objective that differ from its defaults."""
        return dict(self.model_extra or {})


class SupernetTable(Table):
    """How candidates inherit from the supernet.

    Attributes:
        order: by what the inner channels are sorted, of which candidates keep the first: a key of
            `supernet.order.orders.ORDERS`.
        inheritance: "sliced": a candidate's weights are slices of the supernet's; "compensated": `project` is then
            solved for again, so that every block computes what the supernet's does on calibration text.
        calibration_rows: the number of training rows that the weights are solved for on, or as many of them as fit in
            4 GiB.
        cut_from: the base of the supernet that is warmed up, if that is wider or has fewer layers than `base`. The
            supernet on `base` gets its leading channels, and each of its layers several times, as EfficientBERT-TINY
            and EfficientBERT++ do (`supernet.cut`). None: the supernet on `base` is warmed up itself.
    """

    order: str = "importance"
    inheritance: Literal["sliced", "compensated"] = "sliced"
    calibration_rows: Annotated[int, Field(ge=10, le=1_000_000)] = 512
    cut_from: BaseTable | None = None

    def check(self) -> None:
        """Check that the order exists; as `ObjectiveTable.check`, because this imports torch.

        Raises:
            ConfigError: there is no such order.
        """
        from supernet.order.orders import ORDERS

        if self.order not in ORDERS:
            meant = did_you_mean(self.order, ORDERS)
            raise ConfigError(f"supernet.order: there is no {self.order!r}{meant} (orders: {', '.join(ORDERS)})")


class StudyConfig(Table):
    """Everything that determines the results of a study; saved as `config.toml` in the study's folder.

    Attributes:
        teacher: name on the hub or folder of a checkpoint.
        base: what students start from: "teacher", another checkpoint, or a table of dimensions (with random weights).
        keep: a fraction of the teacher's score to keep; the budget is then found instead of given.
        tasks: names that `distill.tasks.readers.load_task` knows, or keys of `rows`.
        data: the folder of the tasks' official files; None: they are downloaded from the hub.
        corpus: sources of text without labels, one or several, see `distill.tasks.readers.texts.read_paragraphs`; None:
            the text of this installation.
        pack_text: whether consecutive paragraphs of a document are put together to rows of at most `max_length` tokens;
            otherwise every paragraph is a row.
        rows: tasks on the user's own files.
        search_fraction: the fraction of the training rows that is held out to score candidates; None: a tenth, at most
            2,000.
        search_rows: which ones: "random" ones, or the "last" ones of the data set, as in EfficientBERT.
        goals: what is optimized, "score" or two goals such as "score,params".
        max_length: rows are cut to this many tokens.
        long_texts: what is read of single texts with more: "cut": the beginning; "head_tail": the first quarter and the
            last three quarters of so many tokens; "windows": all, as overlapping windows, each of which is a row to
            learn from. The scores are those of the mean logits of a text's windows.
        max_length_of: tasks whose rows are cut to fewer tokens, such as `{sst2 = 64}`.
        dropout: of students, in training.
        seed: of everything random.
        mixed_precision: of all trainings and scores: "no" is float32, "bf16" has matrix products in bfloat16, and
            "auto" is "bf16" on devices that compute in it natively. Latency is not measured in bfloat16.
        space: the search space and the budget.
        deployment: how students will run, for their latency.
        objective: what students learn from the teacher.
        text_teacher: which teacher teaches on text: the one fine-tuned on the task, or the raw one before fine-tuning.
        teacher_cache: the teacher's outputs for the candidates are kept on disk if they take at most this many bytes;
            otherwise the teacher runs in every step.
        finetune: the fine-tuning of the teacher.
        warmup: the warm-up of the supernet.
        supernet: how candidates inherit from the supernet.
        candidate_pretrain, candidate: the training of every candidate, on text and then on the task.
        one_shot_warmup: a warm-up on text of the largest model of stage 3's one-shot supernet, before the next two.
        one_shot_pretrain, one_shot: the training of the one-shot supernet of stage 3, on text and then on all tasks.
        pretrain, final: the final training of the searched architecture, on text and then on the task.
        trial_timeout: a trial that takes more than this many seconds fails, and its worker is replaced by a new one.
        stage1, stage2, stage3: what a stage may spend, and how it searches.
    """

    teacher: str
    base: str | BaseTable = "teacher"
    tasks: Tasks
    data: str | None = None
    corpus: Corpora | None = None
    pack_text: bool = False
    rows: dict[str, RowsTable] = Field(default_factory=dict)
    search_fraction: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] | None = None
    search_rows: Literal["random", "last"] = "random"
    goals: Goals = ("score",)
    max_length: Length = MAX_LENGTH
    long_texts: LongTexts = CUT
    max_length_of: dict[str, Length] = Field(default_factory=dict)
    dropout: UnitFloat = 0.1
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    mixed_precision: MixedPrecision = "auto"
    space: SpaceTable
    deployment: DeploymentTable = DeploymentTable()
    keep: KeepTable | None = None
    objective: ObjectiveTable = ObjectiveTable()
    text_teacher: Literal["task", "raw"] = "task"
    teacher_cache: Annotated[int, BeforeValidator(size)] = 20 * 10**9
    finetune: EarlyStoppingTable
    warmup: WarmupTable
    supernet: SupernetTable = SupernetTable()
    candidate_pretrain: TextRecipeTable | None = None
    candidate: RecipeTable
    one_shot_warmup: TextRecipeTable | None = None
    one_shot_pretrain: TextRecipeTable | None = None
    one_shot: OneShotTable
    pretrain: PretrainTable
    final: FinalTable
    stage1: StageTable
    stage2: StageTable
    stage3: Stage3Table
    trial_timeout: Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)] = 3600.0

    @property
    def task(self) -> str:
        """The task that stages 1 and 2 search on."""
        return self.tasks[0]

    @property
    def row_length(self) -> int:
        """The number of tokens to which the rows of this task are cut; of a further dev split as the task's own."""
        from distill.tasks.readers.glue import trained_on

        of_task = self.max_length_of.get(trained_on(self.task), self.max_length)
        return min(self.max_length, self.max_length_of.get(self.task, of_task))

    def scored_tasks(self, stage: str) -> tuple[str, ...]:
        """The tasks of stage "1", "2" or "3"; the score of a candidate is the mean of its scores on them."""
        return self.tasks if stage == "3" and self.stage3.scored_on == "mean" else self.tasks[:1]

    def stage(self, stage: str) -> StageTable:
        """The table of stage "1", "2" or "3"."""
        table: StageTable = getattr(self, f"stage{stage}")
        return table

    def with_table(self, name: str, **values: Any) -> Self:
        """The configuration with these values in the table of this name, which are not checked."""
        return self.model_copy(update={name: getattr(self, name).model_copy(update=values)})

    @property
    def latency_key(self) -> str | None:
        """The key that asks for latencies; None if none does."""
        asking = {
            "space.max_latency": self.space.max_latency is not None,
            "goals: latency": "latency" in self.goals,
            "keep.cost": self.keep is not None and self.keep.cost == "latency",
        }
        return next((key for key, asks in asking.items() if asks), None)

    @property
    def cut_from(self) -> Self | None:
        """The configuration of the supernet that is warmed up, if this study's supernet is cut from it."""
        source = self.supernet.cut_from
        if source is None:
            return None
        return self.with_table("supernet", cut_from=None).model_copy(update={"base": source})

    @model_validator(mode="after")
    def _stages_suit_goals_and_scores(self) -> Self:
        from nas.samplers import SAMPLERS

        if self.stage3.evaluation == "trained" and len(self.tasks) > 1:
            raise ValueError("stage3.evaluation: candidates are trained on one task only; use untrained or one_shot")
        for name in STAGES:
            stage: StageTable = getattr(self, name)
            sampler, evaluation = stage.sampler, stage.evaluation
            if len(self.goals) not in SAMPLERS[sampler].n_objectives:
                for_two = [known for known, kind in SAMPLERS.items() if 2 in kind.n_objectives]
                wanted = f"two goals need one of {', '.join(for_two)}"
                if len(self.goals) == 1:
                    wanted = f"{sampler} is for two goals"
                raise ValueError(f"{name}.sampler is {sampler} and goals are {','.join(self.goals)}: {wanted}")
            if evaluation == "one_shot" and name != "stage3":
                raise ValueError(f"{name}.evaluation: only stage 3 has a one-shot supernet; use trained or untrained")
            if evaluation != "untrained" and stage.score == "fidelity":
                raise ValueError(
                    f'{name}.score: fidelity is for untrained candidates; use "metric", '
                    f'or {name}.evaluation = "untrained"'
                )
            if sampler == "milp" and (stage.score, self.supernet.inheritance) != ("fidelity", "compensated"):
                raise ValueError(
                    f"{name}.sampler: milp learns from the fidelity of compensated candidates: set {name}.score = "
                    '"fidelity" and supernet.inheritance = "compensated", or choose another sampler'
                )
        return self

    @model_validator(mode="after")
    def _bases_and_budgets_are_set_once(self) -> Self:
        if self.supernet.cut_from is not None and isinstance(self.base, str):
            raise ValueError(
                f"supernet.cut_from is for a base that is a table of dimensions, not {self.base!r}: leave it out"
            )
        if self.keep is None:
            return self
        name = f"max_{self.keep.cost}"
        if getattr(self.space, name) is not None:
            raise ValueError(
                f"keep finds the smallest space.{name} that is enough: set only one of keep and space.{name}"
            )
        if self.space.min_params is not None:
            raise ValueError("keep finds the budget: leave out space.min_params")
        if len(self.goals) > 1:
            raise ValueError('keep requires goals = "score"; set the cost to minimize with keep.cost')
        if self.stage1.confirm_seeds == 0:
            raise ValueError("keep needs trained students: set stage1.confirm_seeds to at least 1")
        return self

    @model_validator(mode="after")
    def _one_shot_settings_are_used(self) -> Self:
        # A final training may start from the one-shot supernet of a study without stage 3.
        used = "one_shot" in (self.stage3.evaluation, self.final.start)
        if self.space.ranks is not None and used:
            raise ValueError("space.ranks: the one-shot supernet only has the full rank: leave out one of the two")
        given = {
            "sandwich": self.one_shot.sandwich,
            "widths": self.one_shot.widths,
            "inheritance": self.one_shot.inheritance == "compensated",
        }
        for name, is_given in given.items():
            if is_given and not used:
                raise ValueError(f'one_shot.{name} is for a one-shot supernet: set stage3.evaluation = "one_shot"')
        if self.one_shot.sandwich and self.one_shot.widths:
            raise ValueError("one_shot.widths: the sandwich rule has widths of its own; leave out one of the two")
        for width in self.one_shot.widths:
            if width not in self.space.expansions:
                raise ValueError(f"one_shot.widths: {width} is not one of space.expansions")
        return self

    @model_validator(mode="after")
    def _experts_can_be_searched(self) -> Self:
        because = self.latency_key
        counts = {name: getattr(self.space, name) for name in ("attention_experts", "head_experts")}
        for name, values in counts.items():
            if because and len(values) > 1:
                raise ValueError(
                    f"space.{name}: {because} is measured for a single number of experts: give one number, or limit "
                    "max_macs instead"
                )
        if max(counts["head_experts"]) > 1:
            reasons = {"untrained": "start with random weights", "one_shot": "are not in the one-shot supernet"}
            for name in STAGES:
                if why := reasons.get(getattr(self, name).evaluation):
                    raise ValueError(f'space.head_experts: prediction layers {why}: set {name}.evaluation = "trained"')
            if self.final.start == "one_shot":
                raise ValueError(
                    f"space.head_experts: prediction layers {reasons['one_shot']}: set another final.start"
                )
        if max(counts["attention_experts"]) > 1 and self.one_shot.widths:
            raise ValueError(
                "space.attention_experts: no step with one_shot.widths trains several experts: leave out "
                "one_shot.widths"
            )
        return self

    def __hash__(self) -> int:
        return hash(self.to_toml())

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

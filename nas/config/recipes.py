"""The tables of trainings in a study's configuration: their recipes and what else each of them needs."""

from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from distill.training.recipe import Recipe, steps_of_epochs
from nas.config.values import Corpora, Distinct, PositiveFraction, Steps, Table, UnitFloat, Weight

# The fields of a recipe that a table has under the same name; the others follow from the number of rows.
RECIPE_FIELDS = {field.name for field in fields(Recipe)} - {"steps", "early_stopping_patience", "eval_steps"}


class RecipeTable(Table):
    """The recipe of a training, with the fields of `distill.training.recipe.Recipe`; its length is given in steps, in
    epochs, or in epochs with a limit on the steps.

    Attributes:
        steps, epochs: the length; if both are given, the shorter one.
        fraction: the fraction of the rows that are trained on, which are drawn once; 1 means all rows.
        batch_size: rows in a batch.
        learning_rate: the highest one; it rises linearly and then falls linearly to 0.
        gradient_accumulation_steps: batches for one optimizer step.
        warmup_ratio: the fraction of the steps in which the learning rate rises.
        weight_decay: of AdamW.
        max_grad_norm: the norm to which gradients are clipped.
        freeze_embeddings: whether the embeddings are left as they are.
    """

    steps: Steps | None = None
    epochs: Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False)] | None = None
    fraction: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    batch_size: Annotated[int, Field(ge=1, le=4096)] = 32
    learning_rate: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=4096)] = 1
    warmup_ratio: UnitFloat = 0.1
    weight_decay: Weight = 0.01
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    freeze_embeddings: bool = False

    @model_validator(mode="after")
    def _has_a_length(self) -> "RecipeTable":
        if self.steps is None and self.epochs is None:
            raise ValueError("give steps or epochs")
        return self

    def build(self, rows: int) -> Recipe:
        """The recipe for training on this many rows."""
        lengths = [] if self.steps is None else [self.steps]
        if self.epochs is not None:
            lengths.append(steps_of_epochs(self.epochs, rows, self.batch_size * self.gradient_accumulation_steps))
        return Recipe(steps=min(lengths), **self.model_dump(include=RECIPE_FIELDS))


class EarlyStoppingTable(RecipeTable):
    """The recipe of a training that may stop early, by its score on the search split after every epoch
    and at its end.

    Attributes:
        early_stopping_patience: after this many epochs without a better score the training stops, and the model gets
            the weights of its best epoch. None: all steps are trained.
    """

    early_stopping_patience: Annotated[int, Field(ge=1)] | None = None

    def build(self, rows: int) -> Recipe:
        recipe = super().build(rows)
        if self.early_stopping_patience is None:
            return recipe
        epoch = steps_of_epochs(1, rows, self.batch_size * self.gradient_accumulation_steps)
        return replace(recipe, early_stopping_patience=self.early_stopping_patience, eval_steps=epoch)


class TextRecipeTable(RecipeTable):
    """The recipe of a training on text without labels.

    Attributes:
        corpus: replaces the study's `corpus`.
    """

    corpus: Corpora | None = None


class PretrainTable(TextRecipeTable):
    """The recipe of the final training on text.

    Attributes:
        assistant: the model that teaches in place of the teacher, such as a smaller one that has learned from it
            (teacher assistants: Mirzadeh et al., 2020; MiniLM, Wang et al., 2020); None: the teacher.
    """

    assistant: str | None = None


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


class OneShotTable(RecipeTable):
    """The training of the one-shot supernet of stage 3, whose slices share its weights.

    Attributes:
        sandwich: train the largest, the smallest and two random architectures in every step instead of one random one.
        widths: train in every step one student for each of these expansions, the same in all its layers, such as ["1",
            "3/4", "1/2", "1/4"] (DynaBERT's widths; Hou et al., 2020), instead of random students.
        inheritance: whether candidates are plain slices of the trained one-shot supernet, or compensated.
        rows: the number of rows of each task's search split on which candidates are scored. None: all of them.
    """

    sandwich: bool = False
    widths: Distinct[PositiveFraction] = ()
    inheritance: Literal["sliced", "compensated"] = "sliced"
    rows: Annotated[int, Field(ge=1)] | None = None


class FinalTable(EarlyStoppingTable):
    """The training of the searched architecture on the task.

    Attributes:
        start: whether the student inherits from the warmed-up supernet ("supernet") or from the one-shot supernet of
            stage 3 ("one_shot"), or starts from random weights ("random"), as does then the base model.
        all_rows: whether it also learns from the rows of the search split, which then cannot stop it early.
        objective: settings of the study's objective that differ in this training, such as `{relation = 0.0}`: then the
            student learns from the labels alone.
    """

    objective: dict[str, Any] | None = None
    start: Literal["supernet", "one_shot", "random"] = "supernet"
    all_rows: bool = False

    @model_validator(mode="after")
    def _may_stop(self) -> "FinalTable":
        if self.all_rows and self.early_stopping_patience is not None:
            raise ValueError("all_rows: the search split decides when to stop: leave out early_stopping_patience")
        return self

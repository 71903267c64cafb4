"""Masked language modelling on text without labels; `distill.training.distillation.masked` masks the batches."""

from transformers import AutoModelForMaskedLM

from distill.tasks.types.base import TaskType
from distill.tasks.types.token_classification import distributions, loss
from search_spaces.cost import HeadCost

NAME = "masked_lm"
TYPE = TaskType(
    name=NAME,
    model=AutoModelForMaskedLM,
    head=HeadCost(vocabulary=True),
    pipeline="fill-mask",
    loss=loss,
    distributions=distributions,
)

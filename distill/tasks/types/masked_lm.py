"""Masked language modelling on text without labels; `distill.training.distillation.masked` masks the batches."""

from transformers import AutoModelForMaskedLM

from distill.tasks.types.base import TaskType
from distill.tasks.types.token_classification import distributions, loss

NAME = "masked_lm"
TYPE = TaskType(name=NAME, model=AutoModelForMaskedLM, head="masked_lm", loss=loss, distributions=distributions)

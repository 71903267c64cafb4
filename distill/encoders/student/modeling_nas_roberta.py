"""Students of RoBERTa.

This file ships inside exported checkpoints, so it imports torch, transformers and its neighbors only.
"""

from typing import ClassVar

from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForQuestionAnswering,
    RobertaForSequenceClassification,
    RobertaForTokenClassification,
    RobertaModel,
)
from transformers.models.roberta.modeling_roberta import RobertaLayer, RobertaSelfAttention

# All modules of a student: transformers 5.1 copies only those that this one names.
from .attention import ExpertSelfAttention, NoSelfAttention
from .configuration import StudentConfig
from .dispatch import Tokens  # noqa: F401
from .embedding import LowRankEmbedding  # noqa: F401
from .expert_linear import ExpertLinear  # noqa: F401
from .ffn import FFNBlock  # noqa: F401
from .routing import Router  # noqa: F401
from .student import Student, StudentLayer


class NasRobertaConfig(StudentConfig, RobertaConfig):
    """The configuration of a student of RoBERTa."""

    model_type = "nas_roberta"


class NasRobertaSelfAttention(ExpertSelfAttention, RobertaSelfAttention):
    """Self-attention with experts."""


class NasRobertaLayer(StudentLayer, RobertaLayer):
    """A layer of a student of RoBERTa."""

    self_attention_class = NasRobertaSelfAttention


class NasRoberta(Student):
    """What all students of RoBERTa have in common."""

    config_class = NasRobertaConfig
    layer_class = NasRobertaLayer


class NasRobertaModel(NasRoberta, RobertaModel):
    """The encoder: (B, T) token ids -> (B, T, width) hidden states and the pooled (B, width)."""

    _auto_class = "AutoModel"
    _can_record_outputs: ClassVar = {
        **RobertaModel._can_record_outputs,
        "attentions": [RobertaSelfAttention, NoSelfAttention],
    }


NasRoberta.encoder_class = NasRobertaModel


class NasRobertaForMaskedLM(NasRoberta, RobertaForMaskedLM):
    _auto_class = "AutoModelForMaskedLM"


class NasRobertaForSequenceClassification(NasRoberta, RobertaForSequenceClassification):
    _auto_class = "AutoModelForSequenceClassification"


class NasRobertaForTokenClassification(NasRoberta, RobertaForTokenClassification):
    _auto_class = "AutoModelForTokenClassification"


class NasRobertaForQuestionAnswering(NasRoberta, RobertaForQuestionAnswering):
    _auto_class = "AutoModelForQuestionAnswering"

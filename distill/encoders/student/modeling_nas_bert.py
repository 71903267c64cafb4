"""Students of BERT. They alone may have a factorized embedding over trigrams, and a head of several experts."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from transformers import initialization as init
from transformers.models.albert.modeling_albert import AlbertMLMHead
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.mobilebert.modeling_mobilebert import MobileBertEmbeddings

from .anatomy import Family  # noqa: F401

# All modules of a student: transformers 5.1 copies only those that this one names.
from .attention import NoSelfAttention
from .configuration import StudentConfig
from .dispatch import Tokens, put, take, weighted
from .embedding import LowRankEmbedding  # noqa: F401
from .expert_linear import ExpertLinear, is_batched
from .families import FAMILIES  # noqa: F401
from .ffn import FFNBlock  # noqa: F401
from .modeling_nas import classes_of  # noqa: F401  # the module of layers' classes
from .routing import make_gate
from .student import Student


class NasBertConfig(StudentConfig, BertConfig):
    """The configuration of a student of BERT.

    Attributes:
        embedding_size: the width of a factorized word embedding over trigrams (MobileBERT), or `None`.
        head_experts: prediction layers of a sequence classifier, among which a gate chooses for each sentence.
    """

    model_type = "nas_bert"

    embedding_size: int | None = None
    head_experts: int = 1
    trigram_input: bool = True
    normalization_type: str = "layer_norm"


class NasBertEmbeddings(MobileBertEmbeddings):
    """Factorized embedding (MobileBERT): the vectors of a word and its neighbors, each `embedding_size` wide, mapped
    to the width of the model.
    """

    def __init__(self, config: NasBertConfig) -> None:
        super().__init__(config)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(
        self,
        input_ids: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **cache_arguments: Any,
    ) -> Tensor:
        # Ignored: the length of the key-value cache, which an encoder does not have. transformers calls it
        # `past_key_values_length` before 5.24, and `cache_length` since.
        if inputs_embeds is None:
            inputs_embeds = self.word_embeddings(input_ids)
            padding = self.word_embeddings.padding_idx
            if padding is not None:
                # The last trigram of a sentence includes a padding token, whose vector a tied masked-LM head would
                # train away from zero.
                inputs_embeds = inputs_embeds * (input_ids != padding)[..., None]
        return super().forward(None, token_type_ids, position_ids, inputs_embeds)


class NasBert(Student):
    """What all students of BERT have in common."""

    config_class = NasBertConfig

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MobileBertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1]).expand((1, -1)))


class NasBertModel(NasBert, BertModel):
    """The encoder: (B, T) token ids -> (B, T, width) hidden states and the pooled (B, width)."""

    _auto_class = "AutoModel"
    _can_record_outputs: ClassVar = {
        **BertModel._can_record_outputs,
        "attentions": [BertSelfAttention, NoSelfAttention],
    }

    def become_student(self) -> None:
        if self.config.embedding_size is not None:
            self.embeddings = NasBertEmbeddings(self.config)
            self._no_split_modules = {*self._no_split_modules, NasBertEmbeddings.__name__}
        super().become_student()


NasBert.encoder_class = NasBertModel


class FactorizedMLMHead(nn.Module):
    """ALBERT's masked-LM head, (B, T, width) -> (B, T, vocabulary), with the submodule name of BERT's."""

    def __init__(self, config: NasBertConfig) -> None:
        super().__init__()
        self.predictions = AlbertMLMHead(config)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return self.predictions(hidden_BTD)


class NasBertForMaskedLM(NasBert, BertForMaskedLM):
    """A masked language model whose output embedding is tied to the word embedding; for a factorized embedding the head
    is ALBERT's.
    """

    _auto_class = "AutoModelForMaskedLM"

    def become_student(self) -> None:
        super().become_student()
        if self.config.embedding_size is not None:
            self.cls = FactorizedMLMHead(self.config)


class ExpertHead(nn.Module):
    """A head of several prediction layers W_o softmax(W_i x), of which a gate chooses one for each sentence (MicroBERT,
    equations 4 and 5): (B, width) -> (B, outputs). The result is multiplied by the gate's weight, see `GateRouter`.
    """

    def __init__(self, config: NasBertConfig, outputs: int) -> None:
        super().__init__()
        experts, width = config.head_experts, config.hidden_size
        self.router = make_gate(experts, config, is_batched(width, width))
        self.inner = ExpertLinear(experts, width, width)
        self.outer = ExpertLinear(experts, width, outputs)

    def forward(self, pooled_BD: Tensor) -> Tensor:
        routing = self.router(pooled_BD[:, None], Tokens(None, None))
        inner_SD = F.softmax(self.inner(take(pooled_BD, routing.dispatch), routing.dispatch), dim=-1)
        return put(weighted(self.outer(inner_SD, routing.dispatch), routing.weight_S), routing.dispatch)


class NasBertForSequenceClassification(NasBert, BertForSequenceClassification):
    _auto_class = "AutoModelForSequenceClassification"

    def become_student(self) -> None:
        super().become_student()
        if self.config.head_experts > 1:
            self.classifier = ExpertHead(self.config, self.config.num_labels)


class NasBertForTokenClassification(NasBert, BertForTokenClassification):
    _auto_class = "AutoModelForTokenClassification"


class NasBertForQuestionAnswering(NasBert, BertForQuestionAnswering):
    _auto_class = "AutoModelForQuestionAnswering"

"""BERT with searched feed-forward networks; attention, embeddings and heads are those of the transformers library.

This file ships inside every exported checkpoint, so it imports torch, transformers and its neighbours only.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    BertForMaskedLM,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
    BertPreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.albert.modeling_albert import AlbertMLMHead
from transformers.models.bert.modeling_bert import (
    BertAttention,
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertOnlyMLMHead,
    BertPooler,
    BertSelfAttention,
    BertSelfOutput,
    eager_attention_forward,
)
from transformers.models.mobilebert.modeling_mobilebert import MobileBertEmbeddings
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .configuration_nas_bert import NasBertConfig
from .dispatch import Tokens, put, take, weighted
from .expert_linear import ExpertLinear, RoutedLinear, is_batched
from .ffn import EXPORTED_OPERATIONS, FFNBlock
from .pruned_attention import PrunedAttention, attention_fault
from .routing import EXPORTED_ROUTERS, GateRouter, Routing, TableRouter, make_gate, router_class


class NasBertEmbeddings(MobileBertEmbeddings):
    """Factorised embedding (MobileBERT): the vectors of a word and its neighbours, each `embedding_size` wide, mapped
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


class ExpertSelfAttention(BertSelfAttention):
    """Self-attention in which the query, key and value of each token are computed by the token's expert."""

    def __init__(self, config: NasBertConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        for name in ("query", "key", "value"):
            setattr(self, name, RoutedLinear(config.attention_experts, config.hidden_size, config.hidden_size))

    def forward(
        self, hidden_BTD: Tensor, attention_mask: Tensor | None = None, *, routing: Routing, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        shape = (*hidden_BTD.shape[:-1], -1, self.attention_head_size)
        states = (part(hidden_BTD, routing.dispatch) for part in (self.query, self.key, self.value))
        query_BHTS, key_BHTS, value_BHTS = (state.view(shape).transpose(1, 2) for state in states)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        dropout = self.dropout.p if self.training else 0.0
        context, weights = attend(
            self, query_BHTS, key_BHTS, value_BHTS, attention_mask, dropout=dropout, scaling=self.scaling, **kwargs
        )
        return context.reshape(hidden_BTD.shape).contiguous(), weights


class ExpertSelfOutput(BertSelfOutput):
    """The output map of each token's expert, weighted by the gate; then dropout, residual and LayerNorm."""

    def __init__(self, config: NasBertConfig) -> None:
        super().__init__(config)
        self.dense = RoutedLinear(config.attention_experts, config.hidden_size, config.hidden_size)

    def forward(self, hidden_BTD: Tensor, input_BTD: Tensor, routing: Routing) -> Tensor:
        change_BTD = self.dense(hidden_BTD, routing.dispatch, routing.weight_S)
        return self.LayerNorm(input_BTD + self.dropout(change_BTD))


class ExpertAttention(BertAttention):
    """Attention with several experts (MiniMoE, section 3.2): a gate chooses the expert whose linear maps process a
    token, and its weight multiplies the output before the residual connection.
    """

    def __init__(self, config: NasBertConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        batched = is_batched(config.hidden_size, config.hidden_size)
        self.router = make_gate(config.attention_experts, config, batched)
        self.self = ExpertSelfAttention(config, layer_idx)
        self.output = ExpertSelfOutput(config)

    def forward(
        self, hidden_BTD: Tensor, attention_mask: Tensor | None = None, *, tokens: Tokens, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        routing = self.router(hidden_BTD, tokens)
        context_BTD, weights = self.self(hidden_BTD, attention_mask, routing=routing, **kwargs)
        return self.output(context_BTD, hidden_BTD, routing), weights


class NasBertLayer(BertLayer):
    """A Transformer layer whose FFN is a stack of `FFNBlock`s; with none, its output is its attention's."""

    def __init__(self, config: NasBertConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx=layer_idx)
        del self.intermediate, self.output
        assert config.ffn is not None  # checked by the model
        if config.attention_experts > 1:
            self.attention = ExpertAttention(config, layer_idx)
        if config.attention_heads is not None:
            self.attention = PrunedAttention(config, layer_idx)
        genes = config.ffn[layer_idx]
        experts = genes.get("experts")
        self.router = None
        if experts is not None and not router_class(experts).reads_hidden_states:
            batched = is_batched(config.hidden_size, genes["inner"])
            self.router = router_class(experts)(experts, config, batched)
        self.ffn = nn.ModuleList(
            FFNBlock(genes["program"], genes["widths"], genes["inner"], config, experts) for _ in range(genes["stack"])
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *unused: Any,
        tokens: Tokens | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """As `BertLayer.forward`; a model with experts passes `tokens`."""
        if tokens is None:
            return super().forward(hidden_states, attention_mask, *unused, **kwargs)
        if isinstance(self.attention, ExpertAttention):
            kwargs["tokens"] = tokens
        hidden_BTD, _ = self.attention(hidden_states, attention_mask, **kwargs)
        routing = None if self.router is None else self.router(hidden_BTD, tokens)
        for block in self.ffn:
            hidden_BTD = block(hidden_BTD, tokens, routing)
        return hidden_BTD

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        hidden_BTD = attention_output
        for block in self.ffn:
            hidden_BTD = block(hidden_BTD)
        return hidden_BTD


class NasBertEncoder(BertEncoder):
    def __init__(self, config: NasBertConfig) -> None:
        nn.Module.__init__(self)
        self.config = config
        self.layer = nn.ModuleList(NasBertLayer(config, index) for index in range(config.num_hidden_layers))


class NasBertPreTrainedModel(BertPreTrainedModel):
    config_class = NasBertConfig
    # What a device map and FSDP keep on one device; `NasBertModel` adds its embeddings.
    _no_split_modules: tuple[str, ...] = ("NasBertLayer",)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: `ignore_mismatched_sizes` would replace a routing table by a random one, because the vocabulary
                has another size.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        for name, *_ in info["mismatched_keys"]:
            if name.endswith("router.table"):
                raise ValueError(
                    f"{name} is of another vocabulary, so that all words would go to other experts: load the model "
                    "with the vocabulary that it has, then call resize_token_embeddings"
                )
        return (model, info) if output_loading_info else model

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        """As `PreTrainedModel.resize_token_embeddings`. Routing tables get as many rows; each new token id goes to the
        expert with the number id modulo E.
        """
        embeddings = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        for module in self.modules():
            if isinstance(module, TableRouter):
                module.resize(embeddings.weight.shape[0])
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GateRouter | ExpertLinear):
            for parameter in module.parameters(recurse=False):
                init.normal_(parameter, std=self.config.initializer_range)
        if isinstance(module, ExpertLinear):
            init.zeros_(module.bias)
        if isinstance(module, TableRouter):
            init.copy_(module.table, torch.randint(module.count, module.table.shape))
        if isinstance(module, MobileBertEmbeddings):
            init.copy_(module.position_ids, torch.arange(module.position_ids.shape[-1]).expand((1, -1)))

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As `PreTrainedModel.save_pretrained`, with the code of this folder.

        Raises:
            ValueError: the model has an operation or router that was added at run time, whose code the checkpoint would
                lack.
        """
        if fault := export_fault(self.config.ffn):
            raise ValueError(fault)
        super().save_pretrained(*args, **kwargs)


def export_fault(ffn: list[dict[str, Any]]) -> str:
    """Why a model with this `NasBertConfig.ffn` cannot be exported; empty if it can."""
    for layer, genes in enumerate(ffn):
        added = [f"operation {op!r}" for op, _ in genes["program"] if op not in EXPORTED_OPERATIONS]
        if (experts := genes.get("experts")) and experts["routing"] not in EXPORTED_ROUTERS:
            added.append(f"router {experts['routing']!r}")
        if added:
            return (
                f"layer {layer} has the {added[0]}, which was added at run time, and a checkpoint carries only the "
                "code of supernet/model: define it in ffn.py or routing.py there to export models with it"
            )
    return ""


class NasBertModel(NasBertPreTrainedModel, BertModel):
    """The encoder: (B, T) token ids -> (B, T, width) hidden states and the pooled (B, width)."""

    _auto_class = "AutoModel"

    def __init__(self, config: NasBertConfig, add_pooling_layer: bool = True) -> None:
        BertPreTrainedModel.__init__(self, config)
        if not config.ffn or len(config.ffn) != config.num_hidden_layers:
            raise ValueError(
                f"config.ffn describes {len(config.ffn or ())} layers but num_hidden_layers is "
                f"{config.num_hidden_layers}: build the configuration from an architecture"
            )
        if fault := attention_fault(config):
            raise ValueError(fault)
        self.config = config
        self.gradient_checkpointing = False
        self.embeddings = BertEmbeddings(config) if config.embedding_size is None else NasBertEmbeddings(config)
        # FSDP wants no class that the model does not contain.
        self._no_split_modules = ("NasBertLayer", type(self.embeddings).__name__)
        self.encoder = NasBertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.routed = config.attention_experts > 1 or any(genes.get("experts") for genes in config.ffn)
        if self.routed and config.chunk_size_feed_forward:
            raise ValueError(
                f"chunk_size_feed_forward is {config.chunk_size_feed_forward}: layers of experts process whole "
                "sentences, so it must be 0"
            )
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> Any:
        """As `BertModel.forward`. Raises ValueError for token ids that a routing table does not have."""
        if self.routed:
            kwargs = {**kwargs, "tokens": Tokens(input_ids, attention_mask)}
        return super().forward(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)


class FactorisedMLMHead(nn.Module):
    """ALBERT's masked-LM head, (B, T, width) -> (B, T, vocabulary), with the submodule name of BERT's."""

    def __init__(self, config: NasBertConfig) -> None:
        super().__init__()
        self.predictions = AlbertMLMHead(config)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        return self.predictions(hidden_BTD)


class NasBertForMaskedLM(NasBertPreTrainedModel, BertForMaskedLM):
    """A masked language model whose output embedding is tied to the word embedding; for a factorised embedding the head
    is ALBERT's.
    """

    _auto_class = "AutoModelForMaskedLM"

    def __init__(self, config: NasBertConfig) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.bert = NasBertModel(config, add_pooling_layer=False)
        if config.embedding_size is None:
            self.cls = BertOnlyMLMHead(config)
        else:
            self.cls = FactorisedMLMHead(config)
        self.post_init()


def _head_dropout(config: NasBertConfig) -> nn.Dropout:
    """The dropout before a head; the library's forward methods expect it as the model's `dropout`."""
    return nn.Dropout(config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout)


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


class NasBertForSequenceClassification(NasBertPreTrainedModel, BertForSequenceClassification):
    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: NasBertConfig) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = NasBertModel(config)
        self.dropout = _head_dropout(config)
        head = nn.Linear(config.hidden_size, config.num_labels)
        self.classifier = head if config.head_experts == 1 else ExpertHead(config, config.num_labels)
        self.post_init()


class NasBertForTokenClassification(NasBertPreTrainedModel, BertForTokenClassification):
    _auto_class = "AutoModelForTokenClassification"

    def __init__(self, config: NasBertConfig) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = NasBertModel(config, add_pooling_layer=False)
        self.dropout = _head_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


class NasBertForQuestionAnswering(NasBertPreTrainedModel, BertForQuestionAnswering):
    _auto_class = "AutoModelForQuestionAnswering"

    def __init__(self, config: NasBertConfig) -> None:
        BertPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.bert = NasBertModel(config, add_pooling_layer=False)
        self.qa_outputs = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

"""The student of an encoder family: the family's own classes, with the feed-forward networks of their layers replaced.

The modules `modeling_nas` and `modeling_nas_bert` combine these mixins with the classes of a family. A model is built
by the family's own constructors; its base model and its layers then become ours, so that embeddings, attention and
heads stay those of the transformers library.
"""

from collections.abc import Iterable
from functools import cache, partial
from inspect import signature
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .attention import ExpertAttention, ExpertSelfAttention, SeparateMaps, keep_heads, select_position_biases
from .configuration import attention_experts, configuration_fault, is_left_out, is_routed
from .dispatch import Tokens
from .embedding import LowRankDecoder, LowRankEmbedding
from .expert_linear import ExpertLinear, is_batched
from .families import FAMILIES
from .ffn import EXPORTED_OPERATIONS, FFNBlock
from .routing import EXPORTED_ROUTERS, GateRouter, TableRouter, router_class


@cache
def with_mixin(mixin: type, own: type) -> Any:
    """The subclass of a family's own class that has a mixin, such as `StudentLayer`."""
    module = f"{__package__}.modeling_nas"  # whose attributes these classes are, for `pickle`
    return type(f"Nas{own.__name__}", (mixin, own), {"__module__": module, "__doc__": mixin.__doc__})


def adopt(module: Any, mixin: Any) -> None:
    """Give a module of a family a mixin."""
    own: Any = type(module)
    module.__class__ = with_mixin(mixin, own)


class StudentLayer:
    """A mixin for a layer whose FFN becomes a stack of `FFNBlock`s; with none, the layer's output is its attention's.
    Without heads either, the layer is left out: its output is its input.
    """

    attention: Any  # of layers of BERT's kind
    router: Any
    ffn: nn.ModuleList
    get_submodule: Any
    set_submodule: Any

    def replace_attention(self, config: Any, number: int) -> None:
        """Give the attention of the layer of this number the heads or the experts of the configuration."""
        self.family = family = FAMILIES[config.model_type]
        own = FAMILIES[str(family.students_of)]
        self.left_out = is_left_out(config, number)
        for path in family.fused:
            if path.startswith(f"{family.self_attention}."):
                self.set_submodule(path, SeparateMaps(config.hidden_size, family.biases != "none"))
        if self.left_out:
            for path in (family.attention, family.attention_norm):
                above, _, name = _outermost_without(path, own.expand).rpartition(".")
                setattr(self.get_submodule(above), name, None)
        elif (experts := attention_experts(config, number)) > 1:
            adopt(self.attention.self, ExpertSelfAttention)
            self.attention = ExpertAttention(self.attention, experts, config)
        elif config.attention_heads is not None:
            keep_heads(self, family, config.attention_heads[number], config)
        if family.output_dropout and not self.left_out:
            self.set_submodule(family.output_dropout, nn.Dropout(getattr(config, str(family.dropouts[1]))))
        if family.shares_position_biases and not self.left_out:
            self.get_submodule(family.self_attention).register_forward_pre_hook(
                partial(select_position_biases, config, number)
            )

    def replace_ffn(self, config: Any, number: int) -> None:
        """Replace the FFN of the layer of this number."""
        own = FAMILIES[str(FAMILIES[config.model_type].students_of)]
        for path in {_outermost_without(path, own.attention) for path in (own.expand, own.project, own.norm)}:
            above, _, name = path.rpartition(".")
            delattr(self.get_submodule(above), name)
        layer = config.ffn[number]
        experts = layer.get("experts")
        self.router = None
        if experts is not None and not router_class(experts).reads_hidden_states:
            self.router = router_class(experts)(experts, config, is_batched(config.hidden_size, layer["inner"]))
        self.ffn = nn.ModuleList(
            FFNBlock(layer["program"], layer["widths"], layer["inner"], config, experts) for _ in range(layer["stack"])
        )

    def attend(self, hidden_states: Tensor, *args: Any, tokens: Tokens | None = None, **kwargs: Any) -> Tensor:
        """What the first block of the FFN gets, (B, T, width). The other arguments are those of the layer."""
        family = self.family
        attention = self.get_submodule(family.attention)
        if isinstance(attention, ExpertAttention):
            kwargs["tokens"] = tokens
        norm = self.get_submodule(family.attention_norm) if family.adds_residuals else None
        x_BTD = norm(hidden_states) if norm is not None and family.pre_norm else hidden_states
        attended = attention(x_BTD, *args[: family.attention_arguments], **kwargs)
        hidden_BTD: Tensor = attended if isinstance(attended, Tensor) else attended[0]
        if family.attention_dropout:
            hidden_BTD = self.get_submodule(family.attention_dropout)(hidden_BTD)
        if norm is not None:
            hidden_BTD = hidden_BTD + hidden_states
        return hidden_BTD if norm is None or family.pre_norm else norm(hidden_BTD)

    def forward(self, hidden_states: Tensor, *args: Any, tokens: Tokens | None = None, **kwargs: Any) -> Any:
        """As the family's layer, unless it is left out; a model with experts passes `tokens`."""
        family = self.family
        if self.left_out:
            rows, length, _ = hidden_states.shape
            nothing = hidden_states.new_empty(rows, 0, length, length)
            return hidden_states if family.attention_interface else (hidden_states, nothing)
        if not family.attention_interface:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        hidden_BTD = self.attend(hidden_states, *args, tokens=tokens, **kwargs)
        if tokens is None:
            return self.output(hidden_BTD, hidden_BTD)
        routing = None if self.router is None else self.router(hidden_BTD, tokens)
        for block in self.ffn:
            hidden_BTD = block(hidden_BTD, tokens, routing)
        return hidden_BTD

    # The layer's own forward calls these instead of its `feed_forward_chunk`, or of the modules of its FFN.

    def feed_forward_chunk(self, attention_output: Tensor) -> Tensor:
        return self.output(attention_output, attention_output)

    def intermediate(self, attention_output: Tensor) -> Tensor:
        return attention_output

    def output(self, hidden_BTD: Tensor, attention_output: Tensor) -> Tensor:
        for block in self.ffn:
            hidden_BTD = block(hidden_BTD)
        return hidden_BTD


def _outermost_without(path: str, other: str) -> str:
    """The path of the outermost module on the way to `path` in a layer that does not contain the module at `other`."""
    names = path.split(".")
    around = [".".join(names[: count + 1]) for count in range(len(names))]
    return next(each for each in around if not f"{other}.".startswith(f"{each}."))


def _with_tokens(encoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook that gives the layers the tokens of the batch."""
    ids_BT, mask_BT = (
        kwargs.get(name, args[place] if place < len(args) else None)
        for place, name in enumerate(("input_ids", "attention_mask"))
    )
    return args, {**kwargs, "tokens": Tokens(ids_BT, mask_BT)}


def _reset(modules: Iterable[Any]) -> None:
    """Give modules the weights that their constructors would have given them."""
    for module in modules:
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


class Student:
    """A mixin for the base model of a family, and for its models with a head.

    Attributes:
        encoder_class: the family's base model with this mixin.

    Raises:
        ValueError: the configuration describes no student of the family.
    """

    encoder_class: ClassVar[type]
    config: Any
    base_model: Any
    base_model_prefix: str
    init_weights: Any
    modules: Any
    register_forward_pre_hook: Any
    _no_split_modules: Any
    _tied_weights_keys: Any
    get_submodule: Any
    get_input_embeddings: Any
    set_input_embeddings: Any
    all_tied_weights_keys: Any
    set_submodule: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        if fault := configuration_fault(config):
            raise ValueError(fault)
        checkpointing = getattr(config, "gradient_checkpointing", False)  # a constructor removes it
        with init.no_init_weights():
            super().__init__(config, *args, **kwargs)  # type: ignore[call-arg]
            self.become_student()
        encoder = self.base_model
        if encoder is self:
            _reset(self.modules())
            for number, layer in enumerate(self.student_layers):
                layer.replace_ffn(config, number)
        else:
            choice = "add_pooling_layer" in signature(type(encoder)).parameters
            pooling = {"add_pooling_layer": encoder.pooler is not None} if choice else {}
            if checkpointing:
                config.gradient_checkpointing = True
            setattr(self, self.base_model_prefix, self.encoder_class(config, **pooling))
            self._no_split_modules = self.base_model._no_split_modules
            inside = set(self.base_model.modules())
            _reset(module for module in self.modules() if module not in inside)
        self.init_weights()

    def become_student(self) -> None:
        """Replace all modules that the configuration has otherwise, but for the FFNs."""
        if self.base_model is not self:
            self.replace_decoder()
            return
        if self.config.embedding_rank is not None:
            words = self.get_input_embeddings()
            sizes = words.num_embeddings, self.config.embedding_rank, words.embedding_dim
            self.set_input_embeddings(LowRankEmbedding(*sizes, words.padding_idx))
        if is_routed(self.config):
            self.register_forward_pre_hook(_with_tokens, with_kwargs=True)
        for number, layer in enumerate(self.student_layers):
            adopt(layer, StudentLayer)
            layer.replace_attention(self.config, number)
        # What a device map and FSDP keep on one device; FSDP wants no class that the model does not contain.
        kinds = {type(module).__name__ for module in self.modules()}
        layers = {type(layer).__name__ for layer in self.student_layers}
        self._no_split_modules = {*(self._no_split_modules or ()), *layers} & kinds

    def replace_decoder(self) -> None:
        """Tie the output embedding of a masked language model to both parts of a word embedding of lower rank."""
        config, tied = self.config, self._tied_weights_keys or {}
        if config.embedding_rank is None or not config.tie_word_embeddings:
            return
        words = f"{self.base_model_prefix}.{FAMILIES[config.model_type].words}"
        decoders = [target.removesuffix(".weight") for target, source in tied.items() if source == f"{words}.weight"]
        maps = {f"{decoder}.map.weight": f"{words}.map.weight" for decoder in decoders}
        for decoder in decoders:
            sizes = config.vocab_size, config.embedding_rank, config.hidden_size
            has_bias = self.get_submodule(decoder).bias is not None
            self.set_submodule(decoder, LowRankDecoder(*sizes, has_bias))
        self._tied_weights_keys = {**tied, **maps}
        self.all_tied_weights_keys = {**self.all_tied_weights_keys, **maps}

    @property
    def student_layers(self) -> nn.ModuleList:
        """The layers of a base model."""
        layers: nn.ModuleList = self.get_submodule(FAMILIES[self.config.model_type].layers)
        return layers

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """As `PreTrainedModel.from_pretrained`.

        Raises:
            ValueError: `ignore_mismatched_sizes` would replace a routing table by a random one, because the vocabulary
                has another size.
        """
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)  # type: ignore[misc]
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
        embeddings: Any = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)  # type: ignore[misc]
        for module in self.modules():
            if isinstance(module, TableRouter):
                module.resize(embeddings.weight.shape[0])
        return embeddings

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[misc]
        if isinstance(module, GateRouter | ExpertLinear):
            for parameter in module.parameters(recurse=False):
                init.normal_(parameter, std=self.config.initializer_range)
        if isinstance(module, ExpertLinear):
            init.zeros_(module.bias)
        if isinstance(module, LowRankEmbedding):  # words are then as large as those of full rank
            init.normal_(module.map.weight, std=module.embedding_dim**-0.5)
        if isinstance(module, TableRouter):
            init.copy_(module.table, torch.randint(module.count, module.table.shape))

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """As `PreTrainedModel.save_pretrained`, with the code of this folder.

        Raises:
            ValueError: the model has an operation or router that was added at run time, whose code the checkpoint would
                lack.
        """
        if fault := export_fault(self.config.ffn):
            raise ValueError(fault)
        super().save_pretrained(*args, **kwargs)  # type: ignore[misc]


def export_fault(ffn: list[dict[str, Any]]) -> str:
    """Why a model with this `StudentConfig.ffn` cannot be exported; empty if it can."""
    for number, layer in enumerate(ffn):
        added = [f"operation {op!r}" for op, _ in layer["program"] if op not in EXPORTED_OPERATIONS]
        if (experts := layer.get("experts")) and experts["routing"] not in EXPORTED_ROUTERS:
            added.append(f"router {experts['routing']!r}")
        if added:
            return (
                f"layer {number} has the {added[0]}, which was added at run time, and a checkpoint carries only the "
                "code of distill/encoders/student: define it in ffn.py or routing.py there to export models with it"
            )
    return ""

"""The common model tests of transformers over the students of one type of encoders, with its own models as the control.

They are in transformers' source distribution alone. `test_transformers_common.py` fetches that and runs this file in a
process of its own; by hand, with SOURCE an unpacked source distribution of the installed version, in which there is a
file tests/__init__.py:

    TRANSFORMERS_SOURCE=SOURCE MODEL_TYPE=bert pytest -c /dev/null -p no:cacheprovider \\
        tests/distill/encoders/student/transformers_common.py
"""

import os
import sys
import types
import unittest
from fractions import Fraction
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto

from distill.encoders.student.families import FAMILIES
from distill.encoders.student.routing import TableRouter
from distill.encoders.students import CLASSES
from search_spaces import FFN, GELU, Architecture, Experts, FFNGraph
from supernet.build import base_of_teacher, config_of


def module(name: str, **contents: Any) -> types.ModuleType:
    """A new module `transformers_tests.name` with these contents."""
    made = types.ModuleType(f"transformers_tests.{name}".removesuffix("."))
    made.__dict__.update(contents)
    sys.modules[made.__name__] = made
    return made


# Their modules import each other relatively, and the name `tests` is taken. Three that they import are not distributed:
# those test generation and exports, and list the settings that every configuration has.
module("").__path__ = [os.path.join(os.environ["TRANSFORMERS_SOURCE"], "tests")]
module("exporters"), module("exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
module("generation"), module("generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
module("utils"), module("utils.test_configuration_utils", config_common_kwargs={})

from transformers_tests.test_configuration_common import ConfigTester  # noqa: E402
from transformers_tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask  # noqa: E402

MODEL_TYPE = os.environ["MODEL_TYPE"]
FAMILY = FAMILIES[MODEL_TYPE]
# By these names the tests know what a class of models is for, and which labels it needs.
KINDS = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
}
MODELS = [CLASSES[MODEL_TYPE][auto] for auto in KINDS if auto in CLASSES[MODEL_TYPE]]
for auto, mapping in KINDS.items():
    if auto in CLASSES[MODEL_TYPE]:
        getattr(modeling_auto, mapping)[f"nas_{MODEL_TYPE}"] = CLASSES[MODEL_TYPE][auto].__name__

BATCH, TOKENS = 13, 7
SIZES = {"depth": 2, "width": 32, "heads": 4, "inner": 37, "vocabulary": 99, "positions": 64, "token_types": 16}
# What models of a type need beside these sizes to be small.
SETTINGS: dict[str, dict[str, Any]] = {
    "albert": {"embedding_size": 16, "num_hidden_groups": 2},
    "deberta-v2": {"relative_attention": False, "position_biased_input": True},
    "electra": {"embedding_size": 32},
    "eurobert": {"num_key_value_heads": 4, "bos_token_id": 1, "eos_token_id": 2, "mask_token_id": 3},
    "modernbert": {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
}
HALF = Fraction(1, 2)


def own_config() -> Any:
    """The configuration of the control."""
    sizes = {FAMILY.sizes[name]: size for name, size in SIZES.items() if name in FAMILY.sizes}
    sizes["max_position_embeddings"] = SIZES["positions"]
    return CONFIG_MAPPING[MODEL_TYPE](
        **sizes, **SETTINGS.get(MODEL_TYPE, {}), num_labels=Tester.num_labels, pad_token_id=0
    )


def student_config(kind: str) -> Any:
    """The configuration of a student."""
    base, graph = base_of_teacher(own_config())
    gated = "project(mul(gelu(expand(x)),gate(x)))" if graph.gated else "project(mul(gelu(expand(x)),x))"
    layers = {
        "dense": (FFN(graph, 1, Fraction(1)), FFN(FFNGraph.parse(gated), 2, HALF)),
        "hash": (FFN(GELU, 1, HALF, Experts(2, routing="hash")), FFN(GELU, 1, Fraction(1))),
        "gate": (
            FFN(GELU, 1, HALF, Experts(2, routing="token_gate")),
            FFN(GELU, 1, HALF, Experts(2, routing="sentence_gate")),
        ),
    }
    return config_of(Architecture.of_ffns(base, layers[kind]), Tester.num_labels, template=own_config())


class Tester:
    """What the tests ask for: a configuration and inputs, and the sizes that the outputs must have."""

    is_training = True
    batch_size, seq_length, encoder_seq_length, key_length = BATCH, TOKENS, TOKENS, TOKENS
    hidden_size, num_hidden_layers, num_attention_heads = SIZES["width"], SIZES["depth"], SIZES["heads"]
    vocab_size, num_labels = SIZES["vocabulary"], 2

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def get_config(self) -> Any:
        return own_config() if self.kind == "own" else student_config(self.kind)

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, torch.Tensor]]:
        shape, config = [BATCH, TOKENS], self.get_config()
        # Without ids of padding, whose positions some types count otherwise.
        ids = ids_tensor(shape, self.vocab_size).clamp(min=4)
        given = {"input_ids": ids, "attention_mask": random_attention_mask(shape)}
        if types := FAMILY.size(config, "token_types"):
            given["token_type_ids"] = ids_tensor(shape, types)
        return config, given


class Common(ModelTesterMixin):
    kind: str
    all_model_classes: Any = tuple(MODELS)

    def setUp(self) -> None:
        self.model_tester = Tester(self.kind)

    def test_config(self) -> None:
        config_class = type(self.model_tester.get_config())
        ConfigTester(self, config_class=config_class, **{FAMILY.sizes["width"]: 48}).run_common_tests()


class Routed(Common):
    def test_feed_forward_chunking(self) -> None:
        """Layers of experts process whole sentences; the setting is refused."""
        config = self.model_tester.get_config()
        config.chunk_size_feed_forward = 1
        for model_class in self.all_model_classes:
            with self.assertRaisesRegex(ValueError, "chunk_size_feed_forward is 1"):
                model_class(config)


class OwnTest(Common, unittest.TestCase):
    kind = "own"
    all_model_classes = tuple(getattr(transformers, model.__name__.removeprefix("Nas")) for model in MODELS)


class DenseTest(Common, unittest.TestCase):
    kind = "dense"


class GateTest(Routed, unittest.TestCase):
    kind = "gate"


class HashTest(Routed, unittest.TestCase):
    kind = "hash"

    @unittest.skip("hash routing goes by token ids")
    def test_inputs_embeds_matches_input_ids(self) -> None: ...

    @unittest.skip("routing tables of another vocabulary are refused; test_experts_in_model.py")
    def test_load_with_mismatched_shapes(self) -> None: ...

    def test_inputs_embeds(self) -> None:
        """Hash routing goes by token ids."""
        config, inputs = self.model_tester.prepare_config_and_inputs_for_common()
        inputs["inputs_embeds"] = torch.zeros(BATCH, TOKENS, Tester.hidden_size)
        del inputs["input_ids"]
        for model_class in self.all_model_classes:
            with self.assertRaisesRegex(ValueError, "hash routing goes by token ids"):
                model_class(config)(**inputs)

    def test_init_weights_can_init_buffers(self) -> None:
        """Routing tables are drawn, so unlike other buffers they depend on the seed; all their experts are used."""
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            tables = [module.table for module in model.modules() if isinstance(module, TableRouter)]
            self.assertEqual([table.unique().tolist() for table in tables], [[0, 1]])

"""The common model tests of transformers over our classes, with plain BERT as the control.

They are in transformers' source distribution alone. `test_transformers_common.py` fetches that and runs this file in a
process of its own; by hand, with SOURCE an unpacked source distribution of the installed version, in which there is a
file tests/__init__.py:

    TRANSFORMERS_SOURCE=SOURCE pytest -c /dev/null -p no:cacheprovider \\
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
from transformers import BertConfig
from transformers.models.auto import modeling_auto

from distill.encoders.student.modeling_nas_bert import NasBertConfig
from distill.encoders.student.routing import TableRouter
from distill.encoders.students import CLASSES
from search_spaces import FFN, GELU, Architecture, Base, Experts, FFNGraph
from supernet.build import config_of


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

# By these names the tests know what a class of models is for, and which labels it needs.
MODELS = {
    "MODEL_MAPPING_NAMES": CLASSES["bert"]["AutoModel"],
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": CLASSES["bert"]["AutoModelForMaskedLM"],
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": CLASSES["bert"]["AutoModelForSequenceClassification"],
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": CLASSES["bert"]["AutoModelForTokenClassification"],
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": CLASSES["bert"]["AutoModelForQuestionAnswering"],
}
for mapping, model_class in MODELS.items():
    getattr(modeling_auto, mapping)[NasBertConfig.model_type] = model_class.__name__

BATCH, TOKENS, VOCABULARY, TYPES = 13, 7, 99, 16
BASE = Base(depth=2, width=32, heads=4, inner=37, vocabulary=VOCABULARY, positions=64, token_types=TYPES)
HALF = Fraction(1, 2)
ARCHITECTURES = {
    "dense": (FFN(GELU, 1, Fraction(1)), FFN(FFNGraph.parse("project(mul(gelu(expand(x)),x))"), 2, HALF)),
    "hash": (FFN(GELU, 1, HALF, Experts(2, routing="hash")), FFN(GELU, 1, Fraction(1))),
    "gate": (
        FFN(GELU, 1, HALF, Experts(2, routing="token_gate")),
        FFN(GELU, 1, HALF, Experts(2, routing="sentence_gate")),
    ),
}


class Tester:
    """What the tests ask for: a configuration and inputs, and the sizes that the outputs must have."""

    is_training = True
    batch_size, seq_length, encoder_seq_length, key_length = BATCH, TOKENS, TOKENS, TOKENS
    hidden_size, num_hidden_layers, num_attention_heads = BASE.width, BASE.depth, BASE.heads
    vocab_size, num_labels = VOCABULARY, 2

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def get_config(self) -> BertConfig:
        if self.kind != "bert":
            return config_of(Architecture.of_ffns(BASE, ARCHITECTURES[self.kind]), num_labels=self.num_labels)
        return BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=BASE.width,
            num_hidden_layers=BASE.depth,
            num_attention_heads=BASE.heads,
            intermediate_size=BASE.inner,
            max_position_embeddings=BASE.positions,
            type_vocab_size=TYPES,
            num_labels=self.num_labels,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[BertConfig, dict[str, torch.Tensor]]:
        shape = [BATCH, TOKENS]
        return self.get_config(), {
            "input_ids": ids_tensor(shape, VOCABULARY),
            "token_type_ids": ids_tensor(shape, TYPES),
            "attention_mask": random_attention_mask(shape),
        }


class Common(ModelTesterMixin):
    kind: str
    all_model_classes: Any = tuple(MODELS.values())

    def setUp(self) -> None:
        self.model_tester = Tester(self.kind)

    def test_config(self) -> None:
        config_class = type(self.model_tester.get_config())
        ConfigTester(self, config_class=config_class, hidden_size=37).run_common_tests()


class Routed(Common):
    def test_feed_forward_chunking(self) -> None:
        """Layers of experts process whole sentences; the setting is refused."""
        config = self.model_tester.get_config()
        config.chunk_size_feed_forward = 1
        for model_class in self.all_model_classes:
            with self.assertRaisesRegex(ValueError, "chunk_size_feed_forward is 1"):
                model_class(config)


class BertTest(Common, unittest.TestCase):
    kind = "bert"
    all_model_classes = tuple(getattr(transformers, name.__name__.removeprefix("Nas")) for name in MODELS.values())


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
        inputs["inputs_embeds"] = torch.zeros(BATCH, TOKENS, BASE.width)
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

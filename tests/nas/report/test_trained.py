"""The trained student beside its teacher: attention and FFN outputs (EfficientBERT, figures 7 and 8)."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cosine_similarity
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
)

from foundation.files import save_pretrained
from nas.config.load import load_config
from nas.preparation.context import preparation_context
from nas.preparation.teacher import prepare_data
from nas.report import command
from nas.report.page import Picture
from nas.report.trained import draw_attention, of_model, trained
from search_spaces import FFN, GELU, Architecture
from search_spaces.layer import Attention, Layer
from supernet.build import base_of_teacher, build
from tests.nas.report import synthetic
from tests.nas.rows import DEV, sentences, study
from tests.nas.tiny_study import TinyStudy
from tests.tiny import BASE, SIZES, batch, bert, shaken


def test_figures_7_and_8(tiny_study: TinyStudy, tmp_path: Path) -> None:
    """They show transformers' own attention and what comes out of the modules, for the first sentence, and for the
    teacher of the training, in whatever precision that was.
    """
    config = load_config(str(study(tiny_study, tmp_path, "rows", seed=77)))
    context, checkpoint = preparation_context(config, "cpu", precision="bf16"), tmp_path / "final"
    size = BertConfig.from_pretrained(tiny_study.teacher, num_labels=3)
    base, graph = base_of_teacher(size)
    student = build(Architecture.uniform(base, graph=graph, expansion=Fraction(1, 2)), num_labels=3, template=size)
    save_pretrained(checkpoint, shaken(student, 1), context.tokenizer)
    (checkpoint / "config.toml").write_text(config.to_toml())
    (checkpoint / "metrics.json").write_text('{"metrics": [], "models": {}, "dev_rows": 0, "precision": "bf16"}')
    (reason,) = trained(checkpoint).parts
    assert "left out: the cache" in str(reason)
    prepare_data(context)
    save_pretrained(context.teacher, shaken(BertForSequenceClassification(size), 2), context.tokenizer)

    text = sentences()[DEV][0][0]
    batch = AutoTokenizer.from_pretrained(tiny_study.teacher)(text, f"{text.split()[0]}.", return_tensors="pt")
    attention, outputs = [], []
    for folder, module in ((context.teacher, "output"), (checkpoint, "ffn.0")):
        model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
        own: list[torch.Tensor] = []
        for layer in model.base_model.encoder.layer:
            layer.get_submodule(module).register_forward_hook(
                lambda _module, _inputs, output, own=own: own.append(output[0])
            )
        with torch.inference_mode():
            attention += list(model(**batch, output_attentions=True).attentions[-1][0])
        outputs.append(own)
    of_attention, of_outputs, similarity = trained(checkpoint).parts
    for picture, expected in ((of_attention, attention), (of_outputs, [own[-1] for own in outputs])):
        assert isinstance(picture, Picture) and not isinstance(picture.drawn, str)
        shown = [image.get_array() for axis in picture.drawn.axes for image in axis.images]
        assert len(shown) == len(expected)
        for values, own_values in zip(shown, expected, strict=True):
            np.testing.assert_allclose(np.asarray(values), own_values, atol=1e-5)
    means = [cosine_similarity(one, other, dim=-1).mean() for one, other in zip(*outputs, strict=True)]
    assert str(similarity).endswith(f"{means[0]:.3f}, {means[1]:.3f}.")

    synthetic.write(tmp_path / "demo", trials=0, unfinished=True)
    assert command.main([str(tmp_path / "demo"), "--checkpoint", str(checkpoint)]) == 0
    assert {"attention.png", "ffn-outputs.png"} <= {file.name for file in (tmp_path / "demo" / "report").iterdir()}


def test_layers_without_heads() -> None:
    """The attention is that of the last layer that has heads, and a model without any has no row."""
    base = replace(BASE, depth=2)
    few, none = (Layer(Attention(heads), FFN(GELU, 1, Fraction(1, 2))) for heads in (2, 0))
    sentence = {name: values[:1] for name, values in batch().items()}
    teacher = of_model(bert(), sentence)
    assert (teacher.attending, teacher.relative) == (2, False)
    for layers, attending in (((few, none), 1), ((few, Layer(Attention(0), FFN(stack=0))), 1), ((none, none), 0)):
        student = of_model(shaken(build(Architecture(base, layers))).eval(), sentence)
        assert (student.attending, student.outputs_LTD.shape) == (attending, teacher.outputs_LTD.shape)
        drawn = draw_attention(["a"] * 9, {"teacher": teacher, "student": student})
        shown = [axis.get_title() for axis in drawn.axes if axis.images]
        assert sum(title.startswith("student") for title in shown) == 2 * attending
        assert sum(title.startswith("teacher") for title in shown) == 4


def test_terms_of_relative_positions() -> None:
    config = DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=4)
    sentence = {name: values[:1] for name, values in batch().items()}
    assert of_model(DebertaV2ForSequenceClassification(config).eval(), sentence).relative

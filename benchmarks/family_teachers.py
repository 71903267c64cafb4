"""Makes small encoders of types of which no package brings weights: MiniLM is distilled into them.

Each encoder has MiniLM's sizes, vocabulary and word embedding. It learns the last hidden states of MiniLM on the text
of this installation by their mean square error; the cosine of the states of held-out sentences says how well. It is
saved in a folder of --out, with MiniLM's tokenizer, as a teacher for a search (`--teacher`).
"""

import random
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import (
    AutoModel,
    DebertaV2Config,
    EuroBertConfig,
    ModernBertConfig,
    get_linear_schedule_with_warmup,
)

from benchmarks.common import Report
from distill.encoders.family import family_of
from distill.encoders.student.anatomy import SIZES
from distill.tasks.corpora import embedded_corpus
from distill.training.loop import make_accelerator
from distill.training.teacher import load_tokenizer, load_unchanged

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
TYPES = [config.model_type for config in (ModernBertConfig, EuroBertConfig, DebertaV2Config)]
HELD_OUT, LENGTH, BATCH = 512, 64, 32


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=1000, help="of training; default: %(default)s")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder for the encoders")


def run(options: Namespace, report: Report) -> None:
    minilm, tokenizer = load_unchanged(MINILM).eval().requires_grad_(False), load_tokenizer(MINILM)
    texts = list(embedded_corpus().texts)
    random.Random(0).shuffle(texts)

    def batch(rows: list[str]) -> dict[str, Tensor]:
        encoded = tokenizer(rows, return_tensors="pt", padding=True, truncation=True, max_length=LENGTH)
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}

    held_out = [batch(texts[first : first + BATCH]) for first in range(0, HELD_OUT, BATCH)]
    accelerator, configs = make_accelerator("cpu"), _configs(minilm, tokenizer)
    training = texts[HELD_OUT:]
    cosines: dict[str, float] = {}
    for model_type in options.types:
        torch.manual_seed(0)
        model = _untrained(configs[model_type], minilm)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        schedule = get_linear_schedule_with_warmup(optimizer, options.steps // 20, options.steps)
        for step in range(options.steps):
            given = batch(random.Random(step + 1).sample(training, BATCH))
            with accelerator.autocast():
                states = [each(**given).last_hidden_state.float() for each in (minilm, model.train())]
            valid_BT = given["attention_mask"].bool()
            functional.mse_loss(states[1][valid_BT], states[0][valid_BT]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if (step + 1) % 500 == 0 or step + 1 == options.steps:
                report.progress(f"{model_type}, step {step + 1}: cosine {_cosine(model, minilm, held_out):.4f}")
        cosines[model_type] = _cosine(model, minilm, held_out)
        model.save_pretrained(options.out / model_type)
        tokenizer.save_pretrained(options.out / model_type)
    report.table(["type", "cosine"], [[model_type, f"{cosine:.4f}"] for model_type, cosine in cosines.items()])
    report.save({"cosines": cosines}, seeds=[0])


def _configs(minilm: Any, tokenizer: Any) -> dict[str, Any]:
    """Configurations with the sizes of MiniLM, by their types, and otherwise with what the published models of these
    types have. An FFN with a gate has two thirds of the inner width, and so as many parameters.
    """
    sizes: Any = {
        key: getattr(minilm.config, key) for name, key in SIZES.items() if name not in ("inner", "token_types")
    }
    inner = getattr(minilm.config, SIZES["inner"])
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    ids: Any = {"pad_token_id": tokenizer.pad_token_id, "bos_token_id": first, "eos_token_id": last}
    found = (
        ModernBertConfig(
            **sizes, **ids, cls_token_id=first, sep_token_id=last, intermediate_size=inner * 2 // 3, local_attention=32
        ),
        EuroBertConfig(
            **sizes,
            **ids,
            mask_token_id=tokenizer.mask_token_id,
            intermediate_size=inner * 2 // 3,
            num_key_value_heads=4,
        ),
        DebertaV2Config(
            **sizes,
            **ids,
            intermediate_size=inner,
            type_vocab_size=0,
            relative_attention=True,
            position_biased_input=False,
            max_relative_positions=-1,
            position_buckets=64,
            pos_att_type=["p2c", "c2p"],
            share_att_key=True,
            norm_rel_ebd="layer_norm",
        ),
    )
    return {config.model_type: config for config in found}


def _untrained(config: Any, minilm: Any) -> Any:
    """A model with this configuration and the word embedding of MiniLM, otherwise with random weights."""
    model = AutoModel.from_config(config)
    words = model.get_submodule(family_of(model).words)
    words.weight.data.copy_(minilm.get_input_embeddings().weight)
    return model


@torch.no_grad()
def _cosine(model: Any, minilm: Any, batches: list[dict[str, Tensor]]) -> float:
    """The mean cosine between the states of the two models, over tokens."""
    found = []
    for given in batches:
        wanted, state = (each(**given).last_hidden_state for each in (minilm, model.eval()))
        found.append(functional.cosine_similarity(wanted, state, dim=-1)[given["attention_mask"].bool()])
    return float(torch.cat(found).mean())

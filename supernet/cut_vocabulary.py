"""Cut the vocabulary of an encoder to the tokens that occur in a text, and the base alphabet.

    python -m supernet.cut_vocabulary CHECKPOINT --task NAME --out DIR [--data DIR] [--vocab-size N]
    python -m supernet.cut_vocabulary CHECKPOINT --train FILE --dev FILE --text COLUMN --label COLUMN --out DIR
    python -m supernet.cut_vocabulary CHECKPOINT --corpus FILE|DIR|NAME ... --out DIR

CHECKPOINT is an encoder with any head, or the folder of a student; its tokenizer is a fast one: WordPiece, BPE or
Unigram. DIR gets the same model with fewer rows in its embeddings, and a tokenizer with as many tokens. Training rows
are tokenized as before, so that the model computes the same for them, unless more tokens occur in them than
--vocab-size. Other text may be divided into more tokens. If CHECKPOINT has a head for the rows, the scores of both are
measured.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.cli import Parser, add_device_option, add_output_options, add_precision_option, at_least, interruptible
from distill.command.folder import check_new
from distill.command.options import add_rows_options, check_minima, check_rows

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedModel

    from distill.tasks.encoding import Encoded
    from distill.training.evaluation import EvalSet
    from distill.training.measure import Measurements
    from distill.training.run import Examples

# Slow imports are inside functions, where Ctrl-C is caught.

# The names of the models in metrics.json.
WHOLE, CUT = "whole", "cut"


def parser() -> Parser:
    result = Parser("supernet.cut_vocabulary", description=__doc__)
    add = result.add_argument
    add("checkpoint", help="an encoder (a folder, or a name on the hub), or the folder of a student")
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder of the smaller checkpoint")
    most = "keep at most N tokens, the most frequent (default: all that occur in the rows)"
    add("--vocab-size", dest="pieces", type=at_least(1), metavar="N", help=most)  # the key in metrics.json
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    text = "text without labels, one source or several: a .txt file, a folder of such files, or a hub data set"
    rows.add_argument("--corpus", nargs="+", metavar="TEXT", help=text)
    add_device_option(result)
    add_precision_option(result)
    add_output_options(result, "the content of metrics.json")
    # What else `distill` does with rows.
    result.set_defaults(pack=False, masked_lm=False, finetune_teacher=0)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("supernet.cut_vocabulary", lambda: run(options))


def check(options: argparse.Namespace) -> None:
    """Raise UserError for invalid options, before anything is loaded."""
    check_rows(options, parser())
    check_minima(options, max_length=8)
    check_new(options.out)


def run(options: argparse.Namespace) -> int:
    """Cut the vocabulary, measure the model before and after, and save it with these measurements."""
    check(options)
    import torch

    from distill.command.examples import load_examples
    from distill.command.report import report, write_and_show
    from distill.tasks import splits
    from distill.tasks.encoding import token_frequencies
    from distill.tasks.long_texts import UNTRUNCATED
    from distill.tasks.types.embeddings import EMBEDDINGS
    from distill.training.layout import ARCHITECTURE_FILE
    from distill.training.loop import make_accelerator
    from distill.training.progress import silence_transformers
    from distill.training.sentences import is_sentence_encoder, lower_case, lower_cases
    from distill.training.teacher import (
        check_vocabulary,
        load_config,
        load_model,
        load_tokenizer,
        load_unchanged,
        locate,
        outputs_of,
    )
    from foundation.files import scratch_folder
    from search_spaces.architecture import Architecture
    from supernet.vocabulary import cut_model, cut_tokenizer, ids_in_use, kept_ids

    silence_transformers()
    source, most = options.checkpoint, options.pieces
    accelerator = make_accelerator(options.device, options.mixed_precision)
    config = load_config(source, students=True)
    modules_of = locate(source) if is_sentence_encoder(locate(source)) else None
    tokenizer = load_tokenizer(source, None if modules_of is None else EMBEDDINGS)
    check_vocabulary(source, config, tokenizer)
    also = ids_in_use(tokenizer, config)
    kept_ids(tokenizer, torch.zeros(0), most, also)  # refuses what it would refuse after all rows have been read
    stored = Path(source) / ARCHITECTURE_FILE
    architecture = Architecture.load(stored) if stored.exists() else None
    model = load_unchanged(source)

    # All of a row counts.
    untruncated = argparse.Namespace(**vars(options) | {"max_length": UNTRUNCATED, "long_texts": splits.CUT})
    examples = load_examples(untruncated, tokenizer, outputs_of(config), True)
    kept = kept_ids(tokenizer, token_frequencies(examples.train, config.vocab_size), most, also)
    with scratch_folder() as folder:
        small = cut_tokenizer(tokenizer, kept, folder)
    if modules_of is not None and lower_cases(modules_of):
        lower_case(small)
    after = load_examples(untruncated, small, outputs_of(config), True)
    differently = count_retokenized(examples, after, kept, most)
    if scores := scorable(model, examples):  # its head must be for the classes of the rows
        model = load_model(source, examples.labels, examples.task_type, new_head=False)
    models = {WHOLE: model.eval(), CUT: cut_model(model, kept)}
    measured = measurements(models, {WHOLE: examples, CUT: after}, options, accelerator)
    metrics = report(options, examples, accelerator, measured, spelled_otherwise=differently)
    if not scores:
        metrics["metrics"] = ()
    if architecture is not None:
        architecture = replace(architecture, base=replace(architecture.base, vocabulary=len(kept)))
    return write_and_show(options, metrics, models[CUT], small, architecture, *lines(metrics), modules_of=modules_of)


def count_retokenized(before: "Examples", after: "Examples", kept: Sequence[int], most: int | None) -> dict[str, int]:
    """The number of examples that are divided into other tokens than before, by the name of the split.

    Raises:
        RuntimeError: training rows are, although all their tokens are kept; only a word with an unknown character may
            be, since a shorter token at its start may be followed by one with that character.
    """
    from supernet.vocabulary import examples_with_token, tokenized_differently

    train, unknown = tokenized_differently(before.train, after.train, kept), before.tokenizer.unk_token_id
    if most is None and (wrong := set(train.tolist()) - examples_with_token(before.train, unknown)):
        raise RuntimeError(f"training row {min(wrong)} is divided into other tokens, although all of its own are kept")
    counts = {"train": len(train)}
    if before.eval_set is not None and after.eval_set is not None:
        counts["dev"] = len(tokenized_differently(before.eval_set.encoded, after.eval_set.encoded, kept))
    return counts


def scorable(model: "PreTrainedModel", examples: "Examples") -> bool:
    """Whether the model has a head of the type that the rows of the dev split need."""
    from distill.tasks.types import get_task_type, task_type_of

    head = task_type_of(model)
    return (
        examples.eval_set is not None and head is not None and head.suffix == get_task_type(examples.task_type).suffix
    )


def measurements(
    models: Mapping[str, "PreTrainedModel"],
    examples: Mapping[str, "Examples"],
    options: argparse.Namespace,
    accelerator: "Accelerator",
) -> "Measurements":
    """What is measured of each model, with the examples as its tokenizer encodes them: its size, the mean tokens of a
    row (of the dev split, if there is one) and, if it can be scored, all metrics on dev rows as the options cut them,
    the cut model's with the difference to the whole one's.

    Raises:
        UserError: the model has fewer positions than a row has tokens.
    """
    from distill.training.measure import measure, scores

    measured = measure(models, None, accelerator)
    rows = len(counted(examples[WHOLE]))
    for name, model in models.items():
        parameters = list(model.parameters())
        measured[name] |= {
            "bytes": sum(parameter.numel() * parameter.element_size() for parameter in parameters),
            "pieces": model.config.vocab_size,
            "tokens_per_row": len(counted(examples[name]).input_ids) / rows,
        }
    if scorable(models[WHOLE], examples[WHOLE]):
        sets = {name: truncated(models[name], of_model, options) for name, of_model in examples.items()}
        contributions = {name: sets[name].contributions(model, accelerator) for name, model in models.items()}
        for name, metrics in scores(sets[WHOLE].task, contributions, WHOLE).items():
            measured[name] |= metrics
    return measured


def counted(examples: "Examples") -> "Encoded":
    """The rows whose tokens are counted: of the dev split, or if there is none, of the text."""
    return examples.train if examples.eval_set is None else examples.eval_set.encoded


def truncated(model: "PreTrainedModel", examples: "Examples", options: argparse.Namespace) -> "EvalSet":
    """The dev split in rows of up to `--max-length` tokens, as `--long-texts` says.

    Raises:
        UserError: the model has fewer positions than a row has tokens.
    """
    from distill.tasks.types import encode
    from distill.training.teacher import check_positions

    assert examples.eval_set is not None
    split = examples.eval_set.split
    length, kinds = options.max_length, {"task_type": examples.task_type, "long_texts": options.long_texts}
    encoded = encode(examples.tokenizer, split, length, **kinds)
    check_positions(model.name_or_path, model.config, int(encoded.lengths.max()), f"--max-length {length}")
    return replace(examples.eval_set, encoded=encoded)


def lines(metrics: Mapping[str, Any]) -> Iterator[str]:
    """What metrics.json has and its table does not."""
    whole, cut = (metrics["models"][name] for name in (WHOLE, CUT))
    yield f"vocabulary:     {whole['pieces']:,} → {cut['pieces']:,} tokens"
    yield f"weights:        {whole['bytes'] / 1e6:.1f} MB → {cut['bytes'] / 1e6:.1f} MB"
    yield f"tokens per row: {whole['tokens_per_row']:.2f} → {cut['tokens_per_row']:.2f}"
    rows = {"train": "training rows", "dev": "dev rows"}
    of = {name: f"{count:,} {rows[name]}" for name, count in metrics["spelled_otherwise"].items()}
    yield f"divided into other tokens than before: {' and '.join(of.values())}"


if __name__ == "__main__":
    sys.exit(main())

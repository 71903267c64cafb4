"""Prune an encoder to a share of its layers: attention heads and FFN channels of all layers, by their importance.

    python -m supernet.prune CHECKPOINT --keep 5% --task NAME --out DIR [--data DIR]
    python -m supernet.prune CHECKPOINT --keep 5% --train FILE --dev FILE --text COLUMN --label COLUMN --out DIR

CHECKPOINT was fine-tuned on the task. Importance is the absolute change of a row's loss, to first order, if a head
or channel is masked, summed over training rows and divided by the l2 norm of these sums over its layer. The most
important heads of all layers are kept, and the most important channels. DIR gets an ordinary checkpoint of that size
with its architecture.json, for `python -m distill --student DIR` and `python -m nas.export DIR`.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from distill.cli import DONE, Parser, add_device_option, add_precision_option, interruptible
from distill.command.options import add_rows_options, check_labelled_rows, check_minima, check_new, write_new
from distill.files import save_pretrained
from search_spaces.numbers import share

# Slow imports are inside functions, where Ctrl-C is caught.


def parser() -> Parser:
    result = Parser(prog="supernet.prune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = result.add_argument
    add("checkpoint", help="a fine-tuned encoder: a folder, or a name on the hub")
    add(
        "--keep",
        required=True,
        type=_share,
        metavar="SHARE",
        help="share of the parameters of the encoder's layers that is kept at most, such as 5%% or 1/20",
    )
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder of the pruned checkpoint")
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    add = rows.add_argument
    add(
        "--importance-batches",
        type=int,
        default=16,
        metavar="N",
        help="training batches on which the importance is measured (default: %(default)s)",
    )
    add("--batch-size", type=int, default=32, metavar="N", help="rows per batch (default: %(default)s)")
    result.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the batches (default: %(default)s)")
    add_device_option(result)
    add_precision_option(result)
    result.set_defaults(corpus=None)  # rows are those of `distill`, where they may also be text without labels
    return result


def _share(text: str) -> Fraction:
    try:
        return share(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        return run(options)

    return interruptible("supernet.prune", command)


def check(options: argparse.Namespace) -> None:
    """Raise UserError for invalid options, before anything is loaded."""
    check_labelled_rows(options, parser())
    check_minima(options, seed=0, batch_size=1, importance_batches=1, max_length=8)
    check_new(options.out)


def run(options: argparse.Namespace) -> int:
    """Prune the model, measure it before and after, and save it with these measurements."""
    import torch
    from rich.console import Console
    from transformers.utils import logging

    from distill.command.report import METRICS_FILE, measure
    from distill.command.rows import check_sizes, load_rows
    from distill.tasks.encoding import training_batches
    from distill.tasks.metrics import Score
    from distill.training.loop import make_accelerator
    from distill.training.teacher import labels_of, load_config, load_model, load_tokenizer
    from supernet.pruning import encoder_params, pruned_to
    from supernet.student import ARCHITECTURE

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(options.seed)
    console = Console(highlight=False, soft_wrap=True)
    accelerator = make_accelerator(options.device, options.mixed_precision)
    config, tokenizer = load_config(options.checkpoint), load_tokenizer(options.checkpoint)
    rows = load_rows(options, tokenizer, labels_of(config))
    check_sizes(options, config, options.checkpoint, rows, tokenizer)
    assert rows.task is not None
    dense = load_model(options.checkpoint, rows.labels, rows.kind, new_head=False).eval()
    pad_id = tokenizer.pad_token_id
    batches = training_batches(rows.train, options.batch_size, options.importance_batches, options.seed, pad_id)
    pruned, architecture = pruned_to(dense.to(accelerator.device), batches, options.keep)
    models = {"dense": dense, "pruned": pruned}
    measurements = {name: measure(model, rows, accelerator, pad_id) for name, model in models.items()}
    whole = encoder_params(dense)
    for name, model in models.items():
        measurements[name]["encoder_share"] = encoder_params(model) / whole
        scores = (f"{metric} {Score(**measurements[name][metric])}, " for metric in rows.task.metrics)
        console.print(
            f"{name}: {''.join(scores)}{measurements[name]['params'] / 1e6:.2f} M parameters, "
            f"{measurements[name]['encoder_share']:.2%} of the encoder"
        )
    heads = [layer.attention.heads for layer in architecture.layers]
    widths = [ffn.inner(architecture.base) for ffn in architecture.ffns]
    console.print(f"heads of each layer:    {' '.join(map(str, heads))}")
    console.print(f"channels of each layer: {' '.join(map(str, widths))}")
    used_options = {name: str(value) for name, value in vars(options).items() if value is not None}
    report = {"options": used_options, "heads": heads, "channels": widths, "models": measurements}

    def write(folder: Path) -> None:
        save_pretrained(folder, pruned, tokenizer)
        architecture.save(folder / ARCHITECTURE)
        (folder / METRICS_FILE).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")

    write_new(options.out, write)
    console.print(f"wrote {options.out}")
    return DONE


if __name__ == "__main__":
    sys.exit(main())

"""Prune an encoder to a fraction of its layers: attention heads and neurons of all layers, by their importance.

    python -m supernet.prune CHECKPOINT --keep-params 5% --task NAME --out DIR [--data DIR]
    python -m supernet.prune CHECKPOINT --keep-params 5% --train FILE --dev FILE --text COLUMN --label COLUMN --out DIR

CHECKPOINT was fine-tuned on the task. Importance is the absolute change of a row's loss, to first order, if a head
or neuron is masked, summed over training rows and divided by the l2 norm of these sums over its layer. The most
important heads of all layers are kept, and the most important neurons. DIR gets a student checkpoint of that
size, which loads with trust_remote_code, and its architecture.json, for `python -m distill --student DIR` and
`python -m nas.export DIR`.
"""

import argparse
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from distill.cli import Parser, interruptible
from distill.command.folder import check_new
from distill.command.options import (
    add_batch_size_option,
    add_importance_option,
    add_rows_options,
    add_run_options,
    check_labeled_rows,
    check_minima,
)
from search_spaces.numbers import proportion

# Slow imports are inside functions, where Ctrl-C is caught.


def parser() -> Parser:
    result = Parser("supernet.prune", description=__doc__)
    add = result.add_argument
    add("checkpoint", help="a fine-tuned encoder: a folder, or a name on the hub")
    largest = "largest fraction of the parameters of the encoder's layers that is kept, such as 5%% or 1/20"
    # The key in metrics.json is "keep".
    add("--keep-params", dest="keep", required=True, type=_fraction, metavar="FRACTION", help=largest)
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder of the pruned checkpoint")
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    add_importance_option(rows)
    add_batch_size_option(rows)
    add_run_options(result, "the batches")
    result.set_defaults(corpus=None)  # rows are those of `distill`, where they may also be text without labels
    return result


def _fraction(text: str) -> Fraction:
    try:
        return proportion(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("supernet.prune", lambda: run(options))


def check(options: argparse.Namespace) -> None:
    """Raise UserError for invalid options, before anything is loaded."""
    check_labeled_rows(options, parser())
    check_minima(options, seed=0, batch_size=1, importance_batches=0, max_length=8)
    check_new(options.out)


def run(options: argparse.Namespace) -> int:
    """Prune the model, measure it before and after, and save it with these measurements."""
    check(options)
    from distill.command.examples import batches_for_importance, open_examples
    from distill.command.report import report, write_and_show
    from distill.training.kept_teacher import check_kept
    from distill.training.measure import measure
    from distill.training.teacher import load_model
    from supernet.build import base_of_teacher, from_teacher
    from supernet.order.importance import mask_importance, summed_loss
    from supernet.pruning import PruningError, choose, encoder_params, prune

    accelerator, _, examples = open_examples(options, options.checkpoint)
    dense = load_model(options.checkpoint, examples.labels, examples.task_type, new_head=False).eval()
    if examples.eval_set is not None:
        check_kept(options.checkpoint, dense, examples.eval_set, accelerator)
    base, graph = base_of_teacher(dense.config)
    supernet = from_teacher(dense, stack=1).to(accelerator.device)
    importances = mask_importance(supernet, batches_for_importance(options, examples), summed_loss)
    try:
        kept = choose(*importances, base, options.keep, graph)
    except PruningError as error:
        raise PruningError(f"--keep-params {error}") from None
    pruned, architecture = prune(dense, kept), kept.architecture(base, graph)
    models = {"dense": dense, "pruned": pruned}
    measured = measure(models, examples.eval_set, accelerator)
    for name, model in models.items():
        measured[name]["encoder_share"] = encoder_params(model) / encoder_params(dense)
    heads = [layer.attention.heads for layer in architecture.layers]
    widths = [ffn.inner(architecture.base) for ffn in architecture.ffns]
    metrics = report(options, examples, accelerator, measured, heads=heads, channels=widths)
    lines = (
        f"{measured['pruned']['encoder_share']:.2%} of the parameters of the encoder's layers",
        f"heads of each layer:   {' '.join(map(str, heads))}",
        f"neurons of each layer: {' '.join(map(str, widths))}",
    )
    return write_and_show(options, metrics, pruned, examples.tokenizer, architecture, *lines)


if __name__ == "__main__":
    sys.exit(main())

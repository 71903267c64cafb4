"""Make a model smaller and faster in a few minutes, without a search.

    python -m nas.compress CHECKPOINT --task NAME --data DIR --max-latency 0.3x --out DIR
    python -m nas.compress CHECKPOINT --train FILE --dev FILE --text COLUMN --label COLUMN --out DIR
    python -m nas.compress CHECKPOINT --unlabeled FILE --out DIR
    python -m nas.compress SENTENCE_ENCODER --embeddings FILE --out DIR
    python -m nas.compress RERANKER --reranking FILE --out DIR

CHECKPOINT must be fine-tuned on the task; otherwise, use --finetune-teacher. Heads, channels and layers are allocated
within the budget by integer programming; the student inherits the teacher's weights, is compensated and then trained
briefly. Without labels it learns the predictions of the teacher, and the score is its agreement with them. Of a
sentence encoder it learns the vectors, of a reranker the scores, and the folder is one of sentence-transformers.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distill.cli import DONE, Parser, add_device_option, add_output_options, interruptible
from distill.command.folder import check_new, make
from distill.command.options import OF_OWN_ROWS, add_rows_options, check_labeled_rows, check_own_rows, flag
from distill.training.progress import loading, silence_transformers, terminal
from foundation.errors import UserError
from nas.config.load import Given, given_values, load_config
from nas.config.schema import StudyConfig
from nas.export.hub import add_push_options, hub_name, publication_of

PRESET = "compress"
# The name of the task of the user's own rows.
OWN = "rows"
# The options that give texts without labels.
OF_TEXTS = ("unlabeled", "embeddings", "reranking")
# The columns of a table of pairs.
QUERY, PASSAGE = "query", "passage"


def parser() -> Parser:
    result = Parser("nas.compress", description=__doc__)
    add = result.add_argument
    add("checkpoint", metavar="CHECKPOINT", help="a BERT-like encoder with a trained head: folder, or name on the hub")
    add("--out", type=Path, required=True, metavar="DIR", help="empty or new folder for the student and metrics.json")
    rows = result.add_argument_group("rows")
    add_rows_options(rows)
    rows.add_argument("--unlabeled", type=Path, metavar="FILE", help="a text file, one text in each line")
    vectors = "the same for a sentence encoder: the student learns the vectors of these texts"
    rows.add_argument("--embeddings", type=Path, metavar="FILE", help=vectors)
    scored = "for a reranker: a table of pairs (columns query and passage); the student learns their scores"
    rows.add_argument("--reranking", type=Path, metavar="FILE", help=scored)
    pairs = (
        "with --embeddings: a table of pairs (columns query and passage) on which retrieval is measured; with "
        "--reranking of all pairs to rank, with a third column, relevant (0 or 1)"
    )
    rows.add_argument("--retrieval", type=Path, metavar="FILE", help=pairs)
    budget = result.add_argument_group("budget")
    latency = "limit on the latency, or its fraction of the teacher's (default: 1/3x if nothing else is limited)"
    budget.add_argument("--max-latency", metavar="12ms|0.3x", help=latency)
    budget.add_argument("--max-params", metavar="15M", help="limit on the parameters")
    budget.add_argument("--max-size", metavar="10MB", help="limit on the size of the weights' file")
    runtime = "what the student will run in (default: torch)"
    budget.add_argument("--runtime", metavar="torch|onnx|onnx-int8", help=runtime)
    budget.add_argument("--threads", type=int, metavar="N", help="threads for latencies (default: torch's)")
    uniform = "keep heads and layers, and give all FFNs one width: an ordinary model after `nas.export --as`"
    budget.add_argument("--uniform", action="store_true", help=uniform)
    training = result.add_argument_group("training")
    steps = (
        "training steps of the student; 0: only the least-squares refit (default: 250; for vectors and scores 1,500)"
    )
    training.add_argument("--steps", type=int, metavar="N", help=steps)
    rate = "peak learning rate of the student (default: 2e-4; for vectors and scores 3e-4)"
    training.add_argument("--learning-rate", type=float, metavar="X", help=rate)
    before = "first train the student on text without labels for this many steps (default: 0)"
    training.add_argument("--pretrain-steps", type=int, metavar="N", help=before)
    text = "text files, folders or data sets on the hub for --pretrain-steps (default: the embedded text)"
    training.add_argument("--corpus", nargs="+", metavar="SOURCE", help=text)
    first = "first fine-tune the teacher on the rows for this many steps (default: 0)"
    training.add_argument("--finetune-teacher", type=int, metavar="STEPS", help=first)
    training.add_argument("--seed", type=int, metavar="N", help="seed of everything random (default: 0)")
    add_push_options(result.add_argument_group("hub").add_argument)
    add_device_option(result)
    add_output_options(result, "the content of metrics.json")
    return result


def check(options: argparse.Namespace) -> None:
    """Raise UserError unless rows are given in one of the ways, and no option lacks another one."""
    if options.corpus and not options.pretrain_steps:
        raise UserError("--corpus is the text for --pretrain-steps N: give both")
    if options.retrieval is not None and options.embeddings is options.reranking is None:
        raise UserError("--retrieval is measured with vectors or scores: give --embeddings FILE or --reranking FILE")
    given = next((name for name in OF_TEXTS if getattr(options, name) is not None), None)
    if given is None:
        check_labeled_rows(options, parser())
        return
    if options.task is not None or options.train is not None:
        raise UserError(f"{flag(given)} cannot be combined with --task or --train: leave one of them out")
    check_own_rows(options, parser(), OF_OWN_ROWS)
    for name in (*OF_TEXTS, "data", "finetune_teacher"):
        if name != given and getattr(options, name) is not None:
            raise UserError(f"{flag(name)} cannot be combined with {flag(given)}: leave it out")


def config_of(options: argparse.Namespace) -> StudyConfig:
    """The configuration that the options describe.

    Raises:
        UserError: an option is wrong, or options do not go together.
    """
    limits = (f"space.max_{cost}" for cost in ("params", "latency", "size"))
    places = ("max_length", "long_texts", "seed", *limits, "deployment.runtime")
    places += ("final.steps", "final.learning_rate", "pretrain.corpus")
    values: dict[str, Any] = {"teacher": options.checkpoint, "tasks": Given("--task", [options.task or OWN])}
    values |= given_values(options, *places)
    values["deployment.threads"] = Given("--threads", options.threads)
    if options.data is not None:
        values["data"] = Given("--data", str(options.data))
    for place, name in (("finetune.steps", "finetune_teacher"), ("pretrain.steps", "pretrain_steps")):
        if (steps := getattr(options, name)) is not None:
            values[place] = Given(flag(name), steps)
    if options.train is not None:
        columns = {name: getattr(options, name) for name in OF_OWN_ROWS if name != "dev"}
        columns |= {kind: getattr(options, kind) is not None for kind in ("embeddings", "reranking")}
        files = {name: str(getattr(options, name).resolve()) for name in ("train", "dev")}
        values["rows"] = Given("--train", {OWN: files | {key: value for key, value in columns.items() if value}})
    if (options.max_params or options.max_size) and options.max_latency is None:
        values["space.max_latency"] = Given("--max-params" if options.max_params else "--max-size", None)
    kinds = (kind for kind in ("embeddings", "reranking") if getattr(options, kind) is not None)
    return load_config("-".join((PRESET, *kinds)), values)


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    options.words = ("ffn-compress", *(sys.argv[1:] if argv is None else argv))

    def command() -> int:
        check(options)
        publication_of(options).check(hub_name(options.checkpoint))
        with loading(options.quiet):
            silence_transformers()
        if any(getattr(options, name) is not None for name in OF_TEXTS):
            return _without_labels(options)
        return _compress(options, config_of(options))

    return interruptible("nas.compress", command, "start it again with another --out")


def _without_labels(options: argparse.Namespace) -> int:
    """Compress with the teacher's predictions as labels, its vectors or its scores."""
    with loading(options.quiet):
        from distill.memory import write_rows
        from distill.tasks.readers.tables import read_columns
        from foundation.files import scratch_folder
        from nas.compress.rows import read_lines, write_texts

    check_new(options.out)
    config_of(options)  # before the texts are labeled
    with scratch_folder() as folder:
        classes = None
        if options.reranking is not None:
            options.text, options.pair = QUERY, PASSAGE
            columns = read_columns(options.reranking, [QUERY, PASSAGE])
            pairs = dict.fromkeys(zip(*columns.values(), strict=True))
            rows = [dict(zip(columns, pair, strict=True)) for pair in pairs]
            options.train, options.dev = write_rows(folder, rows, by=[options.text])
        else:
            texts = read_lines(options.unlabeled or options.embeddings)
            labeling = (options.checkpoint, options.max_length, options.long_texts, options.device)
            table = write_texts(folder, texts, labeling if options.embeddings is None else None)
            options.train, options.dev = Path(table["train"]), Path(table["dev"])
            classes, options.multi_label = table.get("labels"), table.get("multi_label")
        options.unlabeled = None
        config = config_of(options)
        own = {OWN: config.rows[OWN].model_copy(update={"labels": classes})}
        status = _compress(options, config.model_copy(update={"rows": own}))
    # It names the files of the rows, which are gone.
    (options.out / "config.toml").unlink(missing_ok=True)
    return status


def _compress(options: argparse.Namespace, config: StudyConfig) -> int:
    with loading(options.quiet):
        import json

        from distill.command.report import show_measurements
        from distill.training.progress import Progress
        from nas.compress.retrieval import pairs_of, retrieval_table
        from nas.compress.run import CompressRun, compress
        from nas.export.run import publish

    check_new(options.out)
    publication = publication_of(options)
    pairs = options.retrieval and pairs_of(options.retrieval, ranked=options.reranking is not None)
    make(options.out)
    console = terminal(stderr=options.json)
    with Progress(console, options.quiet) as progress:
        given = {"uniform": options.uniform, "pairs": pairs, "device": options.device}
        metrics = compress(CompressRun(config=config, out=options.out, **given), progress.update, progress.result)
        if metrics is None:
            return DONE
        if publication.repo:
            progress.update("uploading", None)
            # Names in place of the paths of this machine.
            words = [Path(word).name if word.startswith("/") or Path(word).exists() else word for word in options.words]
            metrics["url"] = publish(options.out, publication, words)
    if options.json:
        print(json.dumps(metrics, indent=2))
    else:
        show_measurements(console, metrics, f"{config.task}: ")
        if pairs:
            retrieval_table(metrics).print(console)
        console.print(", and ".join([f"wrote {options.out}", *([metrics["url"]] if publication.repo else [])]))
    return DONE


if __name__ == "__main__":
    sys.exit(main())

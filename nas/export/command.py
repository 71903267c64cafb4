"""Export a student or a trained teacher as a folder that loads without this project, with a card, ONNX and int8 models.

    python -m nas.export results/demo/final                       (the Hugging Face folder with a model card)
    python -m nas.export results/demo/final --onnx                (and an ONNX model)
    python -m nas.export results/demo/final --onnx --int8         (and an int8 one)
    python -m nas.export results/demo/final --as bert             (as an ordinary checkpoint of its family)
    python -m nas.export TEACHER --int8 --task sst2 --data GLUE   (the teacher's own int8 model)
    python -m nas.export results/demo/final --push ME/NAME --license apache-2.0    (and on the Hugging Face hub)

A table of latencies is measured on the spot.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from distill.choices import listing, tasks
from distill.cli import Parser, add_output_options, at_least, interruptible
from distill.encoders.family import supported
from nas.config.load import Given, given_values, load_config
from nas.config.schema import ConfigError, StudyConfig
from nas.export.hub import OF_HUB, add_push_options, publication_of
from nas.final.folder import make_folder
from nas.search.choices import described_presets

OF_ROWS = ("task", "data", "preset")


def numbers(value: str) -> tuple[int, ...]:
    """Whole numbers above 0, separated by commas. Raises argparse.ArgumentTypeError for anything else."""
    return tuple(map(at_least(1), value.split(",")))


def parser() -> Parser:
    result = Parser("nas.export", description=__doc__)
    add, number = result.add_argument, at_least(1)
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="folder that train_final.py wrote, or of a trained teacher")
    add("--onnx", action="store_true", help="write onnx/model.onnx and compare it with torch")
    int8 = "write onnx/model_int8.onnx too, and measure on the dev split what it costs (implies --onnx)"
    add("--int8", action="store_true", help=int8)
    form = "write an ordinary checkpoint of its family, which loads without trust_remote_code"
    add("--as", dest="form", choices=supported(), help=form)
    add("--out", type=Path, metavar="DIR", help="new folder (default: CHECKPOINT-export)")
    labels = "names of the classes, in order"
    add("--labels", type=lambda value: tuple(value.split(",")), default=(), metavar="A,B", help=labels)
    tokens = "length of the sentences for the latency (default: that of metrics.json, or 32, within the positions)"
    add("--tokens", type=number, metavar="N", help=tokens)
    batches = "sentences in a batch for the latency (default: 1,32)"
    add("--batches", type=numbers, default=(1, 32), metavar="N,N", help=batches)
    rounds = "times that every model is timed, at least 2 for quartiles (default: 30, or fewer if they take long)"
    add("--rounds", type=at_least(2), metavar="N", help=rounds)
    add("--threads", type=number, metavar="N", help="threads for torch and ONNX (default: torch's)")
    add("--skip-latency", action="store_true", help="do not measure latencies")
    add("--skip-scores", action="store_true", help="do not measure what int8 costs on the dev split")
    rows = result.add_argument_group("rows for the cost of int8, in place of those of CHECKPOINT's config.toml")
    rows.add_argument("--task", action=listing(tasks), metavar="NAME", help="the task; '?' lists the tasks")
    rows.add_argument("--data", metavar="DIR", help="folder of the task's official files")
    preset = "a preset or a .toml file with rows of your own (default: compress)"
    rows.add_argument("--preset", action=listing(described_presets), metavar="NAME", help=preset)
    add_push_options(result.add_argument_group("hub").add_argument)
    add_output_options(result, "the folder, the scores and the latencies")
    return result


def rows_of(options: argparse.Namespace) -> StudyConfig | None:
    """The configuration that says on which rows the cost of int8 is measured, if options name them.

    Raises:
        ConfigError: there is no such configuration, or nothing is measured on the rows.
    """
    given = given_values(options, "data")
    if options.task is not None:
        given["tasks"] = Given("--task", [options.task])
    if not given and options.preset is None:
        return None
    if not options.int8 or options.skip_scores:
        raise ConfigError("--task, --data and --preset name the rows for the cost of --int8, which is not measured")
    if options.task is None and options.preset is None:
        raise ConfigError("--data is the folder of the files of a --task: add --task, or leave out --data")
    return load_config(options.preset or "compress", given)


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser().parse_args(words)

    def command() -> int:
        if not options.checkpoint.is_dir():
            raise ConfigError(f"{options.checkpoint} is not a folder: give that of a student or of a trained teacher")
        rows, folder = rows_of(options), options.checkpoint.resolve()
        out = options.out or folder.with_name(f"{folder.name}-export")
        make_folder(out, resume=False)
        # The model card shows the command without the folders of this machine.
        names = {
            str(path): path.resolve().name
            for path in map(Path, filter(None, (options.checkpoint, out, options.data, options.preset)))
        }

        from nas.export.run import Export, run  # imports torch, which takes seconds

        publication = publication_of(options)
        given = {name: value for name, value in vars(options).items() if name not in (*OF_HUB, *OF_ROWS)}
        given |= {"onnx": options.onnx or options.int8, "out": out, "publication": publication, "rows": rows}
        words_in_card = ("ffn-export", *(names.get(str(Path(word)), word) for word in words))
        return run(Export(**given, command=words_in_card))

    return interruptible("nas.export", command, "the folder is empty: start it again")

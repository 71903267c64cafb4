"""Train a searched architecture, and save it as a Hugging Face checkpoint with its own code.

    python train_final.py results/demo/architecture.json [--out DIR]
    python train_final.py results/demo/architecture.json --task rte --data glue --teacher MODEL --out DIR
    python train_final.py results/demo/architecture.json --tasks sst2,rte,cola --data glue --out DIR
    python train_final.py efficientbert --preset efficientbert-tiny --transfer --out DIR
    python train_final.py --evaluate DIR --tasks sst2,rte,cola --data glue [--predict PREDICTIONS]
    accelerate launch train_final.py ...                                  (several processes)

The student inherits its weights from the study's supernet and learns from the teacher, first on unlabeled text, then
on the task. It is evaluated on the whole dev split, together with the teacher and with the base model after the same
training. With several tasks there is a student for each, in a subfolder of its name.
"""

import argparse
from pathlib import Path

from distill.choices import listing, tasks
from distill.cli import Parser, add_device_option, add_output_options, interruptible, is_first_process
from distill.training.progress import loading
from foundation.files import read_json
from nas.config.load import Given, given_values, load_config
from nas.config.schema import ConfigError
from nas.final.folder import make_folder, make_folder_of_tasks
from nas.search.choices import described_presets
from search_spaces.architecture import SEARCHED
from search_spaces.published import PUBLISHED, load


def parser() -> Parser:
    result = Parser("train_final.py", description=__doc__)
    add = result.add_argument
    architecture = "a study's architecture.json, any other file in that format, or the name of a published architecture"
    add("architecture", metavar="ARCH", nargs="?", help=architecture)
    out = "folder for the checkpoint (default: a folder named final next to ARCH)"
    add("--out", type=Path, metavar="DIR", help=out)
    transfer = "use ARCH's layers on the base of the preset, which may have a multiple of ARCH's layers"
    add("--transfer", action="store_true", help=transfer)
    preset = "a preset or a .toml file; '?' lists the presets (default: the config.toml next to ARCH)"
    add("--preset", action=listing(described_presets), metavar="NAME", help=preset)
    group = result.add_argument_group("in place of the preset's")
    group.add_argument("--teacher", metavar="MODEL", help="a BERT-like encoder: folder, or name on the hub")
    assistant = "the model that teaches on text, such as a smaller one that has learned from the teacher"
    group.add_argument("--assistant", metavar="MODEL", help=assistant)
    which = group.add_mutually_exclusive_group()
    which.add_argument("--task", action=listing(tasks), metavar="NAME", help="the task; '?' lists the tasks")
    which.add_argument("--tasks", action=listing(tasks), metavar="NAMES", help="several tasks, separated by commas")
    group.add_argument("--data", metavar="DIR", help="folder of the task's official files")
    group.add_argument("--max-length", type=int, metavar="N", help="longer rows are truncated to N tokens")
    group.add_argument("--steps", type=int, metavar="N", help="training steps on the task")
    group.add_argument("--batch-size", type=int, metavar="N", help="rows per batch on the task")
    group.add_argument("--learning-rate", type=float, metavar="X", help="peak learning rate on the task")
    group = result.add_argument_group("without training")
    score = "only score a trained student, or any checkpoint with a head for the task, on the dev split"
    group.add_argument("--evaluate", type=Path, metavar="CHECKPOINT", help=score)
    predict = "with --evaluate: write GLUE's files for the test splits"
    group.add_argument("--predict", type=Path, metavar="DIR", help=predict)
    add("--seed", type=int, metavar="N", help="seed of batch order and dropout (default: the study's)")
    add_device_option(result)
    add("--skip-base", action="store_true", help="do not train and measure the base model for comparison")
    add("--resume", action="store_true", help="continue a training that was interrupted")
    add("--tensorboard", type=Path, metavar="DIR", help="log the losses for TensorBoard in this folder")
    add_output_options(result, "the content of metrics.json")
    return result


def overrides(options: argparse.Namespace) -> dict[str, Given]:
    """The values that the options give in place of the configuration's, by dotted path. Of several tasks this is the
    first; the others replace it one after the other.
    """
    final = (f"final.{name}" for name in ("steps", "batch_size", "learning_rate"))
    result = given_values(options, "teacher", "data", "max_length", *final, "pretrain.assistant")
    if options.tasks is not None:
        result["tasks"] = Given("--tasks", options.tasks.split(",")[:1])
    if options.task is not None:
        result["tasks"] = Given("--task", [options.task])
    return result


def check(options: argparse.Namespace) -> None:
    """Raise ConfigError for options that do not go together."""
    if options.seed is not None and not 0 <= options.seed < 2**31:
        raise ConfigError(f"--seed: must be from 0 to {2**31 - 1}, not {options.seed}")
    if options.evaluate is None:
        if options.predict is not None:
            raise ConfigError("--predict: give the trained student by --evaluate CHECKPOINT")
        if options.architecture is None:
            raise ConfigError("give an architecture to train, or --evaluate CHECKPOINT to measure one that is trained")
        return
    values = ("architecture", "out", "assistant", "steps", "batch_size", "learning_rate", "tensorboard", "seed")
    for name in (*values, "transfer", "skip_base", "resume"):
        if (value := getattr(options, name)) is not None and value is not False:
            given = name if name == "architecture" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"--evaluate trains nothing: leave out {given}")


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate a checkpoint without training; returns the exit status."""
    stored = next((file for file in sorted(options.evaluate.glob("**/config.toml")) if file.is_file()), None)
    config = load_config(options.preset or (str(stored) if stored else "demo"), overrides(options))
    with loading(options.quiet):
        from nas.final.evaluation import evaluate_checkpoint

    chosen = options.tasks.split(",") if options.tasks else [config.task]
    outputs = {"predictions": options.predict, "quiet": options.quiet, "as_json": options.json}
    return evaluate_checkpoint(config, options.evaluate, chosen, device=options.device, **outputs)


def _searched(file: Path) -> str:
    """What the file of an architecture says of its search."""
    said = read_json(file).get(SEARCHED)
    return f" ({', '.join(f'{key} {value}' for key, value in said.items())})" if isinstance(said, dict) else ""


def train(options: argparse.Namespace) -> int:
    """Train a student, or one for each of several tasks; returns the exit status."""
    architecture = load(options.architecture)
    folder = Path(options.architecture).parent
    stored = folder / "config.toml"
    if not options.preset and options.architecture in PUBLISHED:
        raise ConfigError(f"{options.architecture} is a published architecture: give the --preset to train it with")
    if not options.preset and not stored.exists():
        raise ConfigError(
            f"{options.architecture}: there is no config.toml beside it, which says what to train it with"
            f"{_searched(Path(options.architecture))}: copy it there from the study's folder, or give a --preset"
        )
    config = load_config(options.preset or str(stored), overrides(options))
    out = options.out or folder / "final"
    if is_first_process():
        (make_folder_of_tasks if options.tasks else make_folder)(out, options.resume)
    with loading(options.quiet):
        from nas.final.run import FinalRun, run
        from nas.final.tasks import run_tasks

    final = FinalRun(
        config=config,
        architecture=architecture,
        out=out,
        seed=config.seed if options.seed is None else options.seed,
        as_json=options.json,
        **{name: getattr(options, name) for name in ("device", "transfer", "skip_base", "tensorboard", "quiet")},
    )
    return run_tasks(final, options.tasks.split(","), options.resume) if options.tasks else run(final)


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)

    def command() -> int:
        check(options)
        return train(options) if options.evaluate is None else evaluate(options)

    return interruptible("train_final.py", command, "the same command with --resume continues it")

"""Train a searched architecture, and leave an ordinary Hugging Face checkpoint.

    python train_final.py results/demo/architecture.json [--out DIR]
    python train_final.py efficientbert --preset efficientbert-tiny --transfer --out DIR
    accelerate launch train_final.py ...                                  (several processes)

The student inherits its weights from the study's supernet and learns from the teacher, first on unlabelled text, then
on the task. It is evaluated on the whole dev split, together with the teacher and with the base model after the same
training.
"""

import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path

from distill.cli import INTERRUPTED, Parser, device, guard
from nas.config.load import load_config
from nas.config.schema import ConfigError
from nas.final.folder import is_first_process, make_folder
from search_spaces.published import PUBLISHED, load


def parser() -> Parser:
    """The command line's options."""
    result = Parser(prog="train_final.py", description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    result.add_argument(
        "architecture", help="architecture.json of a study, a file of that format, or the name of a published one"
    )
    result.add_argument(
        "--out", type=Path, help="folder of the checkpoint (default: the folder final beside the architecture)"
    )
    result.add_argument(
        "--transfer", action="store_true", help="apply its layers to the configuration's base, which may be deeper"
    )
    result.add_argument("--preset", help="preset or .toml file (default: config.toml beside the architecture)")
    result.add_argument("--seed", type=int, help="seed of batch order and dropout (default: the study's)")
    result.add_argument("--device", type=device, default="auto", choices=["auto", "cpu", "cuda"])
    result.add_argument(
        "--skip-base", action="store_true", help="do not train and measure the base model for comparison"
    )
    result.add_argument("--resume", action="store_true", help="continue a training that was interrupted")
    result.add_argument("--tensorboard", type=Path, metavar="DIR", help="log the losses for TensorBoard in this folder")
    return result


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)

    def command() -> int:
        architecture = load(options.architecture)
        folder = Path(options.architecture).parent
        study_config = folder / "config.toml"
        if not options.preset and options.architecture in PUBLISHED:
            raise ConfigError(f"{options.architecture} is a published architecture: give the --preset to train it with")
        config = load_config(options.preset or (str(study_config) if study_config.exists() else "demo"))
        out = options.out or folder / "final"
        if is_first_process():
            make_folder(out, options.resume)
        seed = config.seed if options.seed is None else options.seed
        if not 0 <= seed < 2**31:
            raise ConfigError(f"--seed: must be from 0 to {2**31 - 1}, not {seed}")

        from nas.final.run import FinalRun, run  # imports torch, which takes seconds

        return run(
            FinalRun(
                config=config,
                architecture=architecture,
                out=out,
                seed=seed,
                device=options.device,
                transfer=options.transfer,
                skip_base=options.skip_base,
                tensorboard=options.tensorboard,
            )
        )

    try:
        return guard("train_final.py", command)
    except KeyboardInterrupt:
        print("train_final.py: interrupted; the same command with --resume continues", file=sys.stderr)
        return INTERRUPTED

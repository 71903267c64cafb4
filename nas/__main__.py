"""List the commands of this project, and the studies that exist; or verify the cache.

python -m nas [--out results]
python -m nas --verify
"""

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from distill.choices import columns
from distill.cli import DONE, Parser, interruptible
from foundation.checksums import verify_cache
from foundation.files import cache_folder

ROOT = Path(__file__).resolve().parents[1]
# An installed wheel has no script.
FINAL = "python train_final.py" if (ROOT / "train_final.py").exists() else "python -m nas.final"
# Every command with its module.
COMMANDS = {
    "python -m nas": "nas.__main__",
    "python -m nas.search": "nas.search.command",
    "python -m nas.compress": "nas.compress.command",
    "python -m nas.inspect": "nas.inspect",
    "python -m nas.probe": "nas.probe",
    "python -m nas.pick": "nas.pick",
    "python -m nas.report": "nas.report.command",
    "python -m nas.compare": "nas.compare",
    "python -m nas.export": "nas.export.command",
    FINAL: "nas.final.command",
    "python -m distill": "distill.__main__",
    "python -m distill.augment": "distill.augment",
    "python -m supernet.student": "supernet.student",
    "python -m supernet.prune": "supernet.prune",
    "python -m supernet.cut_vocabulary": "supernet.cut_vocabulary",
    "python -m supernet.experts": "supernet.experts.command",
}


def parser() -> Parser:
    result = Parser("nas", description=__doc__)
    result.add_argument(
        "--out", type=Path, default=Path("results"), metavar="DIR", help="folder of the studies (default: %(default)s)"
    )
    result.add_argument("--verify", action="store_true", help="hash all files in the cache and compare their checksums")
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("nas", lambda: verify() if options.verify else show(options.out))


def verify() -> int:
    """Verify all entries of the cache by their checksums.

    Raises:
        UserError: one of them is not as it was written.
    """
    cache = cache_folder()
    print(f"{cache}: {verify_cache(cache)} entries, as they were written")
    return DONE


def show(out: Path) -> int:
    """Print the commands and the studies in the folder `out`."""
    print("commands (each has --help):")
    print(columns(commands()), flush=True)

    from distill.training.progress import terminal
    from nas.report.overview import studies, table  # imports optuna, which takes half a second
    from nas.study.folder import Folder

    known = list(studies(out))
    if not known:
        print(f"\nno studies in {out}: python -m nas.search --stage all")
        return DONE
    print(f"\nstudies in {out}:")
    table(known).print(terminal())
    for study in known:
        if study.state not in ("interrupted", "unknown"):
            continue
        where = f"--study {quote(study.folder.name)}" + ("" if out == Path("results") else f" --out {quote(str(out))}")
        storage = f" --storage {quote(Folder(study.folder).elsewhere or 'URL')}" * (study.state == "unknown")
        stage = study.stages[-1].stage
        print(f"continue {study.folder.name}: python -m nas.search --stage {stage} {where} --resume{storage}")
    return DONE


def commands() -> dict[str, str]:
    """The commands with the first line of their modules' docstrings; the modules are not imported."""
    result = {}
    for command, module in COMMANDS.items():
        source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text(encoding="utf-8")
        result[command] = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0].rstrip(".").replace("`", "")
    return result


if __name__ == "__main__":
    sys.exit(main())

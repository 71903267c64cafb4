"""Write a report of a study: one HTML page that needs no network, and its figures as files.

    python -m nas.report results/demo                        (writes results/demo/report.html and results/demo/report/)
    python -m nas.report results/demo --checkpoint results/demo/final

The study may be finished, interrupted or still running.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from distill.cli import DONE, Parser, interruptible
from foundation import __version__
from foundation.errors import UserError


class ReportError(UserError):
    """A report cannot be written."""


def parser() -> Parser:
    """The command line's options."""
    result = Parser("nas.report", description=__doc__)
    result.add_argument("study", type=Path, metavar="STUDY", help="the study's folder, such as results/demo")
    result.add_argument("--storage", metavar="URL", help="Optuna storage URL (default: study.db in the study's folder)")
    result.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="page to write; its figures go into a folder of the same name (default: report.html in STUDY)",
    )
    result.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="a checkpoint of train_final.py, whose scores and losses are shown, and its attention and FFN outputs "
        "beside the teacher's (default: STUDY/final if it is there)",
    )
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args(argv)
    return interruptible("nas.report", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Write the report.

    Raises:
        UserError: a mistake in the options or the study.
    """
    if find_spec("matplotlib") is None:
        raise ReportError("matplotlib is not installed: install the extra plots (pip install 'ffn-nas[plots]')")
    from foundation.files import read_json
    from nas.report import sections, verdict
    from nas.report.figures import styled
    from nas.report.page import render
    from nas.report.study import read
    from nas.report.trained import trained
    from nas.study.folder import Folder

    out = options.out or options.study / "report.html"
    pictures = out.with_suffix("")
    if pictures == out:
        raise ReportError(
            f"--out: {out} has no ending such as .html, and the folder of its figures would have its name"
        )
    study = read(Folder(options.study), options.storage)
    checkpoint = options.checkpoint or options.study / "final"
    # Beside the checkpoints for several tasks there is a metrics.json of another form, and no configuration.
    is_checkpoint = all((checkpoint / name).exists() for name in ("config.toml", "metrics.json"))
    if options.checkpoint is not None and not is_checkpoint:
        raise ReportError(f"--checkpoint: {checkpoint} is not a checkpoint of train_final.py with its metrics.json")
    final = read_json(checkpoint / "metrics.json") if is_checkpoint else None
    lead = verdict.of_study(study)
    with styled():
        parts = [
            sections.result(study, final),
            sections.search(study),
            sections.front(study),
            sections.architectures(study, final),
            sections.losses(final),
            sections.nonlinearity(study),
            trained(checkpoint) if final is not None else None,
            sections.time(study),
        ]
        footer = f"Written by ffn-nas {__version__}. The figures are also files in the folder {pictures.name}."
        try:
            page = render(f"Study {study.name}", lead, [part for part in parts if part is not None], footer, pictures)
            out.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ReportError(f"--out: {error.filename or out}: {error.strerror}") from None
    print(f"{lead}\nwrote {out} ({len(page) / 1e6:.1f} MB) and {page.count('<figure ')} figures in {pictures}")
    return DONE

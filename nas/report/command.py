"""Write a report of a study: one HTML page that needs no network, and its figures as files.

    python -m nas.report results/demo                        (writes results/demo/report.html and results/demo/report/)
    python -m nas.report results/demo --checkpoint results/demo/final

The study may be finished, interrupted or still running.
"""

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from distill.cli import DONE, Parser, interruptible
from foundation import __version__
from foundation.errors import UserError

if TYPE_CHECKING:
    from nas.report.page import Section
    from nas.report.study import Study


def parser() -> Parser:
    result = Parser("nas.report", description=__doc__)
    add = result.add_argument
    add("study", type=Path, metavar="STUDY", help="the study's folder, such as results/demo")
    add("--storage", metavar="URL", help="Optuna storage URL (default: study.db in the study's folder)")
    out = "page to write; its figures go into a folder of the same name (default: report.html in STUDY)"
    add("--out", type=Path, metavar="FILE", help=out)
    checkpoint = (
        "a checkpoint of train_final.py: shows its scores and losses, and its attention and FFN outputs beside the "
        "teacher's (default: STUDY/final, if it exists)"
    )
    add("--checkpoint", type=Path, metavar="DIR", help=checkpoint)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    options = parser().parse_args(argv)
    return interruptible("nas.report", lambda: command(options))


def command(options: argparse.Namespace) -> int:
    """Write the report, and print where it is.

    Raises:
        UserError: a mistake in the options or the study.
    """
    check_plots()
    from nas.report import verdict
    from nas.report.study import read
    from nas.study.folder import Folder

    out = options.out or options.study / "report.html"
    study = read(Folder(options.study), options.storage)
    page = write_report(study, out, options.checkpoint)
    lead, pictures = verdict.of_study(study), out.with_suffix("")
    print(f"{lead}\nwrote {out} ({len(page) / 1e6:.1f} MB) and {page.count('<figure ')} figures in {pictures}")
    final = options.study / "final"
    if options.checkpoint is None and final.exists() and (reason := reason_against(final)):
        print(f"without the final training: {reason}")
    return DONE


def check_plots() -> None:
    """Raise UserError if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError("matplotlib is not installed: install the extra plots (pip install 'ffn-nas[plots]')")


def write_report(study: "Study", out: Path, checkpoint: Path | None = None) -> str:
    """Write the page and its figures; returns the page.

    Args:
        checkpoint: of the final training; by default that in the study's folder, if there is one.

    Raises:
        UserError: a file cannot be written, or the checkpoint is none.
    """
    from nas.report import verdict
    from nas.report.figures import styled
    from nas.report.page import remove_figures, render

    pictures = out.with_suffix("")
    if pictures == out:
        raise UserError(
            f"--out: give {out} an ending such as .html; the figures go into a folder of the same name without it"
        )
    footer = f"Written by ffn-nas {__version__}. The figures are also files in the folder {pictures.name}."
    with styled():
        parts = sections_of(study, checkpoint)
        try:
            before = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
            page = render(f"Study {study.name}", verdict.of_study(study), parts, footer, pictures)
            out.write_text(page, encoding="utf-8")
            remove_figures(pictures, before, page)
        except OSError as error:
            raise UserError(f"--out: {error.filename or out}: {error.strerror}") from None
    return page


def sections_of(study: "Study", checkpoint: Path | None = None) -> "list[Section]":
    """The sections of the report; the arguments and errors are those of `write_report`."""
    from foundation.files import read_json
    from nas.report import sections
    from nas.report.trained import trained
    from nas.study.folder import Folder
    from search_spaces.architecture import Architecture

    chosen = checkpoint or study.folder.path / "final"
    reason = reason_against(chosen)
    if checkpoint is not None and reason:
        raise UserError(f"--checkpoint: {reason}")
    final = None if reason else read_json(chosen / "metrics.json")
    file = Folder(chosen).architecture
    parts = [
        sections.result(study, final, Architecture.load(file) if final is not None and file.exists() else None),
        sections.search(study),
        sections.front(study),
        sections.architectures(study, final),
        sections.losses(final),
        sections.nonlinearity(study),
        trained(chosen) if final is not None else None,
    ]
    return [part for part in parts if part is not None]


def reason_against(checkpoint: Path) -> str:
    """Why a folder is not a finished checkpoint of the final training; empty if it is one."""
    # Next to the checkpoints for several tasks there is a metrics.json in another form, but no configuration.
    missing = [name for name in ("config.toml", "metrics.json") if not (checkpoint / name).exists()]
    if not missing:
        return ""
    tasks = sorted(file.parent.name for file in checkpoint.glob("*/metrics.json"))
    if tasks:
        return f"{checkpoint} has a checkpoint for each task; show one with --checkpoint {checkpoint / tasks[0]}"
    return f"{checkpoint} is not a finished checkpoint of train_final.py: it has no {missing[0]}"

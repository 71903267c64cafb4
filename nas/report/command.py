"""Write a report of a study: one HTML page that needs no network, and its figures as PNG and SVG.

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
from search_spaces import __version__
from search_spaces.errors import UserError

if TYPE_CHECKING:
    from nas.report.data import StudyData
    from nas.report.page import Section


class ReportError(UserError):
    """A report cannot be written."""


NO_LOSSES = (
    "Losses are recorded by the final training (train_final.py). In a checkout, python -m benchmarks warmup compares "
    "those of candidates with and without a warm-up of the supernet."
)


def parser() -> Parser:
    """The command line's options."""
    result = Parser(
        prog="nas.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
        help="a checkpoint of train_final.py, whose scores, attention and FFN outputs are shown beside the teacher's "
        "(default: STUDY/final if it is there)",
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
    from distill.files import read_json
    from nas.config.schema import ConfigError
    from nas.report import architectures, models, verdict
    from nas.report.data import read
    from nas.report.page import paragraph, render
    from nas.report.style import styled
    from nas.study.folder import Folder

    out = options.out or options.study / "report.html"
    pictures = out.with_suffix("")
    if pictures == out:
        raise ReportError(
            f"--out: {out} has no ending such as .html, and the folder of its figures would have its name"
        )
    folder = Folder(options.study)
    checkpoint = options.checkpoint or architectures.default_checkpoint(options.study)
    if checkpoint is not None and not models.is_checkpoint(checkpoint):
        raise ConfigError(f"--checkpoint: {checkpoint} is not a checkpoint of train_final.py with its metrics.json")
    study = read(folder, options.storage, read_json(checkpoint / "metrics.json") if checkpoint else None)
    sentences, missing = [], ""
    if checkpoint is not None:
        try:
            sentences = models.sentences(checkpoint)
        except ConfigError as error:
            if options.checkpoint is not None:
                raise
            missing = f"Attention and outputs of the trained student are left out: {error}."
    with styled():
        sections = sections_of(study)
        if sentences:
            sections.append(architectures.trained_models(sentences))
        lead = paragraph(verdict.of_study(study), "verdict")
        footer = (
            f"Written by ffn-nas {__version__}. The figures are also PNG and SVG files in the folder {pictures.name}."
        )
        without = [] if any(section.anchor == "losses" for section in sections) else [NO_LOSSES]
        notes = "".join(paragraph(note, "note") for note in (*without, *([missing] if missing else [])))
        try:
            page = render(f"Study {study.name}", lead, sections, notes, footer, pictures)
            out.write_text(page, encoding="utf-8")
        except OSError as error:
            raise ReportError(f"--out: {error.filename or out}: {error.strerror}") from None
    figures = page.count("<figure ")
    print(f"{verdict.of_study(study)}\nwrote {out} ({len(page) / 1e6:.1f} MB) and {figures} figures in {pictures}")
    return DONE


def sections_of(study: "StudyData") -> "list[Section]":
    """The sections of the page for which the study has data."""
    from nas.report import architectures, results

    found = [
        results.result(study),
        results.search(study),
        results.front(study),
        architectures.drawings(study),
        architectures.choices(study),
        results.agreement_section(study),
        results.losses(study),
        architectures.nonlinearity(study),
        architectures.expert_load(study),
        results.time_section(study),
    ]
    return [section for section in found if section is not None]

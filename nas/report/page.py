"""The page of a report: sections with texts, tables and embedded figures, as a single HTML file."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Dots per inch of the embedded figures, which is sharp on most screens, and of how many they are shown.
DPI, SHOWN_DPI = 130, 92


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Attributes:
        name: of its files.
        alt: what it shows, for readers who do not see it.
        caption: what it is; plain text.
    """

    name: str
    drawn: "Figure"
    alt: str
    caption: str


@dataclass(frozen=True)
class Section:
    """A section of the page; its parts are HTML or pictures."""

    anchor: str
    title: str
    parts: Sequence[str | Picture]


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    attribute = f' class="{kind}"' if kind else ""
    return f"<p{attribute}>{escape(text)}</p>"


def bullets(lines: Sequence[str]) -> str:
    """A list of plain texts."""
    return "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in lines) + "</ul>"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table of plain texts whose first column names the rows. Columns that are empty in all rows are left out."""
    kept = [column for column in range(len(header)) if not column or any(row[column] for row in rows)]
    head = "".join(f'<th scope="col">{escape(header[column])}</th>' for column in kept)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{escape(row[column])}</td>" for column in kept[1:])
        lines.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    body = "\n".join(lines)
    return f'<div class="wide"><table>{title}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'


def render(title: str, lead: str, sections: Sequence[Section], notes: str, footer: str, folder: Path) -> str:
    """The page as HTML, with its figures embedded; also writes every figure as PNG and SVG into the folder.

    Args:
        lead: HTML above the contents.
        notes: HTML below the sections.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = "".join(f'<li><a href="#{section.anchor}">{escape(section.title)}</a></li>' for section in sections)
    body = "\n".join(_section(section, folder) for section in sections)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        f"<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{escape(title)}</h1>\n{lead}\n"
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n{body}\n{notes}\n</main>\n'
        f"<footer>{escape(footer)}</footer>\n"
        "</body>\n</html>\n"
    )


def _section(section: Section, folder: Path) -> str:
    parts = [part if isinstance(part, str) else _picture(part, folder) for part in section.parts]
    anchor = f'<a class="anchor" href="#{section.anchor}" aria-label="Link to this section">#</a>'
    body = "\n".join(parts)
    return f'<section id="{section.anchor}">\n<h2>{escape(section.title)} {anchor}</h2>\n{body}\n</section>'


def _picture(picture: Picture, folder: Path) -> str:
    """The figure as HTML, after its files were written."""
    stored = io.BytesIO()
    picture.drawn.savefig(stored, format="png", dpi=DPI)
    (folder / f"{picture.name}.png").write_bytes(stored.getvalue())
    picture.drawn.set_layout_engine("none")  # the parts keep their places, which take as long to find as to draw
    picture.drawn.savefig(folder / f"{picture.name}.svg", metadata={"Date": None})
    encoded = base64.b64encode(stored.getvalue()).decode("ascii")
    width, height = (round(SHOWN_DPI * inches) for inches in picture.drawn.get_size_inches())
    return (
        f'<figure id="{picture.name}"><img src="data:image/png;base64,{encoded}" alt="{escape(picture.alt)}" '
        f'width="{width}" height="{height}"><figcaption>{escape(picture.caption)}</figcaption></figure>'
    )


CSS = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #ffffff; --rule: #c8c8c8; --soft: #f3f3f3; --link: #00568a; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #161616; --rule: #4a4a4a; --soft: #242424; --link: #7cc4f2; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main, footer { max-width: 62rem; margin: 0 auto; padding: 1rem 1.2rem; }
h1 { font-size: 1.7rem; margin: .6rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.4rem 0 .3rem; }
a { color: var(--link); }
.anchor { text-decoration: none; opacity: .45; font-weight: normal; }
.verdict { font-size: 1.12rem; font-weight: 600; border-left: .35rem solid var(--text); padding: .2rem 0 .2rem .8rem; }
.note { font-size: .92rem; }
nav ol { columns: 2; padding-left: 1.3rem; margin: .6rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; margin: .7rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .28rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
td { white-space: nowrap; }
thead th { border-bottom: 2px solid var(--text); background: var(--soft); }
th[scope=row], thead th:first-child { text-align: left; font-weight: 600; }
figure { margin: 1rem 0 1.6rem; }
img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--rule); border-radius: 4px; }
figcaption { font-size: .9rem; margin-top: .3rem; }
footer { font-size: .85rem; border-top: 1px solid var(--rule); }
@media print { body { font-size: 11px; } nav { display: none; } figure, table { break-inside: avoid; } }
"""

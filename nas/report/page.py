"""The page of a report: sections with texts, tables and embedded figures, as a single HTML file."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from distill.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Dots per inch of the embedded figures, which is sharp on most screens, and of how many they are shown.
DPI, SHOWN_DPI = 130, 92


@dataclass(frozen=True)
class Picture:
    """A figure of the page.

    Attributes:
        name: of its files.
        drawn: a figure of matplotlib, or an SVG.
        alt: what it shows, for readers who do not see it.
        caption: what it is; plain text.
    """

    name: str
    drawn: "Figure | str"
    alt: str
    caption: str


@dataclass(frozen=True)
class Text:
    """A heading within a section ("h3"), or a note in small letters ("small") on how to read what is above it."""

    tag: str
    text: str


# What a section consists of; a string is a paragraph.
Part = str | Text | Table | Picture


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    anchor: str
    title: str
    parts: Sequence[Part]


def render(title: str, lead: str, sections: Sequence[Section], footer: str, folder: Path) -> str:
    """The page as HTML, with its figures embedded; also writes the figures into the folder, as SVG and, unless they are
    drawings of architectures, PNG.

    Args:
        lead: the sentence above the contents.

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
        f'<body>\n<main>\n<h1>{escape(title)}</h1>\n<p class="verdict">{escape(lead)}</p>\n'
        f'<nav aria-label="Contents"><ol>{contents}</ol></nav>\n{body}\n</main>\n'
        f"<footer>{escape(footer)}</footer>\n"
        "</body>\n</html>\n"
    )


def remove_figures(folder: Path, before: str, page: str) -> None:
    """Remove the files of figures that the page `before` had and that this one does not have. Raises OSError."""
    for name in _figures(before) - _figures(page):
        for ending in ("svg", "png"):
            (folder / f"{name}.{ending}").unlink(missing_ok=True)


def _figures(page: str) -> set[str]:
    return set(re.findall(r'<figure id="([\w-]+)">', page))


def _section(section: Section, folder: Path) -> str:
    anchor = f'<a class="anchor" href="#{section.anchor}" aria-label="Link to this section">#</a>'
    body = "\n".join(_part(part, folder) for part in section.parts)
    return f'<section id="{section.anchor}">\n<h2>{escape(section.title)} {anchor}</h2>\n{body}\n</section>'


def _part(part: Part, folder: Path) -> str:
    match part:
        case str():
            return f"<p>{escape(part)}</p>"
        case Text():
            return f"<{part.tag}>{escape(part.text)}</{part.tag}>"
        case Table():
            return part.html()
    return _picture(part, folder)


def _picture(picture: Picture, folder: Path) -> str:
    """The figure as HTML, after its files were written."""
    size = ""
    if isinstance(picture.drawn, str):
        kind, content = "svg+xml", picture.drawn.encode()
        (folder / f"{picture.name}.svg").write_bytes(content)
    else:
        stored = io.BytesIO()
        picture.drawn.savefig(stored, format="png", dpi=DPI)
        kind, content = "png", stored.getvalue()
        (folder / f"{picture.name}.png").write_bytes(content)
        picture.drawn.set_layout_engine("none")  # the parts keep their places, which take as long to find as to draw
        picture.drawn.savefig(folder / f"{picture.name}.svg", metadata={"Date": None})
        width, height = (round(SHOWN_DPI * inches) for inches in picture.drawn.get_size_inches())
        size = f' width="{width}" height="{height}"'
    encoded = base64.b64encode(content).decode("ascii")
    return (
        f'<figure id="{picture.name}"><img src="data:image/{kind};base64,{encoded}" alt="{escape(picture.alt)}"{size}>'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>"
    )


CSS = """
:root { color-scheme: light dark; --text: #1b1b1b; --back: #ffffff; --rule: #c8c8c8; --soft: #f3f3f3; --link: #00568a; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8e8; --back: #161616; --rule: #4a4a4a; --soft: #242424; --link: #7cc4f2; }
}
body { margin: 0; background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif; }
main, footer { max-width: 72rem; margin: 0 auto; padding: 1rem 1.2rem; }
h1 { font-size: 1.7rem; margin: .6rem 0; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .6rem; padding-top: .6rem; border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 1.4rem 0 .3rem; }
.strong { font-weight: 600; background: var(--soft); }
a { color: var(--link); }
.anchor { text-decoration: none; opacity: .45; font-weight: normal; }
.verdict { font-size: 1.12rem; font-weight: 600; border-left: .35rem solid var(--text); padding: .2rem 0 .2rem .8rem; }
small { display: block; font-size: .92rem; }
nav ol { columns: 2; padding-left: 1.3rem; margin: .6rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; margin: .7rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .3rem 0; }
th, td { padding: .28rem .6rem; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
td { white-space: nowrap; }
td.text { text-align: left; }
thead th { border-bottom: 2px solid var(--text); background: var(--soft); }
th[scope=row] { white-space: nowrap; }
th[scope=row], thead th:first-child { text-align: left; font-weight: 600; }
figure { margin: 1rem 0 1.6rem; }
img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--rule); border-radius: 4px; }
figcaption { font-size: .9rem; margin-top: .3rem; }
footer { font-size: .85rem; border-top: 1px solid var(--rule); }
@media print { body { font-size: 11px; } nav { display: none; } figure, table { break-inside: avoid; } }
"""

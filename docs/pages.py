"""Generates the pages of the documentation (a hook of MkDocs), so that no text has to be written twice.

README.md is the first page; the guides in docs/, the files of results/, CONTRIBUTING.md, SECURITY.md and CHANGELOG.md
become pages as they are, with their links changed; the references of the configuration and of the commands are
generated from the code, as is the table of encoders, and every package gets a page that is generated from the
docstrings of its modules.
"""

import posixpath
import re
import sys
from pathlib import Path

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))  # a hook is loaded as a file, not from a package
import reference

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("foundation", "search_spaces", "distill", "supernet", "nas")
FILES = {"Contributing": "CONTRIBUTING.md", "Security": "SECURITY.md", "Changelog": "CHANGELOG.md"}
# The files that pages link to, apart from other pages.
ATTACHED = ("LICENSE", "examples/*.py", "examples/*.ipynb", "results/*.json", "results/*.png")
# The guides in docs/, in the order of the navigation.
GUIDES: dict[str, str | dict[str, str]] = {
    "Home": "index.md",
    "The idea": "idea.md",
    "Recipes": "recipes.md",
    "Without a search": "compress.md",
    "Sentence encoders": "sentence_encoders.md",
    "Rerankers": "rerankers.md",
    "The search": "search.md",
    "Guides": {
        "The command line": "command_line.md",
        "In Python": "python.md",
        "Your own data": "own_data.md",
        "Your own teacher": "own_teacher.md",
        "Budgets and latency": "budgets.md",
        "Experts": "experts.md",
        "Reading results": "reading_results.md",
        "Reports and comparisons": "report.md",
        "Final training": "final_training.md",
        "Export": "export.md",
        "Distillation alone": "distillation.md",
        "Several processors and machines": "cluster.md",
        "On a GPU": "gpu.md",
        "Architectures": "architectures.md",
        "The papers": "papers.md",
        "Adding something of your own": "extending.md",
    },
    "Presets and configuration": "configuration.md",
    "Commands": "commands.md",
}
# Pages that end with a generated reference -> what generates it.
GENERATED = {
    "configuration.md": reference.configuration,
    "commands.md": reference.commands,
    "own_teacher.md": reference.families,
}

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.M)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the navigation: the guides, the results, the reference."""
    config.nav = [
        *({title: _nav(pages)} for title, pages in GUIDES.items()),
        {"Results": [f"results/{path.name}" for path in _results()]},
        {"API": [{package: _reference_uri(package)} for package in _rooms()]},
        *({title: name.lower()} for title, name in FILES.items()),
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages, and the files that they link to."""
    pages = _pages()
    anchors = {anchor: uri for uri, (_, text) in reversed(pages.items()) for anchor in _anchors(text)}
    places = {source: uri for uri, (source, _) in pages.items()}
    places |= {package.replace(".", "/"): _reference_uri(package) for package in _rooms()}
    attached = {path.relative_to(ROOT).as_posix(): path for pattern in ATTACHED for path in ROOT.glob(pattern)}
    places |= {name: name for name in attached}
    places |= {f"docs/{file.src_uri}": file.src_uri for file in files if not file.src_uri.endswith(".md")}
    for uri, (source, text) in pages.items():
        if collected := files.get_file_from_path(uri):
            files.remove(collected)
        files.append(File.generated(config, uri, content=_relinked(text, uri, source, places, anchors)))
    for uri, path in attached.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def _nav(pages: str | dict[str, str]) -> str | list[dict[str, str]]:
    return pages if isinstance(pages, str) else [{title: uri} for title, uri in pages.items()]


def _pages() -> dict[str, tuple[str, str]]:
    """Place in the site -> the file that the page is generated from, and its text."""
    pages = {"index.md": ("README.md", (ROOT / "README.md").read_text("utf-8"))}
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = path.read_text("utf-8")
        if path.name in GENERATED:
            text = f"{text}\n{GENERATED[path.name]()}"
        pages[path.name] = (f"docs/{path.name}", text)
    named = [*FILES.values(), *(f"results/{path.name}" for path in _results())]
    pages |= {name if "/" in name else name.lower(): (name, (ROOT / name).read_text("utf-8")) for name in named}
    return pages | {_reference_uri(package): (package, _reference(package)) for package in _rooms()}


def _results() -> list[Path]:
    """The files of results, their overview first."""
    return sorted((ROOT / "results").glob("*.md"), key=lambda path: (path.name != "README.md", path.name))


def _rooms() -> list[str]:
    """The packages and their subpackages by their dotted names."""
    folders = [path.parent for package in PACKAGES for path in (ROOT / package).rglob("__init__.py")]
    names = [folder.relative_to(ROOT).parts for folder in folders]
    return [".".join(parts) for parts in sorted(names, key=lambda parts: (PACKAGES.index(parts[0]), parts))]


def _reference_uri(package: str) -> str:
    return f"reference/{package}.md"


def _reference(package: str) -> str:
    """The page of a package: its own docstring, then those of its modules, but not of its subpackages."""
    modules = sorted(path.stem for path in (ROOT / package.replace(".", "/")).glob("*.py"))
    named = [f"{package}.{module}" for module in modules if not module.startswith("__")]
    return "\n\n".join([f"# {package}", _directive(package, members=False), *(_directive(name) for name in named)])


def _directive(name: str, members: bool = True) -> str:
    options = "" if members else "\n    options:\n      members: false\n      show_root_heading: false"
    return f"::: {name}{options}\n"


def _anchors(text: str) -> list[str]:
    return [slugify(title, "-") for title in _HEADING.findall(text)]


def _relinked(text: str, uri: str, source: str, places: dict[str, str], anchors: dict[str, str]) -> str:
    """The text with links to files of the repository and to headings replaced by links to their pages.

    Args:
        uri: the place of the page in the site.
        source: the file of the repository that the text comes from.
        places: the place in the site of each file and package folder of the repository that has one.
        anchors: the page on which each heading is.

    Raises:
        ValueError: a link leads to a file that has no page.
    """

    def relink(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        if target:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
            if path not in places:
                raise ValueError(f"{source} links to {path}, which has no page")
            page = places[path]
        else:
            page = uri if anchor in _anchors(text) else anchors[anchor]
        relative = "" if page == uri else posixpath.relpath(page, posixpath.dirname(uri))
        return f"]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(relink, text)

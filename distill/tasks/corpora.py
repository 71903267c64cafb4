"""English text that every installation has: the documentation of Python and of installed libraries.

Docstrings are extracted from source files with :mod:`ast`; scanned libraries are never imported. Only prose is kept:
sentences of 6 to 40 words without code, tables, addresses or field lists. Of repeated sentences only the first is kept.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import logging
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path

from foundation.files import cache_folder, write_atomically
from foundation.processes import in_processes

log = logging.getLogger(__name__)

FORMAT = 1
"""Version of the extraction and of the file format. It is part of the cache key; increase it when either changes."""

LIBRARIES: Mapping[str, str] = {
    "torch": "torch",
    "transformers": "transformers",
    "numpy": "numpy",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "pandas": "pandas",
    "networkx": "networkx",
    "sympy": "sympy",
    "ray": "ray",
    "optuna": "optuna",
    "datasets": "datasets",
    "sqlalchemy": "SQLAlchemy",
    "accelerate": "accelerate",
    "huggingface_hub": "huggingface_hub",
}
"""Package name -> distribution name of the libraries that are scanned if they are installed."""

MAX_LIBRARY_BYTES = 20_000_000
"""The approximate maximum size of source that is read per library; of larger ones, evenly spaced files are read."""

VENDORED_FOLDERS = ("_vendor", "thirdparty_files", "site-packages", "dist-packages")
SKIPPED_FOLDERS = frozenset({"test", "tests", "testing", "idlelib", "lib2to3", *VENDORED_FOLDERS})


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in reading order; four columns of equal length, documents contiguous.

    ``documents`` are ids such as ``torch/nn/modules/linear.py``. Two sentences of one document are adjacent in the text
    if their ``positions`` differ by one; the difference is larger if something between them was left out.
    """

    texts: tuple[str, ...]
    sources: tuple[str, ...]
    documents: tuple[str, ...]
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.texts), len(self.sources), len(self.documents), len(self.positions)}
        if len(sizes) != 1:
            raise ValueError(f"Corpus: columns differ in length: {sorted(sizes)}")
        if len(set(self.texts)) != len(self.texts):
            raise ValueError("Corpus: a text occurs twice; sentences must be distinct")

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def fingerprint(self) -> str:
        """The hexadecimal SHA-256 hash of the whole corpus, as a key for data derived from it."""
        digest = hashlib.sha256()
        for line in _lines(self):
            digest.update(line)
        return digest.hexdigest()


def embedded_corpus() -> Corpus:
    """The corpus of this installation, cached in `foundation.files.cache_folder`.

    A damaged cache file is rebuilt. The cache key covers the versions of all scanned libraries.
    """
    path = corpus_file()
    if path.exists():
        try:
            return load_corpus(path)
        except ValueError as error:
            log.warning("%s; building it again", error)
    corpus = build_corpus(installed_sources(), workers=2)
    save_corpus(corpus, path)
    return corpus


def corpus_file() -> Path:
    """Where `embedded_corpus` keeps the corpus of this installation."""
    return cache_folder() / "corpora" / f"{installation_key()}.jsonl"


def installed_sources() -> dict[str, Path]:
    """Source name -> folder: Python's standard library and every installed one of :data:`LIBRARIES`."""
    folders = {"python": Path(sysconfig.get_path("stdlib"))}
    for package in LIBRARIES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(spec.submodule_search_locations[0])
    return folders


def installation_key() -> str:
    """Hexadecimal key of the scanned libraries' versions, the Python version and :data:`FORMAT`."""
    versions = {"python": platform.python_version(), "format": str(FORMAT)}
    for package, distribution in LIBRARIES.items():
        if importlib.util.find_spec(package) is not None:
            try:
                versions[package] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                versions[package] = "unknown"
    return hashlib.sha256(json.dumps(versions, sort_keys=True).encode()).hexdigest()[:16]


def build_corpus(sources: Mapping[str, Path], workers: int = 1) -> Corpus:
    """Read every Python file below the given folders (source name -> folder).

    The result does not depend on ``workers``, the number of processes. Raises ValueError if no prose is found.
    """
    files = [(source, root, path) for source, root in sources.items() for path in _python_files(root)]
    documents = [*in_processes(_read_file, files, workers if len(files) > 100 else 1)]
    seen: set[str] = set()
    rows: list[tuple[str, str, str, int]] = []
    for source, document, sentences in sorted(part for parts in documents for part in parts):
        for position, text in sentences:
            same = re.sub(r"\W+", " ", text).casefold()
            if same not in seen:
                seen.add(same)
                rows.append((text, source, document, position))
    if not rows:
        folders = ", ".join(map(str, sources.values())) or "no folder"
        raise ValueError(f"no prose found in the Python files of {folders}")
    return Corpus(*zip(*rows, strict=True))


def save_corpus(corpus: Corpus, path: Path) -> None:
    """Write JSON lines atomically: a header, then one line per document."""
    header = {"format": FORMAT, "sentences": len(corpus), "sha256": corpus.fingerprint}

    def write(draft: Path) -> None:
        with draft.open("wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            file.writelines(_lines(corpus))

    write_atomically(path, write)


def load_corpus(path: Path) -> Corpus:
    """Read what :func:`save_corpus` wrote. Raises ValueError, naming the file, when it is damaged."""
    try:
        first, _, body = path.read_bytes().partition(b"\n")
        header = json.loads(first)
        expected = (header["format"], header["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise ValueError(f"{path}: not a corpus file") from None
    if expected != (FORMAT, hashlib.sha256(body).hexdigest()):
        raise ValueError(f"{path}: damaged, or of another format than {FORMAT}")
    texts: list[str] = []
    sources: list[str] = []
    documents: list[str] = []
    positions: list[int] = []
    for line in body.splitlines():
        source, document, places, sentences = json.loads(line)
        texts += sentences
        positions += places
        sources += [source] * len(sentences)
        documents += [document] * len(sentences)
    return Corpus(tuple(texts), tuple(sources), tuple(documents), tuple(positions))


def _lines(corpus: Corpus) -> Iterator[bytes]:
    rows = zip(corpus.sources, corpus.documents, corpus.positions, corpus.texts, strict=True)
    for (source, document), group in groupby(rows, key=lambda row: row[:2]):
        _, _, positions, texts = zip(*group, strict=True)
        yield json.dumps([source, document, positions, texts]).encode() + b"\n"


def _python_files(root: Path) -> list[Path]:
    """Source files below ``root`` in a fixed order, thinned evenly to :data:`MAX_LIBRARY_BYTES`."""
    paths = []
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in SKIPPED_FOLDERS and name[0] != "."]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    size = sum(path.stat().st_size for path in paths)
    return sorted(paths)[:: max(1, round(size / MAX_LIBRARY_BYTES))]


Document = tuple[str, str, list[tuple[int, str]]]


def _read_file(file: tuple[str, Path, Path]) -> list[Document]:
    """The documents of one source file: the file itself or, in the table of Python's help topics, each topic."""
    source, root, path = file
    name = f"{source}/{path.relative_to(root).as_posix()}"
    try:
        code = path.read_bytes()
        if b'"""' not in code and b"'''" not in code:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's sources
            tree = ast.parse(code)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # unreadable, or template files that are no Python
    if name == "python/pydoc_data/topics.py":
        texts = {f"{name}#{topic}": [text] for topic, text in _topics(tree)}
    else:
        texts = {name: list(_docstrings(tree))}
    documents = ((document, _numbered(parts)) for document, parts in texts.items())
    return [(source, document, sentences) for document, sentences in documents if sentences]


def _topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
                    yield str(key.value), str(value.value)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Strings that are statements, and long strings in calls that are statements (``add_docstr``)."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        body: Sequence[ast.stmt] = getattr(node, "body", [])
        for statement in body:
            if isinstance(statement, ast.Expr):
                value = statement.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value
                elif isinstance(value, ast.Call) and isinstance(node, ast.Module):
                    constants = (part.value for part in ast.walk(value) if isinstance(part, ast.Constant))
                    yield from (text for text in constants if isinstance(text, str) and "\n\n" in text)
        pending += [
            statement
            for statement in reversed(body)
            if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.If | ast.Try)
        ]


def _numbered(texts: Sequence[str]) -> list[tuple[int, str]]:
    """Prose sentences with positions; dropped sentences and borders between texts leave gaps in the positions."""
    position = 0
    kept = []
    for text in texts:
        for paragraph in paragraphs(text):
            for sentence in SENTENCE_END.split(paragraph):
                if is_prose(sentence):
                    kept.append((position, sentence))
                position += 1
        position += 1
    return kept


SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)(?<!vs\.)(?<!cf\.)\s+(?=[A-Z\"'(])")
FIELD = re.compile(
    r"""[:@]\w+[^:]*:          # :param x:, @return:
      | [\w*.,\s]{1,40}\s:\s    # numpy style:  name : type
      | \*{0,2}[\w.*`]+\s*(\([^)]*\))?\s*:(\s|$)  # google style:  name (type): text;  also headings
      | [-=~^*+|#_\s]+$          # rules and borders of tables
      | \|  | \.\.\s | \+-  | \#+\s """,
    re.VERBOSE,
)
BULLET = re.compile(r"([-*+•]|\(?\w{1,2}[.)])\s+")
ROLE = re.compile(r":[\w:.+-]+:(?=`)")
LINK = re.compile(r"`([^`<]*)\s<[^>`]*>`_{0,2}|\[([^\]]*)\]\([^)]*\)")


def paragraphs(text: str) -> Iterator[str]:
    """The running text of a docstring without markup, one string per paragraph or list item.

    Doctests, fenced and literal blocks, headings, field lists and tables are left out.
    """
    lines = inspect.cleandoc(text).splitlines()
    current: list[str] = []
    literal: int | None = None  # indentation of the line that opened a literal block
    fenced = doctest = False
    for line in [*lines, ""]:
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if content.startswith(("```", "~~~")):
            fenced = not fenced
            content = ""
        elif fenced:
            content = ""
        elif literal is not None and content:
            if indent > literal:
                content = ""
            else:
                literal = None
        doctest = (doctest and bool(content)) or content.startswith(">>>")
        start = BULLET.match(content)
        if doctest or not content or start or FIELD.match(content):
            if current:
                yield _plain(" ".join(current))
            current = []
            if doctest or not content or not start:
                continue
            content = content[start.end() :]
        if content.endswith("::"):
            literal = indent
        current.append(content)


def _plain(text: str) -> str:
    text = LINK.sub(lambda match: match[1] or match[2] or "", ROLE.sub("", text))
    text = re.sub(r"[`*]+|(?<=\w)_(?=\s)", "", text).replace("“", '"').replace("”", '"').replace("’", "'")
    return re.sub(r"\s+", " ", text).strip()


CODE = re.compile(r"https?:|www\.|::|->|[=<>{}\[\]\\|~^@#$%&;]|\(\)|\.\.|--|[^\x00-\x7f]")
WORD = re.compile(r"""["'(]*[A-Za-z]+(['-][A-Za-z]+)*['")]*[.,:!?]*["')]*""")


def is_prose(sentence: str) -> bool:
    """Whether this is an English sentence: 6 to 40 words, at least 80 % of them plain words, and no signs of code."""
    words = sentence.split(" ")
    if not 6 <= len(words) <= 40 or not sentence[0].isupper() or sentence[-1] not in ".!?":
        return False
    plain = sum(WORD.fullmatch(word) is not None for word in words)
    return plain >= 0.8 * len(words) and not CODE.search(sentence)

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from distill.tasks import corpora
from distill.tasks.corpora import (
    Corpus,
    build_corpus,
    embedded_corpus,
    installation_key,
    installed_sources,
    is_prose,
    load_corpus,
    paragraphs,
)

MODULE = '''
"""Opens the door of the small house. It then closes the window behind the guest.

Parameters
----------
key : str
    The key that fits into the lock of the door.

Examples
--------
>>> Enter the house and look around for the keys.
This output of the example must never be read as text.

The following block shows how a door is opened::

    This literal block is code and not a sentence at all.

See `the manual <https://example.org>`_ for all of the other doors.
"""

class Door:
    """A door is made of wood and of ``iron`` in equal parts."""

    width = 3
    """The width of the door is measured in whole steps."""

    def open(self):
        """Opens the door of the small house."""
        name = """This assigned string is not documentation of anything here."""

        async def inner():
            "The inner function waits until the door has been opened."
'''


@pytest.fixture
def house(tmp_path: Path) -> Path:
    folder = tmp_path / "house"
    (folder / "tests").mkdir(parents=True)
    (folder / "door.py").write_text(MODULE)
    (folder / "broken.py").write_text('"""This file is not Python although it has a docstring."""\nclass {{ name }}:\n')
    (folder / "tests" / "test_door.py").write_text('"""Docstrings of tests are boilerplate and are left out here."""\n')
    return folder


def test_sentences_of_one_file(house: Path) -> None:
    corpus = build_corpus({"house": house})
    assert corpus.texts == (
        "Opens the door of the small house.",
        "It then closes the window behind the guest.",
        "The key that fits into the lock of the door.",
        "See the manual for all of the other doors.",
        "A door is made of wood and of iron in equal parts.",
        "The width of the door is measured in whole steps.",
        "The inner function waits until the door has been opened.",
    )
    assert set(corpus.sources) == {"house"}
    assert set(corpus.documents) == {"house/door.py"}


def test_neighbours_differ_by_one_and_gaps_by_more(house: Path) -> None:
    corpus = build_corpus({"house": house})
    steps = [second - first for first, second in zip(corpus.positions, corpus.positions[1:], strict=False)]
    assert steps[0] == 1  # two sentences of one paragraph
    assert steps[2] > 1  # "The following block ..." was left out between them
    assert all(step > 1 for step in steps[3:])  # other docstrings


def test_a_sentence_is_kept_at_its_first_place_only(tmp_path: Path) -> None:
    for name in ("b.py", "a.py"):
        (tmp_path / name).write_text(
            f'"""The same sentence stands in both. {name[0].upper()} and only here it is found."""'
        )
    corpus = build_corpus({"x": tmp_path})
    assert corpus.documents == ("x/a.py", "x/a.py", "x/b.py")
    assert corpus.positions == (0, 1, 1)


@pytest.mark.parametrize(
    ("sentence", "prose"),
    [
        ("This is a sentence of seven words.", True),
        ('The so-called "fast path" isn\'t taken (by default).', True),
        ("The name of the n_components parameter has changed.", True),
        ("Too short to be kept.", False),
        ("lower case at the start of this sentence.", False),
        ("This sentence has no full stop at all", False),
        ("See https://example.org for all of the details.", False),
        ("Sets x = 3 before the function is called.", False),
        ("Calls foo() and then returns to the caller.", False),
        ("Mixes a1 b2 c3 d4 with other words.", False),
        (" ".join(["Word"] * 41) + ".", False),
    ],
)
def test_what_is_prose(sentence: str, prose: bool) -> None:
    assert is_prose(sentence) == prose


def test_paragraphs_lose_markup_fields_and_tables() -> None:
    text = """\
        Title of it
        ===========
        Uses :class:`~torch.nn.Linear` and *no* other
        layer.

        Args:
            size (int): the size of it.
            other (int, *optional*, defaults to `3`):
                Description of the other one.
        :param x: the first one.

        - First item
          goes on.
        - Second item.

        ```python
        Fenced text.
        ```
        +----+
        | a  |
        +----+
        """
    assert list(paragraphs(textwrap.dedent(text)))[1:] == [
        "Uses ~torch.nn.Linear and no other layer.",
        "Description of the other one.",
        "First item goes on.",
        "Second item.",
    ]


def test_help_topics_are_documents_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "pydoc_data").mkdir()
    topics = {
        "assert": "Assert statements are a convenient way to debug.",
        "del": "Deletion is recursively defined just like that.",
    }
    (tmp_path / "pydoc_data" / "topics.py").write_text(
        f'"""Autogenerated by Sphinx from the documentation."""\ntopics = {topics}\n'
    )
    corpus = build_corpus({"python": tmp_path})
    assert dict(zip(corpus.documents, corpus.texts, strict=True)) == {
        f"python/pydoc_data/topics.py#{name}": text for name, text in topics.items()
    }


def test_real_library_without_importing_it() -> None:
    code = (
        "import sys; from distill.tasks.corpora import build_corpus, installed_sources;"
        "c = build_corpus({'networkx': installed_sources()['networkx']});"
        "print(len(c)); sys.exit('networkx' in sys.modules or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 4000


def test_workers_change_nothing() -> None:
    folder = installed_sources()["networkx"]
    assert build_corpus({"networkx": folder}, workers=2) == build_corpus({"networkx": folder})


def test_no_prose_names_the_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"no prose found in the Python files of {tmp_path}"):
        build_corpus({"nothing": tmp_path})


def test_columns_are_checked() -> None:
    with pytest.raises(ValueError, match="differ in length"):
        Corpus(("a",), (), ("d",), (0,))
    with pytest.raises(ValueError, match="twice"):
        Corpus(("a", "a"), ("s", "s"), ("d", "d"), (0, 1))


@pytest.mark.parametrize("damage", ["empty", "truncated", "altered", "other format", "no object"])
def test_damaged_file_is_refused_and_rebuilt(
    damage: str, house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "installed_sources", lambda: {"house": house})
    corpus = embedded_corpus()
    path = tmp_path / "corpora" / f"{installation_key()}.jsonl"
    good = path.read_bytes()
    path.write_bytes(
        {
            "empty": b"",
            "truncated": good[:-10],
            "altered": good.replace(b"door", b"gate"),
            "other format": good.replace(b'"format": 1', b'"format": 0'),
            "no object": b"[]\n" + good,
        }[damage]
    )
    with pytest.raises(ValueError, match=r"\.jsonl: "):
        load_corpus(path)
    assert embedded_corpus() == corpus
    assert path.read_bytes() == good


def test_a_cached_corpus_is_read_not_built(house: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFN_NAS_CACHE", str(tmp_path))
    monkeypatch.setattr(corpora, "installed_sources", lambda: {"house": house})
    corpus = embedded_corpus()
    monkeypatch.setattr(corpora, "installed_sources", lambda: {})
    assert embedded_corpus() == corpus

"""A study that takes seconds: its text, its teacher, its preset, and helpers that run commands on them."""

import contextlib
import fcntl
import os
import random
import re
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from uuid import uuid4

import optuna
import pytest
import torch
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial
from transformers import BertConfig, BertForSequenceClassification, BertTokenizerFast

from distill.tasks.corpora import Corpus, installation_key, save_corpus
from nas.config.load import load_config
from nas.config.schema import StudyConfig
from nas.preparation.workspace import Workspace
from nas.study.storage import sqlite_url
from search_spaces import Architecture

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = ("python", "numpy", "torch")
MARK = "FFN_NAS_TEST_MARK"  # the name of an environment variable
TIMEOUT = 600  # seconds that a command may take, also while the machine does much else

PRESET = """\
teacher = "{teacher}"
tasks = ["library", "neighbours"]
max_length = 24
dropout = 0.0
seed = 0

[space]
stacks = [1, 2]
expansions = ["1/8", "1/4", "3/8", "1/2", "1"]
uniform = "1/2"
slack = 0.3
mutation_rate = 0.3

[finetune]
steps = 60
batch_size = 16
learning_rate = 2e-3

[warmup]
importance_batches = 2
steps = 4
batch_size = 16
learning_rate = 1e-4

[candidate]
steps = 6
batch_size = 8
learning_rate = 1e-3

[pretrain]
steps = 3
batch_size = 8
learning_rate = 1e-3

[final]
steps = 6
batch_size = 8
learning_rate = 1e-3

[one_shot]
steps = 6
batch_size = 8
learning_rate = 1e-3
rows = 200

[stage1]
trials = 6
sampler = "random"
confirm = 2
confirm_seeds = 2
rungs = ["1/2"]

[stage2]
trials = 4
sampler = "evolution"
confirm = 1
confirm_seeds = 2

[stage3]
trials = 8
sampler = "local"
confirm = 1
confirm_seeds = 2
"""


@dataclass(frozen=True)
class TinyStudy:
    """A folder with a teacher and a preset, and a cache folder that contains the text."""

    root: Path
    cache: Path

    @property
    def teacher(self) -> Path:
        return self.root / "teacher"

    @property
    def preset(self) -> Path:
        return self.root / "tiny.toml"

    @property
    def config(self) -> StudyConfig:
        return load_config(str(self.preset))

    def variant(self, path: Path, *changes: tuple[str, str]) -> Path:
        """The preset as another file, with each `old` text replaced by `new`."""
        text = self.preset.read_text()
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return path

    def start(self, *arguments: object, mark: str = "") -> subprocess.Popen[str]:
        """Start `python ...` in a new session, so that a signal to its process group acts like Ctrl-C in a terminal.
        Its environment, and that of all that it starts, has the mark.
        """
        return subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            cwd=PROJECT,
            # Users may set a relative path, too.
            env=os.environ
            | {"FFN_NAS_CACHE": os.path.relpath(self.cache, PROJECT), "OMP_NUM_THREADS": "1", MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextlib.contextmanager
    def running(self, *arguments: object, mark: str = "") -> Iterator[subprocess.Popen[str]]:
        """Like `start`; the process is killed at the end of the block."""
        with self.start(*arguments, mark=mark) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """Like `start`, but wait until the process has ended, and check that it leaves no other one, which might keep a
        port.
        """
        mark = uuid4().hex
        with self.running(*arguments, mark=mark) as process:
            out, err = process.communicate(timeout=TIMEOUT)
        wait_until_gone(mark)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def search(self, out: Path, *arguments: object, preset: Path | None = None) -> tuple[object, ...]:
        """The arguments of a search of stage 1 that writes to `out`, for `start` and `run`."""
        always = ("-m", "nas.search", "--stage", "1", "--preset", preset or self.preset, "--workers", "2")
        return (*always, "--out", out, *arguments)


def build(tiny_study: TinyStudy) -> None:
    """Write the study's teacher and preset."""
    words = sorted({word for sentence in corpus().texts for word in re.findall(r"\w+|[.]", sentence.lower())})
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    BertTokenizerFast(vocab=vocabulary).save_pretrained(tiny_study.teacher)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        initializer_range=0.1,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        BertForSequenceClassification(config).save_pretrained(tiny_study.teacher)
    tiny_study.preset.write_text(PRESET.format(teacher=tiny_study.teacher))


def corpus() -> Corpus:
    """Sentences of eight words, about two of which only occur in sentences from the same library."""
    rng = random.Random(0)
    syllables = ["ba", "do", "fi", "ku", "le", "mo", "ni", "pa", "ru", "se"]
    words = [first + second for first in syllables for second in syllables]
    rng.shuffle(words)
    specific = {source: words[8 * i : 8 * i + 8] for i, source in enumerate(SOURCES)}
    shared = words[8 * len(SOURCES) :]
    rows: list[tuple[str, str, str, int]] = []
    for source in SOURCES:
        for document in range(60):
            for position in range(8):
                chosen = [rng.choice(specific[source] if rng.random() < 0.25 else shared) for _ in range(8)]
                rows.append((" ".join(chosen).capitalize() + ".", source, f"{source}/{document}.py", position))
    texts, sources, documents, positions = zip(*rows, strict=True)
    return Corpus(texts, sources, documents, positions)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time is in such a block."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def shared(factory: pytest.TempPathFactory) -> TinyStudy:
    """The tiny study of a test run. Its processes share the teacher and the preset, and each has a cache of its own."""
    folder = factory.getbasetemp()
    of_run = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    tiny_study = TinyStudy(of_run / "tiny-study", folder / "cache")
    save_corpus(corpus(), tiny_study.cache / "corpora" / f"{installation_key()}.jsonl")
    with locked(tiny_study.root.with_suffix(".lock")):
        if not tiny_study.preset.exists():
            build(tiny_study)
    return tiny_study


def finished(tiny_study: TinyStudy) -> Path:
    """The study folder of a finished search of stage 1, which one process of a test run makes for all of them. Tests
    must not change it.
    """
    out = tiny_study.root.with_name("results")
    with locked(out.with_suffix(".lock")):
        if not (out / "s" / "architecture.json").exists():
            # With a single worker, because most of the time is spent on starting workers.
            result = tiny_study.run(*tiny_study.search(out, "--study", "s", "--workers", "1"))
            assert result.returncode == 0, result.stderr
            assert result.stderr == ""
            assert "5/5" in result.stdout
            assert f"next: ffn-train-final {out / 's' / 'architecture.json'}" in result.stdout
    return out / "s"


def uniform(workspace: Workspace, expansion: str = "1/2") -> Architecture:
    """The slice of the base model with this expansion in all layers."""
    base, graph = workspace.base()
    return Architecture.uniform(base, graph=graph, expansion=Fraction(expansion))


def trials_of(folder: Path, study: str = "stage-1") -> list[FrozenTrial]:
    """All trials of a study in the folder's database, whatever the search is called."""
    storage = RDBStorage(sqlite_url(folder / "study.db"))
    try:
        (name,) = (name for name in optuna.get_all_study_names(storage) if name.endswith(f"/{study}"))
        return optuna.load_study(study_name=name, storage=storage).get_trials()
    finally:
        storage.engine.dispose()


def states(folder: Path, study: str = "stage-1") -> Counter[str]:
    """The number of trials in each state, for a study that another process is running."""
    path = folder / "study.db"
    query = "SELECT state FROM trials JOIN studies USING (study_id) WHERE study_name LIKE ?"
    try:
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    except sqlite3.OperationalError:  # the file does not exist yet
        return Counter()
    try:
        return Counter(state for (state,) in connection.execute(query, (f"%/{study}",)))
    except sqlite3.OperationalError:  # the tables do not exist yet
        return Counter()
    finally:
        connection.close()


def wait(process: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    """Wait until the condition holds. The process must not end before that."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        if process.poll() is not None:
            raise AssertionError(f"the process ended too early: {process.communicate()}")
        if time.monotonic() > end:
            raise AssertionError("the condition did not hold in time")
        time.sleep(0.02)


def wait_until_gone(mark: str) -> None:
    """Assert that the processes with this mark end soon."""
    end = time.monotonic() + 30
    while left := list(marked(mark)):
        assert time.monotonic() < end, f"still running: {left}"
        time.sleep(0.1)


def marked(mark: str) -> Iterator[str]:
    """The command lines of all processes with this mark."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended in the meantime, or only waits to be reaped
                if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                    yield (entry / "cmdline").read_text().replace("\0", " ")

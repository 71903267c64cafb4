"""The report of a benchmark: tables and lines on the terminal, and the raw numbers as a JSON file."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from rich import box
from rich.console import Console
from rich.table import Table

from distill.files import write_text
from search_spaces.errors import UserError

# What is read from the environment and changes how fast numerical libraries are.
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "MALLOC_MMAP_THRESHOLD_")


class BenchmarkError(UserError):
    """A benchmark cannot be run with these options or files."""


class Report:
    """Prints tables and progress, and keeps the raw numbers in a file.

    Args:
        name: of the benchmark.
        arguments: its command line, after the name.
        options: the values of all its options.
        path: the file of the raw numbers.
    """

    def __init__(self, name: str, arguments: Sequence[str], options: Mapping[str, Any], path: Path) -> None:
        self.path = path
        self.console = Console(highlight=False, markup=False, soft_wrap=True)
        # Progress goes to stderr, so that it is not in the output that one pastes or pipes.
        self.status = Console(highlight=False, markup=False, soft_wrap=True, stderr=True)
        self.facts: dict[str, Any] = {
            "benchmark": name,
            "command": " ".join(["python -m benchmarks", name, *arguments]),
            "options": {option: plain(value) for option, value in options.items()},
        }
        self.load_before = os.getloadavg()[0]
        self.saved = False

    def progress(self, text: str) -> None:
        """Say on stderr what has just been done."""
        self.status.print(text)

    def note(self, text: str = "") -> None:
        """Print a line of the result."""
        self.console.print(text)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """Print a table, in Markdown so that it can be pasted into results/."""
        if title:
            self.console.print(f"\n{title}\n")
        self.console.print(markdown(columns, rows))
        self.console.print()

    def save(self, results: Any, *, seeds: Sequence[int] = ()) -> None:
        """Write the raw numbers with all that a reader needs to judge or to repeat them.

        Args:
            results: values that JSON can hold.
            seeds: all seeds that decided the results.
        """
        self.saved = True
        about = {"seeds": list(seeds), "machine": machine(self.load_before), "versions": versions()}
        write_text(self.path, to_json({**self.facts, **about, "results": results}))


def markdown(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown, its columns as wide as their widest cells."""
    table = Table(box=box.MARKDOWN)
    for place, column in enumerate(columns):
        table.add_column(column, no_wrap=True, justify="right" if place else "left")
    for row in rows:
        table.add_row(*map(str, row))
    console = Console(width=1000, color_system=None, markup=False, highlight=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.strip() for line in capture.get().splitlines() if line.strip())


def machine(load_before: float) -> dict[str, Any]:
    """The processor, the threads of torch, and how busy the machine was.

    A load average (runnable threads in the last minute) that is above the number of threads that a benchmark uses says
    that it shared the machine with other work.
    """
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "load average": {"before": load_before, "after": os.getloadavg()[0]},
    }


def processor_name() -> str:
    """The name of the processor, as the system tells it."""
    described = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", described.read_text(), re.MULTILINE) if described.exists() else []
    return (names or [platform.processor() or platform.machine()])[0]


def versions() -> dict[str, str]:
    """The versions of the interpreter and of the libraries that determine speed and precision."""
    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}


def plain(value: Any) -> Any:
    """An option's value as JSON can hold it."""
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    return str(value) if isinstance(value, Path) else value


def to_json(content: Any) -> str:
    """Indented JSON, with each list of numbers on one line."""
    text = json.dumps(content, indent=1, ensure_ascii=False)
    # Texts have no line breaks in JSON, so what begins with one is a list.
    return re.sub(r"\[\n[^\[\]{}\"]*\]", _on_one_line, text) + "\n"


def _on_one_line(part: re.Match[str]) -> str:
    return " ".join(part[0].split()).replace("[ ", "[").replace(" ]", "]")


def read_results(path: Path, benchmark: str) -> dict[str, Any]:
    """A file of raw numbers, whole.

    Raises:
        BenchmarkError: it is not a file that the benchmark of this name wrote.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BenchmarkError(f"{path}: {error}") from error
    if not isinstance(content, dict) or content.get("benchmark") != benchmark:
        raise BenchmarkError(f"{path}: not written by `python -m benchmarks {benchmark}`")
    return content

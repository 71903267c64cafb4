"""Very long lines, small Parquet files that expand to gigabytes, and files that end early."""

import json
import multiprocessing
import os
import random
import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import datasets
import numpy
import pyarrow
import pytest
from pyarrow import parquet

from distill.tasks.readers import hub, tables
from foundation.errors import UserError
from tests import requirements
from tests.trust.mutations import bounded, case
from tests.trust.test_hostile_files import PARSERS, examples
from tests.trust_counts import Cases

Value = TypeVar("Value")
DAMAGED = Path(__file__).with_name("large_dictionary.parquet")
LONG = "word " * 2_000_000
# Parser -> a file with a line of ten megabytes, which is a valid value of a row.
LARGE = {
    "tables, tsv": f"sentence\tlabel\n{LONG}\t1\nshort\t0\n",
    "tables, csv": f'sentence,label\n"{LONG}",yes\nb,no\n',
    "tables, jsonl": json.dumps({"sentence": LONG, "label": "yes"}) + '\n{"sentence": "b", "label": "no"}\n',
    "SST-2": f"sentence\tlabel\n{LONG}\t1\nshort\t0\n",
    "QQP": f"id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\t{LONG}\tB\t0\n2\t4\t5\tA\tB\t1\n",
    "text": f"{LONG}\n\nAnother one.\n",
    "graphs": "gelu(" * 2_000_000,
    "architectures": json.dumps({"version": LONG}),
    "presets": f'seed = "{LONG}"\n',
}


DATA = Path(os.environ.get(requirements.DATA, os.devnull))
# Public data sets; where a file is missing, the examples of the same format are cut instead.
OFFICIAL = {
    "SST-2": DATA / "glue" / "SST-2" / "dev.tsv",
    "QQP": DATA / "glue" / "QQP" / "dev.tsv",
    "CoNLL": DATA / "wnut17" / "dev.conll",
    "SQuAD": DATA / "squad" / "dev-v1.1.json",
}


@pytest.mark.trust
@pytest.mark.parametrize("name", LARGE)
def test_lines_of_ten_megabytes(name: str, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Lines of ten megabytes: rows and text are read, whatever has a bound is refused in a short line."""
    counts = cases(sample=1, full=1)
    parse, ending, _ = PARSERS[name]
    path = tmp_path / f"large.{ending}"
    path.write_text(LARGE[name])
    with case(counts, name):
        parse(path)
    assert bool(counts["refused"]) == (name in ("graphs", "architectures", "presets"))


def in_new_process(function: Callable[..., Value], *arguments: Any) -> Value:
    """What a function of this module returns in a process whose memory nothing has used."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def test_a_damaged_file_that_asks_for_gigabytes(tmp_path: Path) -> None:
    """The file, which a fuzzer found, has 771 bytes; pyarrow would allocate more than twenty gigabytes for it."""
    path = tmp_path / "rows.parquet"
    path.write_bytes(DAMAGED.read_bytes())
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded(), pytest.raises(UserError, match=r"reading it takes more than 0\.8 GB of memory: it is damaged, or"):
        PARSERS["tables, parquet"][0](path)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


@pytest.mark.usefixtures("hub_cache")
def test_a_damaged_data_set_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "train.parquet").write_bytes(DAMAGED.read_bytes())
    with (
        bounded(),
        pytest.raises(UserError, match=r"\(train\): a file of it cannot be read \(value too large.*; delete"),
    ):
        hub.columns(str(tmp_path), "train")


def refusals_of_gigabytes(path: Path) -> list[str]:
    """The reasons for which both readers refuse a file, within the bound on memory."""
    datasets.config.HF_DATASETS_CACHE = path.parent / "kept"
    hub.physical_memory = lambda: 1_600_000_000
    reasons = []
    for read in (lambda: tables.read_rows(path, "text", "label"), lambda: hub.columns(str(path.parent), "train")):
        with bounded(), pytest.raises(UserError) as refusal:
            read()
        reasons.append(str(refusal.value))
    return reasons


def test_parquet_that_expands_to_gigabytes(tmp_path: Path) -> None:
    """A valid file of less than two kilobytes holds two gigabytes of text; both readers refuse it."""
    text = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 200, pyarrow.int32()), ["a " * 5_000_000])
    columns, path = pyarrow.table({"text": text, "label": ["a", "b"] * 100}), tmp_path / "rows" / "train.parquet"
    path.parent.mkdir()
    # In one page, which has a dictionary of one text.
    parquet.write_table(columns, path, compression="zstd", dictionary_pagesize_limit=10**8, store_schema=False)
    assert path.stat().st_size < 2000
    # In a new process, which has no memory yet that was freed and can be used again.
    of_table, of_hub = in_new_process(refusals_of_gigabytes, path)
    assert "reading it takes more than 0.8 GB of memory: it is damaged, or" in of_table
    assert "(train): loading it takes more than 0.8 GB, half of this" in of_hub


def load_numbers(folder: Path, memory: int) -> str:
    """Load a data set with this many bytes of memory; returns how many rows there are, and why they cannot be read."""
    datasets.config.HF_DATASETS_CACHE = folder / "kept"
    hub.physical_memory = lambda: memory
    rows = len(hub.table(str(folder / "rows"), "train"))
    try:
        hub.columns(str(folder / "rows"), "train")
    except UserError as error:
        return f"{rows} rows: {error}"
    return f"{rows} rows"


@pytest.mark.slow
def test_a_data_set_of_the_hub_whose_cells_take_much_memory(tmp_path: Path) -> None:
    """A file of numbers, which are much larger as Python's objects than on the disk."""
    path = tmp_path / "rows" / "train.parquet"
    path.parent.mkdir()
    parquet.write_table(pyarrow.table({"label": numpy.arange(5_000_000)}), path)
    # In a new process, which has no memory yet that was freed and can be used again.
    assert in_new_process(load_numbers, tmp_path, 2_000_000_000) == "5000000 rows"
    refused = in_new_process(load_numbers, tmp_path, 200_000_000)
    assert refused.startswith(f"5000000 rows: {path.parent} (train): loading it takes more than 0.1 GB, half of this")


@pytest.mark.trust
@pytest.mark.parametrize("name", OFFICIAL)
def test_official_files_that_end_early(name: str, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Cut at any byte, an official file is refused, or its whole rows are read: 500 cuts with --full, otherwise 15."""
    parse, ending, _ = PARSERS[name]
    given = [OFFICIAL[name].read_bytes()] if OFFICIAL[name].exists() else examples(name)
    counts = cases(sample=15, full=500)
    rng, path = random.Random(name), tmp_path / f"cut.{ending}"
    for _ in range(counts.wanted):
        content = rng.choice(given)
        content = content[: rng.randrange(len(content))]
        path.write_bytes(content)
        with case(counts, repr(content), path):
            parse(path)
    assert counts["refused"]

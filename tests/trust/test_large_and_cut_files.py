"""Lines of ten megabytes, and official files that end early."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces.errors import UserError
from tests.trust.mutations import assert_one_line, bounded
from tests.trust.test_hostile_files import PARSERS
from tests.trust_counts import Cases

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


@pytest.mark.trust
@pytest.mark.parametrize("name", LARGE)
def test_lines_of_ten_megabytes(name: str, tmp_path: Path) -> None:
    """Rows and text are read; whatever has a bound is refused in a short line."""
    parse, ending, _ = PARSERS[name]
    path = tmp_path / f"large.{ending}"
    path.write_text(LARGE[name])
    with bounded():
        if name in ("graphs", "architectures", "presets"):
            with pytest.raises(UserError) as refusal:
                parse(path)
            assert_one_line(refusal.value)
        else:
            parse(path)


@pytest.mark.trust
@pytest.mark.parametrize("name", ["SST-2", "QQP", "CoNLL", "SQuAD"])
def test_official_files_that_end_early(name: str, tmp_path: Path, cases: Callable[..., Cases]) -> None:
    """Cut at any byte, a file is refused, or its whole rows are read."""
    parse, ending, given = PARSERS[name]
    counts = cases(sample=50, full=500)
    rng, path = random.Random(name), tmp_path / f"cut.{ending}"
    for _ in range(counts.wanted):
        content = rng.choice(given).encode()
        path.write_bytes(content[: rng.randrange(len(content))])
        try:
            with bounded():
                parse(path)
            counts["read"] += 1
        except UserError as error:
            assert_one_line(error, path)
            counts["refused"] += 1
    assert counts["refused"]

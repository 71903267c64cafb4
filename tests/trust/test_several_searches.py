"""Searches that start together: two on one study, of which one is refused, and two that fill one cache."""

import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from foundation.files import DRAFT_PREFIX, STATE_PREFIX
from tests.nas.records import content, results
from tests.nas.tiny_study import TIMEOUT, TinyStudy
from tests.trust_counts import Cases

REFUSED = re.compile(
    r"nas\.search: (study \S+ is already being run by process \d+ on \S+ since .*: wait until it has ended, or choose "
    r"another --study|\S+ already has stage 1: continue it with --resume, or choose another --study)\n"
)


@pytest.mark.slow
@pytest.mark.trust
def test_searches_that_start_together(
    searched: Path, shared_study: TinyStudy, tmp_path: Path, cases: Callable[..., Cases]
) -> None:
    """Two searches on a study and one on another, with an empty cache.

    One of the first two is refused with a line, and the other two end with the results of a search that ran alone.
    """
    counts = cases(sample=1, full=5)
    for case in range(counts.wanted):
        study, out = TinyStudy(tmp_path, tmp_path / f"{case}" / "cache"), tmp_path / f"{case}" / "results"
        shutil.copytree(shared_study.cache / "corpora", study.cache / "corpora")
        with ExitStack() as stack:
            commands = [study.search(out, "--study", name, preset=shared_study.preset) for name in ("s", "s", "other")]
            processes = [stack.enter_context(study.running(*command)) for command in commands]
            said = [process.communicate(timeout=4 * TIMEOUT) for process in processes]
        ends = sorted((process.returncode, error) for process, (_, error) in zip(processes, said, strict=True))
        assert [end for end, _ in ends] == [0, 0, 2], ends
        assert REFUSED.fullmatch(ends[2][1]) and not ends[0][1] and not ends[1][1], ends
        assert processes[2].returncode == 0
        for name in ("s", "other"):
            wanted = results(searched)
            wanted["architecture.json"] = wanted["architecture.json"].replace('"study": "s"', f'"study": "{name}"')
            assert results(out / name) == wanted
        assert content(study.cache).items() <= content(shared_study.cache).items()
        assert not [path for path in study.cache.rglob("*") if path.name.startswith((DRAFT_PREFIX, STATE_PREFIX))]
        counts["with one refused, and two that filled one cache and ended as if alone"] += 1

"""Coverage-guided fuzzing of one parser with Atheris (libFuzzer): inputs that reach something new in this project's
code, or in tomllib, are kept and mutated further.

    python -m tests.trust.coverage_guided PARSER FOLDER RUNS

PARSER is one of those of `test_hostile_files`. FOLDER gets, in `corpus`, the inputs that were kept and, after the last
run, `counts.json`: how the runs ended. The first run with another outcome than "read" or "refused" ends the program
with a traceback, and its input is written to FOLDER.
"""

import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path

import atheris

from foundation.errors import UserError

with atheris.instrument_imports(include=["search_spaces", "distill.tasks", "nas.config", "tomllib"]):
    from tests.trust.mutations import MEMORY, PATIENCE, PIECES, assert_one_line, peak
    from tests.trust.test_hostile_files import PARSERS, examples, refusal_place

# The longest input, in bytes.
LONGEST = 20_000


def main(name: str, folder: Path, runs: int) -> None:
    parse, ending, _ = PARSERS[name]
    corpus, path, counts = folder / "corpus", folder / f"given.{ending}", Counter[str]()
    corpus.mkdir()
    for number, content in enumerate(examples(name)):
        (corpus / f"given-{number}").write_bytes(content)
    words = [piece for piece in PIECES if len(piece) <= 60]
    quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in words)
    (folder / "dictionary").write_text("".join(f'"{word}"\n' for word in quoted))

    def run(content: bytes) -> None:
        path.write_bytes(content)
        try:
            parse(path)
            counts["read"] += 1
        except UserError as error:
            assert_one_line(error, refusal_place(name, path))
            counts["refused"] += 1
        if counts.total() == runs:
            (folder / "counts.json").write_text(json.dumps(counts))
            # libFuzzer would call C's exit() with the interpreter's lock, for which a thread of pyarrow may be waiting.
            os._exit(0)

    logging.disable(logging.WARNING)  # of QQP's malformed lines
    memory = (peak() + MEMORY) // 2**20
    limits = [f"-max_len={LONGEST}", f"-timeout={PATIENCE}", f"-rss_limit_mb={memory}"]
    files = [f"-dict={folder / 'dictionary'}", f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup([sys.argv[0], f"-runs={runs}", "-seed=1", *limits, *files], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))

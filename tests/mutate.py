"""Changes one expression of a module at a time, runs its tests, and prints the changes that no test notices.

    python -m tests.mutate supernet/compensation/ridge.py --tests tests/supernet/compensation --sample 20 --seed 0

The mutants are written into a copy of the repository, and each test run is forked from a process that has already
imported the large libraries: what mutmut and cosmic-ray lack, which take a whole suite's run or an import of torch for
every mutant. Survivors are either equivalent to the original, or holes.
"""

import argparse
import ast
import gc
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
COMPARED = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
CALCULATED = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


class Mutant(NamedTuple):
    """A node of the source, and the text that takes its place."""

    node: Any
    text: str

    def of(self, source: bytes) -> bytes:
        """The whole mutated source."""
        starts = [0]
        for line in source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        first = starts[self.node.lineno - 1] + self.node.col_offset
        last = starts[self.node.end_lineno - 1] + self.node.end_col_offset
        return source[:first] + self.text.encode() + source[last:]


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield from (ast.Compare(node.left, [other()], node.comparators) for other in COMPARED[type(op)])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in CALCULATED:
            other = deepcopy(node)
            other.op = CALCULATED[type(node.op)]()
            yield other
            if isinstance(node, ast.BinOp):
                yield from (node.left, node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.And() if isinstance(node.op, ast.Or) else ast.Or(), node.values)
            yield from node.values
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield from (ast.Constant(node.value + 1), ast.Constant(node.value - 1))
        case ast.Constant(value=float()):
            yield from (ast.Constant(node.value * 2 or 1.0), ast.Constant(node.value / 2 or -1.0))
        case ast.Expr(value=ast.Call()):
            yield ast.Pass()


def mutants(node: ast.AST) -> Iterator[Mutant]:
    """Those of a node and of all below it, without annotations, docstrings and the texts of errors."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        return
    for other in changed(node):
        yield Mutant(node, ast.unparse(other) if isinstance(node, ast.stmt) else f"({ast.unparse(other)})")
    for name, value in ast.iter_fields(node):
        if name in ("test", "ifs"):
            conditions = value if isinstance(value, list) else [value]
            yield from (Mutant(one, f"(not ({ast.unparse(one)}))") for one in conditions)
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from mutants(child)


def passes(tests: list[str], seconds: int) -> bool:
    """Whether the tests pass in the working directory, in a fork that is killed after so many seconds of its own
    processor time, whatever else is running, or ten times as many on the clock, should it wait for something.
    """
    if not (child := os.fork()):
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.alarm(10 * seconds)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        import pytest

        settings = ["-xq", "-n0", "--assert=plain", "-pno:cacheprovider", "-pno:unraisableexception"]
        os._exit(pytest.main([*settings, *tests]))
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("module", help="a file, relative to the repository")
    parser.add_argument("--tests", nargs="+", required=True, help="test files or folders, relative to the repository")
    parser.add_argument(
        "--sample", type=int, default=20, help="so many mutants, drawn at random (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=300, help="a test run of more processor time has noticed it")
    arguments = parser.parse_args()
    import hypothesis  # noqa: F401
    import pytest  # noqa: F401
    import sklearn.gaussian_process  # noqa: F401
    from accelerate import Accelerator  # noqa: F401
    from transformers import BertForSequenceClassification, BertTokenizerFast  # noqa: F401

    source = (ROOT / arguments.module).read_bytes()
    every = [mutant for mutant in mutants(ast.parse(source)) if mutant.of(source) != source]
    drawn = random.Random(arguments.seed).sample(every, min(arguments.sample, len(every)))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "repository")
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", "__pycache__", ".*_cache"))
        os.chdir(copy)
        sys.path[:] = [str(copy), *(path for path in sys.path if Path(path).resolve() != ROOT)]
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        gc.freeze()  # or every fork would collect, and copy, what the libraries hold
        if not passes(arguments.tests, arguments.seconds):
            raise SystemExit("the tests fail without a mutation")
        survivors = 0
        for mutant in sorted(drawn, key=lambda mutant: mutant.node.lineno):
            Path(arguments.module).write_bytes(mutant.of(source))
            if passes(arguments.tests, arguments.seconds):
                survivors += 1
                before = ast.unparse(mutant.node)
                print(f"{arguments.module}:{mutant.node.lineno}: {before} -> {mutant.text}", flush=True)
    print(f"{arguments.module}: {len(drawn) - survivors} of {len(drawn)} mutants noticed, of {len(every)} possible")


if __name__ == "__main__":
    main()

"""Damage for files and folders, drawn at random, and how a case may end: well, or with a refusal of one line, within
limits on what reading may take.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from foundation.errors import UserError
from tests.trust_counts import Cases

# What mutations insert: numbers at the edges, the syntax of the formats, and text that decoders stumble over.
PIECES = [
    *(b"0", b"-1", b"1e999", b"-0.0", b"NaN", b"Infinity", b"9" * 30, b"1" * 5000, b"1/0", b"1/" + b"9" * 40, b"0x7f"),
    *(b"null", b"true", b"{}", b"[]", b'""', b"[" * 3000, b'{"a":' * 3000, b'"\\ud800"', b"'", b'"', b"'''", b"\\"),
    *(b"\n", b"\r", b"\r\n", b"\t", b"\t\t", b"\x00", b"\x1b[31m", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3\x28", b"\x85"),
    *(character.encode() for character in ("\u2028", "\u202e", "é", "𝔘", "İ")),
    *(b"project(", b"expand(x)", b"gelu(", b",x)", b"(" * 2000, b")", b"add(", b"__class__", b"../../", b"/dev/null"),
    *(b"extends = ", b"[space]\n", b"=", b" ", b"-DOCSTART- O\n\n", b"B-", b"a" * 100_000),
]
WEIRD: list[Any] = [
    *(None, True, 0, -1, 1, 10**30, 1.5, float("nan"), float("inf"), "", "x", "1/0", "9" * 5000, "../..", [], {}, [[]]),
    *({"a": {}}, "project(gelu(expand(x)))", "\ud800", "\x00", ["x"] * 10_000, 2**31, 2**63, "0.5", "-1/3"),
]
# A block of `bounded()` may take this many seconds, and raise the peak of the process by this many bytes.
PATIENCE, MEMORY = 60, 10**9


def mutated(rng: random.Random, given: bytes) -> bytes:
    """The file after one to four changes: a part removed, doubled, moved or overwritten, a piece or a byte inserted."""
    content = given
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.randint(0, len(content)) for _ in range(2))
        end = min(end, start + rng.choice((1, 3, 20, 10**6)))
        part, piece = content[start:end], rng.choice(PIECES)
        middle = rng.choice((b"", part + part, part[::-1], piece, part + piece, bytes([rng.randrange(256)])))
        content = content[:start] + middle + content[end:]
    return content if rng.random() < 0.95 else content[: rng.randint(0, len(content))]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, below in inner for place in places(below, (*path, key)))]


def replaced(value: Any, path: Sequence[Any], by: Any) -> Any:
    """A JSON value with another value at the end of this path."""
    if not path:
        return by
    copied = value.copy()
    copied[path[0]] = replaced(value[path[0]], path[1:], by)
    return copied


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fail if what happens in this block takes too long or too much memory."""

    def late(*arguments: object) -> None:
        raise AssertionError(f"not done after {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    most = peak()
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert peak() - most < MEMORY


def peak() -> int:
    """The most bytes that this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def assert_one_line(error: BaseException, place: Path | None = None) -> None:
    """Assert that the text of an error is one line, of bounded length, which names the place if one is given."""
    shown = str(error)
    assert shown.strip() and len(shown.splitlines()) == 1 and len(shown) < 3000, shown[:4000]
    assert place is None or str(place) in shown, shown


@contextlib.contextmanager
def case(
    counts: Cases, what: str, place: Path | None = None, *, well: str = "read", refusal: type[Exception] = UserError
) -> Iterator[None]:
    """Count how a case ends: well, or by a refusal of one line, which names the place if one is given.

    Any other end, and one that takes too long or too much memory, fails the test, which then says what the case was.
    """
    try:
        with bounded():
            yield
        counts[well] += 1
    except refusal as error:
        assert_one_line(error, place)
        counts["refused"] += 1
    except (Exception, SystemExit) as error:
        raise AssertionError(what[:3000]) from error


def damaged(counts: Cases, seed: int | str, whole: Path, copy: Path, within: str = ".") -> Iterator[str]:
    """Make as many copies of a folder as cases are wanted, each with one damaged file; yields what was done to it.

    Args:
        within: the folder of the copy in which a file is damaged.
    """
    rng = random.Random(seed)
    for number in range(counts.wanted):
        fresh(whole, copy)
        yield f"case {number}: {damage(rng, copy / within)}"


def damage(rng: random.Random, folder: Path) -> str:
    """Damage one file of the folder; returns what was done."""
    file = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kinds = [spoil, spoil, flip, cut, replace_by_something_else]
    kinds += {".json": [strange_value] * 4, ".safetensors": [other_tensors] * 4}.get(file.suffix, [])
    kind = rng.choice(kinds)
    return f"{file.name}: {kind.__name__}: {kind(rng, file)}"


def spoil(rng: random.Random, file: Path) -> str:
    content = mutated(rng, file.read_bytes())
    file.write_bytes(content)
    return repr(content[:500])


def flip(rng: random.Random, file: Path) -> str:
    """Turn over one bit."""
    content = bytearray(file.read_bytes())
    if not content:
        return "empty"
    place, bit = rng.randrange(len(content)), rng.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(bytes(content))
    return f"bit {bit} of byte {place}"


def cut(rng: random.Random, file: Path) -> str:
    size = rng.choice((0, 1, 8, rng.randint(0, file.stat().st_size)))
    os.truncate(file, min(size, file.stat().st_size))
    return f"to {size} bytes"


def replace_by_something_else(rng: random.Random, file: Path) -> str:
    """A folder, a link, or nothing in place of the file."""
    file.unlink()
    other = file.with_name("elsewhere")
    match kind := rng.choice(("nothing", "folder", "to itself", "to nothing", "to the folder", "to a device")):
        case "folder":
            file.mkdir()
        case "to itself":
            file.symlink_to(file)
        case "to nothing":
            file.symlink_to(other)
        case "to the folder":
            file.symlink_to(file.parent)
        case "to a device":
            file.symlink_to("/dev/null")
    return kind


def strange_value(rng: random.Random, file: Path) -> str:
    """Valid JSON, of which one or two values are anything else."""
    value = json.loads(file.read_bytes())
    done = []
    for _ in range(rng.randint(1, 2)):
        place, by = rng.choice(places(value)), rng.choice(WEIRD)
        value = replaced(value, place, by)
        done.append(f"{place} = {by!r:.200}")
    file.write_text(json.dumps(value))
    return "; ".join(done)


def other_tensors(rng: random.Random, file: Path) -> str:
    """A whole safetensors file with other tensors than it had."""
    tensors = load_file(file)
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    match kind := rng.choice(("missing", "more", "renamed", "shape", "turned", "dtype", "nan", "inf", "huge", "none")):
        case "missing":
            del tensors[name]
        case "more":
            tensors[f"{name}.more"] = torch.ones(3)
        case "renamed":
            tensors[f"x{name}"] = tensors.pop(name)
        case "shape":
            tensors[name] = torch.ones([size + rng.choice((-1, 1, 7)) for size in tensor.shape])
        case "turned":
            tensors[name] = tensor.flatten().clone() if tensor.ndim > 1 else tensor[None].clone()
        case "dtype":
            other = rng.choice((torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int8, torch.bool))
            tensors[name] = tensor.to(other)
        case "nan" | "inf" if tensor.is_floating_point() and tensor.numel():
            tensor.view(-1)[rng.randrange(tensor.numel())] = float(kind)
        case "huge":
            tensors[name] = (
                torch.full_like(tensor, torch.finfo(tensor.dtype).max) if tensor.is_floating_point() else tensor
            )
        case "none":
            tensors = {}
    save_file(tensors, file, metadata={"format": "pt"})
    return f"{kind} {name}"


def fresh(source: Path, folder: Path) -> Path:
    """A new copy of the folder `source` at `folder`, in place of whatever is there."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    return folder

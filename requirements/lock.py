"""Write the lock files of this folder: the versions of constraints.txt, with the SHA-256 of what pip may install.

    python requirements/lock.py

pip itself says which files those are (`pip install --dry-run --report`), on Linux (x86-64) for every Python in
`PYTHONS`. It is asked twice, with its own settings and without them (`--isolated`): PyPI has the build of torch for
CUDA, and the settings must name a place that has the build for CPUs. The head of cpu.txt has the Pythons for which
there was one.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# Wheels for any of these are installed on Linux (x86-64) with glibc 2.28 or later.
PLATFORMS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(28, 4, -1)), "manylinux2014_x86_64", "linux_x86_64"]
# Lock file -> the extras that it is for. All are without torch, whose two builds have files of their own.
LOCKS = {"demo.txt": ("demo",), "all.txt": ("demo", "docs", "test")}
CPU, CUDA = "cpu.txt", "cuda.txt"
CPU_BUILD = "+cpu"


@dataclass(frozen=True)
class Wheel:
    """A file that pip may install.

    Attributes:
        needs: the requirements in its metadata.
    """

    name: str
    version: str
    sha256: str
    needs: tuple[str, ...]


def constraints() -> dict[str, str]:
    """The versions in constraints.txt, by the normalized name of the package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def resolved(python: str, *words: str) -> list[Wheel]:
    """What `pip install` with these words would install for this Python."""
    platforms = (word for platform in PLATFORMS for word in ("--platform", platform))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        target = ("--target", folder, "--python-version", python, "--only-binary", ":all:", *platforms)
        command = (sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", *target)
        subprocess.run([*command, "--report", str(report), *words], check=True)
        return list(map(wheel, json.loads(report.read_text(encoding="utf-8"))["install"]))


def wheel(item: Mapping[str, Any]) -> Wheel:
    """A wheel from its entry in pip's report."""
    metadata = item["metadata"]
    return Wheel(
        canonicalize_name(metadata["name"]),
        metadata["version"],
        item["download_info"]["archive_info"]["hashes"]["sha256"],
        tuple(metadata.get("requires_dist", ())),
    )


def closure(extras: Iterable[str], wheels: Mapping[str, Wheel], python: str) -> set[str]:
    """The packages that the project needs with these extras, of those in `wheels`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {"": project["dependencies"], **project["optional-dependencies"]}
    pending = [requirement for extra in ("", *extras) for requirement in map(Requirement, own[extra])]
    needs: set[tuple[str, frozenset[str]]] = set()
    while pending:
        requirement = pending.pop()
        name, wanted = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if name == project["name"]:
            pending += (Requirement(text) for extra in wanted for text in own[extra])
        elif name in wheels and (name, wanted) not in needs:
            needs.add((name, wanted))
            pending += needed(wheels[name], wanted, python)
    return {name for name, _ in needs}


def needed(wheel: Wheel, extras: frozenset[str], python: str) -> Iterator[Requirement]:
    """The requirements of a wheel with these extras, on Linux with this Python."""
    here = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    here |= {"platform_system": "Linux", "platform_machine": "x86_64", "os_name": "posix"}
    for requirement in map(Requirement, wheel.needs):
        if requirement.marker is None or any(
            requirement.marker.evaluate(here | {"extra": extra}) for extra in ("", *extras)
        ):
            yield requirement


def text(wheels: Iterable[Wheel], heading: Sequence[str]) -> str:
    """The content of a lock file."""
    hashes = defaultdict(set)
    for one in wheels:
        hashes[f"{one.name}=={one.version}"].add(one.sha256)
    lines = [f"# {line}" for line in heading]
    for pin in sorted(hashes, key=lambda pin: pin.split("==")):
        lines += [f"{pin} \\", *(f"    --hash=sha256:{value} \\" for value in sorted(hashes[pin]))]
        lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join(lines) + "\n"


def made(pythons: Sequence[str]) -> str:
    """The line of a lock file's head that says for which Pythons it is."""
    known = " to ".join((pythons[0], pythons[-1])) if len(pythons) == len(PYTHONS) else ", ".join(pythons)
    return f"Linux (x86-64), CPython {known}. Made by requirements/lock.py from constraints.txt."


def main() -> None:
    """Write all lock files."""
    versions = constraints()
    pinned = ("--no-deps", "--requirement", str(ROOT / "constraints.txt"))
    of_locks: dict[str, set[Wheel]] = {name: set() for name in LOCKS}
    of_cpu: dict[str, set[Wheel]] = {}
    of_cuda: set[Wheel] = set()
    for python in PYTHONS:
        wheels = resolved(python, *pinned) + resolved(python, "--isolated", *pinned)
        by_name = {wheel.name: wheel for wheel in wheels}
        for lock, extras in LOCKS.items():
            # setuptools builds the project itself.
            names = (closure(extras, by_name, python) | {"setuptools"}) - {"torch"}
            of_locks[lock] |= {wheel for wheel in wheels if wheel.name in names}
        cuda = resolved(
            python, "--isolated", "--constraint", str(ROOT / "constraints.txt"), f"torch=={versions['torch']}"
        )
        of_cuda |= {wheel for wheel in cuda if wheel.name == "torch" or wheel.name not in versions}
        cpu_build = {wheel for wheel in wheels if wheel.name == "torch" and wheel.version.endswith(CPU_BUILD)}
        if cpu_build:
            of_cpu[python] = cpu_build
    if not of_cpu:
        raise SystemExit(
            "pip finds no build of torch for CPUs: set PIP_EXTRA_INDEX_URL (or PIP_FIND_LINKS) to where PyTorch "
            "publishes its CPU builds (see pytorch.org)"
        )
    for lock, extras in LOCKS.items():
        heading = (f"What the project needs with the extras {', '.join(extras)}, except torch.", made(PYTHONS))
        (FOLDER / lock).write_text(text(of_locks[lock], heading), encoding="utf-8")
    heading = ("The build of torch for CPUs.", made(tuple(of_cpu)))
    (FOLDER / CPU).write_text(text(set().union(*of_cpu.values()), heading), encoding="utf-8")
    heading = (
        "The build of torch for CUDA, the one on PyPI, and what it needs beside the other lock files.",
        made(PYTHONS),
    )
    (FOLDER / CUDA).write_text(text(of_cuda, heading), encoding="utf-8")


if __name__ == "__main__":
    main()

